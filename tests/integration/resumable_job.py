"""A program whose job has everything that a checkpoint must keep, and that stops where it is told to.

    python -m tests.integration.resumable_job FOLDER [EPOCHS] [STOP HOW]

Dropout, batch normalization, a table, Adam, and reports of epochs. It prints a digest of all variables and
slots, the global step at its beginning and end, and the epochs whose reports it got.
"""

import hashlib
import os
import signal
import sys
from dataclasses import dataclass, field

import numpy as np

import psworker as ps
from psworker import nn, ops
from psworker.sessions import session_numbers

EXAMPLES, BATCH = 200, 10
STEPS_AN_EPOCH = EXAMPLES // BATCH

_random = np.random.default_rng(7)
DATA = ps.Dataset(
    {
        "x": _random.standard_normal((EXAMPLES, 6)).astype(np.float32),
        "ids": _random.integers(0, 30, (EXAMPLES, 3)),
        "label": _random.integers(0, 4, EXAMPLES),
    }
)


@dataclass
class Outcome:
    """What one run of the program has seen."""

    began: int = 0  # global steps
    ended: int = 0
    number: int = -1  # of the worker
    digest: str = ""
    reports: list[ps.EpochReport] = field(default_factory=list)

    @property
    def epochs(self) -> list[int]:
        """The epochs whose reports the program got."""
        return [report.epoch for report in self.reports]


class Stopped(Exception):
    """The stop of a run in this process."""


def stop(how: str) -> None:
    """Ends this process, or raises: "kill", "interrupt" or "fail"."""
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "interrupt":
        raise KeyboardInterrupt
    raise Stopped


def train(folder, epochs=3, stop_at=0, how="fail", every="7steps", width=16, **options) -> Outcome:
    """The program, which stops right after the push `stop_at` (a global step; 0: never). As in a process of its own."""
    session_numbers.forget()
    outcome = Outcome()
    ps.set_random_seed(3)
    words = nn.Embedding(30, 6, initializer=ps.RowUniform(-0.5, 0.5), name="words")
    hidden, norm = nn.Dense(12, width, activation=ops.relu, name="hidden"), nn.BatchNorm(width, name="norm")
    drop, out = nn.Dropout(0.3), nn.Dense(width, 4, name="out")
    optimizer = ps.Adam(0.01)
    with ps.session(checkpoint_dir=folder, checkpoint_every=every, **options) as session:
        outcome.began, outcome.number = session.global_step, session.number
        for batch in session.batches(DATA, BATCH, epochs, on_epoch=outcome.reports.append):
            x = ops.concatenate([batch.x, ops.sum(words(batch.ids), axis=1)], axis=1)
            x = drop(norm(hidden(x), True), training=True)
            optimizer.minimize(ops.softmax_cross_entropy(out(x), batch.label))
            if stop_at and session.global_step == stop_at:
                stop(how)
        outcome.ended = session.global_step
        outcome.digest = digest(session)
    return outcome


def digest(session) -> str:
    """Of the bits of all variables and their slots."""
    found = hashlib.sha256()
    for variable in ps.global_variables():
        is_table = isinstance(variable, ps.Table)
        found.update(session.rows(variable, np.arange(len(variable))) if is_table else variable.value)
        if variable.trainable:
            for slot in ("m", "v"):
                found.update(session.slot(variable, slot))
    return found.hexdigest()


if __name__ == "__main__":
    folder, *rest = sys.argv[1:]
    epochs = int(rest[0]) if rest else 3
    ran = train(folder, epochs, *([int(rest[1]), rest[2]] if len(rest) > 1 else []))
    sys.stdout.write(" ".join(map(str, [ran.digest, ran.began, ran.ended, *ran.epochs])) + "\n")
