"""Models saved and loaded in a session: values come from the servers and go to them, those of tables in pieces."""

import tracemalloc

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import psworker as ps
from pswire.errors import ConfigurationError, InvalidMessage, ModelFileError, NotFinite, ShapeMismatch
from pswire.specs.initializers import rows_of
from psworker import ops
from psworker.model import model_files
from tests.support.servers import EMBEDDED, GRPC_OF_TWO, SHARED, SHARED_OF_TWO, parameters

pytestmark = pytest.mark.parametrize(
    "open_session", parameters(EMBEDDED, GRPC_OF_TWO, slow=(SHARED, SHARED_OF_TWO)), indirect=True
)

ROWS, UNIFORM = 100, ps.RowUniform(-1.0, 1.0, seed=3)
INITIAL = rows_of(UNIFORM, np.arange(ROWS), (3,))
#: W is split over two shards, and so is the table.
VALUES = {"W": np.arange(40, dtype=np.float32).reshape(20, 2), "step": np.array(5), "b": np.ones(2, np.float16)}


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Of 7 rows of the table."""
    monkeypatch.setattr(model_files, "PIECE_BYTES", 7 * 3 * 4)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


def model():
    """The variables, and then the table."""
    made = [ps.Variable(value, name=name) for name, value in VALUES.items()]
    return *made, ps.Table((ROWS, 3), UNIFORM, name="words")


def other_values():
    random = np.random.default_rng(4)
    values = {name: np.array(random.normal(0, 99, value.shape)).astype(value.dtype) for name, value in VALUES.items()}
    return values | {"words": random.normal(size=(ROWS, 3)).astype(np.float32)}


def on_servers(session):
    """All values on the servers, by name, as a new worker sees them."""
    session.pull()
    *plain, words = ps.global_variables()
    return {one.name: one.value for one in plain} | {words.name: session.rows(words, np.arange(ROWS))}


def same(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, strict=True)


def test_saved_values_are_those_of_the_servers_and_not_of_this_worker(open_session, path):
    _, step, *_ = model()
    with open_session("w0") as session:
        with ps.collection():
            other = model()
            with open_session("w1") as second:
                second.assign_all({other[0]: VALUES["W"] + 1, other[1]: 9})
                for _ in range(3):
                    ps.GradientDescent(0.5).minimize(ops.sum(ops.embedding(other[3], [0, 50, 99])) + ops.sum(other[0]))
        assert step.value == 5
        session.save(path)
        assert step.value == 5, "saving does not change this worker's variables"
    expected = INITIAL.copy()
    expected[[0, 50, 99]] -= 1.5
    same(load_file(path), VALUES | {"W": VALUES["W"] + 1 - 1.5, "step": np.array(9), "words": expected})
    with safe_open(path, "np") as file:
        assert file.metadata()["format"] == "np"


def test_gradients_that_were_not_pushed_yet_are_in_the_file_and_so_is_the_global_step(open_session, path):
    W, *_ = model()
    with open_session("w0", push_every=10, pull_every=10) as session:
        for _ in range(3):
            ps.GradientDescent(1.0).minimize(ops.sum(W))
        session.save(path, [W])
        assert session.global_step == 1
    same(load_file(path), {"W": VALUES["W"] - 3})
    with safe_open(path, "np") as file:
        assert file.metadata() == {"format": "np", "global_step": "1"}


@pytest.mark.parametrize(
    "strategy", [{"push_every": 4, "overlap": True}, {"push_every": 4, "pull_every": 8}, {"local_steps": 4}]
)
def test_what_is_saved_between_two_pushes_of_a_strategy_is_what_a_new_worker_gets(open_session, path, strategy):
    W = ps.Variable(VALUES["W"], name="W")
    with open_session("w0", **strategy) as session:
        for _ in range(6):
            ps.Adam(0.1).minimize(ops.sum(ops.square(W)))
        session.save(path)
        ps.Adam(0.1).minimize(ops.sum(ops.square(W)))
        with ps.collection(), open_session("w1"):
            same(load_file(path), {"W": ps.Variable(VALUES["W"], name="W").value})
    assert np.all(load_file(path)["W"][1:] != VALUES["W"][1:])


def test_tables_without_rows_or_without_elements_are_saved_and_loaded(open_session, path):
    ps.Table((0, 4), ps.RowConstant(1.0), name="no rows")
    ps.Table((5, 0), ps.RowConstant(1.0), name="no elements")
    ps.Table((15,), ps.RowConstant(1.0), name="a vector")
    expected = {"no rows": np.ones((0, 4), "f4"), "no elements": np.ones((5, 0), "f4"), "a vector": np.ones(15, "f4")}
    with open_session("w0") as session:
        session.save(path)
        same(load_file(path), expected)
        save_file(expected | {"a vector": np.arange(15, dtype=np.float32)}, path)
        ps.load(path)
        np.testing.assert_array_equal(session.rows(ps.global_variables()[2], np.arange(15)), np.arange(15))


def test_loaded_values_are_those_of_the_servers_from_then_on_and_are_trained(open_session, path):
    W, step, b, words = model()
    expected = other_values()
    save_file(expected, path, {"global_step": "12"})
    with open_session("w0") as session:
        ps.GradientDescent(1.0).minimize(ops.sum(ops.embedding(words, [1, 2])) + ops.sum(W))
        assert ps.load(path) == ((), (), {"global_step": "12"})
        same({"W": W.value, "step": step.value, "b": b.value}, {name: expected[name] for name in VALUES})
        same(on_servers(session), expected)
        with ps.collection(), open_session("w1") as second:
            model()
            same(on_servers(second), expected)
        ps.GradientDescent(1.0).minimize(ops.sum(ops.embedding(words, [1, 2])) + ops.sum(W))
        expected["words"][[1, 2]] -= 1
        same(on_servers(session), expected | {"W": expected["W"] - 1})


def test_what_is_saved_in_one_job_is_the_same_when_it_is_loaded_in_another(open_session, path):
    W, *_, words = model()
    with open_session("w0") as session:
        ps.Adam(0.1).minimize(ops.sum(ops.square(ops.embedding(words, [1, 99]))) + ops.sum(ops.square(W)))
        before = {name: value.copy() for name, value in on_servers(session).items()}
        ps.save(path)
    with ps.collection():
        model()
        with ps.session(servers=[]) as alone:
            ps.load(path)
            same(on_servers(alone), before)


def test_values_are_saved_exactly_whatever_the_encoding_of_the_session(open_session, path):
    odd = np.float32([1 / 3, 1e-6, 12345.678] * 10)
    ps.Variable(odd, name="W")
    ps.Table((ROWS, 3), UNIFORM, name="words")
    with open_session("w0", encoding="bfloat16") as session:
        session.save(path)
    same(load_file(path), {"W": odd, "words": INITIAL})


@pytest.mark.parametrize("name", ["W", "words"])
def test_nan_is_refused_with_the_name_and_nothing_is_loaded(open_session, path, name):
    model()
    bad = other_values()
    bad[name][-1, -1] = np.nan
    save_file(bad, path)
    with open_session("w0") as session:
        with pytest.raises(NotFinite, match=f"model.safetensors: '{name}' has 1 elements .* nothing was loaded"):
            ps.load(path)
        same(on_servers(session), VALUES | {"words": INITIAL})


def test_a_table_of_another_shape_a_surplus_name_and_a_cut_file_change_nothing_on_the_servers(open_session, path):
    model()
    good = other_values()
    with open_session("w0") as session:
        save_file(good | {"words": good["words"][:50]}, path)
        with pytest.raises(ShapeMismatch, match=r"'words' is F32\[50, 3\], the variable is words float32\[100, 3\]"):
            ps.load(path)
        save_file(good | {"other": np.ones(1)}, path)
        with pytest.raises(ModelFileError, match="lacks nothing, and has 'other' beside"):
            ps.load(path)
        save_file(good, path)
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(ModelFileError, match="or is damaged"):
            ps.load(path)
        same(on_servers(session), VALUES | {"words": INITIAL})


def test_a_bfloat16_or_float16_table_of_another_program_is_widened(open_session, path):
    ps.Table((ROWS, 3), UNIFORM, name="words")
    rows = np.random.default_rng(0).normal(size=(ROWS, 3)).astype(np.float16)
    save_file({"embedding.weight": rows}, path)
    with open_session("w0") as session:
        ps.load(path, mapping={"embedding.weight": "words"})
        same(on_servers(session), {"words": rows.astype(np.float32)})


def test_a_session_that_is_over_saves_nothing_and_a_refused_piece_leaves_no_file(open_session, path, monkeypatch):
    model()
    with open_session("w0") as session:
        fetch, calls = session.fetch_rows, []

        def failing(table, first, count):
            calls.append(first)
            if first > 20:
                raise InvalidMessage("not this piece")
            return fetch(table, first, count)

        monkeypatch.setattr(session, "fetch_rows", failing)
        with pytest.raises(InvalidMessage, match="not this piece"):
            session.save(path)
        assert calls == [0, 7, 14, 21]
    with pytest.raises(ConfigurationError, match="this session is not open"):
        session.save(path)
    assert list(path.parent.iterdir()) == []


@pytest.mark.slow
def test_a_table_larger_than_a_piece_is_never_in_the_workers_memory_as_a_whole(open_session, path, monkeypatch):
    """The servers are in this process too, and allocate the table before the measurement."""
    monkeypatch.setattr(model_files, "PIECE_BYTES", 1 << 18)
    table = ps.Table((1 << 16, 64), ps.RowConstant(0.5), name="large")
    nbytes = table.spec.nbytes
    with open_session("w0") as session:
        session.save(path)
        for act in (lambda: session.save(path), lambda: ps.load(path)):
            act()
            tracemalloc.start()
            try:
                act()
                assert tracemalloc.get_traced_memory()[1] < nbytes / 4
            finally:
                tracemalloc.stop()
        assert session.rows(table, [0, 65535]).tolist() == [[0.5] * 64] * 2
