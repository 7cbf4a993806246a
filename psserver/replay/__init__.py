"""Replay of a journal, offline: the shard again, record by record, to the same bits; pushes, norms, verification."""
