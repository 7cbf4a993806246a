"""Placement: the same in every worker, balanced bytes, every row on one shard; arrays split and joined, bit for bit."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pswire import placement
from pswire.errors import AlreadyRegistered, InvalidMessage, Malformed, ShapeMismatch, UnknownVariable
from pswire.messages import Declaration, Register, Value
from pswire.placement import SPLIT_BYTES, Partition, place_again
from pswire.tensors.values import IndexedSlices, Part, TensorSpec, whole_spec
from psworker.client import push_pull
from psworker.client.partitions import Placement
from psworker.client.registration import MAX_DECLARATIONS
from psworker.versions import ReadVersion, VersionedArray
from tests.support.shards import ShardsInProcess

MIB = 1 << 20
ROWS = 11  # of the variable that is split
DETERMINISTIC = settings(derandomize=True, database=None, max_examples=60)

#: Sizes around the limit, with few rows and many, with none, and without axes. None of them is ever allocated.
shapes = st.one_of(
    st.just(()),
    st.tuples(st.integers(0, 12), st.sampled_from([1, 1000, MIB // 4, MIB, MIB + 1, 3 * MIB])),
    st.tuples(st.integers(0, 3 * MIB), st.sampled_from([1, 2, 7])),
)
variables = st.lists(shapes, min_size=1, max_size=25).map(
    lambda found: [TensorSpec(f"v{i}", shape) for i, shape in enumerate(found)]
)


def placed(shards, *specs):
    return Placement(shards).extended(specs)


@pytest.mark.slow
@DETERMINISTIC
@given(variables, st.integers(1, 5), st.randoms(use_true_random=False), st.integers(0, 25))
def test_parts_are_all_rows_in_order_and_neither_order_nor_later_variables_move_them(specs, shards, order, count):
    whole = placed(shards, *specs)
    for spec in specs:
        partitions = whole[spec.name].partitions
        if partitions[0].part is None:
            assert [partition.spec for partition in partitions] == [spec]
            continue
        rows = [partition.spec.shape[0] for partition in partitions]
        assert sum(rows) == spec.shape[0]
        assert max(rows) - min(rows) <= 1 <= min(rows)
        for shard, partition in enumerate(partitions):
            assert (partition.shard, partition.part) == (shard, Part(sum(rows[:shard]), spec.shape[0]))
            assert partition.spec == TensorSpec(spec.name, (rows[shard], *spec.shape[1:]), spec.dtype)
    assert placed(shards, *order.sample(specs, len(specs))) == whole
    before = placed(shards, *specs[:count])
    known = dict(before)
    assert before.extended(specs).items() >= known.items() == before.items()
    for spec in specs[count:]:
        with pytest.raises(UnknownVariable, match=f"'{spec.name}' has not been registered by this worker"):
            before[spec.name]


def test_the_largest_go_first_to_the_emptiest_shard_and_those_above_the_limit_are_split_if_there_are_rows_for_all():
    sizes = {"a": 1, "b": 6, "c": 2, "d": 5, "e": 4}
    found = placed(2, *(TensorSpec(name, (size,)) for name, size in sizes.items()))
    assert {name: found[name].partitions[0].shard for name in sizes} == {"b": 0, "d": 1, "e": 1, "c": 0, "a": 0}
    specs = {"at": (2, SPLIT_BYTES // 8), "above": (2, MIB // 2 + 1), "row": (1, 3 * MIB)}
    found = placed(2, *(TensorSpec(name, shape) for name, shape in specs.items()))
    assert [len(found[name].partitions) for name in specs] == [1, 2, 1]
    large, table = TensorSpec("large", (1, 2 * MIB)), TensorSpec("table", (5, MIB))
    for found, rows in ((placed(3, large, table), [2, 2, 1]), (placed(3, large).extended([table]), [1, 2, 2])):
        assert [partition.spec.shape[0] for partition in found["table"].partitions] == rows


def test_a_variable_cannot_have_another_shape_later():
    first = placed(2, TensorSpec("a", (3,)))
    assert first.extended([TensorSpec("a", (3,))]) == first
    with pytest.raises(AlreadyRegistered, match=r"a float32\[3\] is already .* is now declared as a float32\[4\]"):
        first.extended([TensorSpec("b", (1,)), TensorSpec("a", (4,))])


#: What a program registers, call by call, with shapes of which some are split; the second call names one known already.
REGISTERED = [{"a": (9,), "b": (3, 8), "c": (1, 40)}, {"c": (1, 40), "d": (7,)}, {}, {"f": (9, 9), "e": (2, 2)}]


def registered(shards):
    """The shards after a program has registered its variables, twice; and by name where their parts were sent."""
    transport, partitions = ShardsInProcess(shards), {}
    for worker in ("w0", "w1"):
        client, _ = transport.client(worker)
        for group in REGISTERED:
            client.register([Declaration(TensorSpec(name, shape), some(shape)) for name, shape in group.items()])
    for shard, message in transport.messages(Register):
        for one in message.declarations:
            partitions.setdefault(one.spec.name, {})[shard] = Partition(shard, one.spec, one.part)
    return transport, {name: tuple(of.values()) for name, of in sorted(partitions.items())}


@pytest.mark.usefixtures("split_small")
@pytest.mark.parametrize("before", [1, 2, 3])
@pytest.mark.parametrize("after", [1, 2, 3, 5])
def test_a_restore_onto_other_shards_places_what_shard_0_has_recorded_as_workers_do_there(before, after):
    transport, partitions = registered(before)
    groups = [group.names for group in transport.machines[0].state().groups]
    assert [set(group) for group in groups] == [{"a", "b", "c"}, {"d"}, {"f", "e"}]
    whole = {name: whole_spec(of[0].spec, of[0].part) for name, of in partitions.items()}
    assert {name: spec.shape for name, spec in whole.items()} == {
        n: s for group in REGISTERED for n, s in group.items()
    }
    placed = place_again([[whole[name] for name in group] for group in groups], after)
    assert dict(sorted(placed.items())) == registered(after)[1]


def test_the_groups_count_in_a_placement_and_their_order_but_not_the_order_within():
    small, large, last = (TensorSpec(name, (rows,)) for name, rows in (("small", 1), ("large", 9), ("last", 1)))
    shards = {}
    alike = [[small, large], [last]], [[large, small], [last]]
    for groups in (*alike, [[small], [large], [last]], [[large, last, small]]):
        found = place_again(groups, 2)
        shards[str(groups)] = [found[name][0].shard for name in ("small", "large", "last")]
    assert list(shards.values()) == [[1, 0, 1], [1, 0, 1], [0, 1, 0], [1, 0, 1]]


def split(shards, row_shape=(3,)):
    """A variable that is split over the shards, if there are several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(placement, "SPLIT_BYTES", 16)
        return placed(shards, TensorSpec("w", (ROWS, *row_shape)))["w"]


def some(shape):
    return np.random.default_rng(1).normal(size=shape).astype(np.float32)


@DETERMINISTIC
@given(
    st.integers(1, 4),
    st.sampled_from([(), (3,), (2, 3)]),
    st.lists(st.integers(0, ROWS - 1), max_size=30),
    st.sampled_from(["int8", "int32", "int64", "uint64"]),
)
def test_values_gradients_and_rows_are_split_and_joined_in_the_order_asked_for(shards, row_shape, numbers, dtype):
    variable, value, indices = split(shards, row_shape), some((ROWS, *row_shape)), np.array(numbers, dtype)
    parts = variable.split(value)
    assert [part.shape for part in parts] == [partition.spec.shape for partition in variable.partitions]
    assert all(np.shares_memory(part, value) and part.flags.c_contiguous for part in parts)
    joined = push_pull.join(variable, [Value("w", version, part) for version, part in enumerate(parts)])
    np.testing.assert_array_equal(joined, value, strict=True)
    assert joined is value if shards == 1 else not (joined.flags.writeable or np.shares_memory(joined, value))

    rows = IndexedSlices(some((len(numbers), *row_shape)), indices, value.shape)
    gradients = variable.split_gradient(rows)
    assert [part.shape for part in gradients] == [part.shape for part in parts]
    whole = np.concatenate([part.summed().to_dense() for part in gradients])  # as the server adds them up
    np.testing.assert_array_equal(whole, rows.summed().to_dense(), strict=True)

    chosen, positions = variable.split_rows(indices)
    answers = [Value("w", 0, part[mine]) for part, mine in zip(parts, chosen, strict=True)]
    expected = value[np.array(numbers, np.int64)]
    np.testing.assert_array_equal(push_pull.join_rows(answers, positions), expected, strict=True)


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        (np.array([0, ROWS, 3]), InvalidMessage, r"'w' has no row 11: its rows are 0 \.\.\. 10"),
        (np.array([0, 12, -1]), InvalidMessage, r"'w' has no row -1"),
        (np.array([2**63], np.uint64), InvalidMessage, "'w' has no row 9223372036854775808"),
        (np.array([0.0]), TypeError, "'w': their numbers must be integers, but they are float64"),
        (np.array([[0]]), ShapeMismatch, r"got shape \(1, 1\)"),
    ],
)
def test_invalid_rows_are_refused_by_number_and_name(shards, rows, error, message):
    with pytest.raises(error, match=message):
        split(shards).split_rows(rows)
    if error is InvalidMessage:
        array = IndexedSlices(some((len(rows), 3)), rows, (ROWS, 3), check_range=False)
        with pytest.raises(InvalidMessage, match=r"gradient for 'w': .*0 \.\.\. 10"):
            split(2).split_gradient(array)


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("named", [3, None])
def test_an_unchanged_value_must_have_the_version_that_the_worker_named(shards, named):
    variable, value = split(shards), some((ROWS, 3))
    known = None if named is None else VersionedArray("w", ReadVersion((named,) * shards), value)
    still = [Value("w", 3, None)] * shards
    if named is not None:
        assert push_pull.join(variable, still, known) is value
    for wrong in ([Value("w", 4, None), *still[1:]], [*still[:-1], Value("w", 2, None)], still[: named is None]):
        with pytest.raises(Malformed, match=r"is still at version|values of 'w', which has"):
            push_pull.join(variable, wrong, known)


def test_many_variables_are_registered_in_groups_after_all_shards_have_checked_all_of_them():
    count = 2 * MAX_DECLARATIONS + 1
    declared = [Declaration(TensorSpec(f"v{n}", (2,)), np.full(2, n, np.float32)) for n in range(count)]
    shards = ShardsInProcess(2)
    client, known = shards.client("w0", *declared)
    registered = [message for shard, message in shards.messages(Register) if not shard]
    assert [message.dry_run for message in registered] == [True] * 3 + [False] * 3
    assert all(len(message.declarations) <= len(message.places) <= MAX_DECLARATIONS for message in registered)
    assert [value.array[0] for value in known.values()] == list(range(count))
    groups = [len(group.names) for group in shards.machines[0].state().groups]
    assert groups == [MAX_DECLARATIONS, MAX_DECLARATIONS, 1]
    again = place_again([[one.spec for one in declared[n : n + MAX_DECLARATIONS]] for n in range(0, count, 1000)], 2)
    assert {name: variable.partitions for name, variable in client.registration.placement.items()} == again

    other = replace(declared[-1], spec=TensorSpec("v2000", (3,)), value=np.zeros(3, np.float32))
    new = [replace(one, spec=TensorSpec(f"new-{one.spec.name}", (2,))) for one in declared[:MAX_DECLARATIONS]]
    stranger, _ = shards.client("w1")
    with pytest.raises((ShapeMismatch, AlreadyRegistered)):
        stranger.register([*new, other])
    assert not [name for machine in shards.machines for name in machine.variables if name.startswith("new")]


def test_one_shard_checks_all_groups_of_many_variables_before_it_registers_the_first():
    shards = ShardsInProcess(1)
    known = Declaration(TensorSpec("W", (2,)), np.zeros(2, np.float32))
    shards.client("w0", known)
    new = [Declaration(TensorSpec(f"v{n}", ()), np.zeros((), np.float32)) for n in range(MAX_DECLARATIONS)]
    other, _ = shards.client("w1")
    with pytest.raises((ShapeMismatch, AlreadyRegistered)):
        other.register([*new, replace(known, spec=TensorSpec("W", (3,)), value=np.zeros(3, np.float32))])
    assert list(shards.machines[0].variables) == ["W"]
