"""A client of a server for tests: every answer is a message, every error one of ours; and the frames of calls."""

import queue

import grpc

from pswire.channel import error_from, open_channel
from pswire.codec import decode, encode, from_frame, to_frame
from pswire.messages import Declaration, Join, Pull, Register, Sender, Status
from pswire.optimizers import GradientDescent
from pswire.security.credentials import NO_CREDENTIALS
from pswire.tensors.frames import incoming
from pswire.tensors.shared_memory import SharedReceiver
from pswire.tensors.stream import StreamReceiver, StreamSender
from pswire.tensors.transport import InlineReceiver, InlineSender
from pswire.tensors.values import TensorSpec
from pswire.v1 import paramserver_pb2 as pb
from pswire.v1.paramserver_pb2_grpc import ParameterServerStub

TIMEOUT = 30


class Client:
    """One channel to a server."""

    def __init__(self, address, credentials=NO_CREDENTIALS):
        self.address, self.credentials = address, credentials
        self.channel = open_channel(address, credentials)
        self.stub = ParameterServerStub(self.channel)

    def unary(self, message):
        return self.send(type(message).__name__, encode(message, InlineSender()))

    def send(self, method, proto):
        """Sends a protobuf, also one that no codec would make."""
        try:
            return decode(getattr(self.stub, method)(proto, timeout=TIMEOUT), InlineReceiver())
        except grpc.RpcError as error:
            raise error_from(error, self.address, self.credentials) from None

    def send_bytes(self, method, data):
        try:
            return self.channel.unary_unary(f"/paramserver.v1.ParameterServer/{method}")(data, timeout=TIMEOUT)
        except grpc.RpcError as error:
            raise error_from(error, self.address, self.credentials) from None

    def send_frames(self, frames):
        """The answers to a Transfer of any frames, as they come."""
        stream = Stream(self)
        stream.send(*frames, None)
        yield from iter(stream.answer, None)

    def transfer(self, message):
        """One call in a stream of its own, its tensors in chunks, however small."""
        (answer,) = self.send_frames(frames_of(message))
        return answer

    def join(self, worker="w0"):
        return Sender(worker, self.unary(Join(worker)).incarnation)

    def register(self, sender, optimizer=GradientDescent(1.0), **arrays):  # noqa: B008 - frozen
        declared = [Declaration(TensorSpec.of(name, array), array, optimizer) for name, array in arrays.items()]
        return self.transfer(Register(sender, tuple(declared)))

    def value(self, sender, name):
        return self.transfer(Pull(sender, (name,))).values[0].array

    def status(self):
        return self.unary(Status())


class Stream:
    """An open Transfer; `memories` has the segments that it has attached, by their numbers."""

    def __init__(self, client):
        self._client, self._frames, self.memories = client, queue.SimpleQueue(), {}
        transfer = client.channel.stream_stream("/paramserver.v1.ParameterServer/Transfer", pb.Frame.SerializeToString)
        self._received = transfer(iter(self._frames.get, None), timeout=TIMEOUT)

    def send(self, *frames):
        """Sends frames; None ends the stream."""
        for frame in frames:
            self._frames.put(frame)

    def flush(self):
        """Waits until gRPC has taken all frames: then all but the last are handed to the connection."""
        while not self._frames.empty():
            pass

    def close(self):
        self.send(None)
        self._received.cancel()

    def attach(self, sender, number, nbytes):
        """The server's reply to a request for a segment."""
        sender = pb.Sender(worker=sender.worker, incarnation=sender.incarnation)
        self.send(pb.Frame(attach=pb.AttachRequest(segment=number, nbytes=nbytes, sender=sender)))
        return self.frame().header.attached

    def frame(self):
        """The next frame of an answer; None at the end."""
        try:
            data = next(self._received, None)
        except grpc.RpcError as error:
            raise error_from(error, self._client.address, self._client.credentials) from None
        return None if data is None else incoming(data)

    def answer(self):
        """The next answer, with arrays in shared memory as views; None at the end."""
        if (frame := self.frame()) is None:
            return None
        receiver = StreamReceiver(frame.data, SharedReceiver(self.memories))
        answer = from_frame(frame, receiver)
        if receiver.nbytes:
            receiver.allocate()
            answer = from_frame(frame, receiver)
            while not receiver.complete:
                receiver.feed(self.frame())
        return answer


def frames_of(message):
    """The frames of a call: a list whose first is the header."""
    sender = StreamSender(few=0)
    header = to_frame(message, sender)
    return [header, *(pb.Frame(chunk=b"".join(pieces)) for pieces in sender.chunks())]


def frame_of(message):
    """A call in one frame, with its tensors, which are few."""
    sender = StreamSender(few=0)
    (data,) = sender.frames(to_frame(message, sender))
    return pb.Frame.FromString(data)
