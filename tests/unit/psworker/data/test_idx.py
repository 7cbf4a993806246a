"""The IDX reader: every valid file gives its array, every other file a DatasetError, at a bounded cost."""

import gzip
import re
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from pswire.errors import DatasetError
from psworker.data import idx

# From the format's description, not from the reader.
CODES = {"uint8": 0x08, "int8": 0x09, "int16": 0x0B, "int32": 0x0C, "float32": 0x0D, "float64": 0x0E}
STEADY = settings(derandomize=True, deadline=None, max_examples=60)


def header(code: int, *shape: int) -> bytes:
    return struct.pack(f">BBBB{len(shape)}I", 0, 0, code, len(shape), *shape)


def pack(array: np.ndarray) -> bytes:
    return header(CODES[array.dtype.name], *array.shape) + array.astype(array.dtype.newbyteorder(">")).tobytes()


@pytest.fixture
def file(tmp_path):
    return tmp_path / "digits.idx"


@pytest.fixture(scope="module")
def scratch(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("idx") / "digits.idx"


def refused(path: Path, pattern: str, **options) -> None:
    """Reading raises an error of one line that names the file and matches `pattern`."""
    with pytest.raises(DatasetError, match=pattern) as caught:
        idx.read(path, **options)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_numbers_are_big_endian_and_the_array_is_the_callers(file):
    file.write_bytes(header(CODES["int16"], 2, 3) + struct.pack(">6h", 1, 2, 3, 4, 5, -300))
    array = idx.read(file)
    assert array.tolist() == [[1, 2, 3], [4, 5, -300]]
    array[0] = 9
    assert idx.read(file)[0, 0] == 1


@STEADY
@given(
    array=st_numpy.arrays(st.sampled_from(list(CODES)), st_numpy.array_shapes(max_dims=4, min_side=0, max_side=4)),
    compress=st.sampled_from([bytes, gzip.compress]),
    data=st.data(),
)
def test_an_array_of_any_dtype_is_read_back_and_a_file_truncated_anywhere_is_refused(scratch, array, compress, data):
    whole = compress(pack(array))
    scratch.write_bytes(whole)
    found = idx.read(scratch)
    assert (found.dtype, found.dtype.isnative) == (array.dtype, True)
    np.testing.assert_array_equal(found, array)
    scratch.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    refused(scratch, "truncated|ends inside|not an IDX file")


@STEADY
@given(
    content=st.one_of(
        st.binary(max_size=64),
        st.builds(
            lambda code, shape, body: header(code, *shape) + body,
            st.sampled_from([*idx.DTYPES, 0, 0x0A, 0xFF]),
            st.lists(st.one_of(st.integers(0, 3), st.integers(0, 2**32 - 1)), max_size=3),
            st.binary(max_size=64),
        ),
    )
)
def test_arbitrary_bytes_are_the_exact_image_of_an_array_or_refused(scratch, content):
    scratch.write_bytes(content)
    try:
        array = idx.read(scratch)
    except DatasetError:
        return
    assert pack(array) == content


@pytest.mark.parametrize(
    ("content", "pattern"),
    [
        (b"", "ends inside its IDX header"),
        (b"\x89PNG\r\n", "not an IDX file: it begins with 89 50 4e 47"),
        (b"\0\0\x0a\1\0\0\0\0", "unknown IDX dtype 0a"),
        (b"\0\0\x08\0\7", "0 dimensions"),
        (header(0x08, *[1] * 65) + b"\7", "65 dimensions"),
        (header(0x08, 2, 2) + b"\1\2\3", "truncated after 3 of the 4 bytes"),
        (header(0x08, 2, 2) + b"\1\2\3\4\5", "continues after the 4 bytes"),
        (gzip.compress(header(0x08, 2) + b"\1\2\3", mtime=0), "continues after the 2 bytes"),
        (gzip.compress(header(0x08, 2) + b"\1\2", mtime=0) + b"tail", "gzip data is truncated or corrupt"),
        (gzip.compress(header(0x08, 2) + b"\1\2", mtime=0)[:-8] + bytes(8), "gzip data is truncated or corrupt"),
    ],
)
def test_each_fault_is_named(file, content, pattern):
    file.write_bytes(content)
    refused(file, re.escape(pattern))
    refused(file.parent / "nothing.gz", "cannot be read .*No such file")
    refused(file.parent, "cannot be read .*directory")


@pytest.mark.parametrize("compress", [bytes, gzip.compress], ids=["plain", "gzip"])
@pytest.mark.parametrize(
    ("content", "pattern"),
    [
        (header(0x08, 2**32 - 1, 2**32 - 1), "4294967295 x 4294967295 values of 1 bytes, over the limit"),
        (header(0x0E, 0, 2**32 - 1, 2**32 - 1), "over the limit"),
        (header(0x08, *[2**32 - 1] * 64), "over the limit"),
        (header(0x08, 2**30), "truncated after 0 of the 1073741824 bytes"),
        (header(0x08, 16) + bytes(16 << 20), "continues after the 16 bytes"),
    ],
    ids=["huge", "huge beside zero", "huge in 64 dimensions", "1 GiB that is not there", "bomb"],
)
def test_a_false_header_costs_no_memory(file, content, pattern, compress):
    file.write_bytes(compress(content))
    tracemalloc.start()
    try:
        refused(file, pattern)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20


def test_an_array_at_the_limit_is_read_and_one_above_it_refused(file):
    file.write_bytes(pack(np.arange(10, dtype=np.int32)))
    assert idx.read(file, max_bytes=40).tolist() == list(range(10))
    refused(file, "10 values of 4 bytes, over the limit of 39 bytes.*max_bytes", max_bytes=39)
