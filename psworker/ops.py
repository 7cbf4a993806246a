"""`import psworker.ops`: the ops, the module `psworker.autodiff.ops`."""

import sys

from psworker.autodiff import ops
from psworker.autodiff.ops import *  # noqa: F403 - for type checkers

sys.modules[__name__] = ops
