"""Placement: the same shard for a variable in every worker, and bytes shared out."""

import itertools
import random

import pytest

from pswire.values import TensorSpec
from psworker.placement import Placement

SEED = 8


def specs(count, seed=SEED):
    """Variables of many sizes, some of them as large as others."""
    generator = random.Random(seed)
    return [TensorSpec(f"v{i}", (generator.choice([1, 1, 10, 300, 5000]),)) for i in range(count)]


def placed(shards, variables):
    placement = Placement(shards)
    placement.add(variables)
    return placement


def test_the_order_in_which_a_worker_names_its_variables_does_not_matter():
    variables = specs(20)
    shuffled = random.Random(SEED).sample(variables, len(variables))
    one, other = placed(3, variables), placed(3, shuffled)
    assert [one[variable.name] for variable in variables] == [other[variable.name] for variable in variables]


def test_the_largest_go_first_each_to_the_emptiest_shard():
    sizes = {"a": 1, "b": 6, "c": 2, "d": 5, "e": 4}
    placement = placed(2, [TensorSpec(name, (size,)) for name, size in sizes.items()])
    assert {name: placement[name] for name in sizes} == {"b": 0, "d": 1, "e": 1, "c": 0, "a": 0}


@pytest.mark.parametrize("shards", [1, 2, 5])
def test_no_shard_has_more_than_its_share_and_one_variable(shards):
    variables = specs(40)
    placement = placed(shards, variables)
    load = [sum(one.nbytes for one in variables if placement[one.name] == shard) for shard in range(shards)]
    assert sum(load) == sum(one.nbytes for one in variables)
    assert max(load) <= sum(load) / shards + max(one.nbytes for one in variables)


def test_variables_that_come_later_move_none_of_those_that_are_there():
    variables = specs(30)
    placement = placed(3, variables[:10])
    before = [placement[one.name] for one in variables[:10]]
    placement.add(variables)
    assert [placement[one.name] for one in variables[:10]] == before
    assert {placement[one.name] for one in variables[10:]} == {0, 1, 2}


def test_split_keeps_the_order_within_each_shard():
    variables = specs(12)
    placement = placed(3, variables)
    parts = placement.split((one.name, i) for i, one in enumerate(variables))
    assert len(parts) == 3
    assert sorted(itertools.chain.from_iterable(parts)) == list(range(12))
    for shard, part in enumerate(parts):
        assert part == sorted(part)
        assert all(placement[variables[i].name] == shard for i in part)


def test_one_shard_has_everything():
    assert placed(1, specs(5)).split((one.name, one.name) for one in specs(5)) == [[f"v{i}" for i in range(5)]]
