"""The shard behind gRPC: the service, admission control, shared memory, health."""
