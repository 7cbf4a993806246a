"""Variables of a shard: registration, updates, reads, and the checks of what is sent for them."""
