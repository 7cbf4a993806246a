"""What holds for each target of fuzzing and each input: only errors of our family, in bounded time and memory.

A target is a module of `tests/fuzz/targets`: its function `run` takes the bytes of an input, `COVERS` names the modules
whose lines count, and `MAX_SECONDS` is its own bound if it has a shorter one. For inputs of packets, `HEAD` is the
number of bytes before them, and `KINDS` has the protobufs of tags, so that mutations keep them well-formed.
"""

import importlib
import logging
import pkgutil
import re
import time
from contextlib import suppress
from pathlib import Path
from types import ModuleType

from pswire.errors import ParamServerError
from pswire.optimizers import numba_compiler
from tests.fuzz import targets

CORPUS = Path(__file__).parent / "corpus"

#: Where `make fuzz` keeps what it finds.
WORK = Path(__file__).resolve().parents[2] / "build" / "fuzz"
FINDINGS = WORK / "findings"

#: For one input: seconds of the processor, which do not depend on other processes, and bytes by which the peak of the
#: process's memory may grow.
MAX_SECONDS, MAX_GROWTH = 1.0, 64 << 20


class Finding(AssertionError):
    """Something that no input may do."""


class _Errors(logging.Handler):
    """Collects what is logged as an error: the server catches exceptions of a call, and logs them."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(logging.Formatter().format(record))


def names() -> list[str]:
    """All targets."""
    return sorted(module.name for module in pkgutil.iter_modules(targets.__path__))


def load(name: str) -> ModuleType:
    """A target by its name, with all that its first run imports."""
    target = importlib.import_module(f"{targets.__name__}.{name}")
    for path in seeds(name)[:20]:
        with suppress(Exception):  # found again by `check`
            _run(target, path.read_bytes())
    return target


def seeds(name: str) -> list[Path]:
    """The inputs in the repository, those of former findings included."""
    return sorted((CORPUS / name).glob("*"))


def check(target: ModuleType, data: bytes) -> None:
    """Run a target on an input. Raises `Finding`, or the exception that must not be."""
    errors = _Errors()
    logging.getLogger().addHandler(errors)
    peak, began = _peak(reset=True), time.process_time()
    try:
        _run(target, data)
    except Exception as error:
        raise Finding("\n".join([f"{type(error).__name__}: {error}", *errors.texts])) from error
    finally:
        logging.getLogger().removeHandler(errors)
    seconds, growth = time.process_time() - began, _peak() - peak
    if errors.texts:
        raise Finding("logged as an error:\n" + "\n".join(errors.texts))
    if seconds > getattr(target, "MAX_SECONDS", MAX_SECONDS):
        raise Finding(f"{seconds:.1f} s for an input of {len(data):,} bytes")
    if growth > MAX_GROWTH:
        raise Finding(f"{growth:,} bytes of memory for an input of {len(data):,} bytes")


def _run(target: ModuleType, data: bytes) -> None:
    """Run a target; without numba, which would compile rules for seconds, and whose code has no coverage."""
    uses, numba_compiler.USE_NUMBA = numba_compiler.USE_NUMBA, False
    try:
        target.run(data)
    except ParamServerError:
        pass  # refused, as it may be
    finally:
        numba_compiler.USE_NUMBA = uses


def _peak(*, reset: bool = False) -> int:
    """The peak of this process's memory in bytes, since it was last reset (Linux)."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    [kibibytes] = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(kibibytes) << 10
