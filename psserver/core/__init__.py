"""The shard: a deterministic state machine that takes messages and returns replies.

This package has no I/O, clock, threads, randomness or logging; it needs numpy and the pure modules of pswire. Start
reading at `shard.py`.
"""
