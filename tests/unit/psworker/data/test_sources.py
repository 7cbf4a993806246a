"""Function datasets, sequences and iterables of examples: the batches they make, and what is refused."""

from collections import namedtuple

import numpy as np
import pytest

from pswire.errors import DatasetError
from pswire.messages import Block
from psworker.data.batch import Batch
from psworker.data.dataset import Dataset
from psworker.data.epoch_order import epoch_order
from psworker.data.ragged import Ragged
from psworker.data.sources import FunctionDataset, Stream, open_source
from psworker.sessions.block_batches import Reading

NUMBERS = np.arange(10)


def squares(indices):
    return {"x": indices, "square": indices**2}


@pytest.fixture
def dataset():
    return FunctionDataset(squares, size=10, name="squares")


def values(source, batch_size=3):
    return [batch.x.tolist() for batch in Reading(open_source(source, None), batch_size).in_order()]


def stream(source, batch_size=3, epochs=1, collate=None):
    return open_source(source, collate).batches(batch_size, epochs)


def test_a_function_dataset_calls_the_function_with_the_numbers_of_the_examples(dataset):
    batch = dataset.take([5, 0, 5], epoch=2)
    assert isinstance(batch, Batch)
    assert (batch.x.tolist(), batch.square.tolist(), batch.epoch) == ([5, 0, 5], [25, 0, 25], 2)
    assert (len(dataset), dataset.name, repr(dataset)) == (10, "squares", "FunctionDataset('squares', 10 examples)")
    assert (dataset.num_examples, dataset[:4].num_examples) == (10, 4)
    with pytest.raises(DatasetError, match="has rows 0 to 9, asked for 3 to 10"):
        dataset.take([10, 3])


def test_slices_and_splits_of_a_function_dataset_read_nothing_and_compose(dataset):
    read = []
    dataset = FunctionDataset(lambda indices: read.append(indices) or squares(indices), size=10, name="squares")
    part, (first, second) = dataset[8:2:-2], dataset[2:].split(0.75, seed=1)
    again, tail = first[1:], first.split(0.5)[1]
    assert read == []
    assert (part.take([0, 2]).x.tolist(), part.name, len(part)) == ([8, 4], "squares[8:2:-2]", 3)
    rows = (2 + epoch_order(8, 1, 0)).tolist()
    assert first.take(np.arange(6)).x.tolist() + second.take([0, 1]).x.tolist() == rows
    assert again.take([0, 4]).x.tolist() == [rows[1], rows[5]]
    assert tail.take([0]).x[0] in rows[:6]
    with pytest.raises(DatasetError, match=r"squares\[3:3\] has no rows"):
        dataset[3:3]
    with pytest.raises(TypeError, match="takes a slice, not 3"):
        dataset[3]
    with pytest.raises(DatasetError, match="has size 0"):
        FunctionDataset(squares, 0)


@pytest.mark.parametrize(
    ("returned", "pattern"),
    [
        ({"x": [1, 2]}, "returned 2 rows for 3 indices; it must return one row for each"),
        (np.zeros(3), "is ndarray; give columns by name"),
        (None, "is NoneType; give columns by name"),
        ({"x": [[1], [2, 3], [4]]}, r"a batch, column 'x': not an array .*ps.Ragged\(rows\)"),
        ({"x": [1, 2, 3], "y": [1]}, r"unequal length \(x: 3, y: 1\)"),
        ({}, "no columns"),
        ({0: [1, 2, 3]}, "has a column 0; names are text"),
        ({"x": [1, "a", None]}, "fill missing values or leave out their rows"),
    ],
)
def test_a_function_that_returns_no_batch_of_its_rows_is_refused_by_name(returned, pattern):
    dataset = FunctionDataset(lambda indices: returned, size=10, name="broken")
    with pytest.raises(DatasetError, match=f"the function of FunctionDataset.'broken'.*{pattern}"):
        dataset.take([0, 1, 2])


def test_a_function_may_return_ragged_columns_and_batches():
    dataset = FunctionDataset(lambda indices: Batch({"x": Ragged([[0] * n for n in indices])}), size=10)
    batch = dataset.take([3, 0, 1], epoch=4)
    assert (batch.x.lengths.tolist(), batch.epoch) == ([3, 0, 1], 4)


def test_columns_by_name_sequences_and_iterables_give_the_same_examples():
    class Sequence:
        def __len__(self):
            return 10

        def __getitem__(self, number):
            return {"x": NUMBERS[number]}

    class Table:  # as of another library
        def keys(self):
            return ["x"]

        def items(self):
            return [("x", NUMBERS)]

    examples = [{"x": number} for number in NUMBERS]
    expected = [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]
    batch = Batch({"x": NUMBERS})
    for source in (Dataset({"x": NUMBERS}), batch, {"x": NUMBERS}, Table(), examples, Sequence()):
        assert len(open_source(source, None)) == 10
        assert values(source) == expected
    for source in (iter(examples), (one for one in examples), lambda: iter(examples), dict.fromkeys([1]).keys()):
        assert isinstance(open_source(source, None), Stream)
    for source in (iter(examples), lambda: examples):
        assert values(source) == expected


def test_a_dataset_with_a_column_that_is_named_keys_is_a_dataset():
    dataset = Dataset({"keys": NUMBERS})
    assert open_source(dataset, None) is dataset


def test_arrays_of_examples_are_stacked_by_column():
    examples = [{"x": np.full((2, 3), number, np.float32), "y": number} for number in range(3)]
    batch = open_source(examples, None).take([2, 0])
    assert (batch.x.shape, batch.x.dtype, batch.y.tolist()) == ((2, 2, 3), np.float32, [2, 0])
    np.testing.assert_array_equal(batch.x[0], examples[2]["x"])


def test_pairs_named_tuples_and_texts_are_stacked_by_column():
    Example = namedtuple("Example", ["image", "caption"])
    named = [Example(np.full(2, number), "a" * number) for number in range(3)]
    pairs = [(number, [number, 1]) for number in range(3)]
    batch, of_pairs = open_source(named, None).take([2, 1]), next(stream(iter(pairs)))
    assert (batch.columns, batch.image.tolist(), batch.caption.tolist()) == (
        ("image", "caption"),
        [[2, 2], [1, 1]],
        ["aa", "a"],
    )
    assert (of_pairs.x.tolist(), of_pairs.y.tolist()) == ([0, 1, 2], [[0, 1], [1, 1], [2, 1]])


def test_texts_are_columns_in_which_none_takes_the_memory_of_the_longest():
    texts = ["a" * 1000, "b", "ä"]
    columns = {"of_list": texts, "of_objects": np.array(texts, object)}
    data = Dataset({**columns, "fixed": np.array(["a", "b", "c"])})
    examples = open_source([{"text": text} for text in texts], None)
    for column in (data.of_list, data.of_objects, examples.take([0, 1, 2]).text):
        assert (column.dtype, column.tolist()) == (np.dtypes.StringDType(), texts)
    assert data.fixed.dtype == "U1", "an array is borrowed as it is"
    assert data.split(0.5)[1].of_list.tolist()[0] in texts
    assert Dataset.concatenate([data, data[1:]]).of_list.tolist() == [*texts, *texts[1:]]


def test_an_iterable_dataset_of_pytorch_with_a_length_is_a_stream():
    class Base:  # as torch.utils.data.Dataset
        def __getitem__(self, number):
            raise NotImplementedError

    class IterableDataset(Base):
        pass

    class Numbers(IterableDataset):
        def __iter__(self):
            return ({"x": number} for number in NUMBERS)

        def __len__(self):
            return 10

    assert isinstance(open_source(Numbers(), None), Stream)
    assert values(Numbers()) == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]


def test_a_function_dataset_may_have_an_order_of_its_own():
    class Reversed(FunctionDataset):
        def order(self, seed, epoch):
            return np.arange(len(self))[::-1]

    reading = Reading(Reversed(squares, size=10)[2:], 3)
    batches = reading.batches(reading.queue("q", 1))
    batches.begin(Block(epoch=1, start=0, stop=8))
    assert [batch.x.tolist() for batch in iter(batches.next, None)] == [[9, 8, 7], [6, 5, 4], [3, 2]]


def test_a_stream_has_passes_with_a_smaller_last_batch_and_reads_no_further_than_it_gives():
    read = []

    def numbers():
        for number in range(5):
            read.append(number)
            yield {"x": number}

    batches = stream(numbers, 2, epochs=2)
    assert read == []
    assert [(batch.epoch, batch.x.tolist()) for batch in [next(batches), next(batches)]] == [(1, [0, 1]), (1, [2, 3])]
    assert read == [0, 1, 2, 3]
    assert [(batch.epoch, batch.x.tolist()) for batch in batches] == [(1, [4]), (2, [0, 1]), (2, [2, 3]), (2, [4])]
    endless = stream(numbers, 5, epochs=None)
    assert [next(endless).epoch for _ in range(4)] == [1, 2, 3, 4]


def test_items_are_batches_without_a_batch_size():
    items = [{"x": [1, 2]}, Batch({"x": [3]}), {"x": Ragged([[4], []])}]
    first, second, third = stream(iter(items), None)
    assert (first.x.tolist(), first.epoch, second.x.tolist(), second.epoch) == ([1, 2], 1, [3], 1)
    assert third.x.lengths.tolist() == [1, 0]
    with pytest.raises(DatasetError, match="gave an item that is int; give columns by name"):
        next(stream(iter([1]), None))


def test_collate_makes_the_columns_of_an_item_that_is_a_whole_batch():
    items = [(np.arange(2), np.zeros(2)), (np.arange(3), np.ones(3))]  # as other libraries give them
    batches = list(stream(iter(items), None, collate=lambda item: {"x": item[0], "y": item[1]}))
    assert [(batch.x.tolist(), batch.y.tolist()) for batch in batches] == [([0, 1], [0, 0]), ([0, 1, 2], [1, 1, 1])]


def test_collate_makes_the_columns_of_the_examples():
    examples = [([0] * number, number) for number in range(5)]
    collate = lambda several: {"x": Ragged([x for x, _ in several]), "y": [y for _, y in several]}
    for batches in (stream(iter(examples), 2, collate=collate), Reading(open_source(examples, collate), 2).in_order()):
        assert [(batch.x.lengths.tolist(), batch.y.tolist()) for batch in batches] == [
            ([n, n + 1], [n, n + 1]) for n in (0, 2)
        ] + [([4], [4])]
    with pytest.raises(ValueError, match="a dataset has columns already"):
        open_source({"x": NUMBERS}, collate)
    with pytest.raises(DatasetError, match=r"what collate returned for .* is list; give columns by name"):
        next(stream(iter(examples), 2, collate=list))


@pytest.mark.parametrize(
    ("examples", "pattern"),
    [
        ([{"x": 1}, (2, 3, 4)], "an example is tuple; give a mapping, .* or collate="),
        ([{"x": 1}, {"y": 1}], r"examples 0 and 1 of a batch have columns \['x'\] and \['y'\]"),
        ([{"x": [1]}, {"x": [1, 2]}], r"'x' has shapes \(1,\) and \(2,\) in examples 0 and 1 .*collate=.*ps.Ragged"),
        ([{"x": None}], r"column 'x': objects \(NoneType\)"),
        ([], "gave nothing in pass 1; each worker needs at least one example in each pass"),
    ],
)
def test_examples_that_cannot_be_stacked_are_refused(examples, pattern):
    with pytest.raises(DatasetError, match=pattern):
        next(stream(iter(examples), 3))


def test_a_later_pass_without_examples_is_an_error_and_an_iterator_has_one_pass():
    passes = [[{"x": 1}], []]
    batches = stream(lambda: passes.pop(0), 2, epochs=2)
    assert next(batches).x.tolist() == [1]
    with pytest.raises(DatasetError, match="gave nothing in pass 2"):
        next(batches)
    for epochs in (2, None):
        with pytest.raises(DatasetError, match=f"can be read once, but epochs={epochs}; give the function"):
            stream(iter([{"x": 1}]), 2, epochs=epochs)
    with pytest.raises(DatasetError, match="returned int; it must return an iterable"):
        next(stream(lambda: 3))


@pytest.mark.parametrize(
    ("source", "pattern"),
    [
        (NUMBERS, 'ndarray is not a dataset; name the columns, as in {"x": x, "y": y}'),
        ((NUMBERS, NUMBERS), "tuple is not a dataset"),
        ("train.csv", "str is not a dataset"),
        (None, "NoneType is not a dataset; give a ps.Dataset"),
        ([], "list.* has size 0"),
    ],
)
def test_what_is_no_source_is_refused_with_what_to_give(source, pattern):
    with pytest.raises(DatasetError, match=pattern):
        open_source(source, None)
