"""Placement: the same in every worker, balanced bytes, and every row on one shard."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pswire.errors import AlreadyRegistered, UnknownVariable
from pswire.tensors.values import Part, TensorSpec
from psworker.client.placement import SPLIT_BYTES, Placement

MIB = 1 << 20
DETERMINISTIC = settings(derandomize=True, database=None, deadline=None, max_examples=60)

#: Sizes around the limit, with few rows and many, with none, and without axes. None of them is ever allocated.
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


def placed(shards, *specs):
    return Placement(shards).extended(specs)


def places(placement, specs):
    return {spec.name: placement[spec.name].partitions for spec in specs}


@DETERMINISTIC
@given(variables, shard_counts, st.randoms(use_true_random=False), st.integers(0, 25))
def test_splitting_are_all_rows_in_order_and_neither_order_nor_later_variables_move_them(specs, shards, order, count):
    placement = placed(shards, *specs)
    for spec in specs:
        pieces = placement[spec.name].partitions
        if pieces[0].part is None:
            assert [partition.spec for partition in pieces] == [spec]
            continue
        rows = [partition.spec.shape[0] for partition in pieces]
        assert sum(rows) == spec.shape[0]
        assert max(rows) - min(rows) <= 1 <= min(rows)
        for shard, partition in enumerate(pieces):
            assert (partition.shard, partition.part) == (shard, Part(sum(rows[:shard]), spec.shape[0]))
            assert partition.spec == TensorSpec(spec.name, (rows[shard], *spec.shape[1:]), spec.dtype)
    assert places(placed(shards, *order.sample(specs, len(specs))), specs) == places(placement, specs)
    before = placed(shards, *specs[:count])
    known = places(before, specs[:count])
    assert places(before.extended(specs), specs[:count]) == known == places(before, specs[:count])
    for spec in specs[count:]:
        with pytest.raises(UnknownVariable, match=spec.name):
            before[spec.name]


def test_the_largest_go_first_each_to_the_emptiest_shard():
    sizes = {"a": 1, "b": 6, "c": 2, "d": 5, "e": 4}
    placement = placed(2, *(TensorSpec(name, (size,)) for name, size in sizes.items()))
    assert {name: placement[name].partitions[0].shard for name in sizes} == {"b": 0, "d": 1, "e": 1, "c": 0, "a": 0}


def test_rows_that_are_over_go_to_the_emptiest_shards():
    large, table = TensorSpec("large", (1, 2 * MIB)), TensorSpec("table", (5, MIB))
    for placement, rows in ((placed(3, large, table), [2, 2, 1]), (placed(3, large).extended([table]), [1, 2, 2])):
        pieces = placement["table"].partitions
        assert [(partition.shard, partition.spec.shape[0]) for partition in pieces] == [*enumerate(rows)]


def test_a_variable_of_the_limit_itself_or_with_fewer_rows_than_shards_is_not_split():
    specs = {"at": (2, MIB // 2), "above": (2, MIB // 2 + 1), "row": (1, 3 * MIB)}
    placement = placed(2, *(TensorSpec(name, shape) for name, shape in specs.items()))
    assert placement["at"].spec.nbytes == SPLIT_BYTES
    assert [len(placement[name].partitions) for name in specs] == [1, 2, 1]


def test_names_are_grouped_by_shard_once_and_in_their_order():
    placement = placed(3, TensorSpec("split", (9, MIB)), TensorSpec("a", (3,)), TensorSpec("b", (2,)))
    assert placement.by_shard(["b", "split", "a", "b"]) == [["split", "a"], ["b", "split"], ["split"]]
    with pytest.raises(UnknownVariable, match="'c' has not been registered by this worker"):
        placement.by_shard(["a", "c"])


def test_a_variable_cannot_have_another_shape_later():
    placement = placed(2, TensorSpec("a", (3,)))
    assert placement.extended([TensorSpec("a", (3,))]) == placement
    with pytest.raises(
        AlreadyRegistered, match=r"a float32\[3\] is already registered .* now declared as a float32\[4\]"
    ):
        placement.extended([TensorSpec("b", (1,)), TensorSpec("a", (4,))])
