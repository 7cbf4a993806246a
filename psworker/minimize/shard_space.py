"""The vectors of a model on the shards, as a space for methods of batch optimization. Of the coordinator alone.

Nothing of the size of the model comes here: operations go to the shards, and sums come back.
"""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from pswire.errors import ParamServerError
from pswire.messages import AcceptedPoint, Computed, Evaluated, Evaluation
from pswire.specs.vectors import GRADIENT, MEASURES, VARIABLES, Copy, Drop, Fill, Operation, Scale, combined
from psworker.client.client import Client
from psworker.minimize.space import POINT, POINT_GRADIENT

logger = logging.getLogger(__name__)

#: Numbers of evaluations in one timeline: after the shards went back, a worker may still have a portion of an
#: earlier evaluation, whose number must not be used again.
EVALUATIONS = 1_000_000_000


class JobStopped(ParamServerError):
    """The job was stopped, and with it the minimization."""


class AlreadyOver(ParamServerError):
    """Another worker has ended the minimization."""


class ShardSpace:
    """The vectors of the variables with these `names`, for a `minimization`; begins a term as its coordinator.

    The loss is the mean over `examples`, computed in portions of `portion` of them. The last accepted point is in one
    of two vectors, and the next one goes to the other, so that one remains until `save` has reached shard 0, however
    this process ends. While an evaluation waits, `stopping` is asked every few seconds.

    Attributes:
        saved: what was saved last, by this coordinator or the one before; None: there was none, or not so far.
    """

    def __init__(
        self,
        client: Client,
        names: Sequence[str],
        minimization: str,
        examples: int,
        portion: int,
        stopping: Callable[[], bool] = bool,
    ) -> None:
        evaluations = self._evaluations = client.evaluations
        self._names, self._minimization, self._stopping = list(names), minimization, stopping
        self._examples, self._portion = examples, portion
        self._term = max([one.term for one in evaluations.compute([], [], minimization, 0)]) + 1
        note = evaluations.compute([], [], minimization, self._term)[0].note  # from now on nobody else coordinates it
        self.saved: dict[str, Any] | None = json.loads(note) if note else None
        self._buffer: int = self.saved["buffer"] if self.saved else 0
        self._pending: list[Operation] = []  # to go with the next message
        answers = evaluations.progress(self._names, minimization)
        self._number = max([(client.membership.timeline - 1) * EVALUATIONS, *[one.number for one in answers]])
        if end := next((one.end for one in answers if one.end), ""):
            self._end(end, self.point)  # some shards may not know it
            raise AlreadyOver(end)
        self.run([Fill(GRADIENT, 0.0)] if self.saved else [Drop(), Fill(GRADIENT, 0.0)])

    def run(self, operations: Sequence[Operation]) -> list[float]:
        """As `Space.run`."""
        return self._run(operations, self._buffer)

    def _run(self, operations: Sequence[Operation], buffer: int) -> list[float]:
        every = [*self._pending, *[_in_buffer(one, buffer) for one in operations]]
        answers = self._evaluations.compute(self._names, every, self._minimization, self._term)
        self._pending = []
        return totals(every, answers)

    def evaluate(self) -> float:
        """As `Space.evaluate`; waits for the workers. Raises `JobStopped`."""
        if self._pending:
            self.run([])
        self._number += 1
        evaluation = Evaluation(self._number, self._examples, self._portion)
        self._evaluations.begin(self._names, self._minimization, self._term, evaluation, point=self.point)
        while True:
            answers = self._evaluations.progress(self._names, self._minimization, self._term, evaluation)
            first = answers[0]
            if first.stopped or self._stopping():
                raise JobStopped(first.stopped or "this worker has failed")
            if all(_is_complete(one, evaluation) for one in answers):
                break
            waiting = next((one.waiting_for for one in answers if one.waiting_for), "")
            logger.info("%s waits for %s", self._minimization, waiting)
        assert first.loss is not None, "shard 0 has it"
        self._pending = [Scale(GRADIENT, 1.0 / self._examples)]
        return first.loss / self._examples

    def accept(self, operations: Sequence[Operation]) -> list[float]:
        """As `Space.accept`."""
        return self._run([Copy(POINT, VARIABLES), Copy(POINT_GRADIENT, GRADIENT), *operations], 1 - self._buffer)

    def save(self, data: Mapping[str, Any]) -> None:
        """As `Space.save`: from now on the point is the one that was accepted last."""
        self._buffer = 1 - self._buffer
        self.saved = {**data, "buffer": self._buffer}
        self._evaluations.compute([], [], self._minimization, self._term, json.dumps(self.saved))

    @property
    def point(self) -> AcceptedPoint | None:
        """The last accepted point that was saved; None: there was none."""
        return None if self.saved is None else AcceptedPoint(**self.saved["progress"])

    def end(self, result: Mapping[str, Any], last: AcceptedPoint) -> None:
        """End the minimization at the variables' values, with a result for all workers; drop the vectors.

        `last` is the last accepted point, with all evaluations until now.
        """
        self._end(json.dumps(result), None if self.point is None else last)

    def _end(self, result: str, point: AcceptedPoint | None) -> None:
        self._evaluations.begin(self._names, self._minimization, self._term, None, result, point)
        self.run([Drop()])


def _is_complete(answer: Evaluated, evaluation: Evaluation) -> bool:
    return answer.number == evaluation.number and answer.counted == evaluation.portions


def _in_buffer(operation: Operation, buffer: int) -> Operation:
    """The operation on that one of the two points."""
    there = {POINT: f"{POINT}-{buffer}", POINT_GRADIENT: f"{POINT_GRADIENT}-{buffer}"}
    changed: dict[str, Any] = {}
    for one in fields(operation):
        name = getattr(operation, one.name)
        if name in there:
            changed[one.name] = there[name]
    return replace(operation, **changed) if changed else operation


def totals(operations: Sequence[Operation], answers: Sequence[Computed]) -> list[float]:
    """The results of operations over all shards."""
    measures = [one for one in operations if isinstance(one, MEASURES)]
    parts = [list(zip(one.results[::2], one.results[1::2], strict=True)) for one in answers]
    return [sum(combined(one, [mine[place] for mine in parts])) for place, one in enumerate(measures)]
