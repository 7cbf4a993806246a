"""Tensors: values and their sums, encodings, and the transports of their elements (inline, stream, shared memory)."""
