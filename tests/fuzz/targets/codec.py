"""Every request and answer as bytes: decoded and checked, and if valid, the same when it is sent again."""

from google.protobuf.message import DecodeError

from pswire.codec import decode, encode
from pswire.messages import ANSWERS
from pswire.tensors.transport import InlineReceiver, InlineSender
from pswire.v1 import paramserver_pb2 as pb
from tests.fuzz.packets import unpack
from tests.support.shards import state_of

COVERS = ["pswire.codec", "pswire.specs", "pswire.messages", "pswire.tensors.compression"]
_SERVICE = pb.DESCRIPTOR.services_by_name["ParameterServer"]
KINDS = dict(
    enumerate(
        getattr(pb, kind.name)
        for method in _SERVICE.methods
        if not method.client_streaming
        for kind in (method.input_type, method.output_type)
    )
)
assert len(KINDS) == 2 * len(ANSWERS)


def run(data: bytes) -> None:
    for tag, part in unpack(data)[:4]:
        kind = KINDS[tag % len(KINDS)]
        try:
            proto = kind.FromString(part)
        except DecodeError:
            continue
        message = decode(proto, InlineReceiver())
        sent = encode(message, InlineSender()).SerializeToString()
        assert state_of(decode(kind.FromString(sent), InlineReceiver())) == state_of(message)
