"""Real servers on a disk that is full: nothing is acknowledged that is not kept, and all goes on when there is room."""

import errno
import json
import subprocess
import sys
import time
from contextlib import closing

import pytest

from psserver.storage.folders import available
from pswire.messages import Status
from psworker.transport.network_transport import NetworkTransport
from tests.support.commands import BOUND

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="mounts a tmpfs"),
]

SIZE = 2000  # float32: a record of the journal takes 8 kB, a checkpoint a little more
DISK = 2 << 20

#: Each push adds one; the number of acknowledged ones is the size of a file. All workers begin together.
PROGRAM = f"""
    import os, sys, time
    import numpy as np
    import psworker as ps

    pushes, workers = int(sys.argv[1]), sys.argv[2:]
    x = ps.Variable(np.zeros({SIZE}, np.float32), name="x")
    with ps.session() as session:
        file = os.open(session.worker, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        while not all(map(os.path.exists, workers)):
            time.sleep(0.01)
        for _ in range(pushes):
            time.sleep(0.01)
            ps.GradientDescent(1.0).apply_gradients([(-np.ones({SIZE}, np.float32), x)])
            os.write(file, b"a")
        session.pull()
        print("values", *sorted(set(x.value.tolist())), flush=True)
"""


@pytest.fixture
def disk(tmp_path_factory):
    """A folder on a small disk of its own."""
    folder = tmp_path_factory.mktemp("disk")
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk):
    """Takes all room that is left; the file."""
    path = disk / "filler"
    with path.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
    return path


class Job:
    """One server that keeps its state on the disk, and workers."""

    def __init__(self, commands, disk, *options):
        self.commands, self.options, self.folder = commands, options, disk / "state"
        self.script = commands.script(PROGRAM)
        self.server = self.serve()

    def serve(self, *place):
        return self.commands.serve("--checkpoint-dir", str(self.folder), "--log-level", "info", *self.options, *place)

    def workers(self, pushes, *names):
        return [self._worker(name, str(pushes), *names) for name in names]

    def _worker(self, name, *arguments):
        run = "psworker", "run", "--servers", self.server.address, "--name", name, "--timeout", "60", "--threads", "1"
        return self.commands.start(*run, self.script, *arguments)

    def acknowledged(self):
        return sum(path.stat().st_size for path in self.commands.folder.glob("w?"))

    def status(self):
        with closing(NetworkTransport([self.server.address], shared_memory=False)) as transport:
            return transport.call(0, Status(), BOUND).result()

    def wait(self, what, condition):
        """Waits until the condition holds; its value."""
        end = time.monotonic() + BOUND
        while not (found := condition()):
            assert time.monotonic() < end, f"not {what}: {self.status().storage}, {self.server.err[-5:]}"
            time.sleep(0.02)
        return found


def test_training_goes_on_while_the_disk_of_the_checkpoints_is_full_and_they_go_on_when_there_is_room(disk, commands):
    job = Job(commands, disk, "--checkpoint-every", "20steps", "--keep", "2")
    [worker] = job.workers(1_000_000, "w0")
    job.wait("a checkpoint", lambda: job.status().storage.last)
    filler = fill(disk)
    problem = job.wait("a problem", lambda: job.status().storage.problem)
    assert "could not be written" in problem
    assert "No space left on device" in problem
    assert str(job.folder) in problem
    before = job.acknowledged()
    job.wait("more pushes", lambda: job.acknowledged() > before + 100)
    assert any("training goes on" in line and "No space left" in line for line in job.server.err)
    code, out, _ = commands.run("psserver", "status", job.server.address, "--json")
    assert code == 0
    assert "No space left" in json.dumps(json.loads("".join(out)))
    filler.unlink()
    last = job.status().storage.last
    job.wait("a later checkpoint", lambda: job.status().storage.last > last)
    job.wait("no problem", lambda: not job.status().storage.problem)
    assert worker.end()[0] == 143
    assert job.server.end()[0] == 0
    left = [path.name for step in job.folder.glob("step-*") for path in step.iterdir()]
    assert left == ["shard-0-of-1"] * len(available(job.folder, 0, 1))
    assert "nothing is lost" in " ".join(job.serve().end()[2])


@pytest.mark.parametrize("killed", [False, True])
def test_while_the_disk_of_the_journal_is_full_nothing_is_acknowledged_and_then_all_goes_on(disk, commands, killed):
    """Workers say what they wait for. A server that is killed meanwhile has every acknowledged push."""
    job, pushes = Job(commands, disk, "--journal"), 100
    workers = job.workers(pushes, "w0", "w1")
    job.wait("some pushes", lambda: job.acknowledged() >= 10)
    filler = fill(disk)
    problem = job.wait("a problem", lambda: job.status().storage.problem)
    assert "No space left on device" in problem
    assert "nothing is acknowledged until it can" in problem
    for worker in workers:
        job.wait("an explanation", lambda worker=worker: any("No space left" in line for line in worker.err))
    before = job.acknowledged()
    if killed:
        address = job.server.address
        job.server.popen.kill()
        job.server.wait()
    else:
        job.wait("another try", lambda: "disk" in job.status().storage.problem)
    assert job.acknowledged() == before
    filler.unlink()
    if killed:
        job.server = job.serve("--bind", address)
    for worker in workers:
        assert worker.wait() == 0, worker.err
    assert workers[0].out[-1].startswith("values ")
    assert max(float(worker.out[-1].split()[1]) for worker in workers) == 2 * pushes
    assert {len(worker.out[-1].split()) for worker in workers} == {2}
    assert not job.status().storage.problem
    assert job.server.end()[0] == 0
