"""Calls to all shards of a job: pushes and pulls, retries, heartbeats, placement and partitions."""
