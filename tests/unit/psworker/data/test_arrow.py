"""Columns of tables by the Arrow C stream interface: the values that pyarrow and polars give for the same rows."""

import datetime
import gc
import sys
import tracemalloc

import numpy as np
import pytest

from pswire.errors import ConfigurationError, DatasetError
from psworker.data.batch import Batch
from psworker.data.dataset import Dataset
from psworker.data.ragged import Ragged
from psworker.data.sources import open_source
from tests.support.combinations import together

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pl = pytest.importorskip("polars", reason="polars is not installed")
from psworker.data.arrow import ArrowTable  # noqa: E402 - after the check

pytestmark = pytest.mark.slow  # their import alone takes a second

N = 37  # bitmaps of it end within a byte
NOW = datetime.datetime(2024, 2, 29, 13, 5, 7, 250_000)
TEXTS = [f"{number} ä" * (number % 9) for number in range(N)]  # up to 12 bytes and longer ones: views of both kinds
LISTS = [list(range(number, number + number % 4)) for number in range(N)]
NUMBERS = ("int8", "uint16", "int32", "uint64", "float32", "float64")
LAYOUTS = {
    **{kind: pa.array(range(N), getattr(pa, kind)()) for kind in NUMBERS},
    "float16": pa.array(np.arange(N, dtype=np.float16)),
    "bool_": pa.array([number % 3 == 0 for number in range(N)]),
    "date": pa.array([NOW.date() + datetime.timedelta(number) for number in range(N)]),
    "date64": pa.array([NOW.date() + datetime.timedelta(number) for number in range(N)], pa.date64()),
    "time": pa.array([NOW + datetime.timedelta(number) for number in range(N)], pa.timestamp("us", "UTC")),
    "second": pa.array([NOW.replace(microsecond=0)] * N, pa.timestamp("s")),
    "duration": pa.array([datetime.timedelta(milliseconds=number) for number in range(N)], pa.duration("ms")),
    **{kind: pa.array(TEXTS, getattr(pa, kind)()) for kind in ("string", "large_string", "string_view")},
    **{
        kind: pa.array([text.encode() for text in TEXTS], getattr(pa, kind)())
        for kind in ("binary", "large_binary", "binary_view")
    },
    "fixed_binary": pa.array([bytes([number, 7]) for number in range(N)], pa.binary(2)),
    "category": pa.array(TEXTS).dictionary_encode(),
    "category_of_lists": pa.DictionaryArray.from_arrays(
        pa.array(range(N), pa.int8()), pa.array([[number] * 5 for number in range(N)], pa.list_(pa.int64(), 5))
    ),
    "list": pa.array(LISTS),
    "large_list": pa.array(LISTS, pa.large_list(pa.float32())),
    "list_of_text": pa.array([TEXTS[number : number + number % 3] for number in range(N)]),
    "list_of_points": pa.array([[[x, x + 1] for x in row] for row in LISTS], pa.list_(pa.list_(pa.int64(), 2))),
    "list_of_categories": pa.array(LISTS, pa.list_(pa.dictionary(pa.int8(), pa.int64()))),
    "fixed_list": pa.array([[number, number + 1, 5] for number in range(N)], pa.list_(pa.int16(), 3)),
    "matrix": pa.array([[[n, 2], [3, n]] for n in range(N)], pa.list_(pa.list_(pa.float64(), 2), 2)),
    "list_of_views": pa.array([TEXTS[number : number + number % 3] for number in range(N)], pa.list_(pa.string_view())),
    "tensor": pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(2.0 * N).reshape(N, 2)),
}
TABLE = pa.table(LAYOUTS)
TABLES = {
    "whole": TABLE,
    "sliced": TABLE.slice(5, 20),
    "in chunks": pa.concat_tables([TABLE.slice(30), TABLE.slice(3, 10), TABLE.slice(1, 0), TABLE]),
    "record batch": TABLE.to_batches()[0],
    "sliced record batch": TABLE.to_batches()[0].slice(11),
}


def plain(column):
    """The values as Python's; binary values as bytes, fixed ones too."""
    return [row.tolist() for row in column] if isinstance(column, Ragged) else column.tolist()


def expected(name, values):
    """What pyarrow gives, as numpy has it: bytes as lists, dates in milliseconds at midnight, and no time zone."""
    if "binary" in name:
        return [list(value) for value in values]
    if name == "date64":
        return [datetime.datetime(value.year, value.month, value.day) for value in values]
    return [value.replace(tzinfo=None) for value in values] if name == "time" else values


@together(("kind", "seed"), [(kind, seed) for kind in TABLES for seed in range(4)])
def test_rows_of_all_layouts_have_the_values_that_pyarrow_gives(kind, seed):
    table = TABLES[kind]
    rows = np.random.default_rng(seed).integers(len(table), size=30)
    columns = ArrowTable(table, "t").take(rows)
    assert list(columns) == list(LAYOUTS)
    for name, values in table.to_pydict().items():
        assert plain(columns[name]) == expected(name, [values[row] for row in rows]), name


def test_columns_have_the_dtypes_and_shapes_of_their_types():
    kinds = {
        **{kind: np.dtype(kind) for kind in (*NUMBERS, "float16")},
        "bool_": np.bool_,
        "date": "M8[D]",
        "date64": "M8[ms]",
        "time": "M8[us]",
        "second": "M8[s]",
        "duration": "m8[ms]",
        "string": np.dtypes.StringDType(),
        "category": np.dtypes.StringDType(),
        "list": np.int64,
        "large_list": np.float32,
        "binary": np.uint8,
    }
    batch = Batch(TABLE)
    assert {name: batch[name].dtype for name in kinds} == {name: np.dtype(kind) for name, kind in kinds.items()}
    assert (batch.fixed_list.shape, batch.matrix.shape) == ((N, 3), (N, 2, 2))
    assert batch.list_of_points.values.shape[1:] == (2,)
    batch.float32[0] = batch["string"][0] = 5  # copies, of which no library is the owner
    assert TABLE["float32"][0].as_py() == 0
    assert TABLE["string"][0].as_py() == ""


def test_lists_that_are_all_empty_have_the_shape_of_their_values():
    for inner, shape in ((pa.list_(pa.int16(), 3), (0, 3)), (pa.binary(2), (0, 2)), (pa.bool_(), (0,))):
        batch = Batch(pa.table({"x": pa.array([[], []], pa.list_(inner))}))
        assert (batch.x.lengths.tolist(), batch.x.values.shape) == ([0, 0], shape)


def test_times_of_a_day_are_the_time_since_midnight():
    times = {"s": pa.time32("s"), "ms": pa.time32("ms"), "us": pa.time64("us"), "ns": pa.time64("ns")}
    of_day = datetime.time(1, 2, 3)
    batch = Batch(pa.table({unit: pa.array([of_day], kind) for unit, kind in times.items()}))
    for unit in times:
        assert batch[unit].dtype == f"m8[{unit}]"
        assert batch[unit][0] == np.timedelta64(3723, "s")


@together("chunks", [1, 2])
def test_a_polars_frame_gives_the_values_that_polars_gives(chunks):
    frame = pl.DataFrame(
        {
            "x": np.arange(N, dtype=np.float32),
            "text": TEXTS,
            "kind": pl.Series(TEXTS, dtype=pl.Categorical),
            "enum": pl.Series(["a", "b"] * 18 + ["a"], dtype=pl.Enum(["b", "a"])),
            "flag": [number % 2 == 0 for number in range(N)],
            "when": [NOW] * N,
            "row": LISTS,
            "pair": pl.Series([[n, n] for n in range(N)], dtype=pl.Array(pl.Int32, 2)),
        }
    )
    frame = pl.concat([frame, frame[3:9]], rechunk=False) if chunks == 2 else frame[2:]
    rows = np.random.default_rng(0).permutation(len(frame))
    columns = ArrowTable(frame, "frame").take(rows)
    for name in frame.columns:
        assert plain(columns[name]) == frame[rows.tolist()][name].to_list(), name


@pytest.mark.parametrize("seed", range(3))
def test_a_null_is_an_error_exactly_if_it_is_in_the_rows_of_the_table(seed):
    random = np.random.default_rng(seed)
    values = [None if random.random() < 0.1 else number for number in range(100)]
    whole = pa.table({"x": values, "inner": [[one, 1] for one in values], "code": pa.array(values).dictionary_encode()})
    whole = whole.append_column("pair", whole["inner"].cast(pa.list_(pa.int64(), 2)))
    for kind in whole.column_names:
        table = (
            whole.select([kind]) if kind != "pair" else pa.table({kind: whole["inner"].cast(pa.list_(pa.int64(), 2))})
        )
        for _ in range(40):
            start, length = int(random.integers(90)), int(random.integers(1, 12))
            nulls = sum(one is None for one in values[start : start + length])
            if not nulls:
                assert len(ArrowTable(table.slice(start, length), "t")) == min(length, 100 - start)
                continue
            with pytest.raises(DatasetError, match=rf"t, column '{kind}'.*: {nulls} of \d+ values are null; fill them"):
                ArrowTable(table.slice(start, length), "t")


@pytest.mark.parametrize(
    ("values", "pattern"),
    [
        (lambda: pa.array([None, None]), "2 of 2 values are null"),
        (lambda: pa.array([{"a": 1}]), "structs; make their fields columns"),
        (lambda: pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())), "maps; make columns of their values"),
        (lambda: pa.array([1]).cast(pa.decimal128(21, 2)), "decimals; cast them to float64"),
        (lambda: pa.array([[[1], [2, 3]]]), "lists of lists .*; flatten them, or make the inner size fixed"),
        (lambda: pa.array([[b"a"]]), "lists of lists or of binary values; flatten them"),
        (lambda: pa.array([[1]], pa.list_view(pa.int64())), "values of the Arrow type list_view<.*>; cast them"),
        (lambda: pa.array([], pa.int64()), "dataset .table. has no rows"),
        (lambda: pa.array([], pa.list_(pa.int64())), "dataset .table. has no rows"),
    ],
)
def test_what_makes_no_column_is_an_error_that_names_it_and_says_what_to_do(values, pattern):
    with pytest.raises(DatasetError, match=pattern) as raised:
        Dataset(pa.table({"a column": values()}), "table")
    assert "no rows" in str(raised.value) or "dataset 'table', column 'a column'" in str(raised.value)


def test_columns_of_two_names_reserved_names_and_columns_that_are_tables_are_refused():
    with pytest.raises(DatasetError, match="column 'x': there are two of this name"):
        Dataset(pa.Table.from_arrays([pa.array([1]), pa.array([1])], ["x", "x"]))
    with pytest.raises(DatasetError, match="Table cannot have a column 'name': the name is reserved"):
        open_source(pa.table({"name": ["a"]}), None)
    with pytest.raises(DatasetError, match="column 'x': a table of its own, with columns y; give these"):
        Dataset({"x": pa.table({"y": [1]})})
    with pytest.raises(DatasetError, match="has a column without a name; name it"):
        open_source(pl.Series([1, 2]), None)
    with pytest.raises(ValueError, match="a dataset has columns already"):
        open_source(pa.table({"x": [1]}), list)


def test_single_columns_of_a_library_are_columns_of_a_dataset():
    data = Dataset({"x": pl.Series([[1, 2], [3]]), "y": pa.chunked_array([["a"], ["b"]]), "z": pa.array([1.5, 2])})
    assert [plain(data[name]) for name in "xyz"] == [[[1, 2], [3]], ["a", "b"], [1.5, 2]]
    with pytest.raises(DatasetError, match="column 'x': Series: 1 of 2 values are null"):
        Dataset({"x": pl.Series([1, None])})


def test_a_table_that_fails_while_it_is_read_names_its_error():
    class Failing:
        def __arrow_c_stream__(self, requested_schema=None):
            def batches():
                yield pa.record_batch({"x": [1]})
                raise OSError("the disk is on fire")

            reader = pa.RecordBatchReader.from_batches(pa.schema({"x": pa.int64()}), batches())
            return reader.__arrow_c_stream__()

        def __len__(self):
            return 2

    with pytest.raises(DatasetError, match=r"Failing cannot be read: .*the disk is on fire"):
        open_source(Failing(), None)


def test_without_pyarrow_a_table_is_an_error_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.delitem(sys.modules, "psworker.data.arrow")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    command = r"pip install '(pyarrow|paramserver.parquet)"
    for read in (lambda frame: open_source(frame, None), lambda frame: Dataset({"x": frame["x"]}), Batch):
        with pytest.raises(ConfigurationError, match=f"Tables of other libraries need a package .* {command}"):
            read(pl.DataFrame({"x": [1]}))


def test_memory_is_held_as_long_as_the_source_and_no_longer():
    gc.collect()
    before = pa.total_allocated_bytes()
    table = pa.table({"x": pa.array(range(100_000)), "text": ["some text"] * 100_000})
    source = open_source(table, None)
    table = None
    gc.collect()
    assert pa.total_allocated_bytes() > before
    assert source.take([99_999]).x.tolist() == [99_999]
    source = None
    gc.collect()
    assert pa.total_allocated_bytes() == before


def test_a_memory_mapped_table_is_read_by_the_rows_of_a_batch(tmp_path):
    rows, size = 20_000, 100
    schema = pa.schema({"x": pa.list_(pa.float64(), size), "text": pa.string()})
    with pa.OSFile(str(tmp_path / "table.arrow"), "wb") as sink, pa.ipc.new_file(sink, schema) as file:
        for start in range(0, rows, 5000):
            values = pa.array(np.repeat(np.arange(start, start + 5000, dtype=np.float64), size))
            x = pa.FixedSizeListArray.from_arrays(values, size)
            file.write(pa.record_batch([x, [str(n) for n in range(start, start + 5000)]], schema))
    before = pa.total_allocated_bytes()
    table = pa.ipc.open_file(pa.memory_map(str(tmp_path / "table.arrow"))).read_all()
    assert table.nbytes > 16_000_000
    tracemalloc.start()
    try:
        batch = open_source(table, None).take([19_999, 3, 7_500])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert batch.x[:, 0].tolist() == [19_999, 3, 7_500]
    assert batch.text.tolist() == ["19999", "3", "7500"]
    assert peak < 200_000, "of 16 MB three rows are read"
    assert pa.total_allocated_bytes() - before < 200_000
