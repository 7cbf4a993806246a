"""`import psworker.datasets`: files of examples, the module `psworker.data.datasets`."""

import sys

from psworker.data import datasets
from psworker.data.datasets import *  # noqa: F403 - for type checkers

sys.modules[__name__] = datasets
