"""What watches a job, for servers and workers: its status and rates, the guard, terminals and logs, spans.

Servers, workers, launchers and monitors use it; it knows the protocol only, and nothing of theirs.
"""
