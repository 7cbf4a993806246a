"""Encoding of gradients before they travel: 16-bit elements, or compression with error feedback. Sends nothing.

Residuals, which compression leaves out, are kept here and added to the next gradient.
"""

from dataclasses import replace

import numpy as np

from pswire.errors import NotFinite
from pswire.messages import Gradient
from pswire.specs.encodings import NONE, Compression, TopK
from pswire.tensors.compression import Packed, quantize_int8, to_16_bits, top_k
from pswire.tensors.values import DTYPES, Array, IndexedSlices

#: Elements from which on a gradient is compressed: smaller ones gain little, and biases learn faster without
#: compression.
MIN_COMPRESSED_ELEMENTS = 1024


class GradientEncoder:
    """Encodes the gradients of one worker.

    A dense float32 gradient g of `MIN_COMPRESSED_ELEMENTS` elements or more is compressed, with error feedback
    (Seide et al. 2014, "1-Bit Stochastic Gradient Descent", section 3; Karimireddy et al. 2019, "Error Feedback Fixes
    SignSGD", algorithm 2):

        c = g + residual;  sent = compress(c);  residual = c - sent

    so that over all steps the sum of what was sent, plus the last residual, is the sum of the gradients. A residual is
    float32 and has the shape of the gradient: one copy of the variables in the worker's memory. Smaller gradients, and
    rows (`IndexedSlices`), travel in `encoding`.

    A push counts as sent when it is encoded; a retry repeats the encoded message. Gradients of a push that failed for
    good or was dropped are discarded, as without compression, and their residuals are added to the next push.

    `encoding` is for uncompressed float32: one of `pswire.specs.encodings.ENCODINGS`, rounded to nearest, without
    feedback; "": unchanged. With a compression the encoder `keeps_residual`: then the caller checks all gradients of a
    push for finiteness before the first is encoded.
    """

    def __init__(self, encoding: str = "", compression: Compression = NONE) -> None:
        self.encoding = encoding
        self.keeps_residual = compression != NONE
        self._compression = compression
        self._residuals: dict[tuple[int, str], Array] = {}

    def encode(self, shard: int, gradient: Gradient) -> Gradient:
        """The gradient as it is sent, once, to a shard; arrays that are not packed are borrowed.

        Raises `NotFinite` if the sum of a finite gradient and its residual is not; the residual is discarded.
        """
        array = gradient.array
        if isinstance(array, Packed) or array.dtype != DTYPES["float32"]:
            return gradient
        if isinstance(array, IndexedSlices):
            if not self.encoding:
                return gradient
            values: Array = to_16_bits(array.values, self.encoding)  # type: ignore[assignment]
            return replace(gradient, array=array.with_values(values))
        if self.keeps_residual and array.size >= MIN_COMPRESSED_ELEMENTS:
            return replace(gradient, array=self._compressed((shard, gradient.name), array))
        return replace(gradient, array=to_16_bits(array, self.encoding)) if self.encoding else gradient

    def _compressed(self, key: tuple[int, str], array: Array) -> Packed:
        residual = self._residuals.pop(key, None)
        if residual is None or len(residual) != array.size:
            residual = np.zeros(array.size, np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            if isinstance(self._compression, TopK):
                result = top_k(array, residual, max(1, round(self._compression.fraction * array.size)))
            else:
                result = quantize_int8(array, residual)
        try:
            result.check()
        except FloatingPointError as error:
            raise NotFinite(
                f"gradient for {key[1]!r}, plus the residual of earlier ones, has {error}: lower the learning rate, "
                "or clip gradients"
            ) from None
        self._residuals[key] = residual
        return result
