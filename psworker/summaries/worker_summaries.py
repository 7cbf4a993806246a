"""The summaries of one worker in an open session, and while it is chief those of the whole job.

FOLDER/scalars/WORKER.jsonl       a line for each life of the worker, then its points (`psworker.summaries.recorder`)
FOLDER/tensorboard/WORKER/        the same as an event file of TensorBoard, and what the program writes
FOLDER/tensorboard/cluster/       scalars of the job, its graph and hyperparameters, by the chief

Without the extra `tensorboard` there are lines alone.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TypeAlias
from urllib.parse import quote

import numpy as np

from psjob.status.job_status import JobStatus
from psjob.status.job_view import JobView
from psjob.status.poller import Poller
from pswire.errors import ConfigurationError
from pswire.optimizers import UpdateSpec
from pswire.system.extras import install_command
from psworker.autodiff.tensor import Tensor
from psworker.client.client import Client
from psworker.model.base_variable import BaseVariable
from psworker.model.gradient_transforms import GradientAndVariable, global_norm
from psworker.summaries.cluster import cluster_values
from psworker.summaries.graph import graph_nodes
from psworker.summaries.recorder import SHARE_OF_AGE, Recorder, charts, json_line, point_line
from psworker.summaries.writing import BackgroundWriter, OutputFile

logger = logging.getLogger(__name__)

HyperParameter: TypeAlias = bool | int | float | str

#: The run of the whole job in TensorBoard, and seconds between two of its points.
CLUSTER, CLUSTER_INTERVAL = "cluster", 2.0


class WorkerSummaries:
    """The summaries of one worker until `close`. Used by the thread of its session.

    `progress` returns the global step, and the number of pushes that servers have dropped. `options` are those of the
    session that are listed with the hyperparameters. `recorder` counts the steps.

    Raises `ConfigurationError` if the folder cannot be used.
    """

    def __init__(
        self,
        folder: Path,
        client: Client,
        number: int,
        progress: Callable[[], tuple[int, int]],
        options: Mapping[str, object],
    ) -> None:
        self.recorder = Recorder()
        self._process = os.getpid()
        self.graph_is_due = True  # that of the first gradient
        self._client, self._progress, self._options = client, progress, options
        self._scalars: dict[str, float] = {}  # of the program, since the last point
        self._optimizer: UpdateSpec | None = None  # of the first step
        self._hyperparameters: dict[str, HyperParameter] = {}  # of the program
        self._described = False  # whether hyperparameters are written
        self._events: ModuleType | None = None
        self._missing = ""  # why there are no event files
        try:
            self._events = import_module("psworker.summaries.tensorboard_records")
        except ImportError as error:
            self._missing = str(error)
            logger.info("summaries: scalars are written, and no event files of TensorBoard: %s", error)
        try:
            (folder / "scalars").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(f"cannot use the folder {folder} for summaries: {error.strerror}") from error
        sender, step = client.membership.sender, self.global_step
        name = _file_name(sender.worker)
        life = {"worker": sender.worker, "incarnation": sender.incarnation, "number": number}
        life |= {"time": time.time(), "process": self._process}
        first_line = folder / "scalars" / f"{name}.jsonl", json_line(life)
        self._lines = OutputFile(lambda: first_line, lines=True)
        self._run = OutputFile(partial(self._begin, folder / "tensorboard" / name, lambda: step))
        self._cluster = OutputFile(partial(self._begin, folder / "tensorboard" / CLUSTER, lambda: self.global_step))
        self._writer = BackgroundWriter()
        self._poller: Poller | None = None
        if self._events is not None:  # points become as rare as those of a worker
            self._poller = Poller(self._ask, self._show_cluster, interval=CLUSTER_INTERVAL, share=SHARE_OF_AGE)
            self._poller.poll()
            self._poller.start()

    @property
    def events(self) -> ModuleType:
        """The module that makes records of event files, for the program's own summaries."""
        if self._events is None:
            raise ConfigurationError(
                f"event files of TensorBoard need a package that is not here ({self._missing}): "
                f"{install_command('tensorboard')}"
            )
        return self._events

    @property
    def global_step(self) -> int:
        """The step at which the program's summaries are shown, unless it names another."""
        return self._progress()[0]

    def put(self, record: bytes) -> None:
        """Write a record to the run of this worker."""
        self._writer.put(self._run, record)

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        """Write a scalar of the program to the run of this worker, to that of the job if it is chief, and as a line."""
        if self._events is not None:
            record = self._events.scalars(time.time(), step, {tag: value})
            self.put(record)
            if self._client.membership.chief:
                self._writer.put(self._cluster, record)
        self._scalars[tag] = value
        if self.recorder.is_due():
            self.write_point()

    def write_point(
        self,
        optimizer: UpdateSpec | None = None,
        learning_rate: float | None = None,
        pairs: Iterable[GradientAndVariable] = (),
    ) -> None:
        """Write the point of the steps since the last one; of a step, with its optimizer, rate and gradients."""
        began = time.thread_time()
        self._optimizer = self._optimizer or optimizer
        norm = global_norm(pairs) if optimizer is not None else None
        point = self.recorder.point(*self._progress(), learning_rate, norm, self._scalars)
        self._writer.put(self._lines, point_line(point))
        self._scalars = {}
        if self._events is not None:
            self.put(self._events.scalars(point.time, point.step, charts(point)))
        self.recorder.postpone(time.thread_time() - began)

    def add_hyperparameters(self, values: Mapping[str, object]) -> None:
        """Add to the hyperparameters that the chief writes. `ConfigurationError` after the first step."""
        self.events  # noqa: B018 - raises
        if self.recorder.steps:
            raise ConfigurationError("hyperparameters are those of the whole run: give them before the first step")
        self._hyperparameters |= {name: _plain(value) for name, value in values.items()}

    def take_graph(self, loss: Tensor, variables: Iterable[BaseVariable]) -> None:
        """Write the graph of the first gradient to the run of the job, if this worker is chief."""
        self.graph_is_due = False
        if self._events is not None and self._client.membership.chief:
            try:
                self._writer.put(self._cluster, self.graph(loss, variables))
            except ValueError as error:
                logger.info("summaries: no graph is written: %s", error)

    def graph(self, loss: Tensor, variables: Iterable[BaseVariable]) -> bytes:
        """The record of a graph; raises as `graph_nodes`."""
        record: bytes = self.events.graph(
            time.time(), graph_nodes(loss, variables, self._client.registration.placement.__getitem__)
        )
        return record

    def close(self, *, failed: bool) -> None:
        """Write the last point, and what is still to be written; raises nothing. Not in a fork: it has no threads."""
        if os.getpid() != self._process:
            return
        if self.recorder.has_new_steps or self._scalars:
            self.write_point()
        if self._poller is not None:
            self._poller.close(failed=failed)
        if self._described and self._events is not None:
            self._writer.put(self._cluster, self._events.end(time.time(), failed=failed))
        self._writer.close()

    def _ask(self, timeout: float) -> JobStatus | None:
        """The status of the job; None while another worker is chief."""
        return self._client.status(timeout) if self._client.membership.chief else None

    def _show_cluster(self, view: JobView) -> None:
        """Write the scalars of the job, from its second status on; those of some shards would mislead."""
        if (job := view.job) is None or view.problem or not view.rates:
            return
        values = cluster_values(view)
        self._writer.put(self._cluster, self.events.scalars(time.time(), job.global_step, values))
        if not self._described and self._optimizer is not None:
            self._described = True
            found = _described(self._optimizer) | {
                "workers": len(job.workers),
                "shards": job.shards,
                "consistency": job.consistency,
                "staleness": job.handling,
            }
            found |= {name: _plain(value) for name, value in self._options.items()} | self._hyperparameters
            self._writer.put(self._cluster, self.events.hyperparameters(time.time(), found))

    def _begin(self, run: Path, step: Callable[[], int]) -> tuple[Path, bytes]:
        """The name of a new event file of a run, and its first records; TensorBoard reads files by their names."""
        now = time.time()
        name = f"events.out.tfevents.{int(now):010d}.{socket.gethostname()}.{os.getpid()}"
        return run / name, self.events.begin(now, step())


def _file_name(worker: str) -> str:
    """The worker's name as that of a file and of a run; other than the run of the job, and never another folder."""
    name = quote(worker, safe=" ")
    return f"worker {name}" if name in ("", ".", "..", CLUSTER) else name


def _described(optimizer: UpdateSpec) -> dict[str, HyperParameter]:
    """The hyperparameters of an optimizer."""
    values = {name: value for name, value in vars(optimizer).items() if not name.startswith("_")}
    return {"optimizer": type(optimizer).__name__} | {name: _plain(value) for name, value in values.items()}


def _plain(value: object) -> HyperParameter:
    """A value as TensorBoard takes it: a text for anything but numbers and booleans."""
    if isinstance(value, np.generic):
        value = value.item()
    return value if isinstance(value, bool | int | float | str) else str(value)
