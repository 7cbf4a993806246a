"""Arrays with a name: what a variable looks like, and which dtypes may travel.

Numpy only. Nothing here knows of messages, servers or gradients of a particular model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

#: Every dtype that a variable or a gradient may have, by its name on the wire. Data on the wire is little-endian.
DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(name).newbyteorder("<")
    for name in ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool")
}

MAX_DIMENSIONS = 16
MAX_NAME_LENGTH = 256


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, shape and dtype of a tensor; validated when built.

    Raises:
        ValueError: the name is empty or too long, a size is negative, or the dtype is not in `DTYPES`.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"

    def __post_init__(self) -> None:
        """Checks every field, so that a `TensorSpec` that exists can be trusted."""
        if not self.name or len(self.name) > MAX_NAME_LENGTH or not self.name.isprintable():
            raise ValueError(f"a variable's name has 1 to {MAX_NAME_LENGTH} printable characters, got {self.name!r}")
        if self.dtype not in DTYPES:
            raise ValueError(f"variable {self.name!r}: dtype {self.dtype!r} is none of {', '.join(DTYPES)}")
        if len(self.shape) > MAX_DIMENSIONS or any(size < 0 for size in self.shape):
            raise ValueError(
                f"variable {self.name!r}: shape {self.shape} needs sizes from 0 up, {MAX_DIMENSIONS} of them at most"
            )

    @classmethod
    def of(cls, name: str, array: Array) -> TensorSpec:
        """The spec of an array, whatever its byte order in memory."""
        return cls(name, array.shape, array.dtype.name)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Number of bytes of the elements."""
        return self.size * DTYPES[self.dtype].itemsize

    def matches(self, array: Array) -> bool:
        """Whether `array` has this shape and dtype, in whatever byte order."""
        # numpy puts a dtype's name together at every asking, so the common case comes first.
        same_dtype = array.dtype == DTYPES[self.dtype] or array.dtype.name == self.dtype
        return array.shape == self.shape and same_dtype

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}{list(self.shape)}"
