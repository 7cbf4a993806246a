"""Sessions over tables and datasets of other libraries as they are: their values, and what is read of them.

Each test is skipped without its library: `pip install 'paramserver[tables,torch]'`.
"""

import threading
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import psworker as ps
from pswire.errors import DatasetError
from psworker import ops
from psworker.sessions.minimization import open_examples

pytestmark = pytest.mark.slow  # the imports of the libraries alone take seconds

N = 50
X = np.arange(N, dtype=np.float32)
TEXT = [f"text {number}" * (number % 3) for number in range(N)]
LISTS = [list(range(number % 4)) for number in range(N)]


def pandas():
    pd = pytest.importorskip("pandas")
    return pd.DataFrame({"x": X, "text": TEXT, "row": LISTS, "kind": pd.Categorical(TEXT)})


def polars():
    pl = pytest.importorskip("polars")
    return pl.DataFrame({"x": X, "text": TEXT, "row": LISTS, "kind": pl.Series(TEXT, dtype=pl.Categorical)})


def arrow():
    pa = pytest.importorskip("pyarrow")
    table = pa.table({"x": X, "text": TEXT, "row": LISTS, "kind": pa.array(TEXT).dictionary_encode()})
    return pa.concat_tables([table.slice(0, 20), table.slice(20)])


def record_batch():
    return arrow().combine_chunks().to_batches()[0]


def hugging_face():
    pytest.importorskip("datasets.arrow_dataset", reason="Hugging Face datasets are not installed")
    import datasets

    return datasets.Dataset.from_dict({"x": X, "text": TEXT, "row": LISTS, "kind": TEXT})


TABLES = [pandas, polars, arrow, record_batch, hugging_face]


@pytest.mark.parametrize("table", TABLES)
def test_a_table_is_trained_and_evaluated_as_it_is(table):
    source = table()
    with ps.session() as session:
        batches = list(session.batches(source, 8, epochs=2))
        mean = session.evaluate(lambda batch: ops.mean(batch.x), source)
        shared = session.evaluate(lambda batch: {"x": ops.mean(batch.x)}, source, 8, shared=True)
    assert mean == shared["x"] == X.mean()
    for epoch in (1, 2):
        of_epoch = [batch for batch in batches if batch.epoch == epoch]
        order = np.concatenate([batch.x for batch in of_epoch]).astype(int)
        assert sorted(order) == list(range(N))
        for name, values in (("text", TEXT), ("kind", TEXT), ("row", LISTS)):
            found = [value for batch in of_epoch for value in batch[name]]
            assert [getattr(one, "tolist", lambda one=one: one)() for one in found] == [values[row] for row in order]
    assert {(batch.x.dtype, batch.text.dtype, type(batch.row)) for batch in batches} == {
        (np.dtype(np.float32), np.dtypes.StringDType(), ps.Ragged)
    }
    assert len(open_examples(source, None, 10)) == N, "for minimize"


@pytest.mark.parametrize("table", [pandas, polars, arrow])
def test_a_dataset_of_a_table_has_its_columns(table):
    train, rest = ps.Dataset(table(), "table")[10:].split(0.5)
    assert train.columns == ("x", "text", "row", "kind")
    assert sorted([*train.x, *rest.x]) == list(range(10, N))
    assert train.text.tolist() == [TEXT[int(x)] for x in train.x]


def test_two_workers_read_each_row_of_parquet_files_once_an_epoch(open_session, tmp_path):
    pq = pytest.importorskip("pyarrow.parquet")
    pq.write_table(arrow(), tmp_path / "rows.parquet", row_group_size=7)
    joined = threading.Barrier(2)

    def work(name):
        data = ps.data.parquet(tmp_path / "rows.parquet", ["x"], buffer_bytes=100)
        with open_session(name) as session:
            joined.wait(30)
            return [(batch.epoch, x) for batch in session.batches(data, 2, epochs=3) for x in batch.x.tolist()]

    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(work, ("w0", "w1"))
    assert sorted(first + second) == [(epoch, x) for epoch in (1, 2, 3) for x in X.tolist()]


def test_frames_of_pandas_have_rules_for_what_is_missing():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"x": [1.5, None]})
    assert np.isnan(ps.Dataset(frame).x[1]), "NaN is a number"
    for column in (
        pd.array([1, None], "Int64"),
        pd.Categorical(["a", None]),
        pd.array(["a", None], "str"),
        pd.array([True, None], "boolean"),
        pd.to_datetime(pd.Series(["2024-01-01", None]), utc=True),
    ):
        with pytest.raises(DatasetError, match="column 'x': 1 of 2 values are null; fill them"):
            ps.Dataset(pd.DataFrame({"x": column}))
    with pytest.raises(DatasetError, match=r"objects \(NoneType, str\) .*fill missing values"):
        ps.Dataset(pd.DataFrame({"x": pd.Series(["a", None], dtype=object)}))
    with pytest.raises(DatasetError, match="has a column 0; names are text"):
        ps.Dataset(pd.DataFrame([[1, 2]]))
    assert ps.Dataset(pd.DataFrame({"x": pd.to_datetime(["2024-01-02"])})).x[0] == np.datetime64("2024-01-02")
    assert ps.Dataset(pd.DataFrame({"x": pd.array([1, 2], "Int64")})).x.tolist() == [1, 2]


def test_batches_of_a_reader_of_tables_are_batches():
    table = arrow()
    with ps.session() as session:
        batches = list(session.batches(lambda: table.to_reader(max_chunksize=15), None, epochs=2))
        assert [len(batch) for batch in batches] == [15, 5, 15, 15] * 2
        assert np.concatenate([batch.x for batch in batches[:4]]).tolist() == X.tolist()
        with pytest.raises(DatasetError, match="an example is RecordBatch, a whole batch; give batch_size=None"):
            next(session.batches(table.to_reader(), 10))


def test_a_lazy_frame_is_refused_with_what_to_do():
    pl = pytest.importorskip("polars")
    with ps.session() as session, pytest.raises(DatasetError, match=r"LazyFrame is not a dataset.* collect\(\)"):
        session.batches(pl.LazyFrame({"x": X}), 10)


# --- Hugging Face -----------------------------------------------------------------------------------------------------


def test_of_a_hugging_face_dataset_only_the_rows_of_a_batch_are_fetched(tmp_path):
    fetched = []

    def transform(columns):
        fetched.append(len(columns["x"]))
        return {"double": [2 * x for x in columns["x"]]}

    hugging_face().save_to_disk(tmp_path / "saved")
    import datasets

    source = datasets.load_from_disk(tmp_path / "saved").with_transform(transform)
    with ps.session() as session:
        for number, batch in enumerate(session.batches(source, 5, steps=3), 1):
            assert sum(fetched) == 5 * number, "not the batches that come later"
            assert batch.double.shape == (5,)


def test_a_saved_hugging_face_dataset_stays_on_disk(tmp_path):
    hugging_face()
    import pyarrow as pa

    import datasets

    columns = {"x": np.arange(20_000), "image": np.zeros((20_000, 100), np.float64)}
    datasets.Dataset.from_dict(columns).save_to_disk(tmp_path / "saved")
    del columns
    source = datasets.load_from_disk(tmp_path / "saved")
    before, most = pa.total_allocated_bytes(), 0
    with ps.session() as session:
        for batch in session.batches(source, 10, steps=50):
            most = max(most, pa.total_allocated_bytes() - before)
            assert batch.x.shape == (10,)
    assert source.data.nbytes > 16_000_000
    assert most < 500_000


def test_formats_splits_streams_and_selections_of_hugging_face():
    dataset = hugging_face()
    with ps.session() as session:
        for chosen in (dataset.with_format("numpy"), dataset.shuffle(seed=1), dataset.select(range(N))):
            batches = list(session.batches(chosen.select_columns(["x"]), 8))
            assert sorted(np.concatenate([batch.x for batch in batches]).tolist()) == X.tolist()
        stream = dataset.select_columns(["x", "text"]).to_iterable_dataset()
        batches = list(session.batches(stream, 8, epochs=2))
        assert np.concatenate([batch.x for batch in batches]).tolist() == [*X, *X]
        assert batches[0].text.tolist() == TEXT[:8]
        assert batches[0].text.dtype == np.dtypes.StringDType()
        tables = dataset.to_iterable_dataset().with_format("arrow").iter(20)
        assert [len(batch.row) for batch in session.batches(tables, None)] == [20, 20, 10]
        collated = session.batches(dataset, 8, collate=lambda rows: {"x": [row["x"] + 1 for row in rows]})
        assert sorted(np.concatenate([batch.x for batch in collated]).tolist()) == (X + 1).tolist()
        with pytest.raises(DatasetError, match=r"column 'train': a table of its own; .* as in splits\['train'\]"):
            session.batches(dataset.train_test_split(0.2), 8)


# --- PyTorch ----------------------------------------------------------------------------------------------------------


def test_datasets_of_pytorch_are_read_by_number_and_name_their_columns():
    torch = pytest.importorskip("torch")
    fetched = []
    Example = namedtuple("Example", ["image", "label", "name_of_it"])

    class Images(torch.utils.data.Dataset):
        def __len__(self):
            return N

        def __getitem__(self, number):
            fetched.append(number)
            return Example(torch.full((2, 2), float(number)), number % 3, f"image {number}")

    pairs = torch.utils.data.TensorDataset(torch.arange(N * 2.0).reshape(N, 2), torch.arange(N))
    with ps.session() as session:
        batches = session.batches(Images(), 10)
        batch = next(batches)
        assert len(fetched) == 10, "and no others before their turn"
        assert (batch.image.shape, batch.image.dtype) == ((10, 2, 2), np.float32)
        assert batch.label.tolist() == [number % 3 for number in fetched]
        assert batch.name_of_it.tolist() == [f"image {number}" for number in fetched]
        subset = torch.utils.data.Subset(pairs, range(10, 30))
        batches = list(session.batches(subset, 6))
        assert sorted(np.concatenate([batch.y for batch in batches]).tolist()) == list(range(10, 30))
        assert all((batch.x[:, 0] == 2 * batch.y).all() for batch in batches)


def test_an_iterable_dataset_of_pytorch_is_a_stream_also_with_a_length():
    torch = pytest.importorskip("torch")

    class Numbers(torch.utils.data.IterableDataset):
        def __iter__(self):
            return ((torch.tensor([number, 1.0]), number) for number in range(10))

        def __len__(self):
            return 10

    with ps.session() as session:
        batches = list(session.batches(Numbers(), 4, epochs=2))
        loader = torch.utils.data.DataLoader(Numbers(), batch_size=5)
        of_loader = list(session.batches(loader, None, collate=lambda pair: {"x": pair[0], "y": pair[1]}))
    assert [batch.y.tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]] * 2
    assert batches[0].x.shape == (4, 2)
    assert [batch.y.tolist() for batch in of_loader] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
