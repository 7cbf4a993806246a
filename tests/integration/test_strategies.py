"""Strategies: Downpour and local steps against a few lines of float64, policies of the servers, and steps that fail."""

import logging
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

import psworker as ps
from pswire import errors
from pswire import messages as ms
from pswire.specs.consistency import Bounded, DropStalePushes, Synchronous
from psworker import ops, schedules
from psworker.config import WorkerConfig
from psworker.model.base_variable import set_value
from psworker.sessions.data_loop import batches_per_block
from psworker.sessions.session import Session
from tests.support.commands import wait_until
from tests.support.shards import ShardsInProcess

START = np.float32([1, -2, 3])
CURVATURE = np.float32([0.1, 0.2, 0.3])
ONE, SGD = np.float32([1]), ps.GradientDescent(1.0)


def quadratic(x):
    return ops.sum(CURVATURE * ops.square(x)) / 2 - ops.sum(x)


def gradient_of_the_quadratic(w):
    return CURVATURE.astype(np.float64) * w - 1


def scalar(name):
    return ps.Variable([0.0], name=name)


def session_over(transport, worker="w0", outer=SGD, timeout=30, **strategy):
    """A worker's session; the outer optimizer of local steps takes differences as they are."""
    config = WorkerConfig(name=worker, timeout=timeout, **strategy)
    return Session(config, transport, outer)


def weights_of_a_quadratic(push_every, pull_every, overlap, steps):
    """Downpour with rate 0.5, one worker: the weights that each step used, and the last ones."""
    server = START.astype(np.float64)
    here = there = server  # in the worker; in the answer that is under way
    accrued, used = 0.0, []
    for step in range(1, steps + 1):
        used.append(here)
        accrued = accrued + gradient_of_the_quadratic(here)
        pushes, pulls = step % push_every == 0, step % pull_every == 0
        if overlap and (pushes or pulls):
            here = there
        if pushes:
            server, accrued = server - 0.5 * accrued, 0.0
        if pulls and overlap:
            there = server
        elif pulls:
            here = server
    return used, server - 0.5 * accrued


@pytest.mark.parametrize("overlap", [False, True], ids=["waits", "overlap"])
@pytest.mark.parametrize(("push_every", "pull_every"), [(1, 1), (3, 1), (1, 4), (3, 3), (2, 3), (4, 2), (13, 26)])
def test_every_step_uses_the_weights_that_downpour_gives_it(open_session, push_every, pull_every, overlap):
    """A program may write into gradients that it has pushed; in the end it has weights that include all pushes."""
    x, optimizer = ps.Variable(START, name="x"), ps.GradientDescent(0.5)
    used, last = weights_of_a_quadratic(push_every, pull_every, overlap, steps=13)
    with open_session("w0", push_every=push_every, pull_every=pull_every, overlap=overlap) as session:
        for expected in used:
            np.testing.assert_allclose(x.value, expected, rtol=1e-5, atol=1e-6)
            gradient = optimizer.compute_gradients(quadratic(x))[0][0].copy()
            optimizer.apply_gradients([(gradient, x)])
            gradient[:] = np.nan
    np.testing.assert_allclose(x.value, last, rtol=1e-5, atol=1e-6)
    assert session.global_step == x.version == -(-13 // push_every)


def test_losses_and_observations_go_as_their_means(open_session, status):
    x, mean = scalar("x"), ps.Variable(np.zeros(2, np.float16), name="mean", trainable=False)
    seen = np.random.default_rng(20261122).uniform(10, 12, (300, 2)).astype(np.float16)
    with open_session("w0", push_every=300) as session:
        for value in seen:
            ps.note_update(ps.UpdateOp(mean, value, 0.0))
            SGD.minimize(ops.sum(x) + float(value[0]))
        np.testing.assert_allclose(mean.value, seen.mean(axis=0, dtype=np.float64), rtol=1.01 * 2**-11)
        assert status(session).workers[0].loss == pytest.approx(seen[:, 0].mean(dtype=np.float64))


def test_each_optimizer_counts_the_steps_of_its_own_variables(open_session):
    """Two that are equal too, as those of a GAN may be."""
    x, y, steps = scalar("x"), scalar("y"), []
    with open_session("w0", push_every=2) as session:
        for variable in (x, y, x, y):
            SGD.minimize(ops.sum(variable), [variable])
            steps.append((session.global_step, float(x.value[0]), float(y.value[0])))
    assert steps == [(0, 0, 0), (0, 0, 0), (1, -2, 0), (2, -2, -2)]


def test_a_step_that_is_refused_leaves_the_sum_as_it_was(open_session):
    with ps.collection(), open_session("another"):
        scalar("x")  # the same variables in the same order
        ps.GradientDescent(0.0).apply_gradients([(ONE, scalar("y"))])
    x, y = scalar("x"), scalar("y")
    with open_session("w0", push_every=2, overlap=True) as session:
        SGD.apply_gradients([(ONE, x)])
        with pytest.raises(errors.NotFinite, match="'x'"):
            SGD.apply_gradients([(np.float32([np.inf]), x)])
        with pytest.raises(errors.AlreadyRegistered, match="'y'"):
            SGD.apply_gradients([(ONE, x), (ONE, y)])
        SGD.apply_gradients([(2 * ONE, x)])
        session.pull()
        assert (x.value, y.value, session.global_step) == ([-3], [0], 2)


def at_the_server(open_session):
    """The value of x that a new worker gets."""
    with ps.collection(), open_session("looks on"):
        return float(ps.Variable([9.0], name="x").value[0])


@pytest.mark.parametrize(
    "strategy",
    [{"push_every": 3}, {"push_every": 5, "pull_every": 2, "overlap": True}, {"local_steps": 4, "outer": SGD}],
    ids=str,
)
def test_an_epoch_is_complete_when_all_of_its_gradients_are_at_the_server(open_session, strategy):
    """100 examples in batches of 7, three epochs; each gradient counts its batch."""
    x, seen = scalar("x"), []
    with open_session("w0", **strategy) as session:
        for batch in session.batches(
            ps.Dataset({"x": np.arange(100)}), 7, epochs=3, on_epoch=lambda _: seen.append(at_the_server(open_session))
        ):
            SGD.apply_gradients([(np.float32([-len(batch)]), x)])
    assert seen == [100, 200, 300]


def test_a_block_is_a_whole_number_of_pushes():
    assert [batches_per_block(steps) for steps in (1, 3, 16, 17, 500)] == [16, 18, 16, 17, 500]


CALLS = {
    "pull": lambda session, x, y: session.pull(),
    "assign": lambda session, x, y: session.assign(y, [7]),
    "slot": lambda session, x, y: session.slot(x, "momentum"),
    "register": lambda session, x, y: session.register([y]),
    "evaluate": lambda session, x, y: session.evaluate(lambda batch: 0, ps.Dataset({"x": np.arange(3)})),
    "set_hyperparameters": lambda session, x, y: session.set_hyperparameters(x, learning_rate=0.5),
    "leave": lambda session, x, y: None,
    "fail": lambda session, x, y: 1 / 0,
}


@pytest.mark.parametrize(
    "strategy", [{"push_every": 9}, {"push_every": 2, "overlap": True}, {"local_steps": 9, "outer": SGD}], ids=str
)
@pytest.mark.parametrize("name", CALLS)
def test_sums_are_pushed_before_any_other_call_unless_an_error_ends_the_session(open_session, strategy, name):
    error = pytest.raises(ZeroDivisionError) if name == "fail" else nullcontext()
    with open_session("stays"), ps.collection():
        x, y = scalar("x"), scalar("y")
        with error, open_session("w0", **strategy) as session:
            for _ in range(3):
                ps.Momentum(1.0, momentum=0.0).apply_gradients([(ONE, x)])
            CALLS[name](session, x, y)
            assert name == "leave" or at_the_server(open_session) == -3
        lost = min(strategy.get("push_every", 9), 3) if name == "fail" else 0
        assert at_the_server(open_session) == {0: -3, 2: -2, 3: 0}[lost]


def test_the_end_of_a_block_of_examples_is_no_pull(open_session):
    """Blocks of 16 batches, 40 in all; pull_every decides when fresh weights come."""
    x, seen = scalar("x"), set()
    with open_session("w0", pull_every=100) as session:
        for _ in session.batches(ps.Dataset({"x": np.arange(40)}), 1):
            SGD.apply_gradients([(ONE, x)])
            seen.add(float(x.value[0]))
    assert (seen, x.value) == ({0.0}, [-40])


def test_looking_up_rows_leaves_what_is_under_way_where_it_is(open_session):
    """The weights of one step stay the same, though their push may be answered while it looks up rows."""
    x, table, used = scalar("x"), ps.Table((5, 1), ps.RowConstant(1), name="table"), []
    with open_session("w0", overlap=True) as session:
        for step in range(4):
            used.append(float(x.value[0]))
            rows = ops.embedding(table, [step])
            assert (session.rows(table, [4, step]).tolist(), x.value) == ([[1], [1]], used[-1:])
            SGD.minimize(ops.sum(x) + ops.sum(rows))
        session.pull()
        assert session.rows(table, range(5)).tolist() == [[0], [0], [0], [0], [1]]
    assert used == [0, 0, -1, -2]


@pytest.mark.parametrize("steps", [1, 4])
def test_rounds_are_those_of_diloco(open_session, status, steps):
    """Three rounds and one step of Adam, by a schedule, under Nesterov's momentum, rate 0.7 and momentum 0.9."""
    x, losses = ps.Variable(START, name="x"), []
    w = outer = START.astype(np.float64)
    m = v = momentum = 0.0
    with open_session("w0", local_steps=steps) as session:
        for step in range(1, 3 * steps + 2):
            np.testing.assert_allclose(x.value, w, rtol=2e-6, atol=2e-6)
            loss = quadratic(x)
            losses.append(loss.item())
            ps.Adam(schedules.ExponentialDecay(0.1, decay_steps=1, decay_rate=0.9)).minimize(loss)
            g, rate = gradient_of_the_quadratic(w), 0.1 * 0.9 ** (step - 1)
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2  # they live on from round to round
            w = w - rate * (m / (1 - 0.9**step)) / (np.sqrt(v / (1 - 0.999**step)) + 1e-8)
            if step % steps == 0:
                momentum = 0.9 * momentum + (outer - w)
                w = outer = outer - 0.7 * ((outer - w) + 0.9 * momentum)
                assert status(session).workers[0].loss == pytest.approx(np.mean(losses[-steps:]))
        assert session.global_step == 3 + (steps == 1), "the servers count rounds"
        np.testing.assert_allclose(x.value, w, rtol=2e-6, atol=2e-6)


def test_the_next_step_uses_an_assigned_value(open_session):
    x, y = ps.Variable([4.0], name="x"), ps.Variable([1.0], name="y", trainable=False)
    with open_session("w0", local_steps=2, outer=SGD) as session:
        SGD.minimize(ops.sum(x * y))
        session.assign_all({x: [10], y: [3]})
        SGD.minimize(ops.sum(x * y))
        late = ps.Variable([2.0], name="late")
        assert (x.value, session.global_step) == ([7], 2)
        for value in (-1, -4):
            SGD.minimize(ops.sum(late * y))
            assert late.value == [value]


@pytest.mark.parametrize("steps", [3, 100])
def test_moving_averages_are_those_of_the_plain_loop(open_session, steps):
    """One worker, seven steps: whole rounds, and one that is cut short; a step without an observation, too."""
    x, average = scalar("x"), ps.Variable(np.float32([5, -5]), name="average", trainable=False)
    expected = average.value.astype(np.float64)
    with open_session("w0", local_steps=steps) as session:
        for number in range(7):
            if number != 4:
                seen = np.float32([number, number**2])
                ps.note_update(ps.UpdateOp(average, seen, 0.9))
                expected = 0.9 * expected + 0.1 * seen.astype(np.float64)
            ps.GradientDescent(0.1).minimize(ops.sum(x))
        session.pull()
        np.testing.assert_allclose(average.value, expected, rtol=1e-5)


def test_the_round_of_each_of_several_workers_moves_an_average_by_what_it_has_seen(open_session):
    """Both begin where it is 5; two steps of decay 0.9 keep 0.81 of what the servers have by then."""
    x, average = scalar("x"), ps.Variable([5.0], name="average", trainable=False)
    with open_session("w0", local_steps=2) as first, ps.collection():
        y, same = scalar("x"), ps.Variable([5.0], name="average", trainable=False)
        with open_session("w1", local_steps=2) as second:
            for _ in range(2):
                first.push(SGD, [(ONE, x)], [ps.UpdateOp(average, ONE, 0.9)])
                second.push(SGD, [(ONE, y)], [ps.UpdateOp(same, 3 * ONE, 0.9)])
            expected = 0.81 * (0.81 * 5 + 0.19 * 1) + 0.19 * 3
            np.testing.assert_allclose(same.value, [expected], rtol=1e-5)


def test_hyperparameters_and_slots_are_those_of_the_optimizer_in_the_worker(open_session):
    x, y = scalar("x"), scalar("y")
    inner = ps.Momentum(1.0, 0.5)
    with open_session("w0", local_steps=2, outer=SGD) as session:
        for _ in range(2):
            inner.minimize(ops.sum(x))
        assert (x.value, session.slot(x, "momentum")) == ([-2.5], [1.5])
        with pytest.raises(errors.ConfigurationError, match="'y' has no slot 'm': slots are made by the first push"):
            session.slot(y, "m")
        session.set_hyperparameters(inner, learning_rate=2.0)
        session.set_hyperparameters(SGD, learning_rate=0.5)
        for _ in range(2):
            inner.minimize(ops.sum(x))
        momentum = 0.5 * 1.5 + 1, 0.5 * (0.5 * 1.5 + 1) + 1
        assert x.value == [-2.5 - 0.5 * 2 * sum(momentum)]


def test_a_step_whose_update_would_overflow_changes_neither_values_nor_slots(open_session):
    x, y = ps.Variable([1.0], name="x"), ps.Variable([1.0, 1.0], name="y")
    optimizer = ps.Adam(0.5, beta2=0.0)
    with open_session("w0", local_steps=5) as session:

        def state():
            return [array.tolist() for one in (x, y) for array in (session.slot(one, "m"), one.value)]

        optimizer.apply_gradients([(ONE, x), (np.float32([1, 1]), y)])
        before = state()
        with pytest.raises(
            errors.NotFinite, match=r"update of 'y' would make NaN or infinity of 1 of 2 elements of its slot"
        ):
            optimizer.apply_gradients([(ONE, x), (np.float32([1e20, 0]), y)])
        assert state() == before
        optimizer.apply_gradients([(ONE, x), (np.float32([1, 0]), y)])
        assert state() != before


@pytest.mark.parametrize("strategy", [{}, {"push_every": 2, "pull_every": 3}, {"overlap": True}, {"local_steps": 2}])
def test_values_travel_again_only_when_servers_have_changed_them_or_the_program_has_replaced_them(strategy):
    transport, x = ShardsInProcess(2), scalar("x")
    frozen = ps.Variable(np.arange(64, dtype=np.float32), name="frozen", trainable=False)

    def received():
        return sum(
            ms.tensor_bytes(answer) for _, answer in transport.answers if isinstance(answer, ms.Pulled | ms.Pushed)
        )

    with session_over(transport, **strategy) as session:
        theirs = frozen.value
        for _ in range(6):
            SGD.minimize(ops.sum(x))
        session.pull()
        assert 4 <= received() < 64
        set_value(frozen, theirs.copy())  # equal, but it is not the array that was sent
        before = received()
        session.pull([frozen])
        assert received() == before + 256
        set_value(frozen, 0 * theirs)
        for _ in range(6):
            SGD.minimize(ops.sum(x))
        session.pull()
        np.testing.assert_array_equal(frozen.value, theirs, strict=True)
        assert received() < before + 2 * 256 + 64
        with ps.collection(), session_over(transport, "w1") as other:
            other.assign(ps.Variable(theirs, name="frozen", trainable=False), 2 * theirs)
        session.pull()
        np.testing.assert_array_equal(frozen.value, 2 * theirs, strict=True)


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ({"push_every": 2}, [("none", 0), ("applied", 1), ("none", 1), ("applied", 2)]),
        ({"local_steps": 2}, [("none", 0), ("applied", 1), ("none", 1), ("applied", 2)]),
        ({"overlap": True}, [("none", 0), ("applied", 1), ("applied", 2), ("applied", 3)]),
    ],
    ids=str,
)
def test_a_step_reports_the_push_that_was_answered_in_it(strategy, expected):
    x = scalar("x")
    with session_over(ShardsInProcess(1), **strategy):
        reports = [SGD.apply_gradients([(ONE, x)]) for _ in range(4)]
    assert [(report.outcome, report.step) for report in reports] == expected


def two_scalars():
    """Pairs for a step of two variables, of which each of two shards has one."""
    return [(ONE, scalar(name)) for name in ("a", "b")]


@pytest.mark.parametrize("policy", [{}, {"staleness": DropStalePushes(0)}], ids=str)
def test_a_push_over_several_shards_is_reported_by_shard(policy):
    transport = ShardsInProcess(2, **policy)
    with session_over(transport) as session:
        pairs = two_scalars()
        assert SGD.apply_gradients(pairs) == ps.PushReport("applied", 0, 1, {0: "applied", 1: "applied"})
        assert SGD.apply_gradients(pairs[:1]).shards == {0: "applied"}
        with ps.collection(), session_over(transport, "w1"):
            SGD.apply_gradients(two_scalars())
        what = "dropped" if policy else "applied"
        assert SGD.apply_gradients(pairs).shards == {0: what, 1: what}
        assert (session.dropped, session.half_applied) == (int(bool(policy)), 0)


@pytest.mark.parametrize("policy", [{"staleness": DropStalePushes(9)}, {"consistency": Synchronous(1, 1)}], ids=str)
def test_a_push_that_is_on_shard_0_only_as_its_part_came_too_late_is_reported_and_counted(policy):
    transport, pushes = ShardsInProcess(2, lease=10.0, **policy), []

    def late(shard, message):
        """The lease of w0 ends on shard 1 before its part arrives, and another worker pulls what shard 0 decided."""
        if shard == 1 and isinstance(message, ms.Push):
            pushes.append(message)
            if len(pushes) == 1:
                transport._step(1, 0, ms.Tick(lost=("w0",)))
                other.pull(["a", "b"])
        return False

    with session_over(transport) as session:
        pairs = two_scalars()
        other, _ = transport.client("w1")
        other.register([ms.Declaration(variable.spec, variable.value) for _, variable in pairs])
        transport.refuse = late
        report = SGD.apply_gradients(pairs)
        assert report == ps.PushReport("half-applied", 0, 1, {0: "applied", 1: "dropped"})
        assert [variable.value.item() for _, variable in pairs] == [-1, 0]
        assert (session.dropped, session.half_applied) == (0, 1)
        assert SGD.apply_gradients(pairs).outcome == "applied"
        other.leave()
    assert [transport.status(shard).half_pushes for shard in (0, 1)] == [0, 1], "once"


@pytest.mark.parametrize("quarantined", [0, 1])
def test_a_push_that_one_shard_drops_as_a_quarantine_has_begun_there_is_reported_and_counted(quarantined, caplog):
    transport = ShardsInProcess(2, lease=0.3)
    with session_over(transport) as session:
        pairs = two_scalars()
        SGD.apply_gradients(pairs)
        transport.call(quarantined, ms.Intervene(by="an operator", reason="its disk", quarantine=("w0",)), 1.0).result()
        report = SGD.apply_gradients(pairs)
        expected = {shard: "dropped" if shard == quarantined else "applied" for shard in (0, 1)}
        assert (report.outcome, report.shards) == ("half-applied", expected)
        assert (session.dropped, session.half_applied) == (0, 1)
        assert f"on some shards and not on shard {quarantined}: quarantine: an operator: its disk" in caplog.text
        wait_until(lambda: transport.status(quarantined).half_pushes == 1)
    assert transport.status(1 - quarantined).half_pushes == 0


@pytest.mark.parametrize("policy", [{}, {"staleness": DropStalePushes(9)}], ids=str)
def test_a_push_that_one_shard_refuses_is_an_error_and_counted(policy):
    transport = ShardsInProcess(2, **policy)
    with session_over(transport) as session:
        pairs = two_scalars()
        transport.refuse = lambda shard, message: shard == 1 and isinstance(message, ms.Push)
        with pytest.raises(errors.InvalidMessage, match="not this one"):
            SGD.apply_gradients(pairs)
        transport.refuse = lambda shard, message: False
        assert (session.dropped, session.half_applied) == (0, 1)


@pytest.mark.parametrize("strategy", [{"push_every": 3}, {"local_steps": 3}], ids=str)
def test_a_push_of_several_steps_is_as_stale_as_the_first_of_them(strategy):
    transport = ShardsInProcess(2, staleness=DropStalePushes(9))

    def two_variables():
        return ops.sum(ps.Variable(np.zeros(100), name="large")) + ops.sum(ps.Variable(np.zeros(2), name="small"))

    with session_over(transport, **strategy) as session:
        two_variables()
        loss = lambda: sum(ops.sum(one) for one in ps.global_variables())
        SGD.minimize(loss())
        with ps.collection(), session_over(transport, "w1", **dict.fromkeys(strategy, 1)):
            SGD.minimize(two_variables())
        for _ in range(5):
            SGD.minimize(loss())
        assert session.staleness == 0
    pushes = [(message.sender.worker, *message.remote) for shard, message in transport.messages(ms.Push) if not shard]
    assert pushes == [(name, ms.RemoteWeights("small", version)) for name, version in (("w1", 0), ("w0", 0), ("w0", 2))]


def test_an_idle_worker_has_pushed_everything_and_is_not_waited_for():
    transport = ShardsInProcess(2, Bounded(0))
    large, small = ps.Variable(np.zeros(100), name="large"), ps.Variable(np.zeros(2), name="small")
    with session_over(transport, push_every=2) as session:
        SGD.minimize(ops.sum(large) + ops.sum(small))
        assert not transport.messages(ms.Push)
        session.idle()
        sent = [(shard, type(message)) for shard, message in transport.sent if isinstance(message, ms.Push | ms.Renew)]
        assert sent == [(0, ms.Push), (1, ms.Push), (0, ms.Renew)], "shard 0 decides which worker waits"
        assert [message.idle for _, message in transport.messages(ms.Renew)] == [True]
        assert large.value[0] == -1


def test_a_push_that_the_policy_drops_is_reported_and_counted_and_brings_fresh_weights(caplog):
    transport, x = ShardsInProcess(1, staleness=DropStalePushes(0)), scalar("x")
    caplog.set_level(logging.INFO, "psworker")
    with session_over(transport) as session:
        for number in range(1, 3):
            pairs = SGD.compute_gradients(ops.sum(x))
            with ps.collection(), session_over(transport, "w1"):
                SGD.minimize(ops.sum(scalar("x")))
            report = SGD.apply_gradients(pairs)
            assert report == ps.PushReport("dropped", 1, number, {0: "dropped"})
            assert (session.dropped, float(x.value[0])) == (number, -number)
    told = [record for record in caplog.records if "dropped" in record.message]
    assert [(record.levelname, "staleness" in record.message) for record in told] == [("WARNING", True), ("INFO", True)]


@pytest.mark.parametrize(
    ("push_every", "pull_every", "overlap", "own"),  # pushes that a worker's gradients have missed, counted by hand
    [
        *[(1, 1, False, 0), (1, 4, False, 3), (4, 2, False, 0), (3, 3, False, 0), (2, 3, False, 1), (4, 6, False, 1)],
        *[(2, 5, False, 2), (1, 4, True, 4), (4, 1, True, 1), (3, 3, True, 1), (2, 4, True, 2), (2, 5, True, 3)],
    ],
)
def test_a_workers_own_pushes_make_no_other_of_it_too_stale_to_be_applied(push_every, pull_every, overlap, own):
    """Servers drop nothing of 60 steps that is only as stale as a worker makes it itself; below that it is refused."""
    strategy = {"push_every": push_every, "pull_every": pull_every, "overlap": overlap}
    x, seen = scalar("x"), set()
    policies = {"staleness": DropStalePushes(own)} if own else {"consistency": Synchronous(1)}
    with session_over(ShardsInProcess(1, **policies), **strategy) as session:
        for _ in range(60):
            SGD.minimize(ops.sum(x))
            seen.add(session.staleness)
        session.pull()
        assert (float(x.value[0]), session.dropped, max(seen)) == (-60, 0, own)
    if own:
        for policy, message in (
            ({"staleness": DropStalePushes(own - 1)}, f"--staleness drop:{own - 1}, .* up to {own} of its own pushes"),
            ({"consistency": Synchronous(1)}, "--consistency sync:1, and drop .* let pull_every divide push_every"),
        ):
            with pytest.raises(errors.ConfigurationError, match=message):
                session_over(ShardsInProcess(1, **policy), **strategy).__enter__()


@pytest.mark.parametrize(
    ("bad", "error", "message"),
    [
        (np.ones(4, np.int64), errors.DtypeMismatch, "gradient for 'y' is int64, the variable is float32: only"),
        (np.ones(4, np.complex64), errors.DtypeMismatch, "gradient for 'y' is complex64"),
        (np.ones(3), errors.ShapeMismatch, r"float64\[3\], the variable is float32\[4\]: .* must keep the shape"),
        (np.array([1, 1e39, 1, 1]), errors.NotFinite, "'y' has 1 of 4 elements"),
        (np.float32([1, 1, np.nan, 1]), errors.NotFinite, "'y' has 1 of 4 elements that are NaN.*nothing was sent"),
        (ps.IndexedSlices(np.float32([np.inf]), np.array([2]), (4,)), errors.NotFinite, "'y' has 1 of 1 elements"),
    ],
    ids=["integers", "complex", "shape", "too large", "nan", "rows"],
)
@pytest.mark.parametrize("strategy", [{}, {"push_every": 2}, {"local_steps": 2}], ids=str)
def test_an_invalid_gradient_leaves_both_shards_as_they_were(strategy, bad, error, message):
    transport, good = ShardsInProcess(2), np.ones(4, np.float32)
    x, y = ps.Variable(ops.ones(4), name="x"), ps.Variable(ops.ones(4), name="y")
    with session_over(transport, **strategy) as session:
        with pytest.raises(error, match=message):
            SGD.apply_gradients([(good, x), (bad, y)])
        session.pull()
        assert [transport.status(shard).global_step for shard in range(2)] == [0, 0]
        SGD.apply_gradients([(good, x), (good, y)])
        session.pull()
        assert ([*x.value, *y.value], transport.status(1).global_step) == ([0] * 8, 1)


def a_push(shard, message):
    return isinstance(message, ms.Push)


@pytest.mark.parametrize(
    ("fault", "error"),
    [("refused", errors.InvalidMessage), ("answer lost", errors.TimedOut), ("own error", ZeroDivisionError)],
)
def test_a_round_of_local_steps_whose_push_fails_is_never_sent_again(fault, error, monkeypatch):
    """Rounds of two steps by 1 each; the second fails, in which y was trained too."""
    transport, x, y = ShardsInProcess(1), scalar("x"), scalar("y")
    known, refused = fault == "own error", fault == "refused"
    with session_over(transport, timeout=0.01, local_steps=2) as session:
        for gradients in ([(ONE, x)], [(ONE, x)], [(ONE, x), (ONE, y)]):
            SGD.apply_gradients(gradients)
        faults = {"refused": (transport, "refuse", a_push), "answer lost": (transport, "lose", a_push)}
        with monkeypatch.context() as patch:
            failing = SimpleNamespace(prepare=lambda: 1 / 0, progress=lambda: None)
            patch.setattr(*faults.get(fault, (session._replica, "loops", [failing])))
            with pytest.raises(error):
                SGD.apply_gradients([(ONE, x)])
        assert (x.value, y.value) == ([-4 if known else -2], [-1 if known else 0])
        for _ in range(2):
            SGD.apply_gradients([(ONE, x)])
        assert (x.value, y.value) == ([-4 if refused else -6], [0 if refused else -1])
        assert (session.global_step, session.staleness) == (2 if refused else 3, int(fault == "answer lost"))


def test_a_worker_that_cannot_begin_or_whose_last_push_is_refused_has_failed():
    transport, x = ShardsInProcess(1), scalar("x")
    with pytest.raises(errors.InvalidMessage, match="not this one"), session_over(transport, push_every=2):  # noqa: PT012
        SGD.minimize(ops.sum(x))
        transport.refuse = a_push
    ps.Table((4, 2), ps.RowConstant(0.0), name="table")
    message = r"'table' is a Table.*leave out local_steps"
    with pytest.raises(errors.ConfigurationError, match=message), session_over(transport, local_steps=2):
        pass
    assert [message.failed for _, message in transport.messages(ms.Leave)] == [True, True]
    with pytest.raises(errors.ConfigurationError, match=r"outer must be an optimizer, such as .*, got 0.7"):
        Session(WorkerConfig(), outer=0.7)
