"""What holds for all tests: what is the same for each of them is done once."""

import gc
import os
import sys


def pytest_configure() -> None:
    """Lets Python keep what it has compiled, whatever the environment says.

    The tests start some two hundred processes, each of which would compile the three packages anew.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False


def pytest_collection_finish() -> None:
    """Takes what was collected out of the garbage collector's sight: it is large, and lives to the end.

    Otherwise each full collection walks over all tests, a fifth of the time that the small ones take.
    """
    gc.collect()
    gc.freeze()
