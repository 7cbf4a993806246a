"""A cut takes each push on all of its shards, or on none; the bits are those of the moment of its snapshot."""

from dataclasses import replace

import numpy as np
import pytest

from psserver.core.cuts.cuts import SECONDS_TO_SHOW
from psserver.core.shard import Shard
from psserver.core.variables.array_tasks import run
from pswire import messages as ms
from pswire.errors import InvalidMessage, StateLost
from pswire.optimizers import GradientDescent
from pswire.specs.vectors import Fill
from pswire.tensors.compression import to_16_bits
from pswire.tensors.values import IndexedSlices
from tests.support.shards import A, B, ShardDriver, declared, finish_copies, new_shard, state_of

SUM = GradientDescent(learning_rate=1.0)


def driver(shard=0, shards=2, **options):
    """One of two shards, with workers a and b, and a variable W that counts pushes."""
    one = ShardDriver(shard=shard, shards=shards, workers="", **options)
    for worker in "ab":
        one.answer(ms.Join(worker=worker, incarnation=1, shard=shard, shards=shards))
    one.answer(ms.Register(sender=A, declarations=(declared("W", np.zeros(2), SUM),)))
    return one


def push(one, sender, sequence, cut=0):
    """A push that adds 1, of this cut number."""
    gradient = ms.Gradient("W", 0, -np.ones(2))
    return one.answer(ms.Push(sender=sender, sequence=sequence, gradients=(gradient,), cut=cut))


def restored(cut, **options):
    """A shard from a cut: its snapshot, and then the late changes."""
    new = new_shard(cut.state.shard, cut.state.shards, **options)
    new.restore(cut.state, {name: copy.arrays for name, copy in cut.copies.items()}, 0.0)
    for number, message in enumerate(cut.late):
        run(new.step(number, message, 0.0).tasks)
    return new


def value(shard):
    return shard._store["W"].value.tolist()


def test_a_cut_whose_late_changes_have_no_memory_is_given_up_and_the_next_one_is_complete():
    one = driver(memory_limit=9000)
    held = ms.Cut(5, A)
    assert one.answer(held).held
    one.answer(ms.Renew(sender=A, cut=5))
    cut = one.shard.cuts.current
    for sequence in range(1, 5):
        push(one, B, sequence)
    assert 0 < cut.late_bytes <= 9000
    assert one.shard._variables.memory.passing == cut.nbytes
    result = one.shard.step(0, ms.Push(sender=B, sequence=5, gradients=(ms.Gradient("W", 0, -np.ones(2)),)), 0.0)
    run(result.tasks)
    assert [event.text[:50] for event in result.events] == ["checkpoint 5 was given up here: 4 late changes take"[:50]]
    assert one.shard.cuts.current is None
    report = one.answer(held)
    assert (report.complete, report.held) == (False, False)
    assert "this shard has given cut 5 up, since 4 late changes" in report.waiting_for
    assert "b did not show its number" in report.waiting_for
    one.answer(ms.Cut(6, A))
    for worker in (A, B):
        one.answer(ms.Renew(sender=worker, cut=6))
    assert one.answer(ms.Cut(6, A)).complete
    assert value(one.shard) == [5, 5], "training went on"


def test_a_cut_that_a_worker_does_not_show_in_time_is_given_up_and_another_one_can_begin_when_it_is_written_no_more():
    one = driver()
    one.shard.cuts.stored = True
    one.answer(ms.Cut(5))
    cut = one.shard.cuts.current
    one.now += SECONDS_TO_SHOW
    one.answer(ms.Renew(sender=A, cut=5))
    one.answer(ms.Renew(sender=B))
    one.step(ms.Tick())
    assert one.shard.cuts.current is cut
    one.now += 1.0
    one.step(ms.Tick())
    assert one.shard.cuts.current is None
    assert "more than 600 s have passed, and b did not show its number" in one.answer(ms.Cut(5)).waiting_for
    assert one.answer(ms.Cut()).waiting_for == "cut 5 is not over"
    cut.writing = False
    assert one.answer(ms.Cut()).number == 6


def test_before_its_time_no_cut_begins_whether_it_is_asked_for_or_shown_but_that_of_a_job_that_is_over_does():
    one = driver()
    one.shard.cuts.stored = True
    one.shard.cuts.not_before = 5.0
    assert one.answer(ms.Cut()).waiting_for == "cut 0 began a moment ago, and took a part of the time of this shard"
    one.answer(ms.Renew(sender=A, cut=3))
    assert (one.shard.cuts.number, one.shard.cuts.current) == (3, None)
    assert one.answer(ms.Cut(3)).waiting_for == "this shard has no part of cut 3"
    one.answer(ms.Reset(2, force=True))
    assert one.shard.cuts.current.number == 4
    one.shard.cuts.current.writing = False
    one.now = 5.0
    assert one.answer(ms.Cut()).number == 5


def test_late_changes_are_made_in_a_held_cut_only_when_it_is_written_for_a_restore_makes_them_again():
    one = driver()
    one.shard.cuts.stored = True
    push(one, A, 1)
    number = one.answer(ms.Cut(holder=A)).number
    push(one, B, 1, cut=number - 1)
    for sender in (A, B):
        one.answer(ms.Renew(sender=sender, cut=number))
    for _ in range(3):
        assert one.answer(ms.Cut(number, A)) == ms.CutReport(
            number=number, waiting_for="copies of the variables", held=True
        )
    cut = one.shard.cuts.current
    assert cut.copies["W"].variable.value.tolist() == [1, 1], "the file has this, and the late push beside it"
    cut.writing = False
    while not one.answer(ms.Cut(number, A)).complete:
        pass
    assert one.answer(ms.Pull(sender=A, names=("W",), of_cut=number)).values[0].array.tolist() == [2, 2]


def test_a_worker_that_shows_a_later_number_has_shown_this_one_and_a_copy_is_made_with_the_first_change():
    one = driver()
    one.answer(ms.Cut(5, A))
    cut = one.shard.cuts.current
    one.answer(ms.Renew(sender=A, cut=6))
    assert list(cut.missing) == ["b"]
    one.answer(ms.Renew(sender=B, cut=7))
    assert cut.complete
    assert not cut.copied
    push(one, B, 1, cut=7)
    assert cut.copied


def test_a_cut_that_is_not_complete_or_is_being_written_stays_though_nobody_holds_it():
    one = driver()
    push(one, A, 1, cut=7)
    one.shard.cuts.drop_unused()
    one.shard.cuts.drop_unused()
    assert one.answer(ms.Cut()) == ms.CutReport(number=0, waiting_for="cut 7 is not over")
    single = driver(shards=1)
    single.shard.cuts.stored = True
    push(single, A, 1)
    number = single.answer(ms.Cut(holder=A)).number
    single.answer(ms.Cut(number, A, release=True))
    push(single, A, 2)
    cut = single.shard.cuts.current
    assert cut.number == number
    finish_copies(single.shard)
    assert value(restored(cut)) == [1, 1]


def test_a_cut_that_others_have_begun_and_completed_can_still_be_held_by_the_worker_that_asked_for_it():
    one = driver(shard=1)
    push(one, A, 1)
    for sender, sequence in ((A, 2), (B, 1)):
        push(one, sender, sequence, cut=7)
    one.shard.cuts.drop_unused()
    assert one.answer(ms.Cut(7, A)) == ms.CutReport(number=7, complete=True, held=True)
    assert one.answer(ms.Pull(sender=A, names=("W",), of_cut=7)).values[0].array.tolist() == [1, 1]


def changes_of_b():
    """Changes of every kind, each with the messages before it."""
    evaluation = ms.Evaluate(sender=B, name="fit", evaluation=ms.Evaluation(1, 2, 1), term=1, wait=False)
    ready = [
        evaluation,
        ms.TakePortion(sender=B, name="fit", evaluation=1),
        ms.ClaimPortion(sender=B, name="fit", evaluation=1, portion=0, loss=1.0),
    ]
    ones = (ms.Assignment("W", np.ones(2)),)
    return {
        "push": ([], ms.Push(sender=B, sequence=1, gradients=(ms.Gradient("W", 0, np.ones(2)),))),
        "assign": ([], ms.Assign(sender=B, sequence=1, assignments=ones)),
        "tune": (
            [],
            ms.Tune(sender=B, sequence=1, names=("W",), optimizer=GradientDescent(2.0), fields=("learning_rate",)),
        ),
        "register": ([], ms.Register(sender=B, declarations=(declared("V", np.ones(2)),))),
        "compute": (
            [],
            ms.Compute(sender=B, sequence=1, names=("W",), operations=(Fill("x", 1.0),), minimization="fit", term=1),
        ),
        "evaluation": ([], evaluation),
        "sum": (
            ready,
            ms.Assign(sender=B, sequence=1, assignments=ones, add=True, portions=ms.CountedPortions("fit", 1, (0,))),
        ),
    }


@pytest.mark.parametrize("kind", changes_of_b())
def test_a_change_of_any_kind_belongs_to_the_cut_by_its_number(kind):
    before, change = changes_of_b()[kind]
    for number, late in ((0, [type(change)]), (7, [])):
        one = ShardDriver(shards=2, workers="")
        for worker in "ba":  # b is the chief, which coordinates
            one.answer(ms.Join(worker=worker, incarnation=1, shard=0, shards=2))
        one.answer(ms.Register(sender=A, declarations=(declared("W", np.zeros(2), SUM),)))
        for message in before:
            one.answer(message)
        one.answer(ms.Join(worker="c", incarnation=1, shard=0, shards=2))  # for which the cut waits
        one.answer(ms.Cut(7))
        one.answer(replace(change, cut=number))
        assert [type(message) for message in one.shard.cuts.current.late] == late


def test_the_last_cut_of_a_server_is_taken_although_another_one_is_held_or_waits_for_workers():
    one = driver()
    push(one, A, 1)
    held = one.answer(ms.Cut(holder=A)).number
    push(one, A, 2, cut=held)
    cut = one.shard.cuts.begin_final()
    assert (cut.number, cut.complete) == (held + 1, True)
    finish_copies(one.shard)
    assert value(restored(cut)) == [2, 2]


def late_messages():
    """By name, a late change of b and the arrays that it borrows."""
    dense, table = -np.ones(2), np.ones(3)
    rows = IndexedSlices(-np.ones(1), np.array([1]), (2,))
    packed = to_16_bits(np.ones(4, np.float32), "float16")
    packed_rows = IndexedSlices(to_16_bits(np.ones(1, np.float32), "float16"), np.array([1]), (4,))

    def push(array, name="W"):
        return ms.Push(sender=B, sequence=1, gradients=(ms.Gradient(name, 0, array),))

    return {
        "dense": (push(dense), [dense]),
        "rows": (push(rows), [rows.values, rows.indices]),
        "packed": (push(packed, "V"), [*packed.parts]),
        "packed rows": (push(packed_rows, "V"), [*packed_rows.values.parts, packed_rows.indices]),
        "assigned": (ms.Assign(sender=B, sequence=1, assignments=(ms.Assignment("W", dense),)), [dense]),
        "registered": (ms.Register(sender=B, declarations=(declared("T", table, SUM),)), [table]),
    }


@pytest.mark.parametrize("kind", late_messages())
def test_a_late_change_keeps_its_elements_when_the_memory_of_its_message_is_used_again(kind):
    expected = []
    for used_again in (False, True):
        one = driver()
        one.answer(ms.Register(sender=A, declarations=(declared("V", np.zeros(4, np.float32), SUM),)))
        one.answer(ms.Cut())
        message, arrays = late_messages()[kind]
        one.answer(message)
        for array in arrays if used_again else ():
            array[...] = 0
        finish_copies(one.shard)
        new = restored(one.shard.cuts.current)
        expected.append(state_of(new.arrays()))
    assert expected[0] == expected[1]


def test_after_going_back_members_join_again_and_what_they_lost_is_counted_once():
    one = driver(shards=1)
    push(one, A, 1)
    one.answer(ms.Cut())
    push(one, A, 2)
    push(one, A, 3)
    finish_copies(one.shard)
    back = ShardDriver(workers="")
    back.shard = restored(one.shard.cuts.current)
    back.shard.begin_from(1, 0.0, went_back=True)
    with pytest.raises(Exception, match="join again"):
        back.shard.check(ms.Push(sender=A, sequence=4, gradients=()))
    with pytest.raises(StateLost, match="timeline"):
        back.shard.check(ms.Join(worker="a", incarnation=1, timeline=2))
    joined = back.answer(ms.Join(worker="a", incarnation=1, timeline=1, steps=3))
    assert joined.timeline == 1
    back.answer(ms.Join(worker="a", incarnation=1, timeline=1, steps=3))
    assert back.answer(ms.Status()).storage.lost_pushes == 2


def test_heartbeats_from_before_going_back_are_refused_as_their_numbers_of_cuts_are_no_longer_true():
    one = driver(shards=1)
    one.shard.begin_from(2, 0.0, went_back=True)
    one.answer(ms.Join(worker="a", incarnation=1, timeline=2))
    with pytest.raises(StateLost, match="follows timeline 2 of the job, and worker 'a' timeline 1"):
        one.shard.check(ms.Renew(sender=A, cut=30, timeline=1))
    assert one.answer(ms.Renew(sender=A, cut=30, timeline=2)).cut == 30


def test_a_new_process_gets_an_incarnation_that_no_shard_can_know_from_before_going_back():
    one = driver(shards=1)
    one.shard.begin_from(3, 0.0, went_back=True)
    assert one.answer(ms.Join(worker="a", incarnation=1, timeline=3)).incarnation == 1, "the same process"
    assert one.answer(ms.Join(worker="new", process_nonce=5)).incarnation == 2_000_001
    one.answer(ms.Leave(ms.Sender("a", 1)))
    joins = [ms.Join(worker="a", process_nonce=nonce, name_key=b"key") for nonce in (6, 7)]
    assert [one.answer(join).incarnation for join in joins] == [2_000_001, 2_000_002]


@pytest.mark.parametrize("lost", [False, True])
def test_a_job_that_is_emptied_ends_with_a_cut_but_none_of_a_shard_that_waits_to_go_back(lost):
    one = driver(shard=0, stores_cuts=True)
    for sender in (A, B):
        one.answer(ms.Leave(sender))
    one.shard.begin_from(1, 0.0, lost=lost)
    assert one.shard.step(0, ms.Reset(2), 0.0).began_cut is not lost


@pytest.mark.parametrize("take", [Shard.check, lambda shard, message: shard.replay(0, message, 0.0)])
def test_a_shard_does_not_go_back_by_a_message_whoever_gives_it(take):
    one = driver()
    with pytest.raises(InvalidMessage, match="start its server with --checkpoint-dir"):
        take(one.shard, ms.Restore(1, 0))
    assert (one.shard.timeline, [member.must_join for member in one.shard._members]) == (0, [False, False])
