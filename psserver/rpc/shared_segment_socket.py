"""The Unix socket over which workers of this host get segments: memory that this server makes for one of their streams.

The server gives descriptors and takes none, so no process chooses what it maps. Its threads do what may take long: they
map memory, wait for a worker, and close what any process may have sent to the socket. May import pswire.
"""

import logging
import os
import secrets
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass

from psserver.rpc.unix_sockets import listen
from pswire.tensors import shared_segments
from pswire.tensors.shared_segments import DONE, HANDOVER_TIMEOUT, TOKEN_BYTES, NotShared
from pswire.tensors.values import Array

#: Workers that are served at the same time; others wait in the socket's queue.
THREADS = 8

#: Workers in that queue at most.
QUEUE = 1024

#: Seconds for the token, which a worker sends as soon as it has connected.
TOKEN_TIMEOUT = 0.5

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Offer:
    """A segment that a worker may ask for once: its size, and where it goes in by its number."""

    nbytes: int
    number: int
    memories: dict[int, Array]
    asked: bool = False


class SegmentSocket:
    """A socket in `pswire.tensors.shared_segments.FOLDER`, for this user only, and its threads. Thread-safe.

    Raises `NotShared` where there can be none. `_lock` guards the offers, and the dictionaries that segments go into.
    """

    def __init__(self) -> None:
        shared_segments.check_supported()
        self._listening, self.name = listen(QUEUE)
        self._path = shared_segments.socket_path(self.name)
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._offers: dict[bytes, _Offer] = {}
        threads = range(THREADS)
        self._threads = [threading.Thread(target=self._serve, name="psserver-segments", daemon=True) for _ in threads]
        for thread in self._threads:
            thread.start()

    def offer(self, nbytes: int, number: int, memories: dict[int, Array]) -> bytes:
        """A token for a segment of `nbytes`, which goes into `memories` when its worker has it too."""
        token = secrets.token_bytes(TOKEN_BYTES)
        with self._lock:
            self._offers[token] = _Offer(nbytes, number, memories)
        return token

    def withdraw(self, token: bytes) -> bool:
        """End an offer; whether it was open. Otherwise its segment is there."""
        with self._lock:
            return self._offers.pop(token, None) is not None

    def close(self) -> None:
        """Remove the socket, and wait for its threads: a second, since a worker may not let them go."""
        self._closed.set()
        with suppress(FileNotFoundError):
            os.unlink(self._path)
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # wakes up the threads
        self._listening.close()
        end = time.monotonic() + 1.0
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))

    def _serve(self) -> None:
        """Serve one connection after the other."""
        while not self._closed.is_set():
            try:
                connection, _ = self._listening.accept()
            except OSError as error:
                if not self._closed.wait(0.1):  # too many open files, for example
                    log.warning("cannot accept a worker for shared memory: %s", error.strerror)
                continue
            with connection:
                try:
                    self._hand_over(connection)
                except OSError as error:  # the worker has gone, or sends nothing
                    log.info("a worker did not take its shared memory: %s", error)
                except Exception:
                    log.exception("shared memory was not handed over")

    def _hand_over(self, connection: socket.socket) -> None:
        """Give one worker its segment, or the reason why not. The order of the steps matters: see `segments`."""
        connection.settimeout(TOKEN_TIMEOUT)
        token = connection.recv(TOKEN_BYTES)
        if not token:  # another server has only looked whether this one lives (`sweep`)
            return
        connection.settimeout(HANDOVER_TIMEOUT)
        try:
            offer = self._asked_for(token)
            descriptor = shared_segments.create_file(offer.nbytes)
            try:
                memory = shared_segments.map_file(descriptor, offer.nbytes)
                socket.send_fds(connection, [DONE], [descriptor])
                if connection.recv(1) != DONE:
                    return
                shared_segments.seal_mapped(descriptor, memory)
            finally:
                os.close(descriptor)
            with self._lock:
                if self._offers.pop(token, None) is None:
                    raise NotShared("the stream went on without it")
                offer.memories[offer.number] = memory
        except NotShared as error:
            connection.sendall(str(error).encode())
            return
        connection.sendall(DONE)

    def _asked_for(self, token: bytes) -> _Offer:
        with self._lock:
            offer = self._offers.get(token)
            if offer is None or offer.asked:
                raise NotShared("no stream waits for memory with this token")
            offer.asked = True
            return offer
