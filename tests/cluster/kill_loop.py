"""A job of real processes whose servers and workers are killed, and what its records and its final values must show.

`KillLoop` runs two servers and some workers of `kill_loop_program.py`, and kills them by the progress of the job, not
by the clock. `Outcome` compares the records of all processes with the marks on the servers.
"""

import json
import re
import signal
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from psserver.storage import retention
from pswire.messages import Choice, Job, Join, Leave, Pull, Sender, Status, StatusReport
from psworker.transport.grpc_transport import GrpcTransport
from tests.support.commands import BOUND, Command, free_address

PROGRAM = Path(__file__).with_name("kill_loop_program.py")
SHARDS = 2
PROCESSES = 64  # rows of marks for processes, at most
ROWS = 10_000  # of a table of marks, at least: larger than the weights, so each shard gets one of the tables
STALLED = 60.0  # seconds without progress after which the job counts as hanging
LEASE = 4.0
RATE = 1 / 128  # of the program's gradient descent: a power of two, so units stay exact
#: What delay compensation takes from a unit of which the mark has moved by a unit since it was served: its default
#: strength, times the square of the gradient, which is 1 / RATE, times the rate.
COMPENSATED = 0.04 / RATE


@dataclass
class PushRecord:
    """A push of a process: its examples, the process's marks before it, and 'a', 'd' or '' for its answer."""

    epoch: int
    before: list[float]
    examples: list[int]
    answer: str = ""
    #: By shard, the marks that it has added.
    added: list[float] = field(default_factory=list)


class KillLoop:
    """Two servers that keep their state in one folder, and workers; all are restarted with the commands they had.

    If servers are `moving`, each start is at another address, which workers find in a file.
    """

    def __init__(
        self,
        commands,
        *,
        examples,
        epochs,
        workers=2,
        consistency="async",
        staleness="none",
        storage=(),
        moving=False,
    ):
        self.commands, self.folder = commands, commands.folder / "records"
        self.folder.mkdir()
        self.checkpoints = commands.folder / "checkpoints"
        self.examples, self.epochs, self.batch = examples, epochs, 100
        self.unit = 2 if consistency.startswith("sync") else 1  # so that the mean of two is a whole number
        self.compensated = staleness.startswith("delay")
        self.drops = consistency.startswith("sync") or staleness.startswith("drop")
        self.addresses = [free_address() for _ in range(SHARDS)]
        names = [f"w{number}" for number in range(workers)]
        self.first = max(examples, ROWS)  # row of a process
        self.settings = {"examples": examples, "batch": self.batch, "epochs": epochs, "first": self.first, "rate": RATE}
        self.settings |= {"processes": PROCESSES, "workers": names, "unit": self.unit, "folder": str(self.folder)}
        self._commands = {}
        self._file = commands.folder / "servers" if moving else None
        servers = f"file:{self._file}" if moving else ",".join(self.addresses)
        for shard, address in enumerate(self.addresses):
            serve = ["psserver", "serve", "--bind", address, "--shard", f"{shard}/{SHARDS}", "--lease", str(LEASE)]
            serve += ["--consistency", consistency, "--staleness", staleness, "--log-level", "info"]
            self._commands[f"server-{shard}"] = [*serve, "--checkpoint-dir", str(self.checkpoints), *storage]
        for name in names:
            run = ["psworker", "run", "--servers", servers, "--name", name, "--timeout", str(BOUND)]
            run += ["--job", "kill-loop"]
            self._commands[name] = [*run, "--threads", "1", str(PROGRAM), json.dumps(self.settings)]
        self.servers, self.workers = list(self._commands)[:SHARDS], names
        self.processes: dict[str, Command] = {}
        self.ended: dict[str, list[Command]] = {name: [] for name in self._commands}  # that were killed

    def start(self, name: str) -> None:
        if self._file is not None and name in self.servers:
            shard = self.servers.index(name)
            place = self._commands[name].index("--bind") + 1
            self.addresses[shard] = self._commands[name][place] = free_address()
            replaced = self._file.with_suffix(".new")
            replaced.write_text("".join(f"{address}\n" for address in self.addresses))
            replaced.replace(self._file)
        self.processes[name] = self.commands.start(*self._commands[name], OPENBLAS_NUM_THREADS="1")

    def begin(self) -> None:
        for name in self.servers:
            self.start(name)
            self.processes[name].wait_for("listening on")
        for name in self.workers:
            self.start(name)

    def kill(self, *names: str) -> None:
        """Kills processes, and starts them again at once."""
        for name in names:
            process = self.processes[name]
            process.end(signal.SIGKILL)
            self.ended[name].append(process)
        for name in names:
            self.start(name)

    def pause(self, name: str, seconds: float) -> None:
        """Stops a process for a while."""
        self.processes[name].signal(signal.SIGSTOP)
        time.sleep(seconds)
        self.processes[name].signal(signal.SIGCONT)

    @property
    def acknowledged(self) -> int:
        """The number of acknowledged pushes so far."""
        return sum(path.stat().st_size for path in self.folder.glob("*.acknowledged"))

    def wait_for(self, acknowledged: int) -> None:
        """Waits until so many pushes are acknowledged, or all workers have ended."""
        before, since = -1, time.monotonic()
        while (now := self.acknowledged) < acknowledged and self.live():
            if now > before:
                before, since = now, time.monotonic()
            assert time.monotonic() < since + STALLED, f"no progress after {now} pushes: {self.lines()}"
            time.sleep(0.01)

    def live(self) -> list[str]:
        """The workers that have not ended."""
        return [name for name in self.workers if self.processes[name].popen.poll() is None]

    def lines(self) -> dict[str, list[str]]:
        """The last lines of each process."""
        return {name: [*process.out[-4:], *process.err[-6:]] for name, process in self.processes.items()}

    def log(self, server: str) -> list[str]:
        """The log of a server's processes, in order."""
        return [line for process in [*self.ended[server], self.processes[server]] for line in process.err]

    def newest_cut(self) -> int:
        """The newest checkpoint that both shards have."""
        return max(set.intersection(*[set(retention.cuts(self.checkpoints, shard, SHARDS)) for shard in range(SHARDS)]))

    def reports(self) -> list[StatusReport]:
        """The status of each shard."""
        with closing(GrpcTransport(self.addresses, shared_memory=False)) as transport:
            return [transport.call(shard, Status(), BOUND).result() for shard in range(SHARDS)]

    def finish(self) -> "Outcome":
        """Waits for the end of the job, reads marks and status, and stops the servers."""
        self.wait_for(10**9)
        for name in self.workers:
            assert self.processes[name].wait() == 0, (name, self.lines())
        outcome = Outcome(self, self.values(), self.reports())
        for name in self.servers:
            code, _, log = self.processes[name].end()
            assert code == 0, log[-5:]
        return outcome

    def values(self) -> list[np.ndarray]:
        """The marks on each shard."""
        rows, joined, found = np.arange(self.first + PROCESSES), None, []
        with closing(GrpcTransport(self.addresses, shared_memory=False)) as transport:
            for shard in range(SHARDS):
                incarnation, job = (joined.incarnation, joined.job) if joined else (0, Job())
                join = Join(worker="auditor", incarnation=incarnation, shard=shard, shards=SHARDS, job=job, resume=True)
                joined = transport.call(shard, join, BOUND).result()
                sender, name = Sender("auditor", joined.incarnation), f"marks{shard}"
                (value,) = (
                    transport.call(shard, Pull(sender=sender, names=(), choices=(Choice(name, rows),)), BOUND)
                    .result()
                    .values
                )
                found.append(np.asarray(value.array)[:, 0].astype(float))
                transport.call(shard, Leave(sender, True), BOUND).result()
        return found

    def costs(self) -> dict[int, float]:
        """By epoch, the cost that workers were told; each must have all examples."""
        found = {}
        for name in self.workers:
            for line in [line for process in [*self.ended[name], self.processes[name]] for line in process.out]:
                if match := re.fullmatch(r"epoch (\d+): cost ([\d.]+) over (\d+) examples", line):
                    assert int(match[3]) == self.examples, line
                    assert found.setdefault(int(match[1]), float(match[2])) == float(match[2]), line
        return found


class Outcome:
    """What became of each push: by the records of the processes, and by the marks on the servers.

    Attributes:
        pushes: by process (its row), in order; `PushRecord.added` is set.
        marks: of each example, by shard.
        unknown: by shard, the marks of rows for processes that have no records; they are zeros.
        reports: the status of each shard at the end.
    """

    def __init__(self, job: KillLoop, values: list[np.ndarray], reports: list[StatusReport]) -> None:
        self.job, self.values, self.reports = job, values, reports
        self.marks = [value[: job.examples] for value in values]
        self.pushes = {int(path.stem): self._read(path) for path in sorted(job.folder.glob("*.pushes"))}
        for row, pushes in self.pushes.items():
            if not pushes:  # it was killed before its first push
                continue
            after = [push.before for push in pushes[1:]] + [[value[row] for value in values]]
            for push, later in zip(pushes, after, strict=True):
                push.added = [new - old for new, old in zip(later, push.before, strict=True)]
        self.unknown = [value[job.first :].tolist() for value in values]
        for value in self.unknown:
            for row in self.pushes:
                value[row - job.first] = 0.0

    def _read(self, path: Path) -> list[PushRecord]:
        # A killed process may have left a part of a line of its last push, which it has not sent.
        pushes = [PushRecord(**json.loads(line)) for line in path.read_text().split("\n")[:-1]]
        answers = path.with_suffix(".acknowledged").read_text() if path.with_suffix(".acknowledged").exists() else ""
        for push, answer in zip(pushes, answers, strict=False):
            push.answer = answer
        assert len(pushes) - len(answers) in (0, 1), path
        return pushes

    def check(self) -> None:
        """Every acknowledged push was applied once on both shards, and nothing else but open pushes of the killed.

        A push that a killed worker has left on shard 0 only was a part of its update there, and not on the other shard.
        """
        shares = {self.job.unit / size for size in range(1, self.job.unit + 1)}
        killed, uneven = sum(len(self.job.ended[name]) for name in self.job.workers), 0
        assert self.unknown == [[0.0] * PROCESSES] * SHARDS, "marks of no known process"
        for row, pushes in self.pushes.items():
            for number, push in enumerate(pushes, 1):
                what = f"push {number} of process {row}: {push.answer or 'open'}, has added {push.added}"
                if push.answer == "a":
                    assert set(push.added) <= shares, what
                    uneven += push.added[1] != push.added[0]
                elif push.answer == "d":
                    assert push.added == [0.0, 0.0], what
                else:
                    assert set(push.added) <= {0.0, *shares}, what
        assert len(self.open) <= killed, self.open
        assert uneven <= sum((one.added[0] > 0) != (one.added[1] > 0) for one in self.open)
        for shard, marks in enumerate(self.marks):
            added = self.added_marks(shard)
            missing = added - marks
            if self.job.compensated:
                # An example of the end of an epoch may be in another worker's first batch of the next at the same time.
                units = np.round(missing / COMPENSATED)
                assert np.count_nonzero(units) <= len(self.job.workers) * self.job.batch * self.job.epochs
                missing = np.where(np.abs(missing - units * COMPENSATED) < 1e-4, np.minimum(units, 0), missing)
            different = missing != 0
            assert not different.any(), f"shard {shard}: {marks[different]}, added {added[different]}"

    @property
    def open(self) -> list[PushRecord]:
        """The pushes without an answer."""
        return [push for pushes in self.pushes.values() for push in pushes if not push.answer]

    def answers(self, kind: str) -> list[PushRecord]:
        """The pushes with this answer."""
        return [push for pushes in self.pushes.values() for push in pushes if push.answer == kind]

    def added_marks(self, shard: int) -> np.ndarray:
        """The marks of examples that follow from what each push has added to its process's row."""
        marks = np.zeros(self.job.examples)
        for pushes in self.pushes.values():
            for push in pushes:
                marks[push.examples] += push.added[shard]
        return marks

    def check_examples(self) -> None:
        """Each example was trained exactly once an epoch: it is in one push that shard 0 has applied or dropped.

        An open push that shard 0 has dropped looks like one that it has not received.
        """
        drops = self.job.drops
        settled = [push for pushes in self.pushes.values() for push in pushes if push.added[0] or push.answer == "d"]
        unknown = [push for push in self.open if drops and not push.added[0]]
        times, at_most = times_trained(settled), times_trained([*settled, *unknown])
        every = [(epoch, example) for epoch in range(1, self.job.epochs + 1) for example in range(self.job.examples)]
        twice, never = [one for one in every if times[one] > 1], [one for one in every if not at_most[one]]
        assert set(times) <= set(every)
        assert not twice, f"{len(twice)} examples were trained on again, such as {twice[0]}"
        assert not never, f"{len(never)} examples were never trained on, such as {never[0]}"


def times_trained(pushes: Iterable[PushRecord]) -> Counter[tuple[int, int]]:
    """How often each example of each epoch is in these pushes."""
    return Counter((push.epoch, example) for push in pushes for example in push.examples)
