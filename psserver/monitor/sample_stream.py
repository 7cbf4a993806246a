"""The newest samples, for viewers that follow them: each is encoded once, and a slow viewer delays no other."""

import threading
from collections import deque
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from psserver.monitor.json_text import encode_in_parts

#: Samples that a viewer may be behind; one that is further behind is dropped, and connects again.
MAX_BEHIND = 16

#: Viewers at the same time.
MAX_VIEWERS = 32

#: Seconds without a sample after which a comment is sent, by which a viewer that is gone is noticed.
HEARTBEAT_SECONDS = 15.0


class _Sample:
    """A sample with its number, encoded when the first viewer gets it."""

    def __init__(self, number: int, sample: Mapping[str, Any]) -> None:
        self.number, self._sample = number, sample

    @cached_property
    def event(self) -> bytes:
        """A server-sent event."""
        return f"id: {self.number}\ndata: {encode_in_parts(self._sample)}\n\n".encode()


class SampleStream:
    """Publishes samples to viewers. Any thread may call; `_changed` guards all, and is notified of a new sample."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._samples: deque[_Sample] = deque(maxlen=MAX_BEHIND)
        self._number = self._viewers = 0
        self._closed = False

    def publish(self, sample: Mapping[str, Any]) -> None:
        """Add a sample, which must not change afterwards."""
        with self._changed:
            self._number += 1
            self._samples.append(_Sample(self._number, sample))
            self._changed.notify_all()

    def close(self) -> None:
        """End all streams."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def follow(self, last: int | None) -> "Viewer | None":
        """A viewer of the samples after number `last`, or from the newest one on; None: there are too many viewers."""
        with self._changed:
            if self._viewers >= MAX_VIEWERS:
                return None
            self._viewers += 1
            if last is None or not self._number - MAX_BEHIND <= last <= self._number:
                last = self._number - 1
            return Viewer(self, max(0, last))

    def after(self, last: int) -> list[_Sample] | None:
        """Wait for samples after number `last`: none if there is none for a while; None if the stream has to end."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._number > last, HEARTBEAT_SECONDS)
            if self._closed or self._number - last > MAX_BEHIND:
                return None
            return [one for one in self._samples if one.number > last]

    def leave(self) -> None:
        """Count a viewer no more."""
        with self._changed:
            self._viewers -= 1


class Viewer:
    """One viewer's server-sent events, which end when it is further behind than `MAX_BEHIND`, or the stream closes."""

    def __init__(self, stream: SampleStream, last: int) -> None:
        self._stream, self._last = stream, last
        self._left = False

    def __iter__(self) -> Iterator[bytes]:
        yield b"retry: 2000\n\n"
        while (samples := self._stream.after(self._last)) is not None:
            self._last = samples[-1].number if samples else self._last
            yield b"".join([one.event for one in samples]) or b": no sample for some seconds\n\n"

    def close(self) -> None:
        """Leave the stream, once."""
        if not self._left:
            self._left = True
            self._stream.leave()
