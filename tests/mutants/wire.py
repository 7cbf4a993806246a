"""Mutants of the codec, the tensor transports and packed arrays."""

import numpy as np

from pswire.tensors.shared_memory import aligned
from pswire.tensors.values import DTYPES
from tests.tools.mutant_plugin import mutant

COMPRESSION = "pswire.tensors.compression"
SHARED = "pswire.tensors.shared_memory"
CODEC = "tests/unit/pswire/codec/test_codec.py"
LIMITS = "tests/unit/pswire/codec/test_limits.py"
TRANSPORTS = "tests/unit/pswire/tensors/test_tensor_transports.py"
SEGMENTS = "tests/unit/pswire/tensors/test_segments.py"
VALUES = "tests/unit/pswire/tensors/test_values.py"
WIRE = "tests/unit/pswire/tensors/test_wire.py"


@mutant("A list of any length is decoded", "pswire.codec.fields:refuse_length", LIMITS)
def _(original, proto, name, limit):
    pass


@mutant("A name may be in a message twice", "pswire.codec.fields:check_distinct", CODEC)
def _(original, names):
    pass


@mutant("A frame may have more data than its tensors", "pswire.tensors.stream:StreamReceiver.check_data", CODEC)
def _(original, self):
    pass


@mutant("A tensor may have more bytes than its shape says", "pswire.tensors.transport:InlineReceiver.get", CODEC)
def _(original, self, tensor, spec, *, own=False):
    if len(tensor.inline) > spec.nbytes:
        return np.ndarray(spec.shape, DTYPES[spec.dtype], tensor.inline)
    return original(self, tensor, spec)


@mutant("A bool in chunks may be any byte", "pswire.tensors.stream:check_elements", TRANSPORTS)
def _(original, array, spec):
    pass


@mutant("Row numbers stay in memory that the worker can still change", f"{SHARED}:SharedReceiver.get", TRANSPORTS)
def _(original, self, tensor, spec, *, own=False):
    return original(self, tensor, spec)


@mutant("Tensors that overlap take any memory", f"{SHARED}:SharedReceiver.get", TRANSPORTS)
def _(original, self, tensor, spec, *, own=False):
    self._copied = 0
    return original(self, tensor, spec, own=own)


@mutant("A tensor may lie outside of its segment", f"{SHARED}:_check_place", TRANSPORTS)
def _(original, name, memory, offset, nbytes):
    pass


@mutant("A value of an answer is written beyond its region", f"{SHARED}:Region._reserve", TRANSPORTS)
def _(original, self, nbytes):
    offset = self._next
    self._next += aligned(nbytes)
    return offset


@mutant(
    "A worker can take pages away from a segment that a server uses",
    "pswire.tensors.segments:_F_SEAL_FUTURE_WRITE",
    SEGMENTS,
)
def _(original):
    return 0


# --- packed arrays ----------------------------------------------------------------------------------------------------


@mutant(
    "What top-k has sent is sent again",
    f"{COMPRESSION}:top_k",
    f"{VALUES}::test_topk_is_the_largest_of_all_and_the_others_are_the_rest",
)
def _(original, array, residual, count):
    packed = original(array, residual, count)
    residual[packed.parts[0]] = packed.parts[1]
    return packed


@mutant("The error of int8 is forgotten", f"{COMPRESSION}:quantize_int8", VALUES)
def _(original, array, residual):
    packed = original(array, residual)
    residual[...] = 0
    return packed


@mutant("A malformed packed array is taken", f"{COMPRESSION}:Packed.check", VALUES)
def _(original, self):
    return 0.0


@mutant("A tie of bfloat16 is rounded away from zero", f"{COMPRESSION}:_to_bfloat16", VALUES)
def _(original, block, out):
    original(block, out)
    ties = block.view(np.uint32) & 0xFFFF == 0x8000
    out[ties] = (block.view(np.uint32)[ties] >> 16) + 1


# --- placement --------------------------------------------------------------------------------------------------------

PLACEMENT = "tests/unit/psworker/client/test_placement.py"
