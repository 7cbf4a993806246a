"""Each rule of the guard on histories made by hand: what opens, with which numbers, and what must stay silent."""

from dataclasses import replace

import pytest

from psjob.guard import Guard
from psjob.guard.history import MAX_MOMENTS, History
from psjob.guard.rules.momentum import effective_momentum, lower_momentum
from pswire.messages import Job, JobReport, QueueSpec, QueueStatus
from pswire.optimizers import Adam, GradientDescent, Momentum, MovingAverage
from tests.unit.psjob.guard.jobs import found, job, variable, workers


def training(costs, count=4, staleness=3.0, optimizer=None, peak=None, per_second=20, **changes):
    """A job whose workers have these costs, one a second, each after `per_second` pushes of each worker more."""
    highest = 0.0
    for second, cost in enumerate(costs):
        highest = max(highest, cost)
        counts = {"first": costs[0], "peak": peak or highest, "loss": cost + second / 1000}
        rows = workers(count, second * per_second, staleness, cost, **counts)
        yield float(second), job(second * per_second * count, rows, [variable(optimizer)], **changes)


def altered(history, change):
    """The history in which each worker has the fields of `change(second, worker)`."""
    for second, (seconds, status) in enumerate(history):
        rows = [replace(one, **change(second, one)) for one in status.workers]
        yield seconds, replace(status, workers=tuple(rows))


def from_the_sixth(changes, which=lambda one: True):
    """What changes some workers from the sixth second on; functions in place of values are called with the second."""

    def change(second, one):
        if second < 6 or not which(one):
            return {}
        return {name: value(second) if callable(value) else value for name, value in changes.items()}

    return change


def kinds(history):
    return [one.kind for _, one in found(history)]


# --- the learning rate of all workers together -----------------------------------------------------------------------

FALLS = [2.3, 1.5, 0.9, 0.5, 0.4, 0.35, 0.3, 0.28, 0.27, 0.26, 0.26, 0.25, 0.25]
RISES = [2.3, 1.5, 0.9, 0.5, 0.4, 0.35, 0.4, 0.9, 1.6, 1.7, 1.9, 2.1, 2.2, 2.3, 2.3, 2.3]
STUCK = [2.3, 2.9, 2.8, 2.5, 2.4] + [2.3] * 11


def test_a_cost_that_has_risen_while_pushes_are_stale_opens_with_the_rate_for_each_worker():
    ((seconds, one),) = found(training(RISES))
    assert (one.kind, one.level, one.worker) == ("staleness", "error", "")
    assert "each push misses 3.0 updates of others: 4 workers" in one.text
    assert "0.05 x 4 = 0.2" in one.text
    assert one.remedy == ("try a learning rate of 0.05 / 4 = 0.0125, or `--staleness scale`, or `--consistency sync:4`")
    assert (one.scale_learning_rate, one.harmed, one.quarantine) == (0.25, True, False)
    assert one.step == 6 * 80, "the median of five costs was lowest then"
    assert 9 <= seconds <= 14


def test_a_cost_that_never_leaves_its_beginning_after_a_peak_opens_too():
    ((_, one),) = found(training(STUCK))
    assert one.kind == "staleness"
    assert one.text.startswith("the cost began at 2.3, rose to 2.9 and is ")
    assert one.step == 0, "there is no good state to go back to"


def test_a_cost_that_was_high_by_chance_is_not_stuck():
    """Costs of batches of two examples go up and down, and the first one may be low."""

    def history(up_and_down):
        return altered(
            training([1.0] * 20, peak=1.9),
            lambda second, one: {"cost": 1.4 + up_and_down * (-1) ** (second + one.number)},
        )

    assert kinds(history(0.3)) == []
    assert kinds(history(0.01)) == ["staleness"]


def test_options_that_the_job_has_are_no_remedy_and_a_straggler_is_one_for_a_bound():
    ((_, one),) = found(training(RISES, handling="scale", staleness=9.0))
    assert "scale`" not in one.remedy
    assert "`--consistency bounded:1`, since some workers are far behind" in one.remedy


# --- momentum --------------------------------------------------------------------------------------------------------


def test_momentum_together_with_staleness_is_named_with_the_value_to_try():
    """0.9 with 3 updates missed is like 1 - 0.1 / 4; 0.6 with them is like 0.9."""
    assert effective_momentum(0.9, 3) == pytest.approx(0.975)
    assert lower_momentum(0.9, 3) == pytest.approx(0.6)
    assert effective_momentum(lower_momentum(0.9, 3), 3) == pytest.approx(0.9)
    assert lower_momentum(0.9, 20) == 0.0
    ((_, one),) = found(training(RISES, optimizer=Momentum(0.05, 0.9)))
    assert one.kind == "momentum"
    assert "like a momentum of 1 - (1 - 0.9) / 4.0 = 0.975" in one.text
    assert one.remedy.startswith("try a momentum of 0.6, or a learning rate of 0.05 / 4 = 0.0125")


# --- the learning rate by itself -------------------------------------------------------------------------------------


def one_worker(costs=FALLS * 2, optimizer=None, **changes):
    """A job of one worker, which is different from the sixth second on."""
    return altered(training(costs, count=1, staleness=0.0, optimizer=optimizer), from_the_sixth(changes))


JUMPS = {"jumps": lambda second: second, "jump": 4096.0, "jumped_at": 121}


def test_gradients_of_the_only_worker_that_jump_are_for_the_learning_rate_and_not_for_its_machine():
    ((seconds, one),) = found(one_worker(**JUMPS))
    assert (seconds, one.kind, one.level, one.worker) == (6.0, "rate", "error", "")
    assert (one.quarantine, one.harmed) == (False, True)
    assert one.text.startswith(
        "gradients were 4,096 times as large as usual from update 121 on, in 6 pushes of worker "
    )
    assert "machine" not in one.line
    assert one.remedy.startswith("try a learning rate of 0.05 / 4 = 0.0125")
    assert (one.scale_learning_rate, one.step) == (0.25, 120)


GONE = [{"state": "left", "steps": 40}, {"state": "lost", "steps": 40}]


@pytest.mark.parametrize(
    "others",
    [*GONE, {"quarantined": True}, {"training": False, "steps": 0}],
    ids=["left", "lost", "apart", "evaluates"],
)
def test_a_worker_whose_others_push_no_more_is_the_only_one(others):
    """The history reaches back for two minutes."""

    def change(second, one):
        return others if one.number else {"jumps": second, "jump": 500.0, "jumped_at": 121} if second >= 140 else {}

    history = altered(training(FALLS * 12), change)
    assert [(one.kind, one.worker, one.quarantine) for _, one in found(history)] == [("rate", "", False)]


NAN = "NotFinite: gradient for 'W' has 3 of 100 elements that are NaN or infinite: nothing was changed"


@pytest.mark.parametrize(
    ("changes", "scale", "harmed", "remedy"),
    [
        ({}, 1.0, False, "look for NaN in its examples (`np.isnan`), and in its loss for log(0) and divisions by 0"),
        ({"peak_cost": 20.0}, 0.25, True, "go back to a checkpoint from before, and try a learning rate of 0.05 / 4"),
        ({"jumps": 1, "jump": 99.0, "jumped_at": 121}, 0.25, True, "try a learning rate of 0.05 / 4 = 0.0125, or "),
    ],
    ids=["at once", "after a cost that grew", "after a jump"],
)
def test_a_refused_push_of_the_only_worker_is_for_its_loss_or_for_the_rate_if_something_grew(
    changes, scale, harmed, remedy
):
    ((_, one),) = found(one_worker(error=NAN, error_time=1000.0, **changes))
    assert (one.kind, one.worker, one.quarantine) == ("rate", "", False)
    assert (one.scale_learning_rate, one.harmed) == (scale, harmed)
    assert one.remedy.startswith(remedy)


@pytest.mark.parametrize("workers_with_nan", [1, 2, 4])
@pytest.mark.parametrize("count", [1, 4])
def test_clipping_is_no_remedy_for_nan(count, workers_with_nan):
    refused = from_the_sixth({"error": NAN, "error_time": 1000.0}, lambda one: one.number < workers_with_nan)
    ((_, one),) = found(altered(training(FALLS, count=count), refused))
    assert one.remedy.endswith("clipping does not remove NaN")
    assert "clip gradients" not in one.line


#: A model whose units have died: the cost is that of guessing, as it was about at the beginning.
GUESSES = [2.36, 8.7, 3.1] + [2.3, 2.31] * 10


@pytest.mark.parametrize("optimizer", [Adam(0.03), GradientDescent(0.03), Momentum(0.03, 0.9)], ids=lambda o: o.kind)
@pytest.mark.parametrize(("count", "staleness"), [(1, 0.0), (6, 0.0), (6, 5.0)])
def test_a_cost_that_was_high_and_is_that_of_guessing_since_is_found_for_all_optimizers(count, staleness, optimizer):
    ((seconds, one),) = found(training(GUESSES, count=count, staleness=staleness, optimizer=optimizer))
    together = "momentum" if isinstance(optimizer, Momentum) else "staleness"
    assert (one.kind, one.level, one.worker) == (together if staleness else "rate", "error", "")
    if one.kind == "rate" or isinstance(optimizer, Adam):
        assert one.text.startswith("the cost began at 2.36, rose to 8.7 and has been 2.3")
        assert 12 <= seconds <= 20
    assert f"a learning rate of 0.03 / {6 if staleness else 4} = " in one.remedy


def collapsed(costs, gradient, peak):
    """A job with Adam whose gradients had a norm of 8 in the first second, and have this one since."""
    return altered(
        training(costs, optimizer=Adam(0.03), peak=peak),
        lambda second, _: {"gradient_mean": gradient if second > 1 else 8.0},
    )


def test_a_cost_that_was_not_so_high_needs_gradients_that_have_become_small():
    costs = [2.36] + [2.3, 2.31] * 12
    assert kinds(collapsed(costs, gradient=0.1, peak=3.5)) == ["staleness"]
    assert kinds(collapsed(costs, gradient=4.0, peak=3.5)) == []
    assert kinds(collapsed(costs, gradient=0.1, peak=2.5)) == [], "it learns slowly"


# --- one worker ------------------------------------------------------------------------------------------------------


def with_worker(number, costs=FALLS * 4, **changes):
    """A job that trains, in which one worker is different from the sixth second on."""
    return altered(training(costs), from_the_sixth(changes, lambda one: one.number == number))


def test_a_worker_whose_gradients_jump_is_named_once_and_to_be_put_into_quarantine():
    ((seconds, one),) = found(with_worker(1, jumps=lambda second: second, jump=4096.0, jumped_at=481))
    assert (seconds, one.kind, one.worker, one.quarantine, one.harmed) == (6.0, "worker", "w1", True, True)
    assert one.text.startswith("gradients of worker 'w1' were 4,096 times as large as usual from update 481 on, in 6 ")
    assert "psserver quarantine --worker w1" in one.remedy
    assert one.step == 480


def test_the_first_of_several_that_jump_is_named_if_it_was_far_off_or_the_job_was_well_before():
    def history(jump, costs=FALLS * 4):
        first = with_worker(1, costs, jumps=9, jump=jump, jumped_at=481)
        another = from_the_sixth({"jumps": 9, "jump": 40.0, "jumped_at": 490}, lambda one: one.name == "w3")
        return altered(first, another)

    ((_, one),) = found(history(4096.0))
    assert one.worker == "w1"
    assert "before those of 1 others" in one.text
    assert [one.worker for _, one in found(history(40.0))] == ["w1"]
    assert "w1" not in [one.worker for _, one in found(history(40.0, [2.3, 2.4, 2.3, 2.5] * 4))]


def test_a_worker_whose_gradients_are_always_larger_is_named_and_not_the_learning_rate():
    def history(size):
        return altered(training(RISES * 2), lambda _, one: {"gradient_mean": size} if one.number == 3 else {})

    ((_, one),) = found(history(8.0))
    assert (one.kind, one.worker, one.quarantine) == ("worker", "w3", True)
    assert "have had a norm of 8 for 4 s, and those of the others one of 1: its data is not scaled" in one.text
    assert [one.kind for _, one in found(history(3.0))] == ["staleness"]


def test_a_single_jump_is_named_where_all_have_failed_since():
    error = {"error": "NotFinite: gradient for 'W' has NaN", "error_time": 1000.0}
    rows = workers(3, 100, **error)
    rows[1] = replace(rows[1], jumps=1, jump=255.0, jumped_at=290, state="left")
    guard = Guard()
    assert found([(0.0, job(290, workers(3, 97)))], guard) == []
    (one,) = guard.observe(job(300, rows), 0.2, last=True)
    assert (one.kind, one.worker) == ("worker", "w1")
    assert "255 times as large as usual from update 290 on" in one.text


def test_refused_pushes_of_several_workers_are_one_finding_about_the_job():
    rows = workers(3, 100, error="NotFinite: gradient for 'W' has NaN", error_time=1000.0, peak=20.0)
    (one,) = Guard().observe(job(300, rows), 0.0, last=True)
    assert (one.kind, one.worker, one.quarantine) == ("rate", "", False)
    assert "so were pushes of 2 others. Gradients or the cost had grown before: variables have become too" in one.text
    rows = [replace(one, peak_cost=2.4) for one in rows]
    (one,) = Guard().observe(job(300, rows), 0.0, last=True)
    assert "so were pushes of 2 others. Gradients and cost had not grown before: the loss has no value" in one.text
    assert (one.scale_learning_rate, one.harmed) == (1.0, False)


def test_errors_from_before_the_job_went_back_are_not_told_again():
    rows = workers(3, 100, error="NotFinite: gradient for 'W' has NaN", error_time=1000.0)
    guard = Guard()
    assert len(guard.observe(job(300, rows), 0.0)) == 1
    guard.forget()
    assert found([(float(second), job(200 + second, rows)) for second in range(1, 9)], guard) == []


def test_a_worker_whose_push_was_refused_for_nan_is_named_with_the_error():
    error = "NotFinite: gradient for 'W' has 3 of 100 elements that are NaN or infinite: nothing was changed"
    ((_, one),) = found(with_worker(2, error=error, error_time=1000.0))
    assert (one.kind, one.worker, one.quarantine, one.harmed) == ("worker", "w2", True, False)
    assert error in one.text
    assert "those of others are finite" in one.text
    assert kinds(with_worker(2, error="NotJoined: join first", error_time=1000.0)) == []


# --- data ------------------------------------------------------------------------------------------------------------


def test_a_worker_that_pushes_no_more_while_others_do_is_named_after_some_time():
    ((seconds, one),) = found(with_worker(1, steps=120))
    assert (seconds, one.kind, one.level, one.worker) == (36.0, "data", "warning", "w1")
    assert one.text.startswith("worker 'w1' is live, but for 30 s it has pushed nothing, and the others some 600 times")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"empty": lambda second: second * 20}, "its 600 pushes had no gradients"),
        ({"gradient": 0.0}, "the gradients of its 600 pushes were all zero"),
        ({"loss": 0.693147}, "the loss of its 600 pushes was always 0.693147"),
    ],
    ids=["empty", "zero", "constant"],
)
def test_a_worker_whose_pushes_are_useless_is_named(changes, text):
    ((_, one),) = found(with_worker(1, **changes))
    assert (one.kind, one.worker) == ("data", "w1")
    assert text in one.text


def zero_gradients(count, **changes):
    """A job whose gradients are zero from the beginning, with a loss that stays."""
    zero = {"loss": 2.3, "gradient": 0.0, "gradient_mean": 0.0, **changes}
    return altered(training([2.3] * 40, count=count), lambda *_: zero)


@pytest.mark.parametrize("count", [1, 3])
def test_gradients_of_all_workers_that_are_zero_are_one_finding_about_the_job(count):
    ((seconds, one),) = found(zero_gradients(count))
    assert (seconds, one.kind, one.level, one.worker) == (30.0, "data", "warning", "")
    assert one.text.startswith(f"for 30 s the gradients of all workers have been zero, in {600 * count:,} pushes")
    assert "stop_gradient" in one.remedy


def test_gradients_of_zero_that_a_waiting_worker_has_too_are_found():
    """With `sync:3` two of three workers wait at each moment."""
    assert kinds(zero_gradients(3, waiting_for="the update of these weights takes 3 gradients")) == ["data"]


def test_gradients_of_zero_are_no_finding_in_a_job_without_losses_that_had_others():
    without = {"cost": None, "loss": None, "first_loss": None, "peak_cost": None}
    assert kinds(zero_gradients(2, **without)) == ["data"]
    assert kinds(zero_gradients(2, **without, gradient_mean=1e-9)) == [], "it has converged"


def labels(cost, others=0.4, count=3, first=2.3, since=0):
    """A job in which w1 has this cost and the others have another, from some second on."""
    of_w1, of_others = {"cost": cost, "first_loss": first}, {"cost": others, "first_loss": 2.3}
    return altered(
        training([2.3] * 60, count=count),
        lambda second, one: {} if second < since else of_w1 if one.name == "w1" else of_others,
    )


def test_a_worker_with_other_labels_is_named_when_the_costs_of_the_others_have_fallen_and_its_cost_has_not():
    ((seconds, one),) = found(labels(cost=2.9, since=5))
    assert (one.kind, one.level, one.worker) == ("data", "warning", "w1")
    assert 35 <= seconds <= 37
    assert "the cost of worker 'w1' is 2.9 and has not fallen in 30 s" in one.text
    assert (
        "of 2.3 at the beginning, are below 0.4: its examples are others than theirs, or its labels are w" in one.text
    )


# --- rounding --------------------------------------------------------------------------------------------------------


def rounding(unchanged, dtype="float16", optimizer=None, costs=(2.3,) * 20):
    """A job in which of 100 elements that are sampled each second so many are unchanged."""
    for second, cost in enumerate(costs):
        counts = {"dtype": dtype, "sampled": 100 * second, "unchanged": unchanged * second}
        rows = workers(2, 20 * second, 1.0, cost, peak=2.3)
        yield float(second), job(40 * second, rows, [variable(optimizer or GradientDescent(0.001), **counts)])


def test_updates_that_vanish_are_named_with_variable_dtype_and_the_wider_one():
    ((_, one),) = found(rounding(93))
    assert (one.kind, one.level, one.worker, one.harmed) == ("rounding", "warning", "", False)
    assert "93% of 'W' (float16) stay as they are" in one.text
    assert "rate of 0.001 are below half a unit in the last place (0.00049 of an element in float16)" in one.text
    assert one.remedy.startswith("keep such variables in float32")


def test_a_failure_that_is_over_after_some_seconds_does_not_open():
    """All updates vanish until the seventh second, so that most of those of five seconds do until the eighth."""

    def history(until):
        for second in range(20):
            counts = {"dtype": "float16", "sampled": 100 * second, "unchanged": 100 * min(second, until)}
            yield float(second), job(40 * second, workers(2, 20 * second, 1.0, 2.3), [variable(**counts)])

    assert found(history(7)) == []
    assert [one.kind for _, one in found(history(12))] == ["rounding"]


# --- no finding ------------------------------------------------------------------------------------------------------

QUEUE = QueueStatus(spec=QueueSpec(name="mnist", size=1000, epochs=1, block=100), epoch=1, done=900, blocks_out=1)
RISES_LATER = [1.1, 0.9, 0.6, 0.5, 0.5, 0.6, 0.8, 1.2, 1.9, 2.6, 3.4, 4.1, 5.2, 6.0, 7.1]
NOISE = [1.32, 1.06, 1.02] + [1.01] * 16
SILENT = {
    "falls": training(FALLS),
    "with momentum": training(FALLS, optimizer=Momentum(0.05, 0.9)),
    "rises while pushes are fresh": training(RISES, staleness=0.5),
    "rises with one worker": training(RISES, count=1, staleness=0.0),
    "learns slowly": training([2.3] * 12, peak=2.35),
    "stuck with Adam": training(STUCK, optimizer=Adam(0.001)),
    "Q-learning": training([1.0, 5.0, 20.0, 30.0, 20.0, 25.0, 20.0, 20.0, 20.0], optimizer=Adam(0.001)),
    "Q-learning that is at first right": training(RISES_LATER, optimizer=Adam(0.001)),
    "Q-learning that has begun lower": training([1.1, 8.7, 3.1] + [2.3] * 20, optimizer=Adam(0.001)),
    "low by chance": training([1.0] + [3.1, 1.6, 3.0] * 6),
    "one bad moment": training(RISES[:7] + FALLS[5:]),
    "few pushes": training(STUCK, per_second=2),
    "observed late": [(at, replace(one, global_step=one.global_step + 5000)) for at, one in training(STUCK)],
    # a regression whose signal is weak: most of the first cost is noise, which stays, and gradients become small
    "falls to its noise": altered(
        training(NOISE, peak=1.32 * 1.02), lambda second, _: {"gradient_mean": [1.3, 0.75, 0.1][min(second, 2)]}
    ),
    "high, and up and down since": training([2.36, 8.7, 3.1] + [2.2, 2.35] * 10, optimizer=Adam(0.001)),
    "high, and falls": training([2.36, 8.7, 3.1] + [2.3 - 0.02 * n for n in range(20)], optimizer=Adam(0.001)),
    "high, and has learned": training([2.36, 8.7, 3.1] + [0.9] * 20, optimizer=Adam(0.001)),
    "two jumps are an accident": with_worker(1, jumps=2, jump=50.0, jumped_at=481),
    "jumps of a worker in quarantine": with_worker(1, jumps=9, jump=50.0, jumped_at=481, quarantined=True),
    "out of data": with_worker(1, steps=120, training=False),
    "held": with_worker(1, steps=120, waiting_for="w0: it is 2 steps behind"),
    "left": with_worker(1, steps=120, state="left"),
    "slow": with_worker(1, steps=lambda second: 120 + second // 5),
    "evaluates after an epoch": with_worker(1, steps=120, between_blocks=True),
    "the data comes to its end": [(at, replace(one, queues=(QUEUE,))) for at, one in with_worker(1, steps=120)],
    # all examples are classified with certainty
    "losses and gradients of 0 of all": altered(training(FALLS * 4), lambda *_: {"loss": 0.0, "gradient": 0.0}),
    "a cost that falls too": labels(cost=1.9),
    "all costs are high": labels(cost=2.9, others=1.3),
    "another cost of one of two": labels(cost=2.9, count=2),
    "another loss": labels(cost=2.9, first=30.0),
    "came late": labels(cost=0.45, first=0.45),
    "without losses": labels(cost=None),
    "some rounding": rounding(40),
    "rounding of what is observed": rounding(100, optimizer=MovingAverage(0.9)),
    "rounding, when it has converged": rounding(100, costs=[2.3, 1.0] + [0.01] * 20),
}


@pytest.mark.parametrize("history", SILENT.values(), ids=SILENT)
def test_there_is_no_finding_without_evidence(history):
    assert kinds(history) == []


# --- the guard -------------------------------------------------------------------------------------------------------


def test_a_finding_is_told_once_closes_when_it_is_over_and_can_open_again():
    guard = Guard()
    costs = RISES + [2.3] * 10 + [0.3] * 40 + [2.3] * 15
    opened = found(training(costs), guard)
    assert [one.kind for _, one in opened] == ["staleness", "staleness"]
    assert len(guard.findings) == 1
    list(found([(seconds + 100, status) for seconds, status in training([0.3] * 30)], guard))
    assert guard.findings == []


def test_a_cost_that_swings_around_the_limit_does_not_flood():
    assert len(kinds(training(RISES + [2.3, 0.4, 2.2, 0.5] * 30))) <= 1


def test_the_history_is_bounded_and_thinned_to_a_moment_a_second():
    history = History()
    for tick in range(2000):
        history.add(job(tick, workers(2, tick)), tick * 0.25)
    assert len(history.moments) == MAX_MOMENTS
    assert history.moments[1].seconds - history.moments[0].seconds == 1.0


def test_statuses_with_missing_shards_are_left_out_and_another_job_begins_anew():
    guard = Guard()
    silent = [(seconds, replace(status, answers=())) for seconds, status in training(RISES)]
    assert found(silent, guard) == []
    back = [*training(FALLS), *[(20 + seconds, status) for seconds, status in training(FALLS)]]
    assert found(back) == [], "the global step went back: costs of another state are no rise"


def test_what_was_found_in_a_job_is_found_again_in_the_next_one():
    def of_job(number, start):
        jobs = (JobReport(job=Job(number, "sweep-1", number), state="running", workers=4),)
        return [(start + seconds, status) for seconds, status in training(RISES, jobs=jobs)]

    first, second = found([*of_job(1, 0.0), *of_job(2, len(RISES))])
    assert (first[1].kind, second[0]) == (second[1].kind, first[0] + len(RISES))
