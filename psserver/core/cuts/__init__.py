"""Cuts: snapshots of this shard that belong to one state of all shards, and the changes that arrive late for them."""
