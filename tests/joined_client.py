"""A client that is a member of the job of real servers, for tests."""

import contextlib

from psworker.client.client import Client
from psworker.transport.grpc_transport import GrpcTransport


@contextlib.contextmanager
def joined(addresses, worker="w0", timeout=30.0, around=lambda transport: transport):
    """It leaves at the end; `around` may put something around its transport."""
    client = Client(around(GrpcTransport(addresses)), worker, timeout)
    try:
        client.join()
        yield client
    finally:
        client.leave()
        client.close()
