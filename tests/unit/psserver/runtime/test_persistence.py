"""What a server writes down: a shard that starts from its files is the one that has answered, or says what is lost.

A copy of the folder stands for the disk after `kill -9`: all that was acknowledged is in the kernel's hands by then.
"""

import asyncio
import errno
import itertools
import os
import shutil
import threading

import numpy as np
import pytest

from psserver.runtime import checkpoint_writer
from psserver.runtime.cut_copies import CutCopies
from psserver.runtime.task_order import TaskOrder
from psserver.storage import checkpoints, journal_segments
from psserver.storage.arrays import NewFile
from psserver.storage.folders import available
from psserver.storage.journal import Journal
from psserver.storage.journal_segments import list_segments, segment_path
from psserver.storage.start import Start
from pswire import messages as ms
from pswire.errors import InvalidMessage, NotJoined, StateLost, Unavailable, WrongShard
from pswire.optimizers import Adam, GradientDescent
from pswire.specs.checkpoints import EverySeconds, EverySteps
from pswire.tensors.values import TensorSpec
from tests.recorded import server as recorded
from tests.support.commands import BOUND
from tests.support.files import copy_of_one_moment
from tests.support.shards import state_of

A = ms.Sender("a", 1)


def run(test):
    """A test in an event loop of its own."""

    def in_loop(tmp_path):
        asyncio.run(asyncio.wait_for(test(tmp_path), BOUND))

    in_loop.__name__, in_loop.__doc__ = test.__name__, test.__doc__
    return in_loop


def full_disk(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Server(recorded.Server):
    """The server of a shard whose `workers` join when it begins; they push 1 to `W` and something to `V`."""

    def __init__(self, folder, shard=0, shards=1, workers="", **options):
        super().__init__(folder, shard, shards, **options)
        self._workers, self.sequence, self.senders = workers, itertools.count(1), {}

    async def __aenter__(self):
        await super().__aenter__()
        for worker in self._workers:
            await self.join(worker)
        if self._workers:
            await self.declare()
        return self

    @property
    def W(self):  # noqa: N802
        return self.shard._store["W"].value.tolist()

    async def join(self, worker="a", incarnation=1, **fields):
        shard, shards = self.at
        joined = await self.ask(ms.Join(worker=worker, incarnation=incarnation, shard=shard, shards=shards, **fields))
        self.senders[worker] = ms.Sender(worker, joined.incarnation)
        return joined

    def sender(self, worker):
        """That joined here, or on the server before."""
        return self.senders.get(worker, ms.Sender(worker, 1))

    async def declare(self, worker="a"):
        values = {"W": (np.zeros(2), GradientDescent(1.0)), "V": (np.ones((3, 2), np.float32), Adam(0.1))}
        declared = [ms.Declaration(TensorSpec.of(name, one), one, rule) for name, (one, rule) in values.items()]
        await self.ask(ms.Register(sender=self.sender(worker), declarations=tuple(declared)))

    async def push(self, worker="a", cut=0, sequence=None, version=0):
        gradients = ms.Gradient("W", version, -np.ones(2)), ms.Gradient("V", 0, np.full((3, 2), 0.5, np.float32))
        number = sequence or next(self.sequence)
        return await self.ask(
            ms.Push(sender=self.sender(worker), sequence=number, gradients=gradients, pull=("V",), cut=cut)
        )

    async def hold_first_push(self):
        """The first push of `a`, which the policy holds until `b` pushes too; both have joined."""
        for worker in "ab":
            await self.join(worker)
        await self.declare()
        held = asyncio.create_task(self.push("a", sequence=1))
        while not self.shard.waiting():
            await asyncio.sleep(0)
        return held

    async def checkpoint(self):
        """The number of a new checkpoint, which is written."""
        self.now += 60.0  # no cut begins right after one that took long, as on a busy machine
        number = (await self.ask(ms.Cut())).number
        await self.written(number)
        return number

    async def failed_checkpoint(self):
        """The number of a new checkpoint that cannot be written, and why."""
        number = (await self.ask(ms.Cut())).number
        while not (report := await self.ask(ms.Cut(number))).problem:
            await asyncio.sleep(0.001)
        return number, report.problem

    async def cut_of_all(self):
        """The number of a new checkpoint of one of several shards, which the next push of its worker completes."""
        self.now += 60.0  # as above
        cut = (await self.ask(ms.Cut())).number
        await self.push(cut=cut)
        await self.written(cut)
        return cut

    def killed(self, name):
        """A copy of the folder as the disk would be."""
        return copy_of_one_moment(self.folder, self.folder.with_name(name))


@run
async def test_a_journal_gives_back_the_very_bits_and_the_answers_to_retries(tmp_path):
    for staleness in ("none", "delay-compensated"):
        folder = tmp_path / staleness
        async with Server(folder / "one", staleness=staleness, journal=True, workers="ab") as server:
            for _ in range(3):
                await server.push()
            await server.checkpoint()
            pulled = await server.ask(ms.Pull(sender=A, names=("W",)))
            await server.push("b", sequence=8)
            await server.push(version=pulled.values[0].version)
            last = await server.push("b", sequence=9)
            async with Server(server.killed("two"), staleness=staleness, journal=True) as again:
                assert state_of(again.shard.state()) == state_of(server.shard.state())
                assert state_of(again.shard._store) == state_of(server.shard._store)
                retried = await again.push("b", sequence=9)
                assert (retried.outcome, retried.staleness) == (ms.Outcome.REPEATED, last.staleness)
                assert again.W == server.W


@run
async def test_pushes_that_a_policy_holds_at_a_checkpoint_are_in_the_journal_after_it(tmp_path):
    async with Server(tmp_path / "one", consistency="sync:2", journal=True) as server:
        held = await server.hold_first_push()
        await server.checkpoint()
        await server.push("b", sequence=1)
        await held
        async with Server(server.killed("two"), consistency="sync:2", journal=True) as again:
            assert again.W == server.W == [1, 1]
            assert again.shard.state() == server.shard.state()


@run
async def test_a_push_that_the_journal_has_as_held_is_not_replaced_by_a_later_call(tmp_path):
    async with Server(tmp_path / "one", consistency="sync:2", journal=True) as server:
        held = await server.hold_first_push()
        await asyncio.wait_for(server.executor.persistence.written(), BOUND)
        killed = server.killed("two")
        held.cancel()
    async with Server(killed, consistency="sync:2", journal=True) as again:
        [(ticket, _)] = again.shard.waiting()
        while next(again.executor._tickets) < abs(ticket) - 1:
            pass
        answer = await again.push("b", sequence=1)
        assert (answer.outcome, again.W) == (ms.Outcome.APPLIED, [1, 1])
        assert {one.sender.worker for one in answer.group.members} == {"a", "b"}
        assert (await again.push("a", sequence=1)).outcome is ms.Outcome.REPEATED


@run
async def test_a_cut_whose_checkpoint_was_not_written_before_a_kill_does_not_end_the_journal(tmp_path):
    async with Server(tmp_path / "one", journal=True, keep_journal=True, workers="a") as server:
        await server.checkpoint()
        last = await server.checkpoint()
        killed = server.killed("two")
    shutil.rmtree(killed / f"step-{last:09d}")
    async with Server(killed, journal=True, keep_journal=True) as again:
        await again.push()
        assert await again.checkpoint() > last
        assert again.W == [1, 1]


@run
async def test_an_evaluation_goes_on_after_a_kill_from_a_checkpoint_and_the_journal(tmp_path):
    def gradients(sequence, number):
        values = ms.Assignment("W", np.full(2, 1.0 + number)), ms.Assignment("V", np.ones((3, 2), np.float32))
        return ms.Assign(
            sender=A, sequence=sequence, assignments=values, add=True, portions=ms.CountedPortions("fit", 1, (number,))
        )

    async with Server(tmp_path / "one", journal=True, workers="a") as server:
        waiting = asyncio.create_task(
            server.ask(ms.Evaluate(sender=A, name="fit", evaluation=ms.Evaluation(1, 3, 1), term=1))
        )
        for number in range(3):
            assert (await server.ask(ms.TakePortion(sender=A, name="fit", evaluation=1))).portion.number == number
            assert (
                await server.ask(ms.ClaimPortion(sender=A, name="fit", evaluation=1, portion=number, loss=0.5))
            ).counted
            if number == 0:
                assert (await server.ask(gradients(1, 0))).outcome is ms.Outcome.APPLIED
                await server.checkpoint()
            if number == 1:
                assert (await server.ask(gradients(2, 1))).outcome is ms.Outcome.APPLIED
        state, killed = server.shard.state(), server.killed("two")
        waiting.cancel()
    async with Server(killed, journal=True) as again:
        assert again.shard.state().minimizations == state.minimizations
        assert (await again.ask(gradients(2, 1))).outcome is ms.Outcome.REPEATED
        assert (await again.ask(ms.ClaimPortion(sender=A, name="fit", evaluation=1, portion=2, loss=0.5))).counted, (
            "a retry"
        )
        assert (await again.ask(ms.TakePortion(sender=A, name="fit", evaluation=1))).push
        assert (await again.ask(gradients(3, 2))).outcome is ms.Outcome.APPLIED
        assert await again.ask(
            ms.Evaluate(sender=A, name="fit", evaluation=ms.Evaluation(1, 3, 1), term=1)
        ) == ms.Evaluated(number=1, counted=3, loss=1.5, cut=1)
        assert again.shard.variables["W"].vectors["gradient"].tolist() == [6.0, 6.0]


@run
async def test_the_journal_has_the_calls_that_ended_since_they_had_waited_for_long(tmp_path):
    evaluate = ms.Evaluate(sender=A, name="fit", evaluation=ms.Evaluation(1, 2, 1), wait=False, term=1)
    async with Server(tmp_path / "one", journal=True) as server:
        await server.join()
        b = ms.Sender("b", (await server.join("b")).incarnation)
        waiting = asyncio.create_task(server.ask(ms.TakePortion(sender=b, name="fit")))
        while not server.shard.waiting():
            await asyncio.sleep(0)
        server.now = 60.0
        server.executor.tick()
        assert (await waiting).waiting_for, "it asks again, or not at all"
        await server.ask(evaluate)
        assert (await server.ask(ms.TakePortion(sender=A, name="fit", evaluation=1))).portion.number == 0
        await server.ask(ms.Leave(b))
        state, killed = server.shard.state(), server.killed("two")
    async with Server(killed, journal=True) as again:
        assert again.shard.state().minimizations == state.minimizations
        assert (await again.ask(ms.ClaimPortion(sender=A, name="fit", evaluation=1, portion=0, loss=0.5))).counted


@run
async def test_a_pull_of_a_cut_is_not_replayed(tmp_path):
    async with Server(tmp_path / "one", staleness="delay-compensated", journal=True, workers="a") as server:
        cut = (await server.ask(ms.Cut(holder=A))).number
        await server.ask(ms.Pull(sender=A, names=("W",), of_cut=cut))
        await server.push()
        await server.written(cut)
        async with Server(server.killed("two"), staleness="delay-compensated", journal=True) as again:
            assert again.W == server.W == [1, 1]


@run
async def test_a_server_that_was_stopped_has_lost_nothing_and_one_that_was_killed_without_a_journal_says_so(tmp_path):
    folder = tmp_path / "one"
    async with Server(folder, workers="a") as server:
        await server.push()
    async with Server(folder) as server:
        assert (server.W, server.shard.timeline) == ([1, 1], 1)
        await server.push(sequence=2)
        killed = server.killed("two")
    async with Server(killed) as server:
        assert (server.W, server.shard.timeline) == ([1, 1], 2)
        with pytest.raises(NotJoined, match="join again"):
            await server.push(sequence=3)
        with pytest.raises(StateLost, match="timeline"):
            await server.join(timeline=1, steps=2)
        await server.join(timeline=2, steps=2)
        assert (await server.ask(ms.Status())).storage.lost_pushes == 1


@run
async def test_shards_that_have_lost_state_wait_until_they_are_told_to_which_cut_to_go_back(tmp_path):
    async with Server(tmp_path / "one", shard=1, shards=2, workers="a") as server:
        await server.push()
        cut = await server.cut_of_all()
        killed = server.killed("two")
    async with Server(killed, shard=1, shards=2) as server:
        with pytest.raises(StateLost, match="older than"):
            await server.join("b")
        with pytest.raises(StateLost, match="older than"):
            await server.ask(ms.Cut(cut + 1, A))
        asked = await server.ask(ms.Restore())
        assert (asked.lost, asked.timeline, asked.cuts) == (True, 1, (0, cut))
        told = await server.ask(ms.Restore(2, cut))
        assert (told.lost, told.timeline, told.cut) == (False, 2, cut)
        assert await server.ask(ms.Restore(2, 0)) == await server.ask(ms.Restore()), "that timeline has begun"
        assert server.W == [1, 1]
        await server.join(timeline=2)
        await server.push(sequence=9)
        again = server.killed("three")
    async with Server(again, shard=1, shards=2) as server:
        assert (await server.ask(ms.Restore())).timeline == 2, "it is durable"


@run
async def test_a_running_shard_goes_back_with_the_others_and_refuses_if_it_was_told_to_fail(tmp_path):
    async with Server(tmp_path / "one", shard=1, shards=2, journal=True, workers="a") as server:
        await server.push()
        cut = await server.cut_of_all()
        await server.push(cut=cut)
        with pytest.raises(InvalidMessage):
            server.shard.check(ms.Restore(2, cut))
        await server.ask(ms.Restore(2, cut))
        assert server.W == [1, 1]
        with pytest.raises(NotJoined):
            await server.push()
        await server.join(timeline=2, steps=3)
        await server.push(sequence=9)
        assert server.W == [2, 2]
        killed = server.killed("two")
    async with Server(killed, shard=1, shards=2, journal=True) as again:
        assert (again.W, again.shard.timeline, again.shard.lost) == ([2, 2], 2, False)
    async with Server(tmp_path / "fail", shard=1, shards=2, on_lost_state="fail") as server:
        with pytest.raises(WrongShard, match="--on-lost-state fail"):
            await server.ask(ms.Restore(2, 0))


@run
async def test_a_restarted_server_goes_on_without_a_stalled_worker_like_the_one_before(tmp_path):
    async with Server(tmp_path / "one", consistency="sync:2", journal=True) as server:
        held = await server.hold_first_push()
        server.executor._send(ms.Tick(stalled=("b",)))
        assert (await held).outcome is ms.Outcome.APPLIED
        before = server.killed("before")
        await server.checkpoint()  # the state has it too
        second = ms.Push(sender=A, sequence=2, gradients=(ms.Gradient("W", 1, -np.ones(2)),))
        assert (await server.ask(second)).outcome is ms.Outcome.APPLIED
        killed = server.killed("two")
    async with Server(before, consistency="sync:2", journal=True) as again:
        assert again.W == [1, 1]
    for folder in (killed, tmp_path / "one"):
        async with Server(folder, consistency="sync:2", journal=True) as again:
            assert again.W == [2, 2]
            third = ms.Push(sender=A, sequence=3, gradients=(ms.Gradient("W", 2, -np.ones(2)),))
            assert (await again.ask(third)).outcome is ms.Outcome.APPLIED


@run
async def test_a_written_checkpoint_replaces_the_journal_of_the_time_before(tmp_path):
    async with Server(tmp_path / "one", journal=True, workers="a") as server:
        for _ in range(2):
            await server.push()
            number = await server.checkpoint()
            while list(list_segments(server.folder / "journal-0-of-1")) != [number]:
                await asyncio.sleep(0.001)


@run
async def test_a_checkpoint_is_complete_only_when_the_journal_has_begun_the_segment_that_follows_it(tmp_path):
    async with Server(tmp_path / "one", journal=True, workers="a") as server:
        synced = threading.Event()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(journal_segments, "sync_data", lambda descriptor: synced.wait(BOUND))
            number = (await server.ask(ms.Cut())).number
            completed = asyncio.create_task(server.executor.persistence.writer._completed())
            for _ in range(10):
                await asyncio.sleep(0)
            assert server.executor.persistence.writer.complete.is_set(), "all workers have shown the cut"
            assert not completed.done()
            synced.set()
            await completed
        assert segment_path(server.folder / "journal-0-of-1", number).exists()


@run
async def test_half_pushes_of_heartbeats_are_in_the_journal(tmp_path):
    async with Server(tmp_path / "one", journal=True) as server:
        await server.join()
        await server.ask(ms.Renew(sender=A, half_pushes=3))
        assert (await server.ask(ms.Status())).half_pushes == 3
        await server.declare()  # unlike a heartbeat it is answered when it is written
        killed = server.killed("two")
    async with Server(killed, journal=True) as again:
        assert (await again.ask(ms.Status())).half_pushes == 3


@run
async def test_the_number_of_a_cut_that_was_not_written_is_not_used_again(tmp_path):
    async with Server(tmp_path / "one", shards=2, journal=True, workers="a") as server:
        number = (await server.ask(ms.Cut())).number
        await server.push(cut=0)
        killed = server.killed("two")
    assert available(killed, 0, 2) == [0], "the worker has not shown it"
    async with Server(killed, shards=2, journal=True) as again:
        assert (await again.ask(ms.Cut())).number == number + 1


@run
async def test_a_shard_does_not_go_back_to_a_damaged_cut_and_offers_it_no_more(tmp_path):
    async with Server(tmp_path / "one", shard=1, shards=2, workers="a") as server:
        await server.push()
        cut = await server.cut_of_all()
        file = server.folder / f"step-{cut:09d}" / "shard-1-of-2" / "variables.safetensors"
        file.write_bytes(file.read_bytes()[:-1] + b"\x01")
        assert (await server.ask(ms.Restore())).cuts == (0, cut)
        with pytest.raises(InvalidMessage, match=r"variables\.safetensors"):
            await server.ask(ms.Restore(2, cut))
        assert (await server.ask(ms.Restore())).cuts == (0,)
        await server.push(sequence=9)
        assert server.W == [3, 3], "it goes on as before"
        assert (await server.ask(ms.Restore(2, 0))).timeline == 2


@run
async def test_going_back_that_cannot_be_written_is_tried_again_and_nothing_is_accepted_meanwhile(tmp_path):
    async with Server(tmp_path / "one", shard=1, shards=2, journal=True, workers="a") as server:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Start, "begin", full_disk)
            with pytest.raises(Unavailable, match="No space left"):
                await server.ask(ms.Restore(2, 0))
            with pytest.raises(Unavailable, match="No space left"):
                await server.push()
        assert (await server.ask(ms.Restore(2, 0))).timeline == 2
        await server.join(timeline=2)
        await server.declare()
        await server.push()
        killed = server.killed("two")
    async with Server(killed, shard=1, shards=2, journal=True) as server:
        assert server.W == [1, 1]


@run
async def test_a_late_push_is_in_the_checkpoint_of_its_cut(tmp_path):
    async with Server(tmp_path / "one", shard=1, shards=2, workers="ab") as server:
        await server.push("a", sequence=1, cut=5)
        unfinished = server.folder / "step-000000005" / ".shard-1-of-2.tmp"
        while not (unfinished / "slots.safetensors").exists():
            await asyncio.sleep(0.001)
        for _ in range(20):
            await asyncio.sleep(0.001)
            assert unfinished.exists(), "it waits for b"
        await server.push("b", sequence=1, cut=0)
        await server.push("b", sequence=2, cut=5)
        await server.written(5)
        found = checkpoints.read(server.folder, 5, 1, 2)
        assert found.arrays["W"].value.tolist() == [0, 0]
        assert [(one.sender.worker, one.sequence) for one in found.late] == [("b", 1)]


@run
async def test_checkpoints_begin_by_steps_or_time_and_only_after_changes(tmp_path):
    async with Server(tmp_path / "one", checkpoint_every=EverySteps(2), keep=2, workers="a") as server:
        for _ in range(5):
            await server.push()
            while server.shard.cuts.current is not None and server.shard.cuts.current.writing:
                await asyncio.sleep(0.001)
        assert available(server.folder, 0, 1) == [2, 4], "two are kept"
    async with Server(tmp_path / "two", checkpoint_every=EverySeconds(1e-9)) as server:
        server.executor.tick()
        assert server.shard.cuts.number == 0, "nothing has changed"


@run
async def test_a_checkpoint_that_cannot_be_written_leaves_nothing_and_training_goes_on(tmp_path):
    async with Server(tmp_path / "one", workers="a") as server:
        step = server.folder / "step-000000001"
        step.write_text("in the way")
        _, problem = await server.failed_checkpoint()
        assert "step-000000001" in problem
        assert "step-000000001" in (await server.ask(ms.Status())).storage.problem
        await server.push()
        step.unlink()
        written = await server.checkpoint()
        assert (await server.ask(ms.Status())).storage.problem == ""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(checkpoints, "write", full_disk)
            await server.failed_checkpoint()
        report = await server.ask(ms.Cut(written))
        assert (report.written, report.problem) == (True, "")


@run
async def test_an_unexpected_error_in_a_checkpoint_is_a_failure_of_it_and_training_goes_on(tmp_path):
    def broken(*_, **__):
        raise ZeroDivisionError("a fault of ours")

    async with Server(tmp_path / "one", workers="a") as server:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(checkpoints, "write", broken)
            number, problem = await server.failed_checkpoint()
        assert problem == f"checkpoint {number} could not be written: see the server's log"
        assert server.executor.measurements.checkpoint_failures == 1
        await server.push()
        await server.checkpoint()
        assert server.executor.measurements.checkpoint_failures == 1


@run
async def test_other_steps_come_while_the_variables_of_a_checkpoint_are_copied(tmp_path):
    async with Server(tmp_path / "one") as server:
        await server.join()
        names = [f"v{number}" for number in range(100)]
        declared = [ms.Declaration(TensorSpec(name, (2,)), np.zeros(2, np.float32)) for name in names]
        await server.ask(ms.Register(sender=A, declarations=tuple(declared)))
        copied = []
        with pytest.MonkeyPatch.context() as patch:
            disk = SlowDisk(patch)
            await server.ask(ms.Cut())
            cut = server.shard.cuts.current
            while not cut.copied:
                copied.append(sum(copy.copied for copy in cut.copies.values()))
                await server.ask(ms.Status())
            assert await asyncio.to_thread(disk.reached.wait, BOUND)
            disk.go_on.set()
        assert len(copied) > 10, copied
        assert copied == sorted(copied)


class SlowDisk:
    """Holds the thread that writes a checkpoint at the end of its first array, until `go_on` is set."""

    def __init__(self, patch):
        self.reached, self.go_on, write_array = threading.Event(), threading.Event(), NewFile.write_array

        def write(file, array, spec):
            write_array(file, array, spec)
            self.reached.set()
            assert self.go_on.wait(BOUND)

        patch.setattr(NewFile, "write_array", write)


class CopyOfV:
    """Holds the copy of `V` for a checkpoint, until `go_on` is set."""

    def __init__(self, patch):
        self.reached, self.go_on, copied = asyncio.Event(), asyncio.Event(), CutCopies._copied

        async def held(server, name, copy):
            if name == "V":
                self.reached.set()
                await self.go_on.wait()
            await copied(server, name, copy)

        patch.setattr(CutCopies, "_copied", held)


class EndlessWait:
    """Notes, and ends, a wait for a copy that never lets the event loop go on: such a test could not time out."""

    def __init__(self, patch):
        self.found, calls, end_of = False, itertools.count(), TaskOrder.end_of

        def limited(order, variable):
            self.found = next(calls) > 1000
            assert not self.found
            return end_of(order, variable)

        patch.setattr(TaskOrder, "end_of", limited)


@run
async def test_a_cut_that_ends_while_its_checkpoint_is_written_leaves_nothing_and_the_next_is_written(tmp_path):
    async with Server(tmp_path / "one", workers="a") as server:
        await server.push()
        before = await server.checkpoint()
        await server.push()
        with pytest.MonkeyPatch.context() as patch:
            held, endless = CopyOfV(patch), EndlessWait(patch)
            number = (await server.ask(ms.Cut())).number
            await held.reached.wait()
            server.shard.cuts.end()
            held.go_on.set()
            await server.settled()
            assert not endless.found
        assert not list(server.folder.rglob(f"*{number:09}*/*")), "the files that were written"
        assert available(server.folder, 0, 1) == [0, before]
        assert checkpoints.latest(server.folder, 0, 1).checkpoint.arrays["W"].value.tolist() == [1, 1]
        assert not (await server.ask(ms.Cut(number))).written
        storage = (await server.ask(ms.Status())).storage
        assert (storage.last, storage.problem) == (before, "")
        await server.push()
        after = await server.checkpoint()
        assert available(server.folder, 0, 1) == [0, before, after]
        assert checkpoints.read(server.folder, after, 0, 1).arrays["W"].value.tolist() == [3, 3]


@run
async def test_steps_until_the_first_checkpoint_of_a_job_are_its_own_also_if_the_last_one_was_skipped(tmp_path):
    async with Server(tmp_path / "one", checkpoint_every=EverySteps(2), workers="a") as server:
        with pytest.MonkeyPatch.context() as patch:
            disk = SlowDisk(patch)
            for _ in range(3):
                await server.push()
            assert await asyncio.to_thread(disk.reached.wait, BOUND)
            await server.ask(ms.Leave(A))
            await server.join("b", incarnation=0)
            assert (server.shard.job.number, server.shard.cuts.number) == (2, 3), "3 was skipped, as 2 is not over"
            disk.go_on.set()
            await server.settled()
        await server.declare("b")
        began = []
        for _ in range(2):
            await server.push("b")
            began.append(server.shard.cuts.number)
        assert began == [3, 4]


@run
async def test_a_server_that_stops_while_a_checkpoint_takes_too_long_ends_its_cut_and_writes_a_final_one(tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint_writer, "_FINISH_TIMEOUT", 0.01)
        async with Server(tmp_path / "one", workers="a") as server:
            await server.push()
            held, endless = CopyOfV(patch), EndlessWait(patch)
            number = (await server.ask(ms.Cut())).number
            await held.reached.wait()
            asyncio.get_running_loop().call_later(0.2, held.go_on.set)
    assert not endless.found
    assert available(server.folder, 0, 1) == [0, number + 1]
    final = checkpoints.read(server.folder, number + 1, 0, 1)
    assert final.manifest.final
    assert final.arrays["W"].value.tolist() == [1, 1]


@run
async def test_with_a_disk_of_its_own_a_shard_keeps_the_newest_cut_that_all_shards_have_written(tmp_path):
    async with Server(tmp_path / "one", shard=1, shards=2, keep=1, workers="a") as server:
        cuts = [0] + [await server.cut_of_all() for _ in range(3)]
        assert available(server.folder, 1, 2) == cuts, "no other shard is known to have any"
        assert (await server.ask(ms.Renew(sender=A))).written == tuple(cuts)
        await server.ask(ms.Renew(sender=A, written_by_all=cuts[2]))
        await server.ask(ms.Renew(sender=A, written_by_all=cuts[1]))  # of a worker that knows less
        cuts.append(await server.cut_of_all())
        assert available(server.folder, 1, 2) == cuts[2:]
        await server.ask(ms.Renew(sender=A, written_by_all=cuts[4]))
        await server.ask(ms.Restore(2, cuts[2]))
        assert available(server.folder, 1, 2) == cuts[2:3]
        await server.join(timeline=2, steps=9)
        cuts = [cuts[2]] + [await server.cut_of_all() for _ in range(4)]
        assert available(server.folder, 1, 2) == cuts, "since the one to which all went back, none is everywhere"


@run
async def test_while_the_journal_cannot_be_written_changes_are_refused_before_they_are_made(tmp_path):
    async with Server(tmp_path / "one", journal=True, workers="a") as server:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Journal, "problem", "the disk is full")
            with pytest.raises(Unavailable, match="the disk is full"):
                await server.push()
        assert server.W == [0, 0]
        await server.push()


@run
async def test_a_worker_whose_push_waits_for_the_journal_learns_why_from_its_heartbeats(tmp_path):
    async with Server(tmp_path / "one", journal=True) as server:
        await server.join()
        assert (await server.ask(ms.Renew(sender=A))).waiting_for == ""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Journal, "problem", "the disk is full")
            assert (await server.ask(ms.Renew(sender=A))).waiting_for == "the disk is full"


@run
async def test_checkpoints_count_with_their_bytes_or_as_failures_and_calls_that_waited_for_the_journal(tmp_path):
    async with Server(tmp_path, journal=True) as server:
        measured = server.executor.measurements
        await server.join()
        await server.declare()
        await server.push()
        await server.checkpoint()
        values, slots = 2 * 8 + 6 * 4, 2 * 6 * 4  # W and V, and Adam's of V
        assert (sum(measured.checkpoint_seconds.counts), measured.checkpoint_bytes) == (1, values + slots)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(checkpoints, "write", full_disk)
            await server.failed_checkpoint()
        assert (sum(measured.checkpoint_seconds.counts), measured.checkpoint_failures) == (1, 1)
        waits = measured.waits["journal"]
        assert (waits.now, waits.count) == (0, 3), "Join, Register and Push"
        assert sum(measured.journal.sync_seconds.counts) >= 3
        assert measured.journal.appended > 0
