"""The strategy of Downpour SGD: pushes and pulls at separate intervals, and computing while they are under way.

May import the replica, and the sums of the gradient transforms.
"""

import math
from dataclasses import dataclass

from pswire import optimizers
from pswire.errors import ConfigurationError
from pswire.messages import Progress
from pswire.specs.consistency import DropStalePushes, Synchronous
from psworker.autodiff.tensor import Gradient
from psworker.client.push_pull import check_finite
from psworker.config import WorkerConfig
from psworker.model.gradient_transforms import Total
from psworker.model.update_ops import UpdateMeans
from psworker.sessions.replica import Replica, Step
from psworker.versions import ReadVersion, VersionedArray


@dataclass(eq=False)
class Downpour(Replica):
    """Gradients are summed and pushed every `push_every` steps, weights are pulled every `pull_every` steps.

        accrued <- accrued + g                          every step
        push accrued, accrued <- 0                      every push_every steps
        w <- the servers' weights                       every pull_every steps, by a push if there is one

    Between two pulls the weights in the worker stay as they are: only the servers' optimizer changes them.
    Observations for moving averages, and losses, are pushed as their means over the steps. The version of a sum is that
    of the first of its gradients, the stalest.

    Steps are counted separately for each optimizer and its set of variables, so that the two optimizers of a GAN push
    in turn, as with `push_every` 1.

    A push says that examples are done (`pswire.messages.Progress`) only if no other sum has gradients left.

    With `overlap` computing continues during a push or pull: its answer is taken right before the next one is
    sent. So a step uses the weights from the answer to the push before the last.

    Source: J. Dean et al., "Large Scale Distributed Deep Networks", NIPS 2012, section 4.1 and the appendix's algorithm
    1, with n_push and n_fetch; its client also updates its own weights, with a fixed learning rate.
    """

    config: WorkerConfig

    def __post_init__(self) -> None:
        super().__post_init__()
        self._sums: dict[tuple[tuple[optimizers.UpdateSpec, ...], tuple[str, ...]], StepSum] = {}
        self._behind = False  # whether something was pushed since the last pull
        self._computed: dict[str, Progress] = {}  # by queue, with the last step, if a sum may have a part of it

    def check(self) -> None:
        """Raises `ConfigurationError` if the worker's own pushes would make the servers drop later ones.

        If it is alone and has one optimizer, a sum that is pushed at step k N begins with the weights of the last pull
        before it, at step j M, and misses the pushes from there to step (k - 1) N. With overlap the weights of a pull
        come with the push or pull after it.
        """
        push_every, pull_every, overlap = self.config.push_every, self.config.pull_every, self.config.overlap
        longest = pull_every if overlap else pull_every - math.gcd(push_every, pull_every)
        own, consistency, staleness = -(-longest // push_every), self.client.consistency, self.client.staleness
        options = f"with push_every={push_every}, pull_every={pull_every}, overlap={overlap}"
        if isinstance(consistency, Synchronous) and own:
            raise ConfigurationError(
                f"the servers were started with --consistency {consistency}, and drop what is computed with weights "
                f"before the last update, as it is {options}: drop overlap, and let pull_every divide push_every"
            )
        if isinstance(staleness, DropStalePushes) and staleness.above < own:
            raise ConfigurationError(
                f"the servers were started with --staleness {staleness}, and {options} a worker's weights have missed "
                f"up to {own} of its own pushes: pull more often, leave out overlap, or start the servers with "
                f"drop:{own} or more"
            )

    def step(self, step: Step) -> None:
        """Adds the step to its sum; then pushes and pulls if they are due."""
        for entry in step.entries:  # checked here, since the whole sum would be refused because of one NaN
            check_finite(entry.name, entry.array)
        total = self._sums.setdefault((step.optimizers, step.all_variables), StepSum())
        push, pull = ((total.steps + 1) % every == 0 for every in (self.config.push_every, self.config.pull_every))
        if push or pull:
            self.complete()
            self._behind = not pull
        total.add(step)
        if self.loops:
            self._computed |= {one.queue: one for one in self.progress()}
        names = self.names if pull else []
        if push:
            self.push(*total.take(), names, self._pushed(), wait=not self.config.overlap)
        elif pull:
            self.start_pull(names)
            if not self.config.overlap:
                self.complete()

    def flush(self) -> None:
        """Pushes the rest of each sum, the last with fresh weights back; its steps are counted from 1 again."""
        self.complete()
        unfinished = [key for key, total in self._sums.items() if total]
        for key in unfinished:
            names = self.names if key == unfinished[-1] else []
            self.push(*self._sums.pop(key).take(), names, self._pushed())
            self._behind = False
        self._give_back_left()

    def is_flushed(self) -> bool:
        """True if no push is open, and no sum has gradients."""
        return self._open is None and not any(self._sums.values())

    def _pushed(self) -> tuple[Progress, ...]:
        """The progress that the present push completes: what was computed, unless a sum has gradients left."""
        if any(self._sums.values()):
            return ()
        progress = tuple(self._computed.values())
        self._computed.clear()
        return progress

    def finish(self) -> None:
        """Flushes, and pulls unless weights are fresh; a `flush` alone leaves the pull to `pull_every`."""
        self.flush()
        if self._behind:
            self.pull(self.names)


class StepSum:
    """The sums of several steps; `steps` counts all that were ever added."""

    def __init__(self) -> None:
        self.steps = 0
        self._clear()

    def _clear(self) -> None:
        self._sums: dict[str, Total] = {}
        self._means = UpdateMeans()
        self._reads: dict[str, ReadVersion] = {}
        self._losses: list[float] = []

    def __bool__(self) -> bool:
        return bool(self._sums)

    def add(self, step: Step) -> None:
        """Adds a step; copies its arrays."""
        self.steps += 1
        for entry in step.entries[: len(step.names)]:
            self._sums.setdefault(entry.name, Total()).add(entry.array)
        for op in step.updates:
            self._means.add(op)
        for entry in step.entries:
            self._reads.setdefault(entry.name, entry.read)
        if step.loss is not None:
            self._losses.append(step.loss)

    def take(self) -> tuple[list[VersionedArray], float | None]:
        """The sums and means, whose arrays belong to the caller, and the mean loss; resets the sums."""
        arrays: dict[str, Gradient] = {op.variable.name: op.value for op in self._means.ops()}
        for name, total in self._sums.items():
            gradient = total.gradient()
            assert gradient is not None
            arrays[name] = gradient
        entries = [VersionedArray(name, read, arrays[name]) for name, read in self._reads.items()]
        loss = sum(self._losses) / len(self._losses) if self._losses else None
        self._clear()
        return entries, loss
