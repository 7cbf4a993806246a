"""A shard's status, asked for over the network and made readable: tables for people, plain data for programs.

May import pswire, grpc and rich.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import grpc
from rich.table import Table

from pswire.channel import error_from, open_channel
from pswire.codec import decode, encode
from pswire.lanes.inline import InlineReceiver, InlineSender
from pswire.messages import Status, StatusReport, VariableStatus, WorkerStatus
from pswire.schedules import Schedule
from pswire.specs import to_plain
from pswire.v1.paramserver_pb2_grpc import ParameterServerStub


def ask_status(address: str, timeout: float) -> StatusReport:
    """The status of the shard at `address`.

    Raises:
        Unavailable, TimedOut: nobody answers there, or not within `timeout` seconds.
    """
    with open_channel(address) as channel:
        try:
            answer = ParameterServerStub(channel).Status(  # type: ignore[no-untyped-call]
                encode(Status(), InlineSender()), timeout=timeout
            )
        except grpc.RpcError as error:
            raise error_from(error, address) from error
    report = decode(answer, InlineReceiver())
    assert isinstance(report, StatusReport)
    return report


def plain(report: StatusReport) -> dict[str, Any]:
    """The report as data that JSON can hold; a loss that is no number becomes None."""
    return dataclasses.asdict(report) | {
        "variables": [_plain_variable(variable) for variable in report.variables],
        "workers": [dataclasses.asdict(worker) | {"loss": _finite(worker.loss)} for worker in report.workers],
        "epochs": [dataclasses.asdict(epoch) | {"cost": _finite(epoch.cost)} for epoch in report.epochs],
    }


def tables(report: StatusReport, address: str) -> list[Table | str]:
    """The report for people: a line on the shard, its variables, its workers."""
    variables = Table("variable", "dtype", "shape", "version", "updates", "optimizer", title="Variables")
    for variable in report.variables:
        spec = variable.spec
        variables.add_row(
            spec.name,
            spec.dtype,
            str(list(spec.shape)),
            f"{variable.version:,}",
            f"{variable.updates:,}",
            _optimizer(variable, report.global_step),
        )
    workers = Table("worker", "state", "steps", "mean staleness", "loss", "epoch", "lease left", title="Workers")
    for worker in report.workers:
        workers.add_row(
            worker.name,
            worker.state,
            f"{worker.steps:,}",
            _mean_staleness(worker),
            "-" if worker.loss is None else f"{worker.loss:.4f}",
            str(worker.epoch),
            _lease(worker),
        )
    counts = f"global step {report.global_step:,}, {report.repeated:,} repeated"
    return [f"shard {report.shard}/{report.shards} at {address}: {counts}", variables, workers]


def _plain_variable(variable: VariableStatus) -> dict[str, Any]:
    optimizer = None if variable.optimizer is None else to_plain(variable.optimizer)
    counts = {"version": variable.version, "updates": variable.updates}
    return dataclasses.asdict(variable.spec) | counts | {"optimizer": optimizer}


def _finite(number: float | None) -> float | None:
    return number if number is not None and math.isfinite(number) else None


def _optimizer(variable: VariableStatus, global_step: int) -> str:
    """Kind and fields; a learning rate that changes with what it is for the next push."""
    spec = variable.optimizer
    if spec is None:
        return "-"
    words = [spec.kind, *(f"{field.name}={getattr(spec, field.name)}" for field in dataclasses.fields(spec))]
    learning_rate = getattr(spec, "learning_rate", None)
    if isinstance(learning_rate, Schedule):
        words.append(f"(learning rate now {learning_rate.at(global_step):.6g})")
    return " ".join(words)


def _mean_staleness(worker: WorkerStatus) -> str:
    return f"{worker.staleness_sum / worker.steps:.2f}" if worker.steps else "-"


def _lease(worker: WorkerStatus) -> str:
    return f"{worker.lease_left:.1f} s" if worker.state == "live" else "-"
