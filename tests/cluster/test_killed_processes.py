"""Workers that fail, are killed or stopped, and stopped servers: nothing is half applied, lost or left behind."""

import re
import signal
import threading
import time
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import pytest

from psserver.rpc.unix_sockets import sweep
from pswire.messages import Declaration, Gradient, Join, Outcome, Pull, Push, Register, Sender, Status
from pswire.optimizers import Momentum
from pswire.tensors.values import TensorSpec
from psworker.transport.network_transport import NetworkTransport
from tests.support.commands import BOUND
from tests.support.files import mapped_segments, shared_folder

pytestmark = pytest.mark.slow

NAMES = ("v", "w")
SHAPE = (1 << 10, 1 << 10)
MEMORY_LIMIT = 40 << 20  # half of it is for transfers: one push of both and their values, but not a second beside it

SERVER = """
import sys
from pswire.tensors import shared_segments
shared_segments.FOLDER = sys.argv.pop(1)
from psserver.cli.main import main
main()
"""

#: A worker that is stopped amidst a push of ones: "half", when half of it is sent; "before the frame", with one tensor
#: in shared memory; "frame", when it is held and all tensors are there; "dies", which then ends.
WORKER = """
import os, signal, sys, threading
import numpy as np
from pswire.messages import Gradient, Join, Push, Sender, Status
from pswire.tensors import shared_segments
from pswire.tensors.shared_memory import Region
from psworker.transport.direct_stream import DirectStream
from psworker.transport.grpc_stream import GrpcStream
from psworker.transport.network_transport import NetworkTransport

shared_segments.FOLDER, address, when, name = sys.argv[1:]
transport = NetworkTransport([address], shared_memory=when != "half", transport=name)
put, sent, tensors = Region.put, threading.Event(), []

def ask(message):
    return transport.call(0, message, 30).result()

def ready():
    if when == "dies":
        print("ready", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    while when == "frame" and not ask(Status()).workers[-1].waiting_for:
        pass
    print("ready", flush=True)
    signal.pause()

def put_one(*arguments):
    tensors.append(arguments)
    if when == "before the frame" and len(tensors) == 2:
        ready()
    put(*arguments)

def half(parts):
    yield from parts[: (len(parts) + 1) // 2]
    sent.set()
    threading.Event().wait()

def send_half_by_grpc(stream, header, sender):
    frames = list(sender.frames(header))
    sender.frames = lambda header: half(frames)
    send(stream, header, sender)

def send_half(stream, header, sender):
    assert len(sender.data) == 2
    send_all = stream._send_all
    stream._send_all = lambda pieces: [send_all([piece]) for piece in half(pieces)]
    threading.Thread(target=send, args=(stream, header, sender), daemon=True).start()

sender = Sender("killed", ask(Join(worker="killed", name_key=b"key")).incarnation)
Region.put = put_one
if when == "half":
    kind, sends = (GrpcStream, send_half_by_grpc) if name == "grpc" else (DirectStream, send_half)
    send, kind.send = kind.send, sends
ones = np.ones((1 << 10, 1 << 10), np.float32)
gradients = Gradient("v", 0, ones), Gradient("w", 0, ones)
call = transport.call(0, Push(sender=sender, sequence=1, gradients=gradients, pull=("v", "w")), 30)
if when == "half":
    sent.wait()
ready()
"""


class Pushes:
    """A `psserver serve` and two workers: `killed`, by `kill_worker`, and this one. The variables begin with zeros.

    They have a folder of the test's own for shared memory, so its files and mappings are theirs.
    """

    def __init__(self, commands, folder, *arguments):
        memory = "--memory-limit", str(MEMORY_LIMIT), "--no-keep-memory"
        self.commands, self.folder = commands, folder
        self.command = commands.python("-c", SERVER, folder, "serve", *memory, *arguments)
        self.command.wait_for("listening on")
        self.transport = NetworkTransport([self.command.address], shared_memory=False)
        self.sender = Sender("other", self.ask(Join(worker="other", name_key=b"key")).incarnation)
        zeros = np.zeros(SHAPE, np.float32)
        declared = [Declaration(TensorSpec.of(name, zeros), zeros, Momentum(1.0)) for name in NAMES]
        self.ask(Register(sender=self.sender, declarations=tuple(declared)))

    def ask(self, message):
        return self.transport.call(0, message, BOUND).result()

    def kill_worker(self, when, transport="auto"):
        """Returns the number of segments that the server has mapped before it."""
        worker = self.commands.python("-c", WORKER, self.folder, self.command.address, when, transport)
        worker.wait_for("ready")
        segments, _ = self.mapped()
        assert worker.end(signal.SIGKILL)[0] == -signal.SIGKILL
        return segments

    def push(self, number):
        """Pushes gradients that are all this number: a transfer as large as the traffic limit."""
        gradients = [Gradient(name, 0, np.full(SHAPE, number, np.float32)) for name in NAMES]
        assert (
            self.ask(Push(sender=self.sender, sequence=1, gradients=tuple(gradients), pull=NAMES)).outcome
            is Outcome.APPLIED
        )

    def versions(self):
        return [variable.version for variable in self.ask(Status()).variables]

    def values(self):
        """The versions, and the value that all elements of each variable have."""
        values = [value.array for value in self.ask(Pull(sender=self.sender, names=NAMES)).values]
        assert [value.min() for value in values] == [value.max() for value in values]
        return self.versions(), [float(value[0, 0]) for value in values]

    def mapped(self):
        """The number of segments that the server has mapped, and the bytes that it uses, as the system sees it."""
        pid = self.command.popen.pid
        used = re.search(r"RssShmem:\s+([0-9]+) kB", Path(f"/proc/{pid}/status").read_text())
        return len(mapped_segments(pid)), int(used[1]) << 10

    def wait_until_nothing_is_mapped(self):
        end = time.monotonic() + BOUND
        while self.mapped() != (0, 0):
            assert time.monotonic() < end
            self.ask(Status())  # so that the server has something to do


@pytest.fixture
def start(commands, monkeypatch):
    """A function that starts a job with arguments of the server. At the end nothing may be left in shared memory."""
    with shared_folder(monkeypatch) as folder, ExitStack() as stack:
        stack.callback(sweep)  # the sockets of servers that are killed

        def start(*arguments):
            job = Pushes(commands, folder, *arguments)
            stack.callback(job.command.end, signal.SIGKILL)
            stack.callback(job.transport.close)
            return job

        yield start


@pytest.mark.parametrize("transport", ["grpc", "direct"])
@pytest.mark.parametrize(
    ("when", "segments", "applied"), [("half", [0], [0]), ("before the frame", [1], [0]), ("dies", range(9), [0, 1])]
)
def test_of_a_worker_that_is_killed_amidst_a_push_all_is_applied_or_nothing(when, segments, applied, transport, start):
    job = start("--lease", "60")
    assert job.kill_worker(when, transport) in segments
    job.wait_until_nothing_is_mapped()
    (updates, *_), _ = before = job.values()
    assert updates in applied
    assert before == ([updates] * 2, [-updates] * 2)
    job.push(2)
    assert job.versions() == [updates + 1] * 2
    assert updates or job.values()[1] == [-2, -2]


OF_TWO = ["--consistency", "sync:2", "--memory-limit", str(2 * MEMORY_LIMIT)]


@pytest.mark.parametrize("transport", ["grpc", "direct"])
def test_a_push_that_is_held_counts_also_when_its_worker_is_killed_before_the_others_come(transport, start):
    job = start("--lease", "60", *OF_TWO)
    assert job.kill_worker("frame", transport) > 0
    job.push(2)
    assert job.values() == ([1, 1], [-1.5, -1.5])
    job.wait_until_nothing_is_mapped()


def test_a_push_that_is_held_is_dropped_when_the_lease_of_its_killed_worker_ends(start):
    job = start("--lease", "5", *OF_TWO)  # more than a server takes for its first registration
    assert job.kill_worker("frame") > 0
    job.wait_until_nothing_is_mapped()
    assert job.versions() == [0, 0]
    workers = {worker.name: worker for worker in job.ask(Status()).workers}
    assert (workers["killed"].state, workers["killed"].waiting_for) == ("lost", "")


# --- jobs under a consistency policy ----------------------------------------------------------------------------------

#: A push adds 6 to the element of each of its examples, divided among its update: their sum tells how many updates
#: there were, and one element how often its example was trained on.
#: Begins when there is a file of its name. At its fifth batch, after four pushes, it may fail or send itself a signal.
TRAINING = """
    import os, signal, sys, time
    import numpy as np
    import psworker as ps

    at_fifth, examples, batch_size, epochs, pause = sys.argv[1], *map(int, sys.argv[2:5]), float(sys.argv[5])
    seen = ps.Variable(np.zeros(examples), name="seen")
    data = ps.Dataset({"x": np.arange(examples)})

    def report(epoch):
        print("epoch with", epoch.examples, flush=True)

    with ps.session(outer=ps.GradientDescent(1.0)) as session:
        print("joined", flush=True)
        while not os.path.exists(session.worker):
            time.sleep(0.01)
        for number, batch in enumerate(session.batches(data, batch_size, epochs, on_epoch=report), 1):
            if number == 5 and at_fifth == "fail":
                raise RuntimeError("out of ideas")
            if number == 5 and at_fifth != "nothing":
                os.kill(os.getpid(), getattr(signal, at_fifth))
            gradient = np.zeros(examples)
            gradient[batch.x] = -6.0
            ps.GradientDescent(1.0).apply_gradients([(gradient, seen)])
            print("step", number, flush=True)
            time.sleep(pause)
"""


class Training:
    """A server in a process of its own, and the workers of one job."""

    def __init__(self, commands, *flags):
        self.commands, self.script = commands, commands.script(TRAINING)
        self.server = commands.serve("--log-level", "info", *flags)

    def worker(self, name, at_fifth="nothing", *flags, examples=48, batch=1, epochs=1, timeout=20.0, pause=0.0):
        run = "psworker", "run", "--servers", self.server.address, "--name", name, "--timeout", str(timeout), *flags
        return self.commands.start(*run, self.script, at_fifth, *map(str, (examples, batch, epochs, pause)))

    def begin(self, **workers):
        """Lets them begin when all of them have joined: none waits for one that is still being started."""
        for worker in workers.values():
            worker.wait_for("joined")
        for name in workers:
            (self.commands.folder / name).touch()

    def seen(self):
        """The global step; the sum of the elements; and the number of examples by how often they were trained on."""
        with closing(NetworkTransport([self.server.address], shared_memory=False)) as transport:
            step = transport.call(0, Status(), BOUND).result().global_step
            sender = Sender("reader", transport.call(0, Join(worker="reader", resume=True), BOUND).result().incarnation)
            (value,) = transport.call(0, Pull(sender=sender, names=("seen",)), BOUND).result().values
        seen = np.asarray(value.array)
        return step, seen.sum(), np.bincount((seen / 6).astype(int)).tolist()

    def end(self):
        """Ends the server; its log."""
        code, _, log = self.server.end()
        assert code == 0
        return log


#: Flags of the workers, and how many examples may be left of the block of the killed one.
STRATEGIES = {
    (): [120],
    ("--push-every", "3"): [150],
    ("--local-steps", "2"): [120],
    ("--push-every", "2", "--overlap"): [120, 140],
}
SIZES = {"examples": 1000, "batch": 10, "epochs": 2}


@pytest.mark.parametrize(("flags", "rest"), STRATEGIES.items(), ids=str)
def test_each_example_is_trained_exactly_once_an_epoch_though_a_worker_is_killed_in_its_block(commands, flags, rest):
    """It has pushed 4 batches of 10, or fewer; the other worker begins after them in its block, of 16 or 18 batches."""
    job = Training(commands, "--lease", "1")
    killed = job.worker("killed", "SIGKILL", *flags, **SIZES)
    job.begin(killed=killed)
    assert killed.wait() == -signal.SIGKILL
    other = job.worker("other", "nothing", *flags, **SIZES)
    job.begin(other=other)
    assert other.wait() == 0, other.err
    assert [line for line in other.out if line.startswith("epoch")] == ["epoch with 1000"] * 2
    assert job.seen()[2] == [0, 0, 1000]
    [again] = [line for line in job.end() if "will be handed out again" in line]
    assert int(re.search(r"\(([0-9]+) examples\)", again)[1]) in rest


def test_a_worker_whose_server_is_killed_retries_for_its_timeout_and_ends_with_an_error(commands):
    job = Training(commands)
    worker = job.worker("w0", timeout=5.0, **{**SIZES, "epochs": 1_000_000})
    job.begin(w0=worker)
    worker.wait_for("epoch with 1000")
    job.server.end(signal.SIGKILL)
    assert worker.wait() == 69, worker.err
    [line] = worker.err
    assert line.startswith("Error: gave up after 5.")
    assert f"no server answers at {job.server.address}" in line


@pytest.mark.parametrize(("at_fifth", "code"), [("fail", 1), ("SIGKILL", -signal.SIGKILL)])
def test_when_one_of_three_fails_the_others_make_no_update_of_two_gradients_or_one_but_end_with_an_error(
    commands, at_fifth, code
):
    job = Training(commands, "--consistency", "sync:3", "--lease", "3")
    first, second = job.worker("w0", timeout=4.0), job.worker("w1", timeout=6.0)  # one gives up while the other waits
    third = job.worker("w2", at_fifth)
    job.begin(w0=first, w1=second, w2=third)
    assert third.wait() == code
    for waiting in (first, second):
        assert waiting.wait() == 69, waiting.err
        assert re.search("gave up after .* of 3 gradients of step 4 have arrived", waiting.err[-1])
        assert re.search("not arrived yet: .*w2|start [12] more worker", waiting.err[-1])
    assert job.seen()[:2] == (4, 4 * 6.0)
    job.end()


@pytest.mark.parametrize("flags", [(), ("--linger", "60")], ids=["server that stays", "server of one job"])
def test_a_worker_that_sleeps_through_the_end_of_a_synchronous_job_comes_to_its_end(commands, flags):
    job = Training(commands, "--consistency", "sync:2,backup=1", "--lease", "2", *flags)
    sleeper, first, second = job.worker("sleeper", "SIGSTOP", timeout=6.0), job.worker("w0"), job.worker("w1")
    job.begin(sleeper=sleeper, w0=first)
    sleeper.wait_for("step 1")  # it has a block of examples, for these two need each other
    job.begin(w1=second)
    for other in (first, second):
        assert other.wait() == 0, other.err
    sleeper.signal(signal.SIGCONT)
    assert sleeper.wait() == 0, sleeper.err
    job.end()


def test_no_healthy_worker_is_lost_when_its_server_was_stopped_for_longer_than_a_lease(commands):
    job = Training(commands, "--lease", "3")
    workers = {name: job.worker(name, examples=4800, pause=0.05) for name in ("w0", "w1", "w2")}
    job.begin(**workers)
    for worker in workers.values():
        worker.wait_for("step 3")
    job.server.signal(signal.SIGSTOP)
    threading.Event().wait(3.4)  # the lease itself has to go by
    job.server.signal(signal.SIGCONT)
    later = {name: int(worker.out[-1].split()[1]) + 40 for name, worker in workers.items()}
    for name, worker in workers.items():
        worker.wait_for(f"step {later[name]}")  # two seconds: leases are looked at each second
    for worker in workers.values():
        worker.end()
    assert [line for line in job.end() if "its lease has expired" in line] == []
