"""The executor: runs a shard's steps on the event loop and their array tasks on threads."""
