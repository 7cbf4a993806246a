"""Parquet files: the values that pyarrow reads, each row once an epoch, and which row groups are read and held."""

import gc
import sys
import threading
from collections import Counter

import numpy as np
import pytest

from pswire.errors import ConfigurationError, DatasetError
from pswire.messages import Block
from psworker.data import parquet
from psworker.data.epoch_order import epoch_order
from psworker.sessions.block_batches import Reading

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pq = pytest.importorskip("pyarrow.parquet")

pytestmark = pytest.mark.slow  # its import alone takes a second

ROWS, GROUP = 1000, 30  # 33 row groups of 30 rows, and one of 10
TABLE = pa.table(
    {
        "x": np.arange(ROWS, dtype=np.float64),
        "text": [f"text {number % 50}" for number in range(ROWS)],
        "row": [list(range(number % 4)) for number in range(ROWS)],
    }
)
#: Counts what one test allocates; it has to outlive all that.
POOL = pa.proxy_memory_pool(pa.default_memory_pool())


@pytest.fixture
def path(tmp_path):
    pq.write_table(TABLE, tmp_path / "table.parquet", row_group_size=GROUP)
    return tmp_path / "table.parquet"


@pytest.fixture
def group_bytes(path):
    """Of `x` in a row group."""
    return pq.read_metadata(path).row_group(0).column(0).total_uncompressed_size


@pytest.fixture
def reads(monkeypatch):
    """The row groups that are read, in order."""
    numbers, read = [], pq.ParquetFile.read_row_group

    def counted(file, number, *arguments, **options):
        numbers.append(number)
        return read(file, number, *arguments, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", counted)
    return numbers


def epoch_of(data, batch_size=16, *, seed=0, epoch=1, start=0, stop=None):
    """The values of `x` in the batches of an epoch, or of one of its blocks."""
    reading = Reading(data, batch_size, None, seed)
    batches = reading.batches(reading.queue("q", 1))
    batches.begin(Block(epoch=epoch, start=start, stop=stop or len(data)))
    return list(iter(batches.next, None))


def values(batches):
    return np.concatenate([batch.x for batch in batches]).astype(int).tolist()


def test_rows_have_the_values_that_pyarrow_reads(path):
    data = parquet(path)
    rows = np.random.default_rng(0).integers(ROWS, size=60)
    batch, read = data.take(rows), pq.read_table(path).to_pydict()
    assert (len(data), data.name, batch.columns) == (ROWS, "table.parquet", ("x", "text", "row"))
    assert batch.x.tolist() == [read["x"][row] for row in rows]
    assert batch.text.tolist() == [read["text"][row] for row in rows]
    assert [row.tolist() for row in batch.row] == [read["row"][row] for row in rows]
    assert parquet(path, ["row", "x"]).take([3]).columns == ("row", "x")


def test_an_epoch_has_each_row_once_in_an_order_of_its_own_and_reads_each_row_group_once(path, group_bytes, reads):
    read = lambda epoch: values(epoch_of(parquet(path, ["x"], buffer_bytes=5 * group_bytes), epoch=epoch))
    first, second, of_another_worker = read(1), read(2), read(1)
    assert sorted(first) == sorted(second) == list(range(ROWS))
    assert first == of_another_worker != second
    assert Counter(reads) == dict.fromkeys(range(34), 3)


def test_rows_are_shuffled_within_windows_of_row_groups(path, group_bytes):
    data = parquet(path, ["x"], buffer_bytes=5 * group_bytes)
    order = np.array(values(epoch_of(data))) // GROUP
    windows = [set(order[start : start + 5 * GROUP]) for start in range(0, 990, 5 * GROUP)]
    assert [len(window) for window in windows[:3]] == [5, 5, 5]
    assert sorted(windows[0]) != list(range(5)), "row groups are shuffled too"
    assert len(set(order[:20].tolist())) > 2, "and rows of several come in one batch"
    whole = parquet(path, ["x"])
    assert values(epoch_of(whole, seed=3)) == epoch_order(ROWS, 3, 1).tolist(), "all rows if all fit"


def test_a_block_reads_the_row_groups_of_its_window_only(path, group_bytes, reads):
    data = parquet(path, ["x"], buffer_bytes=3 * group_bytes)
    block = epoch_of(data, start=400, stop=432)
    assert len(values(block)) == 32
    assert len(reads) == len(set(reads)) <= 6


def test_the_order_of_the_rows_and_evaluations_read_each_row_group_once(path, reads):
    data = parquet(path, ["x"], buffer_bytes=1)
    assert values(Reading(data, 64, shuffle=False).in_order()) == list(range(ROWS))
    assert reads == list(range(34))


def test_slices_and_parts_have_their_rows_once_an_epoch_and_read_nothing_before(path, group_bytes, reads):
    data = parquet(path, ["x"], buffer_bytes=5 * group_bytes)
    part, (first, second) = data[100:700:2], data.split(0.9, seed=1)
    assert reads == []
    assert sorted(values(epoch_of(part))) == list(range(100, 700, 2))
    assert Counter(reads).most_common(1)[0][1] == 1
    assert sorted(values(epoch_of(first)) + values(epoch_of(second))) == list(range(ROWS))
    reads.clear()
    held_out = values(Reading(parquet(path, ["x"], buffer_bytes=1).split(0.9, seed=1)[1], 10).in_order())
    assert held_out == sorted(held_out)
    assert len(reads) == len(set(reads)), "in the order of the file"


def test_memory_is_bounded_whatever_the_size_of_the_file(tmp_path):
    """Of 43 MB of numbers and texts that repeat, 1 MB is held, and one row group is read beside."""
    rows = 300_000
    number = np.arange(rows) % 7
    table = pa.table({"x": np.float64(number), "y": number, "text": pa.array(["a longer text" * 10] * rows)})
    pq.write_table(table, tmp_path / "large.parquet", row_group_size=10_000)
    del table
    gc.collect()
    before = pa.default_memory_pool()
    pa.set_memory_pool(POOL)
    try:
        data = parquet(tmp_path / "large.parquet", buffer_bytes=1_000_000)
        batches = epoch_of(data, 5000)
        assert Counter(values(batches)) == Counter((np.arange(rows) % 7).tolist())
        assert 500_000 < POOL.max_memory() < 1_700_000
    finally:
        pa.set_memory_pool(before)


def test_a_folder_and_a_list_of_files_are_one_dataset_in_the_order_of_names(tmp_path):
    (tmp_path / "b").mkdir()
    for name, start in (("c", 20), ("b/a", 10), ("a", 0)):
        pq.write_table(TABLE.slice(start, 10), tmp_path / f"{name}.parquet")
    (tmp_path / "notes.txt").write_text("")
    in_order = lambda paths: values(Reading(parquet(paths), 7).in_order())
    assert in_order(tmp_path) == list(range(30))
    assert in_order([str(tmp_path / "c.parquet"), tmp_path / "a.parquet"]) == [*range(20, 30), *range(10)]


def test_several_threads_read_the_same_dataset(path, group_bytes):
    data, found = parquet(path, ["x"], buffer_bytes=group_bytes), []
    threads = [threading.Thread(target=lambda: found.append(values(epoch_of(data)))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    assert sorted(found[0]) == list(range(ROWS))
    assert found[0] == found[1] == found[2]


def test_what_cannot_be_read_is_an_error_that_names_the_file_and_the_column(tmp_path, path, monkeypatch):
    with pytest.raises(DatasetError, match=r"missing.parquet cannot be read as a Parquet file"):
        parquet(tmp_path / "missing.parquet")
    (tmp_path / "text.parquet").write_text("no Parquet")
    with pytest.raises(DatasetError, match=r"text.parquet cannot be read as a Parquet file"):
        parquet(tmp_path / "text.parquet")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DatasetError, match="has no files"):
        parquet(tmp_path / "empty")
    with pytest.raises(DatasetError, match="there are no Parquet files"):
        parquet([])
    with pytest.raises(DatasetError, match=r"table.parquet has no column z; its columns are x, text, row"):
        parquet(path, ["x", "z"])
    pq.write_table(TABLE.select(["x"]), tmp_path / "x.parquet")
    with pytest.raises(DatasetError, match=r"x.parquet has other columns than .*table.parquet"):
        parquet([path, tmp_path / "x.parquet"])
    assert len(parquet([path, tmp_path / "x.parquet"], ["x"])) == 2 * ROWS
    pq.write_table(TABLE.slice(0, 0), tmp_path / "rows.parquet")
    with pytest.raises(DatasetError, match=r"rows.parquet has no rows"):
        parquet(tmp_path / "rows.parquet")
    pq.write_table(pa.table({"name": ["a"]}), tmp_path / "name.parquet")
    with pytest.raises(DatasetError, match=r"name.parquet cannot have a column 'name'"):
        parquet(tmp_path / "name.parquet")
    data = parquet(path)
    path.unlink()
    with pytest.raises(DatasetError, match=r"table.parquet, row group 1 cannot be read"):
        data.take([GROUP])
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    command = r"pip install '(pyarrow|paramserver.parquet)"
    with pytest.raises(ConfigurationError, match=f"Parquet files need a package .* {command}"):
        parquet(path)


def test_nulls_are_an_error_when_the_files_are_opened_or_without_statistics_when_they_are_read(tmp_path):
    table = pa.table({"x": [1, 2], "y": [3, None], "row": [[1], [None]]})
    pq.write_table(table, tmp_path / "nulls.parquet")
    with pytest.raises(DatasetError, match=r"nulls.parquet, row group 0, column 'y': 1 of 2 values are null; fill"):
        parquet(tmp_path / "nulls.parquet")
    assert parquet(tmp_path / "nulls.parquet", ["x"]).take([1]).x.tolist() == [2]
    with pytest.raises(DatasetError, match=r"row group 0, column 'row', in its lists: 1 of 2 values are null"):
        parquet(tmp_path / "nulls.parquet", ["row"]).take([0])
    pq.write_table(table, tmp_path / "nulls.parquet", write_statistics=False)
    with pytest.raises(DatasetError, match=r"row group 0, column 'y': 1 of 2 values are null"):
        parquet(tmp_path / "nulls.parquet", ["y"]).take([0])
