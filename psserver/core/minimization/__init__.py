"""Minimizations on a shard: portions of evaluations that are handed out, claimed, and counted in the shard's sum."""
