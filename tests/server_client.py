"""A client of a server for tests: every answer is a message, every error one of ours; and the frames of calls."""

import grpc

from pswire import optimizers
from pswire.channel import error_from, open_channel
from pswire.codec import decode, encode, from_frame, to_frame
from pswire.messages import Declaration, Join, Pull, Register, Sender, Status
from pswire.tensors.frames import incoming
from pswire.tensors.stream import StreamReceiver, StreamSender
from pswire.tensors.transport import InlineReceiver, InlineSender
from pswire.tensors.values import TensorSpec
from pswire.v1 import paramserver_pb2 as pb
from pswire.v1.paramserver_pb2_grpc import ParameterServerStub

TIMEOUT = 30


class Client:
    """One channel to a server; every answer is a message, every error one of ours."""

    def __init__(self, address):
        self.address = address
        self.channel = open_channel(address)
        self.stub = ParameterServerStub(self.channel)

    def unary(self, message):
        return self.send(type(message).__name__, encode(message, InlineSender()))

    def send(self, method, proto):
        """Sends a protobuf, also one that no codec would make."""
        try:
            return decode(getattr(self.stub, method)(proto, timeout=TIMEOUT), InlineReceiver())
        except grpc.RpcError as error:
            raise error_from(error, self.address) from None

    def send_bytes(self, method, data):
        call = self.channel.unary_unary(f"/paramserver.v1.ParameterServer/{method}")
        try:
            return call(data, timeout=TIMEOUT)
        except grpc.RpcError as error:
            raise error_from(error, self.address) from None

    def transfer(self, message):
        """One call in a stream of its own, its tensors in chunks, however small."""
        (answer,) = self.send_frames(frames_of(message))
        return answer

    def send_frames(self, frames):
        """Makes a Transfer of any frames, and yields its answers as they come."""
        transfer = self.channel.stream_stream("/paramserver.v1.ParameterServer/Transfer", pb.Frame.SerializeToString)
        try:
            answers = map(incoming, transfer(iter(frames), timeout=TIMEOUT))
            for frame in answers:
                receiver = StreamReceiver(frame.data)
                answer = from_frame(frame, receiver)
                if receiver.nbytes:
                    receiver.allocate()
                    answer = from_frame(frame, receiver)
                    while not receiver.complete:
                        receiver.feed(next(answers).chunk)
                yield answer
        except grpc.RpcError as error:
            raise error_from(error, self.address) from None

    def join(self, worker="w0"):
        return Sender(worker, self.unary(Join(worker)).incarnation)

    def register(self, sender, optimizer=None, **arrays):
        return self.transfer(Register(sender, tuple(declare(name, arrays[name], optimizer) for name in arrays)))

    def value(self, sender, name):
        return self.transfer(Pull(sender, (name,))).values[0].array

    def status(self):
        return self.unary(Status())


def declare(name, array, optimizer=None):
    return Declaration(TensorSpec.of(name, array), array, optimizer or optimizers.GradientDescent(learning_rate=1.0))


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
