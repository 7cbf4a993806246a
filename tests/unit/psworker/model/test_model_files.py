"""Models saved and loaded without a session: names, mapping, shapes and dtypes; nothing is set unless all fits."""

import json
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import psworker as ps
from pswire.errors import ConfigurationError, ModelFileError, ParamServerError, ShapeMismatch
from pswire.tensors.values import DTYPES
from psworker import nn, ops

VALUES = {
    f"{dtype}/{number}": np.full(shape, 1 + number).astype(dtype)
    for dtype in DTYPES
    for number, shape in enumerate(((), (2, 3), (0, 4)))
}


def variables(values):
    return [ps.Variable(value, name=name) for name, value in values.items()]


def values_of():
    return {variable.name: variable.value for variable in ps.global_variables()}


def same(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, strict=True)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


def test_variables_of_every_dtype_and_shape_come_back_in_another_program_and_the_plain_library_reads_them(path):
    variables(VALUES)
    ps.save(path)
    same(load_file(path), VALUES)
    with safe_open(path, "np") as file:
        assert file.metadata() == {"format": "np"}
    with ps.collection():
        variables({name: np.zeros_like(value) for name, value in VALUES.items()})
        assert ps.load(str(path)) == ((), (), {"format": "np"})
        same(values_of(), VALUES)
        assert not any(value.flags.writeable for value in values_of().values())


def test_a_loaded_model_computes_the_same_outputs_and_is_trained_on_from_there(path):
    x = np.random.default_rng(1).normal(size=(5, 4)).astype(np.float32)

    def model(seed):
        ps.set_random_seed(seed)
        hidden, out = nn.Dense(4, 3, activation=ops.relu, name="hidden"), nn.Dense(3, 2, name="out")
        return lambda: out(hidden(x))

    logits = model(1)
    expected = logits().value.copy()
    ps.save(path)
    with ps.collection():
        logits = model(2)
        assert not np.allclose(logits().value, expected)
        ps.load(path)
        np.testing.assert_array_equal(logits().value, expected)
        with ps.session():
            np.testing.assert_array_equal(logits().value, expected, "the first registration has the loaded values")


def test_a_value_that_is_loaded_after_a_session_is_of_no_update_of_it(path):
    W = ps.Variable([1.0, 2.0], name="W")
    ps.save(path)
    with ps.session():
        ps.GradientDescent(0.5).apply_gradients([(np.ones(2), W)])
    assert (W.version, W.value.tolist()) == (1, [0.5, 1.5])
    ps.load(path)
    assert (W.versions, W.version, W.value.tolist()) == ((), 0, [1, 2])


def test_some_variables_are_saved_and_the_last_values_after_a_session(path):
    W, b = variables({"W": np.ones(2), "b": np.ones(1)})
    with ps.session() as session:
        session.assign(W, [3, 4])
    ps.save(path, [W])
    same(load_file(path), {"W": np.float64([3, 4])})
    ps.save(path, iter([b, b]))
    same(load_file(path), {"b": np.float64([1])})
    ps.save(path, nn.Sequential(layer := nn.Dense(1, 1)))
    same(load_file(path), {"dense/kernel": layer.kernel.value, "dense/bias": layer.bias.value})


def test_a_file_of_another_format_says_where_it_is_converted(tmp_path):
    (tmp_path / "model.pt").write_bytes(b"PK" + bytes(100))
    with pytest.raises(ModelFileError, match=r"converted before: docs/models\.md#files-of-pytorch-jax-and-others$"):
        ps.load(tmp_path / "model.pt")


def test_strict_names_both_sides_and_otherwise_both_are_returned_and_the_rest_is_loaded(path):
    save_file({name: np.ones(1) for name in ("both", *"abcdefgh")}, path)
    variables({"both": np.zeros(1), "mine": np.zeros(1)})
    message = r"model\.safetensors does not have .* lacks 'mine', and has 'a', 'b', 'c', 'd', 'e' and 3 more beside"
    with pytest.raises(ModelFileError, match=message):
        ps.load(path)
    same(values_of(), {"both": np.zeros(1), "mine": np.zeros(1)})
    loaded = ps.load(path, strict=False)
    assert (loaded.missing, loaded.surplus) == (("mine",), tuple("abcdefgh"))
    same(values_of(), {"both": np.ones(1), "mine": np.zeros(1)})
    with ps.collection():
        variables({"both": np.zeros(1), **{name: np.zeros(1) for name in "abcdefg"}})
        with pytest.raises(ModelFileError, match="lacks nothing, and has 'h' beside"):
            ps.load(path)
    with ps.collection():
        variables({"both": np.zeros(1), **{name: np.zeros(1) for name in "abcdefghi"}})
        with pytest.raises(ModelFileError, match="lacks 'i', and has nothing beside"):
            ps.load(path)


@pytest.mark.parametrize(
    "mapping",
    [
        {"fc.bias": "out/bias", "fc.count": None},
        MappingProxyType({"fc.bias": "out/bias", "fc.count": None, "nowhere": "x"}),
        lambda name: {"fc.bias": "out/bias", "kept": "kept"}.get(name),
    ],
)
def test_a_mapping_renames_or_leaves_out_and_other_names_of_a_dict_stay(path, mapping):
    expected = {"out/bias": np.ones(2), "kept": np.full(3, 2.0)}
    save_file({"fc.bias": expected["out/bias"], "kept": expected["kept"], "fc.count": np.array(3)}, path)
    variables({"out/bias": np.zeros(2), "kept": np.zeros(3)})
    assert ps.load(path, mapping=mapping)[:2] == ((), ())
    same(values_of(), expected)


def test_a_mapping_that_gives_one_name_twice_or_no_name_is_refused(path):
    save_file({"a": np.ones(1), "b": np.ones(1)}, path)
    variables({"a": np.zeros(1)})
    with pytest.raises(ConfigurationError, match="the mapping gives 'a' and 'b' the same name, 'a'"):
        ps.load(path, mapping={"b": "a"})
    with pytest.raises(TypeError, match="must give a name or None for 'a', got 3"):
        ps.load(path, mapping=lambda name: 3)
    same(values_of(), {"a": np.zeros(1)})


@pytest.mark.parametrize(
    ("stored", "wanted", "message"),
    [
        (np.zeros((3, 2), "f4"), np.ones((3, 1), "f4"), r"'W' is F32\[3, 2\], the variable is W float32\[3, 1\]; noth"),
        (np.zeros((3, 2), "f4"), np.ones((2, 3), "f4"), r"F32\[3, 2\].*float32\[2, 3\]: it may be transposed"),
        (np.zeros(1, "f4"), np.ones((), "f4"), r"F32\[1\].*float32\[\]"),
        (np.zeros(2, "f8"), np.ones(2, "f4"), r"F64\[2\].*W float32\[2\]: its values may not be exact as float32"),
        (np.zeros(2, "i4"), np.ones(2, "f8"), r"I32\[2\].*W float64\[2\]"),
        (np.zeros(2, "?"), np.ones(2, "i1"), r"BOOL\[2\].*W int8\[2\]"),
        (np.zeros(2, "u1"), np.ones(2, "i2"), r"U8\[2\].*W int16\[2\]"),
        (np.zeros(2, "u4"), np.ones(2, "u1"), r"U32\[2\].*W uint8\[2\]"),
    ],
)
def test_another_shape_or_dtype_is_refused_with_both_specs_and_nothing_is_set(path, stored, wanted, message):
    save_file({"A": np.zeros(4), "W": stored}, path)
    before = {"A": np.ones(4), "W": wanted}
    variables(before)
    with pytest.raises(ShapeMismatch, match=r"model\.safetensors: the tensor .*" + message):
        ps.load(path)
    same(values_of(), before)


@pytest.mark.parametrize(("stored", "wanted"), [("f2", "f4"), ("f2", "f8"), ("f4", "f8"), ("i1", "i8"), ("i4", "i8")])
def test_a_narrower_dtype_of_the_same_kind_becomes_the_variables_exactly(path, stored, wanted):
    extremes = [np.finfo(stored).max, np.finfo(stored).smallest_subnormal] if stored[0] == "f" else [-(2**7), 2**7 - 1]
    stored = np.array([0, 1, -3, *extremes], stored)
    save_file({"W": stored}, path)
    variables({"W": np.zeros(5, wanted)})
    ps.load(path)
    same(values_of(), {"W": stored.astype(wanted)})


def bfloat16_file(path, values):
    """The upper halves of these float32."""
    data = (np.float32(values).view(np.uint32) >> 16).astype("<u2").tobytes()
    entry = {"dtype": "BF16", "shape": np.shape(values), "data_offsets": [0, len(data)]}
    header = json.dumps({"W": entry}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)


def test_bfloat16_becomes_float32_or_float64_exactly_and_not_float16(path):
    exact = [1.0, -0.0078125, 3.3895314e38, 2.0**-133]
    bfloat16_file(path, exact)
    for dtype in (np.float32, np.float64):
        with ps.collection():
            variables({"W": np.zeros(4, dtype)})
            ps.load(path)
            same(values_of(), {"W": np.float32(exact).astype(dtype)})
    variables({"W": np.zeros(4, np.float16)})
    with pytest.raises(ShapeMismatch, match=r"BF16\[4\].*W float16\[4\]: its values may not be exact"):
        ps.load(path)


def test_a_table_is_saved_in_a_session_and_may_be_left_out(path):
    [W] = variables({"W": np.ones(2)})
    ps.Table((10, 2), ps.RowConstant(0.5), name="words")
    with pytest.raises(ConfigurationError, match=r"rows of a Table are on servers \('words'\).* inside `with psworker"):
        ps.save(path)
    assert not path.exists()
    ps.save(path, [W])
    with pytest.raises(ModelFileError, match="lacks 'words'"):
        ps.load(path)
    assert ps.load(path, strict=False).missing == ("words",)


def test_without_a_session_a_loaded_table_has_the_rows_of_the_file_and_reads_those_that_are_looked_up(path):
    rows = np.arange(300, dtype=np.float32).reshape(100, 3)
    with ps.collection():
        table = ps.Table((100, 3), ps.RowConstant(0.5), name="words")
        with ps.session():
            table.assign_rows(0, rows)
            ps.save(path)
        with pytest.raises(ConfigurationError, match=r"save the model there and psworker\.load it"):
            ops.embedding(table, [1])
    table = ps.Table((100, 3), ps.RowConstant(0.5), name="words", dtype="float64")
    ps.load(path)
    ids = np.array([[99, 0], [7, 99]])
    np.testing.assert_array_equal(ops.embedding(table, ids).value, rows[ids])
    with pytest.raises(IndexError):
        ops.embedding(table, [100])
    path.rename(path.with_name("moved"))
    ps.save(path)
    np.testing.assert_array_equal(load_file(path)["words"], rows.astype(np.float64))
    with pytest.raises(ConfigurationError, match=r"'words' has rows of a file, loaded without a session, .* anew"):
        ps.session().open()


def test_rows_of_bfloat16_and_of_an_empty_table_are_read_too(path):
    exact = np.float32([[1.5, -2], [3, 0.25]])
    bfloat16_file(path, exact)
    table = ps.Table((2, 2), ps.RowConstant(0.0), name="W")
    ps.load(path)
    assert ops.embedding(table, [1, 0, 1]).value.tolist() == exact[[1, 0, 1]].tolist()
    save_file({"W": np.zeros((0, 2), np.float32)}, path)
    with ps.collection():
        table = ps.Table((0, 2), ps.RowConstant(0.0), name="W")
        ps.load(path)
        assert ops.embedding(table, np.empty(0, int)).shape == (0, 2)


def test_what_cannot_be_saved_is_named(path):
    with pytest.raises(ConfigurationError, match="there is no variable to save"):
        ps.save(path)
    with pytest.raises(TypeError, match=r"psworker\.save takes a psworker\.Variable or Table, got 'W'"):
        ps.save(path, ["W"])
    variables({"__metadata__": np.ones(1)})
    with pytest.raises(ConfigurationError, match="cannot have a variable of the name '__metadata__'"):
        ps.save(path)
    assert not path.exists()


@pytest.mark.slow
@given(data=st.data())
def test_a_flipped_or_cut_file_is_refused_whole_or_gives_values_of_the_right_shapes(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "flipped"
    before = {"W": np.ones((2, 3), np.float32), "b": np.array([True]), "n": np.array(3)}
    with ps.collection():
        variables(before)
        save_file(before, path, {"format": "np"})
        altered = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(1, 3))):
            place = data.draw(st.integers(0, len(altered) - 1))
            altered[place] = data.draw(st.integers(0, 255))
        if data.draw(st.booleans()):
            del altered[data.draw(st.integers(0, len(altered) - 1)) :]
        path.write_bytes(altered)
        try:
            ps.load(path, strict=data.draw(st.booleans()))
        except ParamServerError as error:
            assert str(path) in str(error)  # noqa: PT017 - any of several errors, or none
            same(values_of(), before)
        for name, value in values_of().items():
            assert (value.shape, value.dtype) == (before[name].shape, before[name].dtype)


def test_a_model_that_is_made_again_in_one_program_is_told_to_be_in_a_collection_of_its_own(tmp_path):
    path = tmp_path / "model.safetensors"
    with ps.collection():
        first = nn.Dense(2, 3)
        ps.save(path, first.variables)
        nn.Dense(2, 3)
        with pytest.raises(
            ModelFileError, match=r"lacks 'dense_1/kernel', .* again in one program.*`with ps.collection"
        ):
            ps.load(path)
    with ps.collection():
        second = nn.Dense(2, 3)
        ps.load(path)
    assert second.kernel.value.tobytes() == first.kernel.value.tobytes()
