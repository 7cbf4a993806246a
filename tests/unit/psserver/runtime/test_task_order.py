"""Large variables change in threads: side by side, each in the order of its steps, and bit for bit as one by one."""

import asyncio
import random
import sys

import numpy as np
import pytest

from psserver.core.shard import Shard
from psserver.rpc.transfer_memory import ReusedArrays
from psserver.runtime.task_order import MAX_INLINE_BYTES, TASK_OVERHEAD
from pswire.messages import (
    Assign,
    Assignment,
    Choice,
    Declaration,
    Gradient,
    Leave,
    Outcome,
    Pull,
    Push,
    Register,
    Renew,
    Tune,
)
from pswire.optimizers import Adagrad, Adam, GradientDescent, Momentum
from pswire.specs.consistency import parse_consistency, parse_staleness
from pswire.specs.encodings import ENCODINGS
from pswire.specs.initializers import RowNormal
from pswire.tensors.compression import FORMS, quantize_int8, to_16_bits, top_k
from pswire.tensors.values import IndexedSlices, TensorSpec
from tests.gated_shard import at_gate, begun, join, register, run, set_to, until, value
from tests.shard_state import run_step, state_of

LARGE = MAX_INLINE_BYTES // 8 + 1  # float64 elements: more than MAX_INLINE_BYTES bytes


def push(sender, sequence, pull=(), version=0, **arrays):
    gradients = tuple(Gradient(name, version, array) for name, array in arrays.items())
    return Push(sender, sequence, gradients, None, pull)


# --- one by one -------------------------------------------------------------------------------------------------------


def test_while_a_large_variable_is_updated_another_is_served_and_it_itself_when_that_is_done():
    async def scenario(executor, shard):
        w0, w1 = await join(executor, "w0"), await join(executor, "w1")
        await register(executor, w0, GradientDescent(1.0), w=np.zeros(LARGE), v=np.zeros(LARGE), small=np.zeros(1))
        updating = await at_gate(executor, shard.gates["w"], push(w0, 1, w=np.ones(LARGE)))
        same = await begun(executor, Pull(w1, ("w",)))
        assert not (await value(executor, w1, "v")).any()
        assert (await executor.step(push(w1, 1, ("small",), small=np.ones(1)))).values[0].array.tolist() == [-1]
        assert not updating.done()
        assert not same.done()
        shard.gates["w"].open()
        (served,) = (await same).values
        assert served.version == 1
        np.testing.assert_array_equal(served.array, -1)
        assert (await updating).outcome is Outcome.APPLIED

    run(scenario)


def test_one_push_updates_its_large_variables_side_by_side():
    async def scenario(executor, shard):
        sender = await join(executor)
        await register(executor, sender, GradientDescent(1.0), w=np.zeros(LARGE), v=np.zeros(LARGE))
        shard.gates["w"].shut()
        shard.gates["v"].shut()
        updating = asyncio.create_task(executor.step(push(sender, 1, ("w", "v"), w=np.ones(LARGE), v=np.ones(LARGE))))
        await until(shard.gates["w"].reached.is_set)
        await until(shard.gates["v"].reached.is_set)
        shard.gates["v"].open()
        np.testing.assert_array_equal(await value(executor, sender, "v"), -1)
        assert not updating.done(), "it is answered when all of it is done"
        shard.gates["w"].open()
        for served in (await updating).values:
            np.testing.assert_array_equal(served.array, -1)

    run(scenario)


def test_the_values_of_an_answer_are_of_one_moment_whatever_is_copied_when():
    async def scenario(executor, shard):
        w0, w1 = await join(executor, "w0"), await join(executor, "w1")
        await register(executor, w0, w=np.zeros(LARGE), v=np.zeros(LARGE), small=np.zeros(1))
        first = await at_gate(executor, shard.gates["w"], set_to(w0, 1, "w", np.ones(LARGE)))
        pull = await begun(executor, Pull(w1, ("v", "w", "small"), (Choice("v", np.array([3])),)))
        for sequence, name in enumerate(("v", "small"), 2):
            await executor.step(set_to(w0, sequence, name, np.full(LARGE if name == "v" else 1, 7.0)))
        later = asyncio.create_task(executor.step(set_to(w0, 4, "w", np.full(LARGE, 7.0))))
        await until(lambda: len(shard.said) == 8)
        shard.gates["w"].open()
        values = (await pull).values
        assert [(one.version, one.array.min(), one.array.max()) for one in values] == [
            (0, 0, 0),
            (1, 1, 1),
            (0, 0, 0),
            (0, 0, 0),
        ]
        await asyncio.gather(first, later)

    run(scenario)


def test_very_many_little_tasks_are_not_done_in_the_event_loop_although_their_bytes_are_few():
    """Each costs the calls of a rule, whatever its bytes."""
    few, many = MAX_INLINE_BYTES // TASK_OVERHEAD - 1, MAX_INLINE_BYTES // TASK_OVERHEAD + 1

    async def scenario(executor, shard):
        sender = await join(executor)
        names = [f"v{number}" for number in range(many)]
        for name in names:
            await register(executor, sender, **{name: np.zeros(())})
        for count in (few, many):
            pull = await begun(executor, Pull(sender, tuple(names[:count])))
            in_threads = [name for name in names if shard.gates[name].reached.is_set()]
            assert len((await pull).values) == count
            in_threads += [name for name in names if shard.gates[name].reached.is_set()]
            assert bool(in_threads) == (count == many)

    run(scenario)


# --- any interleaving -------------------------------------------------------------------------------------------------

WORKERS = 4
CALLS = 30
SHAPES = {"m": (4, 3), "a": (5,), "table": (6, 2), "s": ()}
OPTIMIZERS = {"m": Momentum(0.125, 0.5), "a": Adam(0.125), "table": Adagrad(0.125), "s": GradientDescent(0.125)}


def declared(name, dice):
    spec = TensorSpec(name, SHAPES[name], "float32")
    optimizer = OPTIMIZERS[name] if dice.random() < 0.5 else None
    if name == "table":
        return Declaration(spec, None, optimizer, RowNormal(1.0, seed=3))
    return Declaration(spec, np.full(spec.shape, dice.random(), np.float32), optimizer)


def random_gradient(name, version, dice):
    shape = SHAPES[name]
    values = np.random.default_rng(dice.getrandbits(32))
    if name != "table" and (not shape or dice.random() < 0.75):
        return Gradient(name, version, maybe_packed(np.asarray(values.normal(size=shape), "f4"), dice))
    indices = values.integers(0, shape[0], size=dice.randint(0, 5))
    rows = values.normal(size=(len(indices), *shape[1:])).astype("f4")
    return Gradient(name, version, IndexedSlices(maybe_packed(rows, dice), indices, shape))


def maybe_packed(array, dice):
    form = dice.choice(["", "", *FORMS])
    if form == "int8":
        return quantize_int8(array, np.zeros(array.size, "f4"))
    if form == "topk":
        return top_k(array, np.zeros(array.size, "f4"), max(1, array.size))
    return to_16_bits(array, form) if form else array


def random_message(sender, sequence, seen, dice):
    """A message of a worker that has seen these versions."""
    names = dice.sample(sorted(SHAPES), dice.randint(1, 3))
    pull = tuple(name for name in names if name != "table")
    how = {
        "known_versions": tuple(seen[name] for name in pull) if dice.random() < 0.5 else (),
        "encoding": dice.choice(["", *ENCODINGS]),
    }
    match dice.choice(["push"] * 6 + ["pull"] * 2 + ["assign", "register", "tune", "idle"]):
        case "push":
            gradients = tuple(random_gradient(name, seen[name], dice) for name in names)
            return Push(sender, sequence, gradients, None, pull, **how)
        case "pull":
            rows = np.array([dice.randrange(6) for _ in range(dice.randint(0, 5))], np.int32)
            return Pull(sender, pull, (Choice("table", rows), Choice("a", slot=dice.choice(["", "m", "v"]))), **how)
        case "assign":
            arrays = [Assignment(name, np.full(SHAPES[name], dice.random(), "f4")) for name in names]
            return Assign(sender, sequence, tuple(arrays), add=dice.random() < 0.5)
        case "register":
            return Register(sender, tuple(declared(name, dice) for name in names))
        case "tune":
            return Tune(sender, sequence, ("m",), Momentum(dice.random(), 0.5), ("learning_rate",))
    return Renew(sender, idle=True)


class OwnMemory:
    """Memory of a worker, which reuses it as soon as it has its answer."""

    def __init__(self, _):
        self.arrays = []

    def take(self, spec):
        self.arrays.append(np.empty(spec.shape, spec.dtype))
        return self.arrays[-1]


def no_allocator(_):
    return None


async def answered(executor, message, allocator, answers):
    """The answer; `answers` gets what it was when it came."""
    answer = await executor.step(message, allocator=allocator)
    answers[id(answer)] = state_of(answer)
    if isinstance(allocator, OwnMemory):
        for array in allocator.arrays:
            array[...] = 77
    return answer


async def work(executor, name, dice, allocator_of, answers):
    """A worker's life, from joining to leaving."""
    sender = await join(executor, name)
    everything = [Declaration(TensorSpec(name, SHAPES[name], "float32"), None, OPTIMIZERS[name]) for name in SHAPES]
    for first in (
        Register(sender, tuple(declared(name, dice) for name in SHAPES)),
        Register(sender, tuple(everything)),
    ):
        await answered(executor, first, allocator_of(first), answers)
    seen = dict.fromkeys(SHAPES, 0)
    for sequence in range(1, CALLS):
        message = random_message(sender, sequence, seen, dice)
        answer = await answered(executor, message, allocator_of(message), answers)
        for served in getattr(answer, "values", ()):
            seen[served.name] = max(seen[served.name], served.version)
    await executor.step(Leave(sender))


@pytest.fixture
def restless():
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


POLICIES = ["async none", "async delay-compensated:0.5", "bounded:1 scale", "sync:2 none", "sync:3,backup=1 drop:2"]
SIZES = {
    "all in threads": {"MAX_INLINE_BYTES": -1},
    "some in threads": {"MAX_INLINE_BYTES": 40},
    "all divided": {
        "MAX_INLINE_BYTES": -1,
        "MIN_DIVIDED_BYTES": 0,
        "ELEMENTS_PER_STRETCH": 2,
        "STRETCHES_PER_ROUND": 3,
    },
}
ALLOCATORS = (no_allocator, OwnMemory, ReusedArrays)
#: Every pair of two of the three.
PAIRS = [(how, sizes, ALLOCATORS[(i + j) % 3]) for i, how in enumerate(POLICIES) for j, sizes in enumerate(SIZES)]


@pytest.mark.usefixtures("restless")
@pytest.mark.parametrize(("how", "sizes", "allocator_of"), PAIRS)
def test_whatever_threads_do_the_arrays_are_those_of_the_same_steps_one_after_the_other(
    how, sizes, allocator_of, monkeypatch
):
    """Every case has messages of its own."""
    for name, size in SIZES[sizes].items():
        monkeypatch.setattr(f"psserver.runtime.task_order.{name}", size)
    consistency, staleness = how.split()
    options = {"consistency": parse_consistency(consistency), "staleness": parse_staleness(staleness)}

    async def scenario(executor, shard):
        answers, dice = {}, [random.Random(f"{how} {sizes} {allocator_of.__name__} {n}") for n in range(WORKERS)]
        await asyncio.gather(*[work(executor, f"w{n}", dice[n], allocator_of, answers) for n in range(WORKERS)])
        await executor.shutdown()
        again = Shard(**options)
        for ticket, message, replies in shard.said:
            given = [(one.ticket, answers.get(id(one.answer)) or state_of(one.answer)) for one in replies]
            replayed = [(one.ticket, state_of(one.answer)) for one in run_step(again, ticket, message, 0.0)]
            assert replayed == given
        assert state_of(again._store) == state_of(shard._store)
        assert len(shard.said) > WORKERS * CALLS

    run(scenario, **options)
