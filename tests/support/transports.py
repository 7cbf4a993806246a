"""The transport of all tests of a run: `pytest --transport grpc`. A test that names another one has that."""

import os
from typing import Any

from psworker.environment import variable

#: Its environment variable, which processes of tests have too (`commands.environment`).
VARIABLE = variable("transport")


def use(transport: str) -> None:
    """Use this transport in this process, and in those that it starts, where no test chooses one."""
    os.environ.pop(VARIABLE, None)
    if transport == "grpc":
        _over_grpc()


def _over_grpc() -> None:
    from psworker.transport.network_transport import NetworkTransport

    os.environ[VARIABLE] = "grpc"
    begin = NetworkTransport.__init__

    def over_grpc(self: NetworkTransport, *arguments: Any, transport: str = "auto", **options: Any) -> None:
        begin(self, *arguments, transport="grpc" if transport == "auto" else transport, **options)

    NetworkTransport.__init__ = over_grpc  # type: ignore[method-assign]


def streams() -> str:
    """What carries tensors where they are not in shared memory, as `Transport.tensor_transport` names it."""
    return "gRPC" if os.environ.get(VARIABLE) == "grpc" else "direct"
