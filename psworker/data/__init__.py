"""Examples: datasets in memory and memory maps, functions, iterables; and the order in which an epoch reads them.

Programs have `Dataset`, `FunctionDataset`, `Ragged` and `Batch` as `ps.Dataset` and so on; `Queue` is `ps.data.Queue`.
"""

from psworker.data.queue import Queue

__all__ = ["Queue"]
