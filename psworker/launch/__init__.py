"""The command `psworker`: one worker, or a local cluster of processes."""
