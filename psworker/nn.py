"""`import psworker.nn`: the layers, the module `psworker.model.layers`."""

import sys

from psworker.model import layers
from psworker.model.layers import *  # noqa: F403 - for type checkers

sys.modules[__name__] = layers
