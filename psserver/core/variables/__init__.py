"""Variables of a shard: registration, updates, reads, and checks of arrays in messages."""
