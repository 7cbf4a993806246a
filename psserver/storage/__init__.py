"""Files of a shard: atomic writes, and the journal. The journal knows bytes, not messages."""
