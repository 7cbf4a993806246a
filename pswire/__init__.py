"""The protocol of servers and workers: messages, codec, tensors, optimizers, specs, errors, channels.

The pure half (`messages`, `optimizers`, `specs`, `tensors.values`, `errors`) needs numpy only: shard and engine use it.
`codec`, the tensor transports, `channel` and `v1` need protobuf and grpc.
"""
