"""The status of a job over all its shards: asked for, merged, as a table; and changes of a job from outside."""
