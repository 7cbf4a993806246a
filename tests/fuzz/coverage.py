"""Lines and branches of modules that inputs reach, by Python's tracing: without a package, and slow."""

import importlib
import pkgutil
import sys
from collections.abc import Callable, Iterable
from types import CodeType, FrameType, ModuleType
from typing import Any

#: A file, and the lines before and after a step in it.
Arc = tuple[str, int, int]


def files(names: Iterable[str]) -> dict[str, set[int]]:
    """The files of modules and packages by name, each with its lines that have code, in functions alone."""
    found: dict[str, set[int]] = {}
    for name in names:
        module = importlib.import_module(name)
        inner = [one.name for one in pkgutil.walk_packages(getattr(module, "__path__", ()), f"{name}.")]
        for one in [module, *map(importlib.import_module, inner)]:
            assert one.__file__ is not None
            with open(one.__file__) as file:
                found[one.__file__] = _lines(compile(file.read(), one.__file__, "exec"), in_function=False)
    return found


def _lines(code: CodeType, *, in_function: bool) -> set[int]:
    found = {line for _, _, line in code.co_lines() if line} - {code.co_firstlineno} if in_function else set()
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            is_class = "__qualname__" in constant.co_names and not constant.co_flags & 1
            found |= _lines(constant, in_function=not is_class)
    return found


def arcs(names: Iterable[str], run: Callable[[], object]) -> set[Arc]:
    """The steps from line to line in these modules while `run` runs, which may raise."""
    wanted, found = set(files(names)), set()

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code.co_filename not in wanted:
            return None
        last = 0

        def inside(frame: FrameType, event: str, argument: object) -> Any:
            nonlocal last
            if event == "line":
                found.add((frame.f_code.co_filename, last, frame.f_lineno))
                last = frame.f_lineno
            return inside

        return inside

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    except Exception:  # noqa: BLE001 - a finding is not the subject here
        pass
    finally:
        sys.settrace(before)
    return found


def lines(target: ModuleType, inputs: Iterable[bytes]) -> tuple[int, int]:
    """Lines of the modules of a target that inputs reach, and all there are."""
    there = files(target.COVERS)

    def run() -> None:
        for data in inputs:
            try:
                target.run(data)
            except Exception:  # noqa: BLE001
                continue

    reached = {(file, line) for file, _, line in arcs(target.COVERS, run)}
    found = sum([len(numbers & {line for name, line in reached if name == file}) for file, numbers in there.items()])
    return found, sum(map(len, there.values()))
