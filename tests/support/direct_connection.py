"""A direct connection of a test, which is written and read byte by byte."""

import socket
import struct

from pswire.codec import from_frame, to_frame
from pswire.errors import FAMILY
from pswire.tensors import direct
from pswire.tensors.frame import Incoming
from pswire.tensors.shared_segments import socket_path
from pswire.tensors.stream import StreamReceiver, StreamSender
from pswire.v1 import paramserver_pb2 as pb
from tests.support.commands import BOUND


def bytes_of(message, *, few=0):
    """The bytes of a call, with its tensors behind the header, however small."""
    sender = StreamSender(few=few)
    header = to_frame(message, sender)
    return b"".join(direct.message(header, sender.data))


class DirectConnection:
    """A connection to the direct port that a client's Join has announced; it says the Hello of the last worker.

    `hello` has other fields of it, None: it sends nothing.
    """

    def __init__(self, client, token=None, **hello):
        host, where = client.address.rpartition(":")[0].strip("[]"), client.direct
        if where.port:
            self.socket = socket.create_connection((host, where.port), timeout=BOUND)
        else:
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.settimeout(BOUND)
            self.socket.connect(socket_path(where.socket))
        secret = client.credentials.token(client.address)
        fields = {"member": client.tokens.of() if token is None else token, "shard": 0}
        fields |= {"authorization": f"Bearer {secret}"} if secret else {}
        self._hello = pb.Hello(**fields | hello)

    def greet(self):
        """Reads the greeting, and sends the Hello; the connection."""
        assert self.read(len(direct.GREETING)) == direct.GREETING
        self.send(b"".join(direct.message(self._hello)))
        return self

    def send(self, *data):
        """Sends bytes, and calls with their tensors behind the header."""
        self.socket.sendall(b"".join(one if isinstance(one, bytes) else bytes_of(one) for one in data))

    def read(self, nbytes):
        """So many bytes, or those until the end."""
        data = b""
        while len(data) < nbytes and (more := self.socket.recv(nbytes - len(data))):
            data += more
        return data

    def frame(self) -> Incoming | None:
        """The next frame, with its elements; None at the end. Raises the error of a refusal."""
        data = self.read(direct.PREFIX_BYTES)
        if not data:
            return None
        found = direct.lengths(data)
        frame = direct.header_of(data + self.read(found.end - len(data)), found).parse()
        if frame.header.HasField("refusal"):
            raise FAMILY[frame.header.refusal.error](frame.header.refusal.message)
        return frame

    def answer(self):
        """The next answer; None at the end. Raises the error of a refusal."""
        frame = self.frame()
        return None if frame is None else from_frame(frame, StreamReceiver(frame.data, None, frame.follows))

    def rest(self):
        """All that comes until the server ends the connection."""
        data = b""
        try:
            while more := self.socket.recv(1 << 20):
                data += more
        except ConnectionResetError:
            pass
        return data

    def reset(self):
        """Ends it as a killed machine's system does."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def close(self):
        self.socket.close()
