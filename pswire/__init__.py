"""What servers and workers say to each other: values, messages and errors (pure), and how they travel (wired).

The pure half (`values`, `specs`, `messages`, `payload`, `errors`) needs numpy alone and is what the shard and the
engine use. The wired half (`codec`, `lanes`, `channel`, `v1`) needs protobuf and grpc and is for the edges only.
"""
