"""`import psworker.errors`: the errors of worker and server, the module `pswire.errors`."""

import sys

from pswire import errors
from pswire.errors import *  # noqa: F403 - for type checkers

sys.modules[__name__] = errors
