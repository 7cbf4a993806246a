"""The table of the shards of a job, for `psserver status` and `psworker local`. Imports rich."""

from collections.abc import Callable, Sequence

from psjob.status.job_status import ShardAnswer
from psjob.terminal.fitted_table import Column, FittedTable
from pswire.messages import StatusReport, StorageStatus

#: In place of what there is none of.
NONE = "–"

#: Styles of cells with the state of a worker or shard, whose words tell them apart without colors.
STATE_STYLES = {"live": "green", "left": "dim", "starting": "dim", "lost": "bold red", "silent": "bold red"}


def shard_table(answers: Sequence[ShardAnswer], title: str | None = None, *, short: bool = False) -> FittedTable:
    """A row per shard; checkpoints and journals have columns if there are any.

    The `short` table is for a place beside others: its header is one line, and it lacks addresses and staleness.
    """
    columns = tuple([one for one in _SHARDS if one.header in _SHORT]) if short else _SHARDS
    stored = [answer.report.storage for answer in answers if answer.report is not None]
    if any(storage.folder for storage in stored):
        columns += _STORAGE[: 1 if short and not any(storage.journal for storage in stored) else None]
    return FittedTable(columns, answers, title, lambda column, text, row: STATE_STYLES.get(text, ""))


def size(nbytes: float) -> str:
    """Bytes in the largest fitting unit of B, KiB, MiB, GiB, TiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if round(nbytes, 0 if unit == "B" else 1) < 1024:
            return f"{nbytes:.{0 if unit == 'B' else 1}f} {unit}"
        nbytes /= 1024
    return f"{nbytes:,.1f} TiB"


def _checkpoint(storage: StorageStatus) -> str:
    """The last one and its age; or why there is none."""
    if not storage.folder:
        return NONE
    if storage.writing and storage.waiting_for:
        return f"{storage.writing:,} waits for {storage.waiting_for}"
    return f"{storage.last:,}, {storage.age:,.0f} s ago"


def _journal(storage: StorageStatus) -> str:
    return size(storage.journal_bytes) if storage.journal else NONE


def _live(report: StatusReport) -> int:
    return report.totals.live or sum(one.state == "live" for one in report.workers)


def _of_report(cell: Callable[[StatusReport], str], silent: str = NONE) -> Callable[[ShardAnswer], str]:
    return lambda answer: silent if answer.report is None else cell(answer.report)


_SHARDS = (
    Column("shard", _of_report(lambda report: f"{report.shard}/{report.shards}", "?")),
    Column("address", lambda answer: answer.address, shortest=21),
    Column("step", _of_report(lambda report: f"{report.global_step:,}", "silent"), number=True),
    Column(
        "vars", _of_report(lambda report: f"{max(report.totals.variables, len(report.variables)):,}"), 4, number=True
    ),
    Column("memory", _of_report(lambda report: size(report.nbytes)), 1, number=True),
    Column("pushes/s", _of_report(lambda report: f"{report.traffic.pushes:,.1f}"), 7, number=True),
    Column("in/s", _of_report(lambda report: size(report.traffic.bytes_in)), 8, number=True),
    Column("out/s", _of_report(lambda report: size(report.traffic.bytes_out)), 8, number=True),
    Column("stale\np50", _of_report(lambda report: f"{report.staleness.p50:,}"), 3, number=True),
    Column("p99", _of_report(lambda report: f"{report.staleness.p99:,}"), 4, number=True),
    Column("live", _of_report(lambda report: f"{_live(report):,}"), 2, number=True),
)

_STORAGE = (
    Column("checkpoint", _of_report(lambda report: _checkpoint(report.storage)), 5),
    Column("journal", _of_report(lambda report: _journal(report.storage)), 6, number=True),
)

_SHORT = ("shard", "step", "memory", "pushes/s", "in/s", "out/s")
