"""The monitor of a job: asks its shards for their status once a second, and shows it by HTTP. Without the shard."""
