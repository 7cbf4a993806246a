"""The variables of a shard: storage, checks, updates and reads."""
