"""Storage: checkpoints and the journal of one shard, as files."""
