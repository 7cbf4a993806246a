"""The output of `psworker local`: plain lines, a live picture on a terminal, or JSON lines."""
