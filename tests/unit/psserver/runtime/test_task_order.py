"""Array tasks in threads: side by side, each variable's in the order of its steps, and bit for bit as one by one."""

import asyncio
import random
import sys

import numpy as np
import pytest

from psserver.core.shard import Shard
from psserver.core.variables.array_tasks import ArrayTask, run, run_parts, stages
from psserver.rpc.transfer_memory import ReusedArrays
from psserver.runtime import task_order
from psserver.runtime.task_order import MAX_INLINE_BYTES, TASK_OVERHEAD
from pswire import messages as ms
from pswire.optimizers import Adagrad, Adam, GradientDescent, Momentum
from pswire.specs.consistency import parse_consistency, parse_staleness
from pswire.specs.encodings import ENCODINGS
from pswire.specs.initializers import RowNormal
from pswire.tensors.compression import FORMS, quantize_int8, to_16_bits, top_k
from pswire.tensors.values import IndexedSlices, TensorSpec
from tests.gated_shard import at_gate, begun, executor_test, join, register, until, value
from tests.shard_state import run_step, state_of

LARGE = MAX_INLINE_BYTES // 8 + 1  # float64 elements: more than MAX_INLINE_BYTES bytes


def push(sender, pull=(), **arrays):
    return ms.Push(sender, 1, tuple(ms.Gradient(name, 0, array) for name, array in arrays.items()), None, pull)


# --- division and order -----------------------------------------------------------------------------------------------


def task(name, done, elements=0):
    """Appends to `done` its name, or with elements also the stretch; "!" in the name: and fails."""

    def part(*stretch):
        done.append((name, *stretch) if stretch else name)
        if "!" in name:
            raise ArithmeticError(f"{name} {stretch}")

    return ArrayTask("W", 8, part, part if elements else None, elements)


def test_tasks_run_in_order_and_a_failure_is_raised_when_the_others_are_done():
    done = []
    with pytest.raises(ArithmeticError, match="b!"):
        run([task(name, done) for name in ("a", "b!", "c", "d!")])
    assert done == ["a", "b!", "c", "d!"]
    done.clear()
    with pytest.raises(ArithmeticError, match=r"a! \(0, 4\)"):
        run_parts([task(name, done, 10) for name in ("a!", "b")], iter([(0, 4), (4, 10)]))
    assert done == [("a!", 0, 4), ("b", 0, 4), ("a!", 4, 10), ("b", 4, 10)]


def test_divisible_tasks_that_follow_each_other_are_one_stage():
    a, b, c, d = (task(name, [], 10) for name in "abcd")
    whole, other = task("whole", []), task("e", [], elements=7)
    assert stages([a, b, whole, c, other, d]) == [[a, b], [whole], [c], [other], [d]]


@pytest.mark.parametrize("elements", [2, 9, 10, 11, 16, 17])
def test_a_large_variable_is_divided_into_rounds_between_which_others_have_their_turn(elements, monkeypatch):
    """And each round is shared by all threads: here the last one does it all. One stretch is not divided."""
    for name, size in {"MIN_DIVIDED_BYTES": 0, "ELEMENTS_PER_STRETCH": 2, "STRETCHES_PER_ROUND": 4}.items():
        monkeypatch.setattr(task_order, name, size)
    done, divided = [], elements > 2
    rounds = list(task_order._rounds([task("whole", done), task("a", done, elements)]))
    assert [len(jobs) for jobs in rounds] == [1, *[task_order.THREADS if divided else 1] * -(-elements // 8)]
    for jobs in rounds:
        before = len(done)
        for job in reversed(jobs):
            job()
        assert len(done) - before <= 4
    parts = [("a", start, min(start + 2, elements)) for start in range(0, elements, 2)]
    assert done == ["whole", *(parts if divided else ["a"])]


@executor_test()
async def test_large_variables_of_a_push_are_updated_side_by_side_and_each_is_served_when_it_is_done(executor, shard):
    w0, w1 = await join(executor, "w0"), await join(executor, "w1")
    await register(executor, w0, GradientDescent(1.0), w=np.zeros(LARGE), v=np.zeros(LARGE), small=np.zeros(1))
    shard.gates["w"].shut()
    updating = await at_gate(executor, shard.gates["v"], push(w0, ("w", "v"), w=np.ones(LARGE), v=np.ones(LARGE)))
    await until(shard.gates["w"].reached.is_set)
    same = await begun(executor, ms.Pull(w1, ("w",)))
    shard.gates["v"].open()
    np.testing.assert_array_equal(await value(executor, w1, "v"), -1)
    assert (await executor.step(push(w1, ("small",), small=np.ones(1)))).values[0].array.tolist() == [-1]
    assert not updating.done(), "it is answered when all of it is done"
    assert not same.done()
    shard.gates["w"].open()
    for served in (*(await same).values, *(await updating).values):
        assert served.version == 1
        np.testing.assert_array_equal(served.array, -1)


@executor_test()
async def test_very_many_little_tasks_are_not_done_in_the_event_loop_although_their_bytes_are_few(executor, shard):
    """Each costs the calls of a rule, whatever its bytes."""
    few, many = MAX_INLINE_BYTES // TASK_OVERHEAD - 1, MAX_INLINE_BYTES // TASK_OVERHEAD + 1
    sender, names = await join(executor), [f"v{number}" for number in range(many)]
    for name in names:
        await register(executor, sender, **{name: np.zeros(())})
    for count in (few, many):
        assert len((await executor.step(ms.Pull(sender, tuple(names[:count])))).values) == count
        assert any(shard.gates[name].reached.is_set() for name in names) == (count == many)


# --- any interleaving -------------------------------------------------------------------------------------------------

WORKERS = 4
CALLS = 30
SHAPES = {"m": (4, 3), "a": (5,), "table": (6, 2), "s": ()}
OPTIMIZERS = {"m": Momentum(0.125, 0.5), "a": Adam(0.125), "table": Adagrad(0.125), "s": GradientDescent(0.125)}


class RandomWorker:
    """A worker that sends random messages, from joining to leaving."""

    def __init__(self, name, seed):
        self.name, self.dice = name, random.Random(seed)
        self.numbers = np.random.default_rng(self.dice.getrandbits(32))
        self.seen = dict.fromkeys(SHAPES, 0)

    def declaration(self, name):
        initial = None if name == "table" else np.full(SHAPES[name], self.dice.random(), "f4")
        rows = RowNormal(1.0, seed=3) if initial is None else None
        return ms.Declaration(TensorSpec(name, SHAPES[name]), initial, OPTIMIZERS[name], rows)

    def gradient(self, name):
        shape, version = SHAPES[name], self.seen[name]
        if name != "table" and (not shape or self.dice.random() < 0.75):
            return ms.Gradient(name, version, self.maybe_packed(np.asarray(self.numbers.normal(size=shape), "f4")))
        indices = self.numbers.integers(0, shape[0], size=self.dice.randint(0, 5))
        rows = self.numbers.normal(size=(len(indices), *shape[1:])).astype("f4")
        return ms.Gradient(name, version, IndexedSlices(self.maybe_packed(rows), indices, shape))

    def maybe_packed(self, array):
        residual, form = np.zeros(array.size, "f4"), self.dice.choice(["", "", *FORMS])
        if form == "int8":
            return quantize_int8(array, residual)
        if form == "topk":
            return top_k(array, residual, max(1, array.size))
        return to_16_bits(array, form) if form else array

    def message(self, sequence):
        me, names = self.sender, self.dice.sample(sorted(SHAPES), self.dice.randint(1, 3))
        pull = tuple(name for name in names if name != "table")
        known = tuple(self.seen[name] for name in pull) if self.dice.random() < 0.5 else ()
        how = {"known_versions": known, "encoding": self.dice.choice(["", *ENCODINGS])}
        match self.dice.choice(["push"] * 6 + ["pull"] * 2 + ["assign", "register", "tune", "idle"]):
            case "push":
                return ms.Push(me, sequence, tuple(map(self.gradient, names)), None, pull, **how)
            case "pull":
                rows = np.array([self.dice.randrange(6) for _ in range(self.dice.randint(0, 5))], np.int32)
                return ms.Pull(me, pull, (ms.Choice("table", rows), ms.Choice("a", slot=self.dice.choice("mv"))), **how)
            case "assign":
                arrays = [ms.Assignment(name, np.full(SHAPES[name], self.dice.random(), "f4")) for name in names]
                return ms.Assign(me, sequence, tuple(arrays), add=self.dice.random() < 0.5)
            case "register":
                return ms.Register(me, tuple(map(self.declaration, names)))
            case "tune":
                return ms.Tune(me, sequence, ("m",), Momentum(self.dice.random(), 0.5), ("learning_rate",))
        return ms.Renew(me, idle=True)

    async def work(self, executor, allocator_of, answers):
        """`answers` gets the state of each answer when it came, by its id."""
        self.sender = await join(executor, self.name)
        everything = ms.Register(self.sender, tuple(map(self.declaration, SHAPES)))
        for message in (everything, *map(self.message, range(1, CALLS))):
            allocator = allocator_of(message)
            answer = await executor.step(message, allocator=allocator)
            answers[id(answer)] = state_of(answer)
            for array in getattr(allocator, "arrays", ()):
                array[...] = 77  # the worker reuses its memory as soon as it has its answer
            for served in getattr(answer, "values", ()):
                self.seen[served.name] = max(self.seen[served.name], served.version)
        await executor.step(ms.Leave(self.sender))


class OwnMemory:
    """Memory of a worker."""

    def __init__(self, _):
        self.arrays = []

    def take(self, spec):
        self.arrays.append(np.empty(spec.shape, spec.dtype))
        return self.arrays[-1]


def no_allocator(_):
    return None


@pytest.fixture
def restless():
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


POLICIES = ["async none", "async delay-compensated:0.5", "bounded:1 scale", "sync:2 none", "sync:3,backup=1 drop:2"]
THREADED = {"MAX_INLINE_BYTES": -1}
DIVIDED = THREADED | {"MIN_DIVIDED_BYTES": 0, "ELEMENTS_PER_STRETCH": 2, "STRETCHES_PER_ROUND": 3}
SIZES = {"all in threads": THREADED, "some in threads": {"MAX_INLINE_BYTES": 40}, "all divided": DIVIDED}
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
        monkeypatch.setattr(task_order, name, size)
    consistency, staleness = how.split()
    options = {"consistency": parse_consistency(consistency), "staleness": parse_staleness(staleness)}

    @executor_test(**options)
    async def compare(executor, shard):
        answers, seed = {}, f"{how} {sizes} {allocator_of.__name__}"
        workers = [RandomWorker(f"w{number}", f"{seed} {number}") for number in range(WORKERS)]
        await asyncio.gather(*[worker.work(executor, allocator_of, answers) for worker in workers])
        await executor.shutdown()
        again = Shard(**options)
        for ticket, message, replies in shard.steps:
            given = [(one.ticket, answers.get(id(one.answer)) or state_of(one.answer)) for one in replies]
            replayed = [(one.ticket, state_of(one.answer)) for one in run_step(again, ticket, message, 0.0)]
            assert replayed == given
        assert state_of(again._store) == state_of(shard._store)
        assert len(shard.steps) > WORKERS * CALLS

    compare()
