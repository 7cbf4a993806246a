"""Raw frames of HTTP/2 on a plain socket, for what no gRPC client can do: unfinished messages, resets, idle streams.

Independent of gRPC and of this project; blocking, for one thread. Frames and numbers as in RFC 9113.
"""

import select
import socket
import struct
import time

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0x0, 0x1, 0x3, 0x4, 0x6, 0x7, 0x8
END_STREAM, ACKNOWLEDGED, END_HEADERS = 0x1, 0x1, 0x4
INITIAL_WINDOW_SIZE, CANCEL = 0x4, 0x8
MAX_FRAME = 16_384


class ConnectionEnded(Exception):
    """The server has ended the connection."""


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One frame."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def header_block(path: str, metadata: dict[str, str]) -> bytes:
    """The headers of a gRPC call, none of them compressed (RFC 7541, 6.2.2)."""
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "localhost",
        "content-type": "application/grpc",
        "te": "trailers",
        **metadata,
    }
    return b"".join(b"\0" + _string(name) + _string(value) for name, value in headers.items())


def _string(text: str) -> bytes:
    data = text.encode()
    if len(data) < 127:
        return bytes([len(data)]) + data
    rest, out = len(data) - 127, bytearray([127])
    while rest > 127:
        out.append(rest & 127 | 128)
        rest >>= 7
    out.append(rest)
    return bytes(out) + data


def message(data: bytes) -> bytes:
    """A gRPC message: a flag, its length, the bytes."""
    return b"\0" + struct.pack(">I", len(data)) + data


class RawConnection:
    """A connection that speaks as little HTTP/2 as a server accepts.

    Attributes:
        ended: streams that the server has ended, by their numbers: True if by a reset.
        received: bytes of the answers of each stream.
    """

    def __init__(self, address: str, *, answer_window: int | None = None) -> None:
        """Connect; the server may send `answer_window` bytes on a stream (None: 65,535)."""
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host.strip("[]"), int(port)), timeout=10)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._next, self._buffer = 1, bytearray()
        self._window, self._initial, self._windows = 65_535, 65_535, dict[int, int]()
        self.ended: dict[int, bool] = {}
        self.received: dict[int, int] = {}
        settings = b"" if answer_window is None else struct.pack(">HI", INITIAL_WINDOW_SIZE, answer_window)
        self.send(PREFACE + frame(SETTINGS, 0, 0, settings))

    def close(self) -> None:
        """End the connection at once."""
        self._socket.close()

    def send(self, data: bytes) -> None:
        """Send frames as they are, or raise `ConnectionEnded`."""
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise ConnectionEnded(str(error)) from error

    def open(self, path: str, data: bytes = b"", *, end: bool = False, metadata: dict[str, str] | None = None) -> int:
        """Begin a call, and send `data` with its headers, if it is no more than a frame; its stream."""
        stream, self._next = self._next, self._next + 2
        self._windows[stream] = self._initial - len(data)
        self._window -= len(data)
        opened = frame(HEADERS, END_HEADERS, stream, header_block(path, metadata or {}))
        self.send(opened + (frame(DATA, END_STREAM if end else 0, stream, data) if data or end else b""))
        return stream

    def opened_and_reset(self, path: str, count: int) -> bytes:
        """The frames that begin `count` calls and reset each at once."""
        headers, cancelled, frames = header_block(path, {}), struct.pack(">I", CANCEL), []
        for _ in range(count):
            stream, self._next = self._next, self._next + 2
            frames.append(frame(HEADERS, END_HEADERS, stream, headers) + frame(RESET, 0, stream, cancelled))
        return b"".join(frames)

    def data(self, stream: int, data: bytes, seconds: float = 5.0) -> int:
        """Send as much of `data` as the server's windows allow within `seconds`; how many bytes were sent."""
        view, deadline = memoryview(data), time.monotonic() + seconds
        while view and stream not in self.ended:
            allowed = min(self._window, self._windows[stream], MAX_FRAME, len(view))
            if allowed > 0:
                self.send(frame(DATA, 0, stream, bytes(view[:allowed])))
                view = view[allowed:]
                self._window -= allowed
                self._windows[stream] -= allowed
                self.read(0)
            elif time.monotonic() > deadline:
                break
            else:
                self.read(0.05)
        return len(data) - len(view)

    def read(self, seconds: float) -> None:
        """Handle what the server has sent; wait `seconds` for it at most."""
        while select.select([self._socket], [], [], seconds)[0]:
            try:
                got = self._socket.recv(1 << 20)
            except OSError as error:
                raise ConnectionEnded(str(error)) from error
            if not got:
                raise ConnectionEnded("by the server")
            self._buffer += got
            self._handle()
            seconds = 0

    def _handle(self) -> None:
        while len(self._buffer) >= 9:
            length = int.from_bytes(self._buffer[:3], "big")
            if len(self._buffer) < 9 + length:
                return
            kind, flags, stream = struct.unpack(">BBI", self._buffer[3:9])
            payload = bytes(self._buffer[9 : 9 + length])
            del self._buffer[: 9 + length]
            if kind == SETTINGS and not flags & ACKNOWLEDGED:
                for place in range(0, length, 6):
                    name, value = struct.unpack_from(">HI", payload, place)
                    if name == INITIAL_WINDOW_SIZE:
                        for one in self._windows:
                            self._windows[one] += value - self._initial
                        self._initial = value
                self.send(frame(SETTINGS, ACKNOWLEDGED, 0))
            elif kind == PING and not flags & ACKNOWLEDGED:
                self.send(frame(PING, ACKNOWLEDGED, 0, payload))
            elif kind == WINDOW_UPDATE:
                (more,) = struct.unpack(">I", payload)
                if stream == 0:
                    self._window += more
                elif stream in self._windows:
                    self._windows[stream] += more
            elif kind == RESET:
                self.ended[stream] = True
            elif kind in (DATA, HEADERS):
                if kind == DATA:
                    self.received[stream] = self.received.get(stream, 0) + length
                if flags & END_STREAM:
                    self.ended.setdefault(stream, False)
            elif kind == GOAWAY:
                raise ConnectionEnded(f"GOAWAY: {payload[8:].decode(errors='replace')}")
