"""Mutants of the codec, the tensor transports and packed arrays."""

import numpy as np

from pswire.tensors.shared_memory import aligned
from pswire.tensors.values import DTYPES
from tests.tools.mutant_plugin import mutant, without

COMPRESSION = "pswire.tensors.compression"
SHARED = "pswire.tensors.shared_memory"
CODEC = "tests/unit/pswire/codec/test_codec.py"
LIMITS = "tests/unit/pswire/codec/test_limits.py"
TRANSPORTS = "tests/unit/pswire/tensors/test_tensor_transports.py"
SEGMENTS = "tests/unit/pswire/tensors/test_shared_segments.py"
VALUES = "tests/unit/pswire/tensors/test_values.py"
WIRE = "tests/unit/pswire/tensors/test_wire.py"


without(
    "A list of any length is decoded",
    "pswire.codec.checks:refuse_length",
    f"{LIMITS}::test_a_list_or_text_that_is_too_long_is_refused_with_its_name_its_length_and_the_limit",
)


without(
    "A name may be in a message twice",
    "pswire.codec.checks:_refuse_repeated",
    f"{CODEC}::test_an_invalid_field_is_named",
)


without(
    "A frame may have more data than its tensors",
    "pswire.tensors.stream:StreamReceiver.check_data",
    f"{CODEC}::test_a_message_comes_back_as_it_was_inline_in_chunks_or_in_one_frame_and_no_data_may_be_left",
)


@mutant(
    "A tensor may have more bytes than its shape says",
    "pswire.tensors.transport:InlineReceiver.get",
    f"{CODEC}::test_an_invalid_field_is_named",
)
def _(original, self, tensor, spec, *, own=False):
    if len(tensor.inline) > spec.nbytes:
        return np.ndarray(spec.shape, DTYPES[spec.dtype], tensor.inline)
    return original(self, tensor, spec)


without(
    "A bool in chunks may be any byte",
    "pswire.tensors.stream:check_elements",
    f"{TRANSPORTS}::test_other_elements_than_were_declared_are_malformed_before_memory_is_allocated",
)


@mutant(
    "Row numbers stay in memory that the worker can still change",
    f"{SHARED}:SharedReceiver.get",
    f"{TRANSPORTS}::test_what_a_worker_writes_afterwards_reaches_no_row_number_no_index_of_an_element_and_no_bool",
)
def _(original, self, tensor, spec, *, own=False):
    return original(self, tensor, spec)


@mutant(
    "Tensors that overlap take any memory",
    f"{SHARED}:SharedReceiver.get",
    f"{TRANSPORTS}::test_tensors_that_overlap_do_not_multiply_memory",
)
def _(original, self, tensor, spec, *, own=False):
    self._copied = 0
    return original(self, tensor, spec, own=own)


without(
    "A tensor may lie outside of its segment",
    f"{SHARED}:_check_place",
    f"{TRANSPORTS}::test_other_elements_than_were_declared_are_malformed_before_memory_is_allocated",
)


@mutant(
    "A value of an answer is written beyond its region",
    f"{SHARED}:Region._reserve",
    f"{TRANSPORTS}::test_arrays_begin_at_cache_lines_and_segment_0_at_offset_0_is_a_place_too",
)
def _(original, self, nbytes):
    offset = self._next
    self._next += aligned(nbytes)
    return offset


@mutant(
    "A worker can take pages away from a segment that a server uses",
    "pswire.tensors.shared_segments:_F_SEAL_FUTURE_WRITE",
    f"{SEGMENTS}::test_mapped_memory_can_neither_shrink_nor_lose_a_page_whatever_is_done_with_its_descriptor",
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


@mutant(
    "The error of int8 is forgotten",
    f"{COMPRESSION}:quantize_int8",
    f"{VALUES}::test_int8_is_within_half_a_step_and_what_it_lacks_is_the_rest",
)
def _(original, array, residual):
    packed = original(array, residual)
    residual[...] = 0
    return packed


@mutant(
    "A malformed packed array is taken",
    f"{COMPRESSION}:Packed.check",
    f"{VALUES}::test_a_nan_never_becomes_a_number_and_a_number_beyond_the_largest_of_the_form_is_refused",
)
def _(original, self):
    return 0.0


@mutant(
    "A tie of bfloat16 is rounded away from zero",
    f"{COMPRESSION}:_to_bfloat16",
    f"{VALUES}::test_sixteen_bits_are_the_nearest_number_of_the_form_whatever_the_layout",
)
def _(original, block, out):
    original(block, out)
    ties = block.view(np.uint32) & 0xFFFF == 0x8000
    out[ties] = (block.view(np.uint32)[ties] >> 16) + 1


# --- placement --------------------------------------------------------------------------------------------------------

PLACEMENT = "tests/unit/psworker/client/test_partitions.py"
