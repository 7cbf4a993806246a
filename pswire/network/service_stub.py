"""The methods of the service at a channel, by their names in the descriptor."""

from typing import Any

import grpc
from google.protobuf.message_factory import GetMessageClass

from pswire.v1 import paramserver_pb2 as pb

_SERVICE: Any = pb.DESCRIPTOR.services_by_name["ParameterServer"]


class ServiceStub:
    """Callables for the methods of the server at a channel: `stub.Status(request, timeout=1.0)`."""

    def __init__(self, channel: grpc.Channel) -> None:
        for method in _SERVICE.methods:
            make = channel.stream_stream if method.client_streaming else channel.unary_unary
            call = make(
                f"/{_SERVICE.full_name}/{method.name}",
                request_serializer=GetMessageClass(method.input_type).SerializeToString,
                response_deserializer=GetMessageClass(method.output_type).FromString,
            )
            setattr(self, method.name, call)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - for type checkers: a method of the service
        raise AttributeError(f"the service has no method {name!r}")
