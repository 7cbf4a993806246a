"""The shard: a deterministic machine that takes a message and returns replies.

No input or output, clock, thread, randomness or log in this package; it needs numpy and pswire's pure half.
Begin reading at `shard`.
"""
