"""A job goes on with another number of shards, to the very values of one that has never stopped."""

import dataclasses
import shutil

import numpy as np
import pytest

from psserver.storage.find_start import find_start
from psserver.storage.folders import available, shard_folder
from psserver.storage.reshard import reshard, whole_variables
from psserver.storage.shard_run import Run, write_run
from pswire import messages as ms
from pswire import placement
from pswire.errors import StorageError, WrongShard
from pswire.optimizers import Adam, GradientDescent, Momentum
from pswire.placement import place
from pswire.specs.consistency import parse_consistency, parse_staleness
from pswire.specs.initializers import RowUniform, fill
from pswire.tensors.values import IndexedSlices, TensorSpec
from tests.support.combinations import few_fast
from tests.support.shards import new_shard, run_step, state_of
from tests.unit.psserver.storage.stored_shards import write

QUEUE = ms.QueueSpec(name="examples", size=12, block=3, epochs=2, seed=1)
RNG = np.random.default_rng(5)
#: Variables in two groups: partitioned, a table, a scalar, an empty one.
GROUPS = (
    {
        "large": (RNG.normal(size=(7, 40)).astype("f4"), Adam(0.1)),
        "table": (np.zeros((11, 30), "f4"), Momentum(0.1, momentum=0.9)),
        "scalar": (np.array(1.5), GradientDescent(0.1)),
        "empty": (np.zeros((0, 3), "f4"), GradientDescent(0.1)),
    },
    {"later": (RNG.normal(size=(9, 20)), Adam(0.01)), "counts": (np.arange(4), None)},
)
INITIAL = RowUniform(-1.0, 1.0, 3)
VARIABLES = {name: one for group in GROUPS for name, one in group.items()}


@pytest.fixture(autouse=True)
def small_partitions(monkeypatch):
    monkeypatch.setattr(placement, "SPLIT_BYTES", 1000)


class Job:
    """A worker's calls to all shards of a job, with the placement that workers compute."""

    def __init__(self, shards, worker="w", **options):
        self.shards, self.worker, self.sequence, self.now = shards, worker, 0, 0.0
        self.joined = [
            self.call(n, ms.Join(worker=worker, incarnation=0, shard=n, shards=len(shards))) for n in range(len(shards))
        ]
        self.sender = ms.Sender(worker, self.joined[0].incarnation)
        self.placed = {}
        for group in GROUPS:
            self.register(group)

    def call(self, shard, message):
        replies = run_step(self.shards[shard], 0, message, 0.0)
        assert not [reply for reply in replies if isinstance(reply.answer, Exception)]
        return replies[-1].answer if replies else None

    def register(self, group):
        specs = [TensorSpec.of(name, value) for name, (value, _) in group.items()]
        known = [partition for partitions in self.placed.values() for partition in partitions]
        new = place(specs, len(self.shards), known)
        self.placed |= new
        for number in range(len(self.shards)):
            declarations = []
            for name, partitions in new.items():
                value, optimizer = group[name]
                for one in [one for one in partitions if one.shard == number]:
                    table = name == "table"
                    mine = None if table else value[rows_of(one)]
                    initial = INITIAL if table else None
                    declarations.append(ms.Declaration(one.spec, mine, optimizer, initial, one.part))
            places = [ms.Place(name, partitions[0].shard) for name, partitions in new.items()]
            places = tuple(places) if not number and len(self.shards) > 1 else ()
            states = tuple([answer.state for answer in self.joined])
            if declarations or places:
                self.call(
                    number,
                    ms.Register(sender=self.sender, declarations=tuple(declarations), places=places, states=states),
                )

    def versions(self):
        return {v.spec.name: v.version for shard in self.shards for v in shard.state().variables}

    def push(self, step, shards=None):
        """A push of all variables with an optimizer, to some of the shards only if it is left half applied."""
        self.sequence += 1
        parts = {number: [] for number in range(len(self.shards))}
        versions = self.versions()
        for name, (value, optimizer) in VARIABLES.items():
            if optimizer is None:
                continue
            gradient = np.cos(np.arange(value.size) + step).reshape(value.shape).astype(value.dtype)
            for one in self.placed[name]:
                mine = gradient[rows_of(one)]
                if name == "table":
                    first = 0 if one.part is None else one.part.first
                    rows = np.array([row - first for row in (0, 4, 10) if first <= row < first + len(mine)], np.int64)
                    mine = IndexedSlices(mine[rows], rows, mine.shape)
                parts[one.shard].append(ms.Gradient(name, versions[name], mine))
        others = tuple([number for number in range(1, len(self.shards)) if parts[number]])
        for number, gradients in parts.items():
            if (gradients or not number) and (shards is None or number in shards):
                step = self.shards[0].global_step - (number > 0)
                push = ms.Push(
                    sender=self.sender,
                    sequence=self.sequence,
                    gradients=tuple(gradients),
                    loss=0.5,
                    shards=others,
                    global_step=step,
                )
                assert self.call(number, push).outcome is ms.Outcome.APPLIED

    def values(self):
        return {
            name: (one.arrays.value, one.arrays.slots) for name, one in sorted(whole_variables(self.shards).items())
        }


def rows_of(partition):
    if partition.part is None:
        return ...
    return slice(partition.part.first, partition.part.first + partition.spec.shape[0])


def new_shards(count, **options):
    shards = [new_shard(shard, count, identity=100 + shard, **options) for shard in range(count)]
    for shard in shards:
        shard.begin_from(1, 0.0)
    return shards


def resharded(shards, count, number=50, **options):
    new = new_shards(count, **options)
    for shard, (state, arrays) in zip(new, reshard(shards, count, number), strict=True):
        shard.restore(state, arrays, 0.0)
    return new


@pytest.mark.parametrize(
    "counts", few_fast([((1, 3),), ((3, 2),), ((2, 1),), ((1, 3, 2, 1),), ((3, 3),)], 2, 3), ids=str
)
def test_a_job_on_other_numbers_of_shards_trains_to_the_bits_of_one_that_was_never_interrupted(counts):
    reference = Job(new_shards(1))
    job = Job(new_shards(counts[0]))
    for step in range(3):
        reference.push(step)
        job.push(step)
    for round_, count in enumerate(counts[1:], 1):
        job = Job(resharded(job.shards, count), f"worker {round_}")
        assert [one.shard for one in job.shards] == list(range(count))
        for step in range(3 * round_, 3 * round_ + 3):
            reference.push(step)
            job.push(step)
    assert state_of(job.values()) == state_of(reference.values())
    assert set(job.versions().items()) == set(reference.versions().items())
    assert {shard.global_step for shard in job.shards[:1]} == {reference.shards[0].global_step}
    table = np.empty((11, 30), "f4")
    fill(INITIAL, table, 0)
    assert not np.array_equal(job.values()["table"][0], table), "it was trained"


@pytest.mark.parametrize("options", ["sync:1", "drop:3"])
def test_staleness_stays_comparable_where_shard_0_orders_all_changes(options):
    chosen = (
        {"consistency": parse_consistency(options)} if options == "sync:1" else {"staleness": parse_staleness(options)}
    )
    job = Job(new_shards(1, **chosen))
    for step in range(3):
        job.push(step)
    new = Job(resharded(job.shards, 3, **chosen), "v")
    frontier = new.call(0, ms.Pull(sender=new.sender, names=())).frontier
    assert (frontier.decided, frontier.undelivered) == (0, ())
    push = ms.Push(
        sender=new.sender,
        sequence=1,
        gradients=(),
        shards=(1, 2),
        remote=(ms.RemoteWeights("large", frontier.decided),),
    )
    answer = new.call(0, push)
    assert (answer.outcome, answer.staleness, answer.frontier.decided) == (ms.Outcome.APPLIED, 0, 1)
    again = resharded(new.shards, 2, 60, **chosen)
    assert again[0].state().order.count == 1


def test_members_are_lost_their_blocks_are_returned_and_their_names_begin_new_incarnations():
    job = Job(new_shards(2))
    other = Job(job.shards, "other")
    assert job.call(0, ms.Take(sender=job.sender, queue=QUEUE)).block.number == 0
    assert job.call(0, ms.Take(sender=other.sender, queue=QUEUE)).block.number == 1
    job.call(0, ms.Take(sender=job.sender, queue=QUEUE, finished=ms.Finished(0, 3.0)))
    job.push(0)
    for shard in range(2):
        job.call(shard, ms.Leave(other.sender))
    new = resharded(job.shards, 3)
    states = [shard.state().members for shard in new]
    for state in states:
        assert [(one.name, one.state, one.number) for one in state.members] == [("other", "left", 1), ("w", "lost", 0)]
        assert [(one.settled, one.steps, one.pushed.outcome) for one in state.members[1:]] == [
            (1, 1, ms.Outcome.APPLIED)
        ]
    assert state_of(new[0].state().queues) == state_of(job.shards[0].state().queues)
    assert [one.block for one in new[0].state().queues[0].returned] == [1, 2]
    assert [shard.state().queues for shard in new[1:]] == [(), ()]
    again = Job(new)
    assert {answer.incarnation for answer in again.joined} == {2}
    assert again.joined[0].chief
    assert again.call(0, ms.Take(sender=again.sender, queue=QUEUE)).block.number == 1


def test_an_evaluation_begins_again_on_other_shards_and_results_of_minimizations_are_kept():
    job = Job(new_shards(2))
    for shard in range(2):
        job.call(shard, ms.Evaluate(sender=job.sender, name="before", end="{}", term=1))
        job.shards[shard].step(
            7, ms.Evaluate(sender=job.sender, name="fit", evaluation=ms.Evaluation(3, 10, 4), term=1), 0.0
        )
    job.call(0, ms.Compute(sender=job.sender, sequence=1, minimization="fit", term=1, note="the last point"))
    assert job.call(0, ms.TakePortion(sender=job.sender, name="fit")).portion.number == 0
    assert job.call(0, ms.ClaimPortion(sender=job.sender, name="fit", evaluation=3, portion=0, loss=1.0)).counted
    portions = ms.CountedPortions("fit", 3, (0,))
    for shard in (1, 0):
        job.call(shard, ms.Assign(sender=job.sender, sequence=2, assignments=(), add=True, portions=portions))
    new = resharded(job.shards, 3)
    for shard in new:
        over, running = shard.state().minimizations
        assert (over.name, over.end) == ("before", "{}")
        assert (running.name, running.evaluation, running.counted) == ("fit", ms.Evaluation(3, 10, 4), ())
        assert (running.term, running.note) == (1, "the last point"), "the next coordinator goes on from it"
    again = Job(new)
    assert again.call(0, ms.TakePortion(sender=again.sender, name="fit")).portion == ms.Portion(
        number=0, start=0, stop=4
    )
    assert again.call(2, ms.Evaluate(sender=again.sender, name="fit")).counted == 0


def test_half_pushes_changes_and_counts_are_those_of_the_job_and_are_kept_once():
    job = Job(new_shards(3))
    job.push(0)
    for shard in range(3):
        job.call(
            shard,
            ms.Tune(sender=job.sender, sequence=2, names=("large",), optimizer=Adam(0.5), fields=("learning_rate",)),
        )
    job.sequence = 2
    job.push(1, shards=[0, 1])
    before = [shard.state() for shard in job.shards]
    assert {one.version for state in before for one in state.variables if one.spec.name == "large"} == {1, 2}
    new = [shard.state() for shard in resharded(job.shards, 2, 77)]
    assert [state.members.half_pushes for state in new] == [1, 0]
    assert [len(state.changes) for state in new] == [1, 0]
    assert {one.optimizer.learning_rate for state in new for one in state.variables if one.spec.name == "large"} == {
        0.5
    }
    assert {one.version for state in new for one in state.variables if one.spec.name == "large"} == {2}
    assert [(state.global_step, state.cut, state.last_step) for state in new] == 2 * [(2, 77, before[0].last_step)]
    assert len({state.identity for state in new} - {state.identity for state in before} - {0}) == 2
    assert [state.states for state in new] == 2 * [(new[0].identity, new[1].identity)], "each knows all of them"


def test_new_shards_that_began_from_different_steps_of_the_old_ones_refuse_each_other():
    """Under the same number of a checkpoint, as after a kill of old shards with a journal."""
    early, late = Job(new_shards(1)), Job(new_shards(1))
    late.push(0)
    torn = [resharded(late.shards, 2)[0], resharded(early.shards, 2)[1]]
    with pytest.raises(WrongShard, match="has begun from another step of the job on another number of shards"):
        Job(torn, "v")


def altered(shard, **fields):
    """A shard with this state but for some fields."""
    state = dataclasses.replace(shard.state(), **fields)
    again = new_shard(shard.shard, shard.shards, identity=state.identity)
    again.restore(state, shard.arrays(), 0.0)
    return again


def with_member(shard, **fields):
    """A shard that knows its only member otherwise."""
    members = shard.state().members
    (one,) = members.members
    return altered(shard, members=dataclasses.replace(members, members=(dataclasses.replace(one, **fields),)))


def test_counts_of_the_job_are_the_highest_or_the_sum_of_all_shards_whichever_has_them():
    job = Job(new_shards(2))
    job.push(0)
    first, second = job.shards
    variables = [dataclasses.replace(one, version=8, growth=3.5) for one in second.state().variables]
    done = dataclasses.replace(second.state().members, done=True)
    second = altered(second, variables=tuple(variables), last_step=70, lost_pushes=2, members=done)
    new = [state for state, _ in reshard([altered(first, lost_pushes=3), second], 2, 80)]
    assert {(one.version, one.growth) for state in new for one in state.variables if one.spec.name == "large"} == {
        (8, 3.5)
    }, "both parts"
    assert [(state.last_step, state.members.done, state.lost_pushes) for state in new] == [(70, True, 5), (70, True, 0)]


@pytest.mark.parametrize("of", [0, 1])
def test_a_workers_last_settled_message_is_that_of_its_newest_incarnation_with_the_answer_if_a_shard_has_it(of):
    job = Job(new_shards(2))
    job.push(0)
    pushed = job.shards[of].state().members.members[0].pushed
    assert pushed is not None
    older = list(job.shards)
    older[1 - of] = with_member(job.shards[1 - of], incarnation=0, settled=40)
    abandoned = list(job.shards)
    abandoned[1 - of] = with_member(job.shards[1 - of], pushed=None)
    for shards in (older, abandoned):
        for state, _ in reshard(shards, 2, 80):
            (member,) = state.members.members
            assert (member.incarnation, member.settled, member.pushed) == (1, 1, pushed)


def test_parts_are_joined_by_their_rows_in_whatever_order_they_come():
    job = Job(new_shards(3))
    found = whole_variables(reversed(job.shards))
    values = {name: state_of(one.arrays.value) for name, one in found.items()}
    assert values == {name: state_of(value) for name, (value, _) in job.values().items()}


def test_every_new_shard_computes_the_same():
    first, second = ([], [])
    for found in (first, second):
        job = Job(new_shards(2))
        job.push(0)
        found += [(state_of(state), state_of(arrays)) for state, arrays in reshard(job.shards, 3, 9)]
    assert first == second


def test_a_variable_that_was_registered_on_some_of_its_shards_only_is_left_out():
    job = Job(new_shards(3))
    spec = TensorSpec("half", (9, 50))
    known = [partition for partitions in job.placed.values() for partition in partitions]
    one = place([spec], 3, known)["half"][0]
    job.call(
        0,
        ms.Register(
            sender=job.sender,
            declarations=(ms.Declaration(one.spec, np.ones(one.spec.shape, "f4"), None, None, one.part),),
        ),
    )
    assert "half" not in whole_variables(job.shards)
    new = resharded(job.shards, 2)
    assert {name for shard in new for name in shard.arrays()} == set(VARIABLES)


# --- from files -------------------------------------------------------------------------------------------------------


def write_all(folder, job, number, late=None, final=False):
    for shard in job.shards:
        shard.cuts.skip(number)
        write(folder, shard, late=(late or {}).get(shard.shard, ()), final=final)


def started(folder, count):
    """New servers, one after the other: each begins its run before the next looks."""
    starts, new = [], new_shards(count)
    for shard in new:
        start = find_start(folder, shard.shard, count)
        starts.append(start)
        start.restore(shard, 0.0)
        start.begin(shard, journal=False)
    for start in starts:
        if start.provisional:
            start.confirm()
    return new, starts


def test_servers_of_another_number_start_from_the_files_and_nothing_is_lost_after_a_stop(tmp_path):
    job = Job(new_shards(2))
    job.push(0)
    write_all(tmp_path, job, 3)
    job.push(1)
    for shard, number in zip(job.shards, (10, 12), strict=True):  # each stops by itself
        shard.cuts.skip(number)
        write(tmp_path, shard, final=True)
        write_run(tmp_path, shard.shard, 2, Run(1, 0, 3, False))
    new, starts = started(tmp_path, 3)
    assert state_of(Job(new, "v").values()) == state_of(job.values())
    assert [start.notes for start in starts] == 3 * [["the job goes on with 3 shards instead of 2"]]
    assert [available(tmp_path, shard, 3) for shard in range(3)] == [[13]] * 3
    assert {(shard.timeline, shard.cuts.number) for shard in new} == {(1, 13)}
    again = find_start(tmp_path, 1, 3)
    assert (again.number, again.lost) == (13, True), "a run has begun from it"
    back, _ = started(tmp_path, 2)
    assert {shard.cuts.number for shard in back} == {14}


def test_after_a_kill_they_start_from_the_newest_common_cut_with_its_late_changes(tmp_path):
    job, reference = Job(new_shards(2)), Job(new_shards(1))
    for one in (job, reference):
        one.push(0)
        one.push(1)
    early = Job(new_shards(2))
    early.push(0)
    write_all(tmp_path, early, 3)
    early.push(1)
    late = {}
    for number in range(2):  # the second push reached shard 1 after its snapshot, and shard 0 before
        parts = [one for one in parts_of_last_push(early) if one[0] == number]
        late[number] = [message for _, message in parts]
    for shard in early.shards:
        shard.cuts.skip(5)
    write(tmp_path, early.shards[0])
    old = Job(new_shards(2))
    old.push(0)
    old.shards[1].cuts.skip(5)
    write(tmp_path, old.shards[1], late=late[1])
    write(tmp_path, early.shards[1], 9)  # no other shard has it
    for shard in range(2):
        write_run(tmp_path, shard, 2, Run(1, 0, 0, False))
    new, starts = started(tmp_path, 1)
    assert starts[0].notes[0] == "what may have been acknowledged after checkpoint 5 is given up"
    assert starts[0].went_back
    assert state_of(Job(new, "v").values()) == state_of(reference.values())
    assert new[0].timeline == 2


def test_a_run_on_another_number_of_shards_is_none_until_it_accepts_a_change(tmp_path):
    """Then the old shards go on from where they were, and later new ones begin from there."""
    job = Job(new_shards(1))
    job.push(0)
    write_all(tmp_path, job, 3, final=True)
    start = find_start(tmp_path, 1, 2)
    shard = new_shards(2)[1]
    start.restore(shard, 0.0)
    start.begin(shard, journal=True)
    start.close()  # stopped, or killed
    assert available(tmp_path, 1, 2) == [4]
    old = find_start(tmp_path, 0, 1)
    assert (old.number, old.lost, old.notes) == (3, False, [])
    job.push(1)
    write_all(tmp_path, job, 4, final=True)
    new, starts = started(tmp_path, 2)
    assert {one.number for one in starts} == {5}
    assert state_of(Job(new, "v").values()) == state_of(job.values())
    assert [available(tmp_path, shard, 2) for shard in range(2)] == [[5], [5]]


def test_a_provisional_run_goes_on_where_the_files_of_the_old_shards_were_removed(tmp_path):
    job = Job(new_shards(1))
    write_all(tmp_path, job, 3, final=True)
    for number in range(2):
        start = find_start(tmp_path, number, 2)
        shard = new_shards(2)[number]
        start.restore(shard, 0.0)
        start.begin(shard, journal=False)
        start.close()
    shutil.rmtree(shard_folder(tmp_path, 3, 0, 1))
    starts = [find_start(tmp_path, shard, 2) for shard in range(2)]
    assert [(one.number, one.lost) for one in starts] == [(4, False)] * 2
    assert find_start(tmp_path, 0, 1).number == 5


def test_a_job_that_was_stopped_when_one_shard_had_begun_goes_on_with_its_number_or_in_a_new_folder(tmp_path):
    job = Job(new_shards(2))
    write(tmp_path, job.shards[0])
    with pytest.raises(
        StorageError, match=r"start 2 servers instead: .* first step, so begin again with as many, or in a new folder"
    ):
        find_start(tmp_path, 0, 1)
    assert [find_start(tmp_path, shard, 2).number for shard in range(2)] == [0, 0]
    job.shards[0].cuts.skip(1)
    write(tmp_path, job.shards[0])
    with pytest.raises(StorageError, match="of shard 0 of 2 only: bring those of all shards into one folder"):
        find_start(tmp_path, 0, 1)


def parts_of_last_push(job):
    """The parts of a job's last push, again."""
    found = []
    recorder = Job.__new__(Job)
    recorder.__dict__ |= job.__dict__ | {"sequence": job.sequence - 1}
    before = {name: version - 1 for name, version in job.versions().items()}
    recorder.versions = lambda: before
    recorder.call = lambda shard, message: (
        found.append((shard, message)) or ms.Pushed(outcome=ms.Outcome.APPLIED, staleness=0, global_step=0)
    )
    recorder.push(1)
    return found


@pytest.mark.parametrize(("last", "final", "timeline"), [(1, True, 3), (0, True, 3), (0, False, 4)])
def test_the_timeline_of_the_job_is_the_latest_of_all_shards_and_giving_up_begins_the_next(
    tmp_path, last, final, timeline
):
    job = Job(new_shards(2))
    for shard in job.shards:
        shard.begin_from(3 if shard.shard == last else 2, 0.0)
        write_run(tmp_path, shard.shard, 2, Run(shard.timeline, 0, 3, False))
    write_all(tmp_path, job, 3)
    write_all(tmp_path, job, 7, final=final)
    assert find_start(tmp_path, 0, 1).timeline == timeline


def write_two_cuts(folder):
    """Checkpoints 3 and 7 of two shards, with a push between them; the values of the first."""
    job = Job(new_shards(2))
    job.push(0)
    write_all(folder, job, 3)
    expected = state_of(job.values())
    job.push(1)
    write_all(folder, job, 7)
    return expected


def test_a_checkpoint_of_a_timeline_that_was_given_up_is_no_common_cut(tmp_path):
    """The servers were killed before they moved it aside."""
    expected = write_two_cuts(tmp_path)
    for shard in range(2):
        write_run(tmp_path, shard, 2, Run(2, 3, 3, False))
    new, starts = started(tmp_path, 1)
    assert starts[0].notes[0] == "what may have been acknowledged after checkpoint 3 is given up"
    assert (state_of(Job(new, "v").values()), new[0].timeline) == (expected, 3)


def test_a_common_cut_that_is_damaged_on_one_shard_is_not_used(tmp_path):
    expected = write_two_cuts(tmp_path)
    path = shard_folder(tmp_path, 7, 1, 2) / "slots.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    for shard in range(2):
        write_run(tmp_path, shard, 2, Run(1, 0, 0, False))
    new, starts = started(tmp_path, 1)
    assert str(path) in starts[0].notes[0]
    assert state_of(Job(new, "v").values()) == expected
    assert new[0].cuts.number == 8
