"""A gRPC channel whose calls have a token: as `authorization: Bearer TOKEN` in their metadata.

gRPC's own call credentials would start a thread for each call, and need TLS on the loopback interface too.
"""

from collections.abc import Callable
from typing import Any

import grpc

Metadata = tuple[tuple[str, str | bytes], ...]


class TokenChannel(grpc.Channel):  # type: ignore[misc]  # the package has no types
    """`channel`, with `token` in the metadata of each call, before the call's own."""

    def __init__(self, channel: grpc.Channel, token: str) -> None:
        self._channel = channel
        self._metadata: Metadata = (("authorization", f"Bearer {token}"),)

    def unary_unary(self, *arguments: Any, **options: Any) -> "_Method":  # noqa: ANN401 - as gRPC has them
        """As `grpc.Channel.unary_unary`."""
        return _Method(self._channel.unary_unary(*arguments, **options), self._metadata)

    def unary_stream(self, *arguments: Any, **options: Any) -> "_Method":  # noqa: ANN401
        """As `grpc.Channel.unary_stream`."""
        return _Method(self._channel.unary_stream(*arguments, **options), self._metadata)

    def stream_unary(self, *arguments: Any, **options: Any) -> "_Method":  # noqa: ANN401
        """As `grpc.Channel.stream_unary`."""
        return _Method(self._channel.stream_unary(*arguments, **options), self._metadata)

    def stream_stream(self, *arguments: Any, **options: Any) -> "_Method":  # noqa: ANN401
        """As `grpc.Channel.stream_stream`."""
        return _Method(self._channel.stream_stream(*arguments, **options), self._metadata)

    def subscribe(self, callback: Callable[..., None], try_to_connect: bool = False) -> None:
        """As `grpc.Channel.subscribe`."""
        self._channel.subscribe(callback, try_to_connect)

    def unsubscribe(self, callback: Callable[..., None]) -> None:
        """As `grpc.Channel.unsubscribe`."""
        self._channel.unsubscribe(callback)

    def close(self) -> None:
        """As `grpc.Channel.close`."""
        self._channel.close()

    def __enter__(self) -> "TokenChannel":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _Method:
    """A method of a channel, as gRPC's multi-callables are."""

    def __init__(self, method: Any, metadata: Metadata) -> None:  # noqa: ANN401
        self._method, self._metadata = method, metadata

    def __call__(self, request: Any, timeout: float | None = None, metadata: Metadata = (), **options: Any) -> Any:  # noqa: ANN401
        return self._method(request, timeout, self._metadata + tuple(metadata or ()), **options)

    def future(self, request: Any, timeout: float | None = None, metadata: Metadata = (), **options: Any) -> Any:  # noqa: ANN401
        """As `grpc.UnaryUnaryMultiCallable.future`."""
        return self._method.future(request, timeout, self._metadata + tuple(metadata or ()), **options)
