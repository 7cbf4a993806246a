"""A start has what was acknowledged, or says that it may have lost something: wherever the process was killed."""

import itertools
import shutil
from pathlib import Path

import numpy as np
import pytest

from psserver.storage import records
from psserver.storage import start as start_module
from psserver.storage.checkpoints import write as write_checkpoint
from psserver.storage.find_start import find_start
from psserver.storage.folders import available, journal_folder, shard_folder
from psserver.storage.own_start import start_at
from psserver.storage.retention import cuts
from psserver.storage.segments import SegmentFile, SegmentHeader, list_segments, read_segments, segment_path
from psserver.storage.shard_run import run_path
from psserver.storage.start import Origin
from pswire.errors import DamagedFile, NotJoined, StateLost, StorageError
from pswire.messages import ChangeId, Gradient, Join, Push, Register, Sender, UpdateGroup
from pswire.optimizers import GradientDescent
from pswire.specs.consistency import parse_consistency
from tests.support.combinations import few_fast
from tests.support.shards import declared, new_shard, run_step
from tests.unit.psserver.storage.stored_shards import killed_after

ME = Sender("a", 1)


class Server:
    """A server without a network: a shard, its checkpoints and journal. `W` counts the pushes that were applied."""

    def __init__(self, folder, shard=0, shards=1, journal=False):
        self.folder, self.journal, self.segment = folder, journal, None
        self.start = find_start(folder, shard, shards)
        if self.start.lost and shards == 1:
            self.start.give_up()
        self.shard = self.new_shard()
        self.start.restore(self.shard, 0.0)

    def new_shard(self):
        return new_shard(self.start.shard, self.start.shards, identity=17)

    def begin(self):
        self.start.begin(self.shard, journal=self.journal)
        if self.journal:
            folder = journal_folder(self.folder, self.start.shard, self.start.shards)
            newest = max(list_segments(folder))
            self.segment = SegmentFile.reopen(segment_path(folder, newest), 17)
        if "W" not in self.shard.arrays():
            self.take(Join(worker="a", incarnation=1, shard=self.start.shard, shards=self.start.shards))
            self.take(Register(sender=ME, declarations=(declared("W", [0.0], GradientDescent(1.0)),)))
        return self

    def take(self, message):
        """Step, and write down; returns when the answer may leave."""
        replies = run_step(self.shard, 0, message, 0.0)
        if self.journal:
            self.segment.append([list(map(memoryview, records.encode(message)))])
            self.segment.sync()
        return replies

    def push(self):
        gradient = Gradient("W", 0, np.array([-1.0]))
        self.take(Push(sender=ME, sequence=self.settled + 1, gradients=(gradient,)))

    @property
    def settled(self):
        return self.shard.state().members.members[0].settled

    @property
    def pushes(self):
        """The number of pushes that the shard has."""
        arrays = self.shard.arrays()
        return int(arrays["W"].value[0]) if arrays else 0

    def cut(self, *, final=False, number=None):
        cuts = self.shard.cuts
        cuts.skip(number or max(cuts.number + 1, self.shard.global_step), complete=True)
        state = self.shard.state()
        if self.journal and not final:
            size = self.segment.size
            header = SegmentHeader(cuts.number, 17, self.segment.number, size)
            self.segment.close()
            self.segment = SegmentFile.create(journal_folder(self.folder, state.shard, state.shards), header)
        write_checkpoint(self.folder, state, iter(self.shard.arrays().items()), tuple, final=final)


class Ledger:
    """What a job was promised: the least and the most pushes that must be there, and whether a run may have begun."""

    def __init__(self):
        self.acknowledged = self.sent = 0
        self.running = False

    def push(self, server):
        self.sent += 1
        server.push()
        self.acknowledged += 1


def live(folder, ledger, *, journal):
    """Two lives: the first is stopped, the second is not; with checkpoints in both."""
    for life in range(2):
        server = Server(folder, journal=journal)
        ledger.running = True
        server.begin()
        for _ in range(2):
            ledger.push(server)
            server.cut()
            ledger.push(server)
        if not life:
            server.cut(final=True)
            ledger.running = False
    if server.segment is not None:
        server.segment.close()


#: Each so many system calls, or after each of them.
every = pytest.mark.parametrize("every", few_fast([17, 1], slow=0, ids=["some calls", "all calls"]))


@every
@pytest.mark.parametrize("journal", [False, True], ids=["", "journal"])
def test_wherever_the_process_is_killed_a_start_has_all_or_says_that_it_gave_something_up(
    tmp_path, monkeypatch, journal, every
):
    """And a journal gives nothing up; nor does a start that follows no run, or a stopped one."""
    gave_up = kept = 0
    for calls in range(0, 1000, every):
        folder, ledger, complete = tmp_path / str(calls), Ledger(), False
        with killed_after(monkeypatch, calls):
            live(folder, ledger, journal=journal)
            complete = True
        server = Server(folder, journal=journal)
        assert server.start.notes == [] or server.start.gave_up
        if server.start.gave_up:
            gave_up += 1
            assert ledger.running
            assert not journal
            assert server.start.timeline == 2
            with pytest.raises((NotJoined, StateLost)):
                server.shard.check(Push(sender=ME, sequence=1, gradients=()))
        else:
            kept += 1
            assert ledger.acknowledged <= server.pushes <= ledger.sent
            assert server.start.timeline == 1
        if journal and server.pushes:
            assert server.settled == server.pushes
        server.begin()  # and it can go on
        if server.segment is not None:
            server.segment.close()
        if complete:
            break
    assert complete
    assert kept
    assert bool(gave_up) != journal


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (False, False),
        *[pytest.param(*one, marks=pytest.mark.slow) for one in [(False, True), (True, False), (True, True)]],
    ],
)
def test_wherever_going_back_is_interrupted_the_old_timeline_is_lost_or_the_new_one_is_in_force(
    tmp_path, monkeypatch, before, after
):
    """`before` and `after`: with a journal."""
    seen = set()
    for calls in range(1000):
        folder, complete = tmp_path / str(calls), False
        first = Server(folder, 0, 2, journal=before).begin()
        for number in (100, 200):
            first.push()
            first.cut(number=number)
        first.push()
        if before:
            first.segment.close()
        with killed_after(monkeypatch, calls):
            again = Server.__new__(Server)
            again.folder, again.journal = folder, after
            again.start = start_at(folder, 2, 100, 0, 2)
            again.shard = again.new_shard()
            again.start.restore(again.shard, 0.0)
            again.start.begin(again.shard, journal=after)
            complete = True
        found = Server(folder, 0, 2, journal=after)
        start = found.start
        seen.add((start.timeline, start.number, start.lost, found.pushes))
        if start.timeline == 2 and not start.lost:
            assert start.gave_up
            with pytest.raises(NotJoined, match="has to join again"):
                found.shard.check(Push(sender=ME, sequence=1, gradients=()))
        if complete:
            break
    assert complete
    assert available(folder, 0, 2) == [0, 100]
    expected = {(1, 200, True, 2)}  # without its journal, or with none
    if before:
        expected.add((1, 200, False, 3))  # nothing has happened yet
    expected.add((2, 100, True, 1))  # without a journal something may have been acknowledged since
    if after:
        expected.add((2, 100, False, 1))
    assert seen == expected


def test_the_origin_of_a_start_is_what_the_last_run_has_left(tmp_path):
    def origin(folder, shard=0, shards=1):
        start = find_start(folder, shard, shards)
        start.close()
        return start.origin

    stopped, killed, journal = tmp_path / "stopped", tmp_path / "killed", tmp_path / "journal"
    assert origin(stopped) is Origin.NEW_JOB
    server = Server(stopped).begin()
    server.push()
    server.cut(final=True)
    assert origin(stopped) is Origin.FINAL_CHECKPOINT
    assert origin(stopped, 0, 2) is Origin.OTHER_SHARDS
    Server(killed).begin().push()
    assert origin(killed) is Origin.OLD_CHECKPOINT
    assert Server(killed).start.origin is Origin.CUT, "a single shard gives up what came after it"
    server = Server(journal, journal=True).begin()
    server.push()
    server.segment.close()
    assert origin(journal) is Origin.JOURNAL
    run_path(journal, 0, 1).unlink()
    Server(journal, journal=True).begin().segment.close()
    assert origin(journal) is Origin.JOURNAL_OF_CUT


def test_a_server_that_stops_writing_a_journal_has_all_of_it_first(tmp_path):
    server = Server(tmp_path, journal=True).begin()
    server.push()
    server.cut()
    server.push()
    server.segment.close()
    Server(tmp_path, journal=False).begin()
    assert not journal_folder(tmp_path, 0, 1).exists()
    assert available(tmp_path, 0, 1) == [0, 1, 2]
    again = Server(tmp_path)
    assert (again.pushes, again.start.gave_up) == (2, True)


def test_what_one_of_several_shards_has_replayed_is_no_cut_of_the_job(tmp_path):
    server = Server(tmp_path, 0, 2, journal=True).begin()
    server.push()
    server.segment.close()
    again = Server(tmp_path, 0, 2).begin()
    assert again.pushes == 1
    assert len(available(tmp_path, 0, 2)) == 2, "the state of the journal has a checkpoint"
    assert cuts(tmp_path, 0, 2) == [0]


def test_a_journal_that_is_kept_can_be_read_if_a_start_was_killed_when_it_had_continued_it(tmp_path, monkeypatch):
    server = Server(tmp_path, journal=True).begin()
    server.push()
    server.cut(final=True)
    server.segment.close()
    again = Server(tmp_path, journal=True)
    with monkeypatch.context() as patch:
        patch.setattr(start_module, "write_run", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            again.start.begin(again.shard, journal=True, keep_journal=True)
    again = Server(tmp_path, journal=True)
    again.start.begin(again.shard, journal=True, keep_journal=True)
    journal = journal_folder(tmp_path, 0, 1)
    assert list(list_segments(journal)) == [0, again.start.number]
    kinds = [type(records.decode(record.payload)) for record in read_segments(journal, 17)]
    assert kinds == [Join, Register, Push]


def test_a_stale_journal_is_not_continued(tmp_path):
    """After a run without a journal, the old one does not lead to the state."""
    server = Server(tmp_path, journal=True).begin()
    server.push()
    server.segment.close()
    server = Server(tmp_path, journal=False).begin()
    server.push()
    server.cut(final=True)
    server = Server(tmp_path, journal=True).begin()
    server.push()
    server.segment.close()
    again = Server(tmp_path, journal=True)
    assert (again.pushes, again.start.gave_up, again.start.replayed) == (3, False, True)


def test_a_damaged_checkpoint_is_named_and_the_previous_one_is_used_with_the_journal_or_as_a_loss(tmp_path):
    server = Server(tmp_path, journal=True).begin()
    for _ in range(3):
        server.push()
        server.cut()
    server.segment.close()
    path = shard_folder(tmp_path, 3, 0, 1) / "variables.safetensors"
    path.write_bytes(b"")
    start = Server(tmp_path, journal=True).start
    assert (start.number, start.gave_up, start.replayed) == (2, False, True)
    assert [str(path) in note for note in start.notes] == [True]
    segment_path(journal_folder(tmp_path, 0, 1), 2).unlink()  # as when the checkpoint was written
    start = Server(tmp_path, journal=True).start
    assert (start.number, start.gave_up, start.replayed, start.timeline) == (2, True, False, 2)


def test_what_a_start_gives_up_for_one_damaged_file_is_moved_aside_and_with_a_copy_of_it_nothing_is_lost(tmp_path):
    server = Server(tmp_path, journal=True).begin()
    server.push()
    server.cut()
    for _ in range(3):
        server.push()
    server.cut()
    server.push()
    server.segment.close()
    for number in range(2):
        segment_path(journal_folder(tmp_path, 0, 1), number).unlink()  # as when the checkpoint was written
    damaged = Path("step-000000004", "shard-0-of-1", "variables.safetensors")
    intact = (tmp_path / damaged).read_bytes()
    (tmp_path / damaged).write_bytes(intact[:-1] + bytes([intact[-1] ^ 1]))
    again = Server(tmp_path, journal=True)
    assert (again.start.number, again.start.gave_up, again.pushes) == (1, True, 1)
    aside = tmp_path / "given-up-2"
    assert again.start.begin(again.shard, journal=True) == [f"what was given up was moved to {aside}"]
    assert sorted(path.name for path in aside.iterdir()) == ["journal-0-of-1", "shard-0-of-1.json", "step-000000004"]
    assert available(tmp_path, 0, 1) == [0, 1]
    assert not (tmp_path / "step-000000004").exists()
    (aside / damaged).write_bytes(intact)
    saved = Server(aside, journal=True)
    assert (saved.start.number, saved.start.lost, saved.start.gave_up, saved.pushes) == (4, False, False, 5)


@pytest.mark.parametrize("checkpoints", [1, 2])
def test_without_its_run_file_a_journal_is_given_up_and_moved_aside_and_with_it_nothing_is_lost(tmp_path, checkpoints):
    """Also where the only checkpoint is one after which a server had stopped."""
    first = Server(tmp_path, journal=True).begin()
    first.push()
    first.cut(final=True)
    first.segment.close()
    server = Server(tmp_path, journal=True).begin()
    for _ in range(4):
        server.push()
    server.segment.close()
    if checkpoints == 1:
        shutil.rmtree(shard_folder(tmp_path, 0, 0, 1))
    run_file = run_path(tmp_path, 0, 1)
    text = run_file.read_bytes()
    run_file.unlink()
    again = Server(tmp_path, journal=True)
    assert (again.start.gave_up, again.pushes) == (True, 1)
    again.begin().segment.close()
    aside = tmp_path / "given-up-2"
    assert [path.name for path in aside.iterdir()] == ["journal-0-of-1"]
    for name in ("journal-0-of-1", run_file.name):
        (tmp_path / name).rename(tmp_path / f"newer-{name}")
    (aside / "journal-0-of-1").rename(tmp_path / "journal-0-of-1")
    run_file.write_bytes(text)
    saved = Server(tmp_path, journal=True)
    assert (saved.start.lost, saved.start.gave_up, saved.pushes) == (False, False, 5)


@pytest.mark.slow
def test_wherever_a_start_that_gives_something_up_is_killed_the_next_one_knows_it(tmp_path, monkeypatch):
    """An empty journal that continues from the older checkpoint does not hide what is missing."""
    complete = False
    for calls in itertools.count():
        folder = tmp_path / str(calls)
        server = Server(folder, journal=True).begin()
        for _ in range(2):
            server.push()
            server.cut()
        server.segment.close()
        for number in range(2):
            segment_path(journal_folder(folder, 0, 1), number).unlink()
        (shard_folder(folder, 2, 0, 1) / "variables.safetensors").write_bytes(b"")
        with killed_after(monkeypatch, calls):
            again = Server(folder, journal=True)
            again.start.begin(again.shard, journal=True)
            complete = True
        start = Server(folder, journal=True).start
        assert (start.number, start.gave_up, start.timeline > 1) == (1, True, True), calls
        if complete:
            break


def test_a_journal_without_checkpoints_is_no_new_job(tmp_path):
    server = Server(tmp_path, journal=True).begin()
    server.push()
    server.segment.close()
    shutil.rmtree(tmp_path / "step-000000000")
    run_path(tmp_path, 0, 1).unlink()
    with pytest.raises(DamagedFile, match=f"which has begun before: .*{journal_folder(tmp_path, 0, 1)}"):
        find_start(tmp_path, 0, 1)


def test_shards_that_go_back_move_later_checkpoints_and_journals_aside_each_its_own(tmp_path):
    for shard in range(2):
        server = Server(tmp_path, shard, 2, journal=True).begin()
        for number in (10, 20):
            server.push()
            server.cut(number=number)
        server.segment.close()
    for shard in range(2):
        start = start_at(tmp_path, 2, 10, shard, 2)
        back = new_shard(shard, 2, identity=17)
        start.restore(back, 0.0)
        assert start.begin(back, journal=True) == [f"what was given up was moved to {tmp_path / 'given-up-2'}"]
    aside = tmp_path / "given-up-2"
    assert sorted(path.relative_to(aside).as_posix() for path in aside.glob("**/*-of-*")) == [
        "journal-0-of-2",
        "journal-1-of-2",
        "shard-0-of-2.json",
        "shard-1-of-2.json",
        "step-000000020/shard-0-of-2",
        "step-000000020/shard-1-of-2",
    ]
    for shard in range(2):
        saved = Server(aside, shard, 2, journal=True)
        assert (saved.start.number, saved.start.lost, saved.pushes) == (20, False, 2)


def test_a_torn_tail_of_the_journal_is_known_of_the_start(tmp_path):
    server = Server(tmp_path, journal=True).begin()
    server.push()
    server.segment.close()
    assert not Server(tmp_path, journal=True).start.torn
    segment = segment_path(journal_folder(tmp_path, 0, 1), 0)
    segment.write_bytes(segment.read_bytes() + b"torn")
    assert Server(tmp_path, journal=True).start.torn


def test_a_final_checkpoint_that_is_damaged_is_a_loss(tmp_path):
    server = Server(tmp_path).begin()
    server.push()
    server.cut()
    server.push()
    server.cut(final=True)
    (shard_folder(tmp_path, 2, 0, 1) / "manifest.json").unlink()
    start = find_start(tmp_path, 0, 1)
    assert (start.number, start.lost) == (1, True)


def test_of_several_shards_one_that_may_have_lost_something_waits_with_its_newest_state(tmp_path):
    server = Server(tmp_path, 1, 2).begin()
    server.push()
    server.cut(number=5)
    server.push()
    again = Server(tmp_path, 1, 2)
    assert (again.start.lost, again.start.gave_up, again.start.number, again.pushes) == (True, False, 5, 1)
    with pytest.raises(StateLost):
        again.shard.check(Join(worker="b", incarnation=0, shard=1, shards=2))


def test_late_changes_are_made_also_those_of_workers_that_joined_after_the_snapshot_and_what_is_refused_is_named(
    tmp_path,
):
    server = Server(tmp_path, 1, 2).begin()
    server.push()
    again = Gradient("W", 0, np.array([-1.0]))
    late = [
        Push(sender=Sender("new", 3), sequence=1, gradients=(again,)),
        Push(sender=ME, sequence=2, gradients=(again,)),
        Push(sender=Sender("new", 2), sequence=1, gradients=(again,)),
        Register(sender=Sender("other", 1), declarations=(declared("V", [1.0]),)),
    ]
    server.shard.cuts.skip(5)
    state = server.shard.state()
    write_checkpoint(tmp_path, state, iter(server.shard.arrays().items()), lambda: late)
    start = start_at(tmp_path, 2, 5, 1, 2)
    shard = new_shard(1, 2)
    start.restore(shard, 0.0)
    assert {name: one.value.tolist() for name, one in shard.arrays().items()} == {"W": [3.0], "V": [1.0]}
    members = {one.name: (one.incarnation, one.settled) for one in shard.state().members.members}
    assert members == {"a": (1, 2), "new": (3, 1), "other": (1, 0)}
    assert [("left out" in note, "incarnation 3 has joined" in note) for note in start.notes] == [(True, True)]


def test_what_is_gone_is_not_taken_for_a_new_job(tmp_path):
    Server(tmp_path).begin()
    shard_folder(tmp_path, 0, 0, 1).rename(tmp_path / "elsewhere")
    with pytest.raises(DamagedFile, match=f"no intact checkpoint of shard 0 of 1, .*remove {run_path(tmp_path, 0, 1)}"):
        find_start(tmp_path, 0, 1)
    run_path(tmp_path, 0, 1).unlink()
    assert find_start(tmp_path, 0, 1).state is None


def test_a_run_file_that_is_damaged_is_named_and_without_it_something_may_be_lost(tmp_path):
    server = Server(tmp_path).begin()
    server.push()
    server.cut(final=True)
    path = run_path(tmp_path, 0, 1)
    text = path.read_bytes()
    for place in range(len(text)):
        path.write_bytes(text[:place] + bytes([text[place] ^ 1]) + text[place + 1 :])
        with pytest.raises(DamagedFile, match=f"run file {path}: it fails its checksum"):
            find_start(tmp_path, 0, 1)
    path.unlink()
    assert find_start(tmp_path, 0, 1).lost


def test_journals_of_killed_shards_lose_nothing_on_another_number_of_shards_either_and_stay_as_they_are(tmp_path):
    for shard in range(2):
        server = Server(tmp_path, shard, 2, journal=True).begin()
        for _ in range(3):
            server.push()
            server.cut()
        server.push()
        server.segment.close()
    journal = segment_path(journal_folder(tmp_path, 0, 2), 3)
    with journal.open("ab") as file:
        file.write(b"a torn tail")
    before = journal.read_bytes()
    server = Server(tmp_path, journal=True)
    assert (server.pushes, server.start.gave_up, server.start.number) == (4, False, 4)
    assert server.start.notes == ["the job goes on with 1 shard instead of 2"]
    assert (server.start.torn, server.start.went_back) == (True, False)
    assert journal.read_bytes() == before


def test_a_job_whose_other_shards_are_elsewhere_is_not_begun_on_another_number_of_shards(tmp_path):
    Server(tmp_path, 0, 2).begin()
    with pytest.raises(
        StorageError, match=r"are of 2 shards, and this is shard 1 of 3; .*start 2 servers.*of shard 0 of 2"
    ):
        find_start(tmp_path, 1, 3)


@pytest.mark.parametrize(("arrived", "expected"), [("ab", 2.0), ("a", 1.0)])
def test_late_pushes_of_one_synchronous_update_are_applied_together_without_that_of_a_killed_worker(arrived, expected):
    """Shard 1 of two has the snapshot before the parts of an update; the first of them is held again."""
    shard = new_shard(1, 2, consistency=parse_consistency("sync:2"))
    for worker in "abc":
        run_step(shard, 1, Join(worker=worker, incarnation=1, shard=1, shards=2), 0.0)
    run_step(shard, 1, Register(sender=ME, declarations=(declared("W", [0.0], GradientDescent(1.0)),)), 0.0)
    group = UpdateGroup(number=0, members=(ChangeId(ME, 1), ChangeId(Sender("b", 1), 1)))
    late = [
        Push(sender=Sender(worker, 1), sequence=1, gradients=(Gradient("W", 0, np.array([value])),), group=group)
        for worker, value in (("a", -1.0), ("b", -3.0))
        if worker in arrived
    ]
    assert shard.begin_from(0, 0.0, late=late) == []
    assert (shard.arrays()["W"].value.tolist(), shard.waiting()) == ([expected], [])
