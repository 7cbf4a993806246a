"""The inputs in the repository, recorded from real runs and found by fuzzing, are harmless; so are changes of them."""

import random

import pytest

from pswire.optimizers import numba_compiler
from tests.fuzz import harness
from tests.fuzz.coverage import lines
from tests.fuzz.mutations import mutated
from tests.fuzz.packets import fields, pack, unpack
from tests.fuzz.served_shard import POLICIES, serve
from tests.fuzz.targets import codec, records, rpc
from tests.support.combinations import few_fast


def any_bytes(data, most):
    """The bytes with another one somewhere."""
    place = len(data) // 2
    return data[:place] + bytes([len(data) % 256]) + data[place + 1 :]


#: Those with a server take longer.
every_target = pytest.mark.parametrize(
    "target",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in ("calls", "direct", "rpc"))) for name in harness.names()],
    indirect=True,
)


@pytest.fixture
def target(request):
    loaded = harness.load(request.param)
    loaded.name = request.param
    return loaded


@every_target
def test_no_input_of_the_corpus_makes_another_error_than_ours_or_takes_long_or_much_memory(target):
    inputs = [path.read_bytes() for path in harness.seeds(target.name)]
    assert inputs, "record them: python -m tests.fuzz.record"
    for data in inputs:
        harness.check(target, data)


@every_target
@pytest.mark.parametrize("changes", few_fast([10, 100], slow=0))
def test_nor_do_changes_of_the_corpus(target, changes):
    head = getattr(target, "HEAD", 0)
    inputs = [path.read_bytes() for path in harness.seeds(target.name)]
    for seed in range(changes):
        data = inputs[seed % len(inputs)]
        other = mutated(data[head:], 20_000, seed, getattr(target, "KINDS", {}), any_bytes)
        harness.check(target, data[:head] + other)


@every_target
def test_the_inputs_reach_the_code_that_they_are_for(target):
    reached, there = lines(target, [path.read_bytes() for path in harness.seeds(target.name)])
    assert reached > there / 5


def found_fields(target):
    """The messages in the corpus of a target, and their fields, without the package."""
    name, head = target.__name__.rpartition(".")[2], getattr(target, "HEAD", 0)
    packets = [packet for path in harness.seeds(name) for packet in unpack(path.read_bytes()[head:])]
    return {name.removeprefix("paramserver.v1.") for name in fields(packets, target.KINDS)}


def test_there_is_an_input_with_each_message_and_those_of_minimizations_have_all_their_parts():
    found = found_fields(codec)
    assert {kind.DESCRIPTOR.name for kind in codec.KINDS.values()} - found == set()
    sums = {"AssignRequest.portions", "CountedPortions.numbers"}
    parts = {"ComputeRequest.operations", "ComputeReply.results", "EvaluateRequest.point", "TakePortionReply.portion"}
    assert {"EvaluateRequest.end", "TakePortionRequest.holding", "ClaimPortionRequest.loss", *parts, *sums} <= found
    calls = {f"{name}Request" for name in ("Compute", "Evaluate", "TakePortion", "ClaimPortion")}
    assert calls <= found_fields(rpc)
    assert calls | sums <= found_fields(records)


def test_single_calls_come_to_a_shard_that_has_answered_all_the_calls_before(monkeypatch):
    monkeypatch.setattr(numba_compiler, "USE_NUMBA", False)
    answered = [serve(rpc.before(), policy) for policy in range(len(POLICIES))]
    assert answered == [11, 10, 11, 11, 11], "sync:2 holds the push"


def test_recorded_calls_are_answered_as_they_were_since_the_harness_sends_the_tokens_of_members(monkeypatch):
    monkeypatch.setattr(numba_compiler, "USE_NUMBA", False)
    for path in harness.seeds("calls"):
        data = path.read_bytes()
        packets = unpack(data[1:])
        if len(packets) > 5:
            assert serve(packets, data[0]) > len(packets) / 3, path


class Wrong:
    """A target that does what none may, but takes its time: a slow machine's seconds are not what is looked for."""

    MAX_SECONDS = 600

    def __init__(self, run):
        self.run = run


def test_a_large_and_a_failing_target_are_findings():

    def large(data):
        bytearray(harness.MAX_GROWTH * 2)[::4096] = b"x" * (harness.MAX_GROWTH * 2 // 4096)

    def failing(data):
        raise KeyError("W")

    def logging_an_error(data):
        harness.logging.getLogger("psserver").error("internal error")

    for run, message in ((large, "of memory"), (logging_an_error, "internal error")):
        with pytest.raises(harness.Finding, match=message):
            harness.check(Wrong(run), b"")
    with pytest.raises(harness.Finding, match="KeyError: 'W'"):
        harness.check(Wrong(failing), b"")


def test_packets_are_the_same_when_they_are_read_again_and_any_bytes_are_packets():
    packets = [(0, b""), (255, b"abc"), (7, bytes(70_000))]
    assert unpack(pack(packets)) == packets
    for seed in range(200):
        unpack(random.Random(seed).randbytes(seed))
    assert unpack(pack(packets)[:-1])[-1] == (7, bytes(69_999))
