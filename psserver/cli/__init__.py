"""The command `psserver`: serve a shard, show the status of a job, check health."""
