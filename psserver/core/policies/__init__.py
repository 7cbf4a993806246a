"""Consistency policies: who may go on, and whose gradient counts.

A policy is one `decide(waiting, view) -> verdicts` in a file of its own, pure. To add one: the file, and a
scenario in `tests/scenarios/`.
"""

from psserver.core.policies.asynchronous import Asynchronous
from psserver.core.policies.verdicts import Apply, Drop, Policy, Serve, Verdict, View, Waiting

__all__ = ["Apply", "Asynchronous", "Drop", "Policy", "Serve", "Verdict", "View", "Waiting"]
