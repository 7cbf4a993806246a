"""The IDX reader: every valid file gives its array, every other file a DatasetError, at a bounded cost."""

import gzip
import hashlib
import math
import re
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pswire.errors import DatasetError
from psworker.data import idx

# From the format's description, not from the reader: code, struct letter, numpy dtype.
FORMATS = [
    (0x08, "B", "uint8"),
    (0x09, "b", "int8"),
    (0x0B, "h", "int16"),
    (0x0C, "i", "int32"),
    (0x0D, "f", "float32"),
    (0x0E, "d", "float64"),
]
CODES = {dtype: (code, letter) for code, letter, dtype in FORMATS}
STEADY = settings(derandomize=True, deadline=None, max_examples=60)


def header(code: int, *shape: int) -> bytes:
    return struct.pack(f">BBBB{len(shape)}I", 0, 0, code, len(shape), *shape)


def pack(array: np.ndarray) -> bytes:
    code, letter = CODES[array.dtype.name]
    return header(code, *array.shape) + struct.pack(f">{array.size}{letter}", *array.ravel().tolist())


@pytest.fixture
def file(tmp_path):
    return tmp_path / "digits.idx"


@pytest.fixture(scope="module")
def scratch(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("idx") / "digits.idx"


@st.composite
def arrays(draw) -> np.ndarray:
    _, letter, dtype = draw(st.sampled_from(FORMATS))
    shape = draw(st.lists(st.integers(0, 4), min_size=1, max_size=4))
    size = math.prod(shape) * struct.calcsize(letter)
    raw = draw(st.binary(min_size=size, max_size=size))
    values = np.frombuffer(raw, dtype).reshape(shape)
    return np.nan_to_num(values) if values.dtype.kind == "f" else values  # struct does not keep a NaN's payload


def refused(path: Path, pattern: str, **options) -> None:
    """Reading raises an error of one line that names the file and matches `pattern`."""
    with pytest.raises(DatasetError, match=pattern) as caught:
        idx.read(path, **options)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("code", "letter", "dtype"), FORMATS)
@pytest.mark.parametrize("compress", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_every_dtype_is_read_in_native_byte_order_into_an_array_of_the_caller(file, code, letter, dtype, compress):
    file.write_bytes(compress(header(code, 2, 3) + struct.pack(f">6{letter}", 1, 2, 3, 4, 5, 100)))
    array = idx.read(file)
    assert array.dtype == np.dtype(dtype)
    assert array.dtype.isnative
    assert array.tolist() == [[1, 2, 3], [4, 5, 100]]
    array[0] = 9
    assert idx.read(file)[0, 0] == 1
    assert idx.DTYPES.keys() == {code for code, _, _ in FORMATS}


@STEADY
@given(array=arrays(), zipped=st.booleans(), data=st.data())
def test_a_packed_array_is_read_back_and_a_file_truncated_anywhere_is_refused(scratch, array, zipped, data):
    whole = gzip.compress(pack(array)) if zipped else pack(array)
    scratch.write_bytes(whole)
    found = idx.read(scratch)
    assert found.dtype == array.dtype
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
    code = CODES[array.dtype.name][0]
    assert header(code, *array.shape) + array.astype(array.dtype.newbyteorder(">")).tobytes() == content


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


def test_an_unexpected_digest_is_refused_before_the_file_is_parsed(file):
    content = b"not even an IDX file"
    file.write_bytes(content)
    found = hashlib.sha256(content).hexdigest()
    refused(file, f"SHA-256 begins with {found[:12]}, expected {'a' * 12} or {'b' * 12}", sha256=["a" * 64, "b" * 64])
    refused(file, "not an IDX file", sha256=["a" * 64, found])
