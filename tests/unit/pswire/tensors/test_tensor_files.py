"""Safetensors files: the plain library reads them, a bad file is an error, and a failed write leaves the old one."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from pswire.errors import ModelFileError
from pswire.tensors.tensor_files import TensorFile, write_tensors
from pswire.tensors.values import DTYPES, TensorSpec
from tests.support.files import file_size_limit

SHAPES = ((), (1,), (3,), (2, 3), (0,), (4, 0, 2), (2, 1, 3, 2))


def arrays():
    """Of every dtype and shape, by name."""
    random, found = np.random.default_rng(7), {}
    for dtype in DTYPES:
        for shape in SHAPES:
            found[f"{dtype}/{shape} ü"] = np.array(random.normal(0, 50, shape)).astype(dtype)
    return found


def write(path, tensors, metadata=None):
    write_tensors(path, [(TensorSpec.of(name, array), [array]) for name, array in tensors.items()], metadata or {})


def raw_file(path, entries, data):
    header = json.dumps(entries).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)


def read(path):
    with TensorFile(path) as file:
        return {name: file.read(name) for name in file.tensors}


def same(found, expected):
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, strict=True)


def test_the_plain_library_reads_what_is_written_and_what_it_writes_is_read(tmp_path):
    expected, metadata = arrays(), {"format": "np", "global_step": "7"}
    write(tmp_path / "ours", expected, metadata)
    same(load_file(tmp_path / "ours"), expected)
    with safe_open(tmp_path / "ours", "np") as file:
        assert file.metadata() == metadata
    save_file(expected, tmp_path / "theirs", metadata)
    for name in ("ours", "theirs"):
        same(read(tmp_path / name), expected)
        with TensorFile(tmp_path / name) as file:
            assert file.metadata == metadata


def test_every_tensor_begins_at_a_multiple_of_its_item_size(tmp_path):
    write(tmp_path / "file", {"a": np.ones(3, np.int8), "b": np.ones(3), "c": np.ones(1, np.float16), "d": np.ones(3)})
    with TensorFile(tmp_path / "file") as file:
        assert [one.begin % one.read_as.itemsize for one in file.tensors.values()] == [0] * 4


def test_a_tensor_is_written_and_read_in_pieces_whatever_their_layout_and_byte_order(tmp_path):
    whole = np.arange(30, dtype=np.float32).reshape(10, 3)
    pieces = [whole[:2].astype(">f4"), np.asfortranarray(whole[2:7]), whole[7:7], whole[7:]]
    write_tensors(tmp_path / "file", [(TensorSpec.of("w", whole), iter(pieces))], {})
    same(load_file(tmp_path / "file"), {"w": whole})
    with TensorFile(tmp_path / "file") as file:
        for first, rows in ((0, 10), (0, 1), (9, 1), (3, 4), (4, 0)):
            np.testing.assert_array_equal(file.read("w", first, rows), whole[first : first + rows], strict=True)


def test_bfloat16_is_read_as_the_float32_of_its_upper_half(tmp_path):
    values = np.float32([[1, -2.5, 3.0517578e-05], [np.inf, -0.0, 1.175494e-38]])
    upper = (values.view(np.uint32) >> 16).astype("<u2")
    raw_file(tmp_path / "file", {"w": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}}, upper.tobytes())
    expected = (upper.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(expected[:, :2], values[:, :2])
    same(read(tmp_path / "file"), {"w": expected})
    with TensorFile(tmp_path / "file") as file:
        np.testing.assert_array_equal(file.read("w", 1, 1), expected[1:])


def test_a_file_may_have_tensors_of_dtypes_that_cannot_be_read(tmp_path):
    entries = {"a": {"dtype": "F8_E4M3", "shape": [2], "data_offsets": [0, 2]}}
    raw_file(tmp_path / "file", {"__metadata__": None, **entries}, b"xy")
    with TensorFile(tmp_path / "file") as file:
        assert (str(file.tensors["a"]), file.tensors["a"].read_as, file.metadata) == ("F8_E4M3[2]", None, {})


# --- bad files --------------------------------------------------------------------------------------------------------


def test_what_is_not_there_or_no_file_is_an_error_that_names_it_and_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").touch()
    (tmp_path / "text").write_text("W = 3\n" * 100)
    whys = {"nowhere": "does not exist", "pipe": "is not a file", "empty": "too small", "text": "too large"}
    for name, why in whys.items():
        with pytest.raises(ModelFileError, match=f"{name} .*{why}"):
            TensorFile(tmp_path / name)
    with pytest.raises(ModelFileError, match="is not a file"):
        TensorFile(tmp_path)


def test_a_shape_that_no_array_can_have_is_an_error_when_it_is_read(tmp_path):
    for shape in ([0, 2**64 - 1], [0, 2**62], [0] * 100):
        raw_file(tmp_path / "file", {"w": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}, b"")
        with pytest.raises(ModelFileError, match=r"'w', F32.*cannot be read"):
            read(tmp_path / "file")


def test_a_bool_that_is_neither_0_nor_1_and_a_cut_during_reading_are_damage(tmp_path):
    write(tmp_path / "file", {"b": np.array([True, False])})
    data = (tmp_path / "file").read_bytes()
    (tmp_path / "file").write_bytes(data[:-1] + b"\2")
    with pytest.raises(ModelFileError, match="file is damaged: 'b' has a bool"):
        read(tmp_path / "file")
    with TensorFile(tmp_path / "file") as file:
        os.truncate(tmp_path / "file", len(data) - 1)
        with pytest.raises(ModelFileError, match="cut while it was read"):
            file.read("b")


@pytest.mark.slow
@given(data=st.data())
def test_a_flipped_or_cut_file_is_an_error_or_has_tensors_of_the_sizes_that_it_names(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "flipped"
    write(path, {"W": np.ones((2, 3), np.float32), "b": np.array([True]), "n": np.array(3, np.int64)}, {"a": "b"})
    altered = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(altered) - 1))
        if data.draw(st.booleans()):
            altered[place] = data.draw(st.integers(0, 255))
        elif data.draw(st.booleans()):
            del altered[place : place + data.draw(st.integers(1, 40))]
        else:
            altered[place:place] = data.draw(st.binary(max_size=9))
        if not altered:
            break
    path.write_bytes(altered)
    try:
        with TensorFile(path) as file:
            for name, tensor in file.tensors.items():
                if tensor.read_as is not None:
                    array = file.read(name)
                    assert (array.shape, array.dtype) == (tensor.shape, tensor.read_as)
    except ModelFileError:
        pass  # and no other error


# --- failed writes ----------------------------------------------------------------------------------------------------


@pytest.fixture
def old(tmp_path):
    """A folder with a file that has an old value, which must stay as it is, alone."""
    write(tmp_path / "model", {"w": np.float32([1, 2])})
    yield tmp_path
    same(load_file(tmp_path / "model"), {"w": np.float32([1, 2])})
    assert os.listdir(tmp_path) == ["model"]


def test_if_a_piece_raises_the_old_file_stays(old):
    def pieces():
        yield np.ones(10, np.float32)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_tensors(old / "model", [(TensorSpec("w", (100,)), pieces())], {})


def test_a_file_that_the_system_does_not_allow_to_grow_leaves_the_old_one_and_names_the_reason(old):
    message = "model could not be written, and nothing was changed: File too large"
    with file_size_limit(20_000), pytest.raises(ModelFileError, match=message):
        write(old / "model", {"w": np.ones(10_000, np.float32)})


def test_a_full_disk_leaves_the_old_file_and_names_the_reason(tmp_path):
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", tmp_path], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.decode().strip()}")
    try:
        write(tmp_path / "model", {"w": np.float32([1, 2])})
        with pytest.raises(ModelFileError, match="nothing was changed: No space left on device"):
            write(tmp_path / "model", {"w": np.ones(100_000, np.float32)})
        same(load_file(tmp_path / "model"), {"w": np.float32([1, 2])})
        assert os.listdir(tmp_path) == ["model"]
        write(tmp_path / "model", {"w": np.ones(10_000, np.float32)})
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_a_folder_in_place_of_the_file_or_no_folder_for_it_is_an_error(old):
    for path, why in ((old, "directory"), (old / "nowhere" / "model", "No such file or directory")):
        with pytest.raises(ModelFileError, match=f"could not be written.*{why}"):
            write(path, {"w": np.ones(1)})


KILLED = """
import os, signal, sys
import numpy as np
from pswire.tensors.tensor_files import write_tensors
from pswire.tensors.values import TensorSpec

def pieces():
    yield np.ones(50_000, np.float32)
    os.kill(os.getpid(), signal.SIGKILL)

write_tensors(sys.argv[1], [(TensorSpec("w", (100_000,)), pieces())], {})
"""


def test_a_process_that_is_killed_while_it_writes_leaves_the_old_file(tmp_path):
    write(tmp_path / "model", {"w": np.float32([1, 2])})
    ended = subprocess.run([sys.executable, "-c", KILLED, tmp_path / "model"], timeout=60)
    assert ended.returncode == -signal.SIGKILL
    same(load_file(tmp_path / "model"), {"w": np.float32([1, 2])})
    [part] = set(os.listdir(tmp_path)) - {"model"}
    assert (part[:7], part[-4:]) == (".model.", ".tmp")
    write(tmp_path / "model", {"w": np.float32([3])})
    same(load_file(tmp_path / "model"), {"w": np.float32([3])})


def test_a_link_stays_a_link_to_the_file_that_is_replaced_and_the_mode_is_that_of_new_files(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder/model")
    before = os.umask(0o027)
    try:
        for value in (1, 2):
            write(tmp_path / "link", {"w": np.float32(value).reshape(())})
    finally:
        os.umask(before)
    same(load_file(tmp_path / "folder" / "model"), {"w": np.array(2, np.float32)})
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "folder" / "model").stat().st_mode & 0o777 == 0o640
