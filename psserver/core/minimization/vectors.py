"""The vectors of variables, which minimizations compute with: directions, points, and the sum of gradients."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import numpy as np

from psserver.core.minimization.vector_operations import Results, run
from psserver.core.policies.policy import join_names
from psserver.core.variables.array_tasks import ArrayTask, StepResult, add_to
from psserver.core.variables.memory import Memory
from psserver.core.variables.store import Store
from psserver.core.variables.variable import Variable
from pswire import messages as ms
from pswire.errors import InvalidMessage, TooLarge
from pswire.limits import MAX_VECTORS
from pswire.specs.vectors import GRADIENT, MEASURES, VARIABLES, Drop, Operation, vectors_read
from pswire.tensors.values import DTYPES, Array


class Vectors:
    """The vectors of the variables of a store; each has the shape and dtype of its variable."""

    def __init__(self, store: Store, memory: Memory) -> None:
        self._store, self._memory = store, memory

    def check(self, message: ms.Compute) -> None:
        """Raise if an operation reads a vector that is not there, or there is no memory for the new ones."""
        needed, drops = 0, Drop() in message.operations[:1]
        if Drop() in message.operations[1:]:
            raise InvalidMessage("vectors are dropped before other operations, not after them")
        for name in message.names:
            variable = self._store[name]
            spec, there = variable.spec, {VARIABLES, *(() if drops else variable.vectors)}
            if variable.initial is not None or DTYPES[spec.dtype].kind != "f":
                raise InvalidMessage(f"variable {spec} has no vectors: only plain ones of floating point have")
            for operation in message.operations:
                for vector in vectors_read(operation):
                    if vector not in there:
                        raise InvalidMessage(
                            f"{operation} needs the vector {vector!r} of variable {name!r}; there are: "
                            + join_names(sorted(there))
                        )
                there.add(operation.vector)
            if len(there) > MAX_VECTORS:
                raise TooLarge(f"variable {name!r} would have {len(there)} vectors: {MAX_VECTORS} at most")
            needed += spec.nbytes * (len(there) - 1 - len(variable.vectors))
        if needed > self._memory.free:
            raise TooLarge(
                f"vectors of {join_names(message.names)} need {needed:,} bytes more; this shard holds "
                f"{self._store.nbytes:,} and may hold {self._memory.limit:,}: use more shards, a smaller memory of the "
                "method, or raise --memory-limit"
            )

    def compute(self, message: ms.Compute, result: StepResult) -> Sequence[float]:
        """Apply operations with vectors; the results, which are there when the tasks have run."""
        operations = message.operations
        written = {one.vector for one in operations if not isinstance(one, (*MEASURES, Drop))}
        results = Results.of(operations, len(message.names))
        for part, name in enumerate(message.names):
            variable = self._store.variables[name]
            if (written or Drop() in operations) and variable.copy is not None:
                variable.copy.start(result)
            nbytes, before = variable.spec.nbytes, len(variable.vectors)
            if Drop() in operations:
                variable.vectors = {}
            for vector in sorted(written - {VARIABLES, *variable.vectors}):
                variable.vectors[vector] = np.empty(variable.spec.shape, variable.value.dtype)
            arrays = {VARIABLES: variable.value} | variable.vectors
            work = partial(_compute, operations, arrays, results, part)
            result.tasks.append(ArrayTask(name, nbytes * max(1, len(operations)), work))
            self._store.nbytes += nbytes * (len(variable.vectors) - before)
            if VARIABLES in written:
                variable.version += 1
                variable.growth = math.inf  # elements may be as large as they like
        return results.pairs

    def clear_gradient(self, result: StepResult) -> None:
        """Make the sum of gradients 0, of all variables that have one: an evaluation begins."""
        for variable in self._store:
            if GRADIENT in variable.vectors:
                self._change_gradient(variable, _clear, variable.spec.nbytes, result)

    def check_gradients(self, assignments: Iterable[ms.Assignment]) -> None:
        """Check gradients for the sum of an evaluation, and that there is memory for it."""
        needed = 0
        for one in assignments:
            variable = self._store[one.name]
            spec = variable.spec
            if variable.initial is not None or DTYPES[spec.dtype].kind != "f" or one.first_row is not None:
                raise InvalidMessage(f"variable {spec} has no sum of gradients, or not of rows alone")
            needed += 0 if GRADIENT in variable.vectors else spec.nbytes
        if needed > self._memory.free:
            raise TooLarge(
                f"the sum of gradients needs {needed:,} bytes more; this shard holds {self._store.nbytes:,} and may "
                f"hold {self._memory.limit:,}: use more shards, or raise --memory-limit"
            )

    def add_to_sum(self, assignments: Iterable[ms.Assignment], result: StepResult) -> None:
        """Add gradients to the sum of the present evaluation."""
        for one in assignments:
            variable = self._store.variables[one.name]
            if GRADIENT not in variable.vectors:
                variable.vectors[GRADIENT] = np.zeros(variable.spec.shape, variable.value.dtype)
                self._store.nbytes += variable.spec.nbytes
            self._change_gradient(variable, partial(add_to, delta=one.array), one.array.nbytes, result)

    def _change_gradient(
        self, variable: Variable, change: Callable[[Array], None], nbytes: int, result: StepResult
    ) -> None:
        if variable.copy is not None:
            variable.copy.start(result)
        work = partial(change, variable.vectors[GRADIENT])
        result.tasks.append(ArrayTask(variable.spec.name, nbytes, work))


def _compute(operations: Sequence[Operation], arrays: Mapping[str, Array], results: Results, part: int) -> None:
    flat = {name: array.reshape(-1) for name, array in arrays.items()}
    results.put(part, run([one for one in operations if not isinstance(one, Drop)], flat))


def _clear(sums: Array) -> None:
    sums[...] = 0
