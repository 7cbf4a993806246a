"""The controllers of a StatefulSet and of an Indexed Job, for pods in containers.

They act when they are called: the test is their clock.
"""

import string
from collections import Counter
from collections.abc import Callable
from itertools import product

from tests.compose.docker import Failed
from tests.compose.event_log import Event, events
from tests.kubernetes.containers import Ended, Namespace, Running
from tests.kubernetes.pods import action, of_job, of_stateful_set

#: Reports an event of a pod, and when it was, in seconds since 1970.
Act = Callable[[str, str], float]


class StatefulSet:
    """The servers. A pod that is deleted or lost comes again with the name and the claims, at another address."""

    def __init__(self, namespace: Namespace, name: str, act: Act) -> None:
        self._namespace, self._act = namespace, act
        self._spec = namespace.manifests("StatefulSet", name)
        self.pods = [
            namespace.run(of_stateful_set(self._spec, index)) for index in range(self._spec["spec"]["replicas"])
        ]
        self.addresses = [[one.address] for one in self.pods]  # of each ordinal, of one pod after another
        self.gone: list[tuple[str, Ended]] = []

    def wait_until_started(self) -> None:
        """Waits for the startup probes. Raises `Failed`."""
        for one in self.pods:
            one.start()
            self._act(one.pod.name, f"its startup probe succeeds, at {one.address}")

    def ready(self) -> list[bool]:
        """Whether each pod is ready. Raises `Failed`: a server has ended by itself."""
        for one in self.pods:
            if ended := one.ended():
                raise Failed(f"{one.pod.name} has ended with code {ended.exit_code}:\n{ended.log}")
        return [one.ready() for one in self.pods]

    def take_away(self, index: int, *, lost: bool) -> None:
        """Deletes a pod, or loses its node."""
        one = self.pods[index]
        self.gone.append((one.pod.name, one.lose() if lost else one.delete()))

    def reschedule(self, index: int) -> None:
        """Starts a pod that was taken away. Raises `Failed`: it does not start."""
        self.pods[index] = one = self._namespace.run(of_stateful_set(self._spec, index))
        self.addresses[index].append(one.address)
        self._act(one.pod.name, f"is scheduled again, at {one.address}")
        one.start()

    def events(self) -> list[Event]:
        logs = [*[(name, ended.log) for name, ended in self.gone], *[(one.pod.name, one.log()) for one in self.pods]]
        return [event for name, log in logs for event in events(name, log, {})]


class Job:
    """The workers: one pod for each index that has not succeeded, by the rules of its podFailurePolicy."""

    def __init__(self, namespace: Namespace, name: str, act: Act) -> None:
        self._namespace, self._act = namespace, act
        self._spec = namespace.manifests("Job", name)
        self._completions = self._spec["spec"]["completions"]
        self._suffixes = map("".join, product(string.ascii_lowercase, repeat=2))
        self.pods: dict[int, Running] = {}  # live ones, by index
        self.succeeded: dict[int, str] = {}  # pods that ended with code 0, by index
        self.gone: list[tuple[str, Ended]] = []
        self._failures: Counter[int] = Counter()  # by index
        self.failed = False  # as soon as an index has failed; in a cluster the other ones go on until they end
        self.sync()

    @property
    def failures(self) -> int:
        """Failures that count, of all indexes."""
        return self._failures.total()

    def sync(self) -> bool:
        """Handles pods that have ended, and starts missing ones; whether the Job is complete or has failed."""
        for index, one in list(self.pods.items()):
            if ended := one.ended():
                self._end(index, ended, disrupted=False)
        for index in range(self._completions):
            if not self.failed and index not in self.pods and index not in self.succeeded:
                self.pods[index] = self._namespace.run(of_job(self._spec, index, next(self._suffixes)))
                self._act(self.pods[index].pod.name, f"starts, of index {index}")
        return self.failed or len(self.succeeded) == self._completions

    def scale(self, completions: int) -> None:
        """More or fewer indexes, as by `kubectl patch`."""
        self._completions = completions
        for index in [one for one in self.pods if one >= completions]:
            self._end(index, self.pods[index].delete(), disrupted=False)
        self.sync()

    def disrupt(self, index: int, *, lost: bool) -> None:
        """Preempts a pod, or loses its node: it has the condition DisruptionTarget. Another one takes its index."""
        one = self.pods[index]
        self._end(index, one.lose() if lost else one.delete(), disrupted=True)
        self.sync()

    def delete(self) -> None:
        """Deletes the Job with its pods, as `kubectl delete job`."""
        self._completions = 0
        for index in list(self.pods):
            self.gone.append((self.pods[index].pod.name, self.pods.pop(index).delete()))

    def _end(self, index: int, ended: Ended, *, disrupted: bool) -> None:
        one = self.pods.pop(index)
        self.gone.append((one.pod.name, ended))
        if ended.exit_code == 0:
            self.succeeded[index] = one.pod.name
            return
        rule = action(self._spec, ended.exit_code, disrupted)
        self._act(one.pod.name, f"has ended with code {ended.exit_code}: {rule}")
        self._failures[index] += rule == "Count"
        self.failed |= rule == "FailJob" or self._failures[index] > self._spec["spec"]["backoffLimitPerIndex"]

    def events(self) -> list[Event]:
        logs = [(name, ended.log) for name, ended in self.gone]
        logs += [(one.pod.name, one.log()) for one in self.pods.values()]
        return [event for name, log in logs for event in events(name, log, {})]
