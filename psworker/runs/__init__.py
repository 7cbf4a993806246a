"""Runs in their folders: what `psworker local --run-dir` has written, read, listed, compared and plotted."""
