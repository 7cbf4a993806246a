"""Placement: the same in every worker, balanced bytes, and every row on one shard."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pswire.errors import AlreadyRegistered, UnknownVariable
from pswire.tensors.values import Part, TensorSpec
from psworker.client.placement import SPLIT_BYTES, Placement

MIB = 1 << 20
DETERMINISTIC = settings(derandomize=True, database=None, deadline=None)

#: Sizes around the limit, with few rows and many, with none, and without axes. Nothing of them is ever allocated.
shapes = st.one_of(
    st.just(()),
    st.tuples(st.integers(0, 9)),
    st.tuples(st.integers(0, 12), st.sampled_from([1, 1000, MIB // 4, MIB, MIB + 1, 3 * MIB])),
    st.tuples(st.integers(0, 3 * MIB), st.sampled_from([1, 2, 7])),
)
variables = st.lists(shapes, min_size=1, max_size=25).map(
    lambda found: [TensorSpec(f"v{i}", shape) for i, shape in enumerate(found)]
)
shard_counts = st.integers(1, 5)


def placed(shards, specs):
    return Placement(shards).extended(specs)


def places(placement, specs):
    return {spec.name: placement[spec.name].partitions for spec in specs}


@DETERMINISTIC
@given(variables, shard_counts)
def test_the_parts_of_a_variable_are_all_of_its_rows_one_after_the_other(specs, shards):
    placement = placed(shards, specs)
    for spec in specs:
        pieces = placement[spec.name].partitions
        if pieces[0].part is None:
            assert [partition.spec for partition in pieces] == [spec]
            continue
        assert [partition.shard for partition in pieces] == list(range(shards))
        assert [partition.part.first for partition in pieces] == [
            sum(before.spec.shape[0] for before in pieces[:k]) for k in range(shards)
        ]
        assert (
            {partition.part.of for partition in pieces}
            == {sum(partition.spec.shape[0] for partition in pieces)}
            == {spec.shape[0]}
        )
        assert {(partition.spec.name, partition.spec.shape[1:], partition.spec.dtype) for partition in pieces} == {
            (spec.name, spec.shape[1:], spec.dtype)
        }
        counts = [partition.spec.shape[0] for partition in pieces]
        assert max(counts) - min(counts) <= 1 <= min(counts)


@DETERMINISTIC
@given(variables, shard_counts, st.randoms(use_true_random=False))
def test_the_order_in_which_a_worker_names_its_variables_does_not_matter(specs, shards, order):
    shuffled = order.sample(specs, len(specs))
    assert places(placed(shards, specs), specs) == places(placed(shards, shuffled), specs)


@DETERMINISTIC
@given(variables, shard_counts, st.integers(0, 25))
def test_variables_that_come_later_move_none_of_those_that_are_there(specs, shards, count):
    before = placed(shards, specs[:count])
    known = places(before, specs[:count])
    after = before.extended(specs)
    assert places(after, specs[:count]) == known
    assert places(before, specs[:count]) == known
    for spec in specs[count:]:
        with pytest.raises(UnknownVariable, match=spec.name):
            before[spec.name]


def test_the_largest_go_first_each_to_the_emptiest_shard():
    sizes = {"a": 1, "b": 6, "c": 2, "d": 5, "e": 4}
    placement = placed(2, [TensorSpec(name, (size,)) for name, size in sizes.items()])
    assert {name: placement[name].partitions[0].shard for name in sizes} == {"b": 0, "d": 1, "e": 1, "c": 0, "a": 0}


def test_rows_that_are_over_go_to_the_emptiest_shards():
    large, table = TensorSpec("large", (1, 2 * MIB)), TensorSpec("table", (5, MIB))
    pieces = placed(3, [large, table])["table"].partitions
    assert [(partition.shard, partition.spec.shape[0], partition.part) for partition in pieces] == [
        (0, 2, Part(0, 5)),
        (1, 2, Part(2, 5)),
        (2, 1, Part(4, 5)),
    ]
    first = placed(3, [large])
    assert [partition.spec.shape[0] for partition in first.extended([table])["table"].partitions] == [1, 2, 2]


def test_a_variable_of_the_limit_itself_is_not_split():
    at, above = TensorSpec("at", (2, MIB // 2)), TensorSpec("above", (2, MIB // 2 + 1))
    assert at.nbytes == SPLIT_BYTES
    placement = placed(2, [at, above])
    assert [len(placement[name].partitions) for name in ("at", "above")] == [1, 2]


def test_names_are_grouped_by_shard_once_and_in_their_order():
    placement = placed(3, [TensorSpec("split", (9, MIB)), TensorSpec("a", (3,)), TensorSpec("b", (2,))])
    assert placement.by_shard(["b", "split", "a", "b"]) == [["split", "a"], ["b", "split"], ["split"]]
    with pytest.raises(UnknownVariable, match="'c' has not been registered by this worker"):
        placement.by_shard(["a", "c"])


def test_a_variable_cannot_have_another_shape_later():
    placement = placed(2, [TensorSpec("a", (3,))])
    assert placement.extended([TensorSpec("a", (3,))]) == placement
    with pytest.raises(AlreadyRegistered, match=r"a float32\[3\] is registered .* now declared as a float32\[4\]"):
        placement.extended([TensorSpec("b", (1,)), TensorSpec("a", (4,))])
