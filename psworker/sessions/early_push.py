"""A push that is sent while the gradients of its step are still being computed."""

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from pswire.tensors.values import IndexedSlices, LateArray, not_finite
from psworker.model.base_variable import BaseVariable
from psworker.model.gradient_transforms import GradientAndVariable


class EarlyPush:
    """The gradients of one step, which travel as they are put: `put` them in the order of `arrays`.

    The last gradient of each shard, one of `held`, is held back, so that no shard has all of its part before `release`.
    `spoil` makes NaN of those instead: each shard refuses its part, and nothing is applied.
    """

    def __init__(self, arrays: Sequence[tuple[LateArray, BaseVariable]], held: Collection[str]) -> None:
        self._arrays = {variable.name: array for array, variable in arrays}
        self._held = held
        self._put: set[str] = set()
        self._fits = True
        for array in self._arrays.values():
            array.ready.clear()

    def put(self, name: str, gradient: np.ndarray) -> None:
        """Sends the gradient of a variable; a second one is another gradient than that which travels."""
        if name in self._put:
            self._fits = False
            return
        self._put.add(name)
        np.copyto(self._arrays[name], gradient)
        if name not in self._held:
            self._arrays[name].ready.set()

    def is_of(self, pairs: Iterable[GradientAndVariable]) -> bool:
        """True if these are the gradients that were put, all of them, and finite."""
        given = {variable.name: gradient for gradient, variable in pairs if gradient is not None}
        if not self._fits or not given.keys() == self._put == self._arrays.keys():
            return False
        for name, gradient in given.items():
            if isinstance(gradient, IndexedSlices) or not np.array_equal(self._arrays[name], gradient):
                return False
        return not any(not_finite(array) for array in self._arrays.values())

    def release(self) -> None:
        """Sends what was held back."""
        for array in self._arrays.values():
            array.ready.set()

    def spoil(self) -> None:
        """Sends NaN in place of what was held back."""
        for name in self._held:
            self._arrays[name].fill(np.nan)
        self.release()
