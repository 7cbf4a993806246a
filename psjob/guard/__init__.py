"""The convergence guard: recognises the known failures of asynchronous training in the status of a job over time.

Pure: whoever asks the shards for their status, a launcher or a monitor, passes each one on, with the time.
docs/guard.md describes each failure; `psjob.guard.actions` acts on findings.
"""

from psjob.guard.finding import KINDS, Finding
from psjob.guard.guard import Guard

__all__ = ["KINDS", "Finding", "Guard"]
