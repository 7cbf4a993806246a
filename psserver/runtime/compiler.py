"""Compilation of update rules: each once, in a thread, before the step of the message that needs it."""

import asyncio
from collections.abc import Callable

from psserver.runtime.threads import Threads
from pswire.messages import Register, Tune
from pswire.optimizers import numba_compiler, rule_for
from pswire.optimizers.numba_compiler import Loop


class Compiler:
    """Compiles the loops of optimizers; other calls go on meanwhile. Called in the event loop."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._compiling = asyncio.Lock()
        self._compiled: set[Loop] = set()

    async def compile(
        self, message: Register | Tune, check: Callable[[Register | Tune], object], *, large: bool
    ) -> None:
        """Compile what a message needs, unless `check` refuses it; that of a `large` one is called in a thread."""

        def loops() -> set[Loop]:
            check(message)
            return _loops(message)

        found = await self._threads.between_steps(loops) if large else loops()
        if found <= self._compiled:
            return
        async with self._compiling:
            for loop in found - self._compiled:
                await self._threads.inspect(numba_compiler.machine_code, loop)
                self._compiled.add(loop)


def _loops(message: Register | Tune) -> set[Loop]:
    specs = [message.optimizer] if isinstance(message, Tune) else [one.optimizer for one in message.declarations]
    different = {id(spec): spec for spec in specs if spec is not None}.values()  # most variables share an optimizer
    return {loop for spec in different if (loop := rule_for(spec).loop) is not None}
