"""A call over a direct connection whose message is sent while its arrays are filled, and which can be taken back."""

import queue
import threading
from collections.abc import Sequence

from pswire.messages import Answer, Request
from pswire.tensors import direct
from pswire.tensors.stream import StreamSender
from psworker.transport import Future
from psworker.transport.calls import TransferCall
from psworker.transport.connection import Connection
from psworker.transport.direct_stream import DirectStream


class BegunTransfer(TransferCall):
    """A `BegunCall`: a thread sends the header and then the arrays, which are borrowed until the answer is there.

    The server applies no message of which the last bytes are missing. So closing the connection takes it back, also by
    the deadline, after `seconds`.
    """

    def __init__(self, connection: Connection, stream: DirectStream, message: Request, seconds: float) -> None:
        self._direct = stream
        self._data: list[memoryview] = []
        self._given = 0  # arrays that the thread has got
        self._pieces: queue.SimpleQueue[Sequence[memoryview] | None] = queue.SimpleQueue()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._write, name="psworker-begun", daemon=True)
        super().__init__(connection, stream, message, seconds)

    def send(self, count: int) -> None:
        """As `BegunCall.send`."""
        self._give(min(count, len(self._data) - 1))

    def is_active(self) -> bool:
        """As `BegunCall.is_active`."""
        return self._error is None and self._stream.is_active()

    def finish(self, timeout: float) -> Future[Answer]:
        """As `BegunCall.finish`."""
        deadlines = self._connection.deadlines
        deadlines.drop(self._deadline)
        self._deadline = deadlines.set(timeout, self._stream.cancel)
        self._give(len(self._data))
        self._pieces.put(None)
        self._receive_ahead()
        return Future(self.result)

    def take_back(self) -> None:
        """As `BegunCall.take_back`."""
        self._connection.deadlines.drop(self._deadline)
        self._pieces.put(None)
        self._stream.cancel()
        self._thread.join()
        self._stream.end()

    def _begin(self) -> None:
        header, sender = self._frame(StreamSender(few=0))
        self._data = sender.data
        self._pieces.put([memoryview(direct.opening(header, sender.nbytes))])
        self._thread.start()

    def _give(self, count: int) -> None:
        if count > self._given:
            self._pieces.put(self._data[self._given : count])
            self._given = count

    def _write(self) -> None:
        try:
            while (pieces := self._pieces.get()) is not None:
                self._direct.write(pieces)
        except Exception as error:  # noqa: BLE001 - raised by the thread that waits for the answer
            self._error = error

    def _receive(self) -> Answer:
        self._thread.join()  # TLS is not for two threads at once
        if self._error is not None:
            raise self._error
        return super()._receive()
