"""A job's report as data that JSON can hold, for programs. May import pswire's pure half and `job`."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from psserver.cli.job_status import JobReport, JobVariable, ShardAnswer
from pswire.messages import Change, StatusReport, VariableStatus
from pswire.optimizers import UpdateSpec, to_plain


def plain(job: JobReport, at: float) -> dict[str, Any]:
    """The job, its whole variables and its workers, and under `shards` what each server says by itself.

    `at` is when it was, in seconds since 1970. A number that is NaN or infinite becomes None, since JSON has none.
    """
    fields = ("global_step", "repeated", "dropped", "half_pushes", "nbytes", "consistency", "handling")
    data = {
        "time": at,
        **{name: getattr(job, name) for name in fields},
        "problems": job.problems,
        "variables": [_variable(variable) for variable in job.variables],
        "workers": [dataclasses.asdict(worker) for worker in job.workers],
        "epochs": [dataclasses.asdict(epoch) for epoch in job.epochs],
        "changes": [_change(change) for change in job.changes],
        "shards": [_shard(answer) for answer in job.answers],
    }
    finite: dict[str, Any] = _finite(data)
    return finite


def _shard(answer: ShardAnswer) -> dict[str, Any]:
    if answer.report is None:
        return {"address": answer.address, "problem": answer.problem}
    return {"address": answer.address, **_report(answer.report)}


def _report(report: StatusReport) -> dict[str, Any]:
    return dataclasses.asdict(report) | {
        "variables": [_with_spec_inline(variable) for variable in report.variables],
        "changes": [_change(change) for change in report.changes],
    }


def _variable(variable: JobVariable) -> dict[str, Any]:
    data = _with_spec_inline(variable)
    del data["global_step"]
    return data


def _with_spec_inline(variable: JobVariable | VariableStatus) -> dict[str, Any]:
    data = dataclasses.asdict(variable)
    del data["spec"]
    return dataclasses.asdict(variable.spec) | data | {"optimizer": _optimizer(variable.optimizer)}


def _change(change: Change) -> dict[str, Any]:
    return dataclasses.asdict(change) | {"optimizer": _optimizer(change.optimizer)}


def _optimizer(spec: UpdateSpec | None) -> dict[str, Any] | None:
    return None if spec is None else to_plain(spec)


def _finite(data: Any) -> Any:  # noqa: ANN401 - plain data of any kind
    match data:
        case dict():
            return {key: _finite(value) for key, value in data.items()}
        case list() | tuple():
            return [_finite(value) for value in data]
        case float() if not math.isfinite(data):
            return None
    return data
