"""What becomes of gradients before they travel: 16 bits of each number, or compression with error feedback.

What compression leaves out of a gradient is kept here, and added to the next one: nothing is lost, some comes later.
Sends nothing. May import compression, travel, messages, values and the errors.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pswire.errors import NotFinite
from pswire.messages import Gradient
from pswire.specs.encodings import NONE, Compression, TopK
from pswire.tensors.compression import Packed, largest, packed, quantized
from pswire.tensors.values import DTYPES, Array, IndexedSlices, not_finite

#: Elements from which on a gradient is compressed: below it there is little to win, and biases learn faster whole.
LEAST = 1024


class Packer:
    """Gives gradients the form in which one worker sends them.

        packer = Packer(compression=TopK(0.01))
        sent = packer.gradient(shard, Gradient("W", version, array))

    A dense float32 gradient g of `LEAST` elements or more is compressed, with error feedback (Seide et al. 2014, "1-Bit
    Stochastic Gradient Descent", section 3; Karimireddy et al. 2019, "Error Feedback Fixes SignSGD", algorithm 2):

        c = g + rest;  sent = compress(c);  rest = c - sent

    so that over all steps the sum of what was sent, and the last rest, is the sum of the gradients. The rest is float32
    and has the shape of the gradient: one copy of the variables in the worker's memory. Smaller gradients, and rows
    (`IndexedSlices`), go in the form of the wire.

    A push counts as sent when it is packed. A retry is the same message, packed once. What was in a push that failed
    for good, or that the servers' policy has dropped, is lost with it as it is without compression, and not given back:
    of a push that failed it is not known whether the servers have it, and one that was dropped was too stale to be
    wanted. What it left out stays, and goes with the next. So does the rest at the end of a session: it is never sent.

    Args:
        wire: a form of `pswire.specs.encodings.ENCODINGS` for float32 that is not compressed, rounded to the nearest,
        without     feedback; "": as it is.
        compression: of gradients.

    Attributes:
        wire: what was given.
        keeps_rest: whether what a gradient leaves out goes into the next one. Then whoever pushes several gradients
            checks all of them with `check_finite` of `psworker.client.partitions` before the first is packed.
    """

    def __init__(self, encoding: str = "", compression: Compression = NONE) -> None:
        self.encoding = encoding
        self.keeps_rest = compression != NONE
        self._compression = compression
        self._rests: dict[tuple[int, str], Array] = {}

    def gradient(self, shard: int, gradient: Gradient) -> Gradient:
        """The gradient as it is to be sent, once; arrays that are not packed are borrowed.

        Args:
            shard: where it goes: of a variable on several shards, each part has a rest of its own.
            gradient: for a variable; no observation for a moving average, which has no next one to be made good by.

        Raises:
            NotFinite: it has NaN or infinity, and would be compressed; then nothing has changed. Or its sum with the
                rest has; then the rest is gone.
        """
        array = gradient.array
        if isinstance(array, Packed) or array.dtype != DTYPES["float32"]:
            return gradient
        if isinstance(array, IndexedSlices):
            if not self.encoding:
                return gradient
            values: Array = packed(array.values, self.encoding)  # type: ignore[assignment]
            return replace(gradient, array=array.with_values(values))
        if self.keeps_rest and array.size >= LEAST:
            return replace(gradient, array=self._compressed((shard, gradient.name), array))
        return replace(gradient, array=packed(array, self.encoding)) if self.encoding else gradient

    def _compressed(self, key: tuple[int, str], array: Array) -> Packed:
        bad = not_finite(array)
        if bad:
            raise NotFinite(f"gradient for {key[1]!r} has {bad:,} elements that are NaN or infinite: nothing was sent")
        rest = self._rests.pop(key, None)
        if rest is None or len(rest) != array.size:
            rest = np.zeros(array.size, np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            result = self._compress(array, rest)
        try:
            result.check()
        except FloatingPointError as error:
            raise NotFinite(
                f"gradient for {key[1]!r}, with what earlier ones have left out, has {error}: lower the learning rate, "
                "or clip gradients"
            ) from None
        self._rests[key] = rest
        return result

    def _compress(self, array: Array, rest: Array) -> Packed:
        if isinstance(self._compression, TopK):
            return largest(array, rest, max(1, round(self._compression.fraction * array.size)))
        return quantized(array, rest)
