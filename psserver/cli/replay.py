"""`psserver replay`: the journal of a shard again, offline: who pushed what, with which staleness and norms.

Imported only by this command, since it imports numpy and the shard.
"""

import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click

from psserver.core.shard import Shard
from psserver.replay.journal_replay import JournalReplay, number_of_shards
from psserver.replay.pushes import Fate, Happening, Line, PushObserver, PushReport
from psserver.replay.summary import PushCounts, StopRule, Summary
from psserver.replay.verification import verify
from psserver.storage import checkpoints
from pswire.errors import ConfigurationError, StorageError, UnknownVariable
from pswire.tensors.tensor_files import write_tensors

#: Seconds between two lines about the progress, on standard error, where pushes are not printed.
PROGRESS_EVERY = 10.0

_NONE = "–"
_HEADER = (
    f"{'step':>9} {'worker':<10} {'push':>8} {'stale':>5} {'loss':>11} {'rate':>9} {'|gradient|':>11} {'|update|':>11}"
)


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """The options of the command, except for the choice of the journal."""

    until: int | None = None
    watch: tuple[str, ...] = ()
    output: Path | None = None
    as_json: bool = False
    quiet: bool = False
    stop: StopRule = field(default_factory=StopRule)


def open_replay(folder: Path, shard: int, shards: int | None, number: int | None) -> JournalReplay:
    """The journal of a shard; `shards` None: of the only job in the folder. Raises `StorageError`."""
    return JournalReplay(folder, shard, shards or number_of_shards(folder, shard), number)


def show(folder: Path, replay: JournalReplay, options: ReplayOptions) -> None:
    """Print a line for each push and happening, and the summary; write the state if asked to.

    Raises:
        ConfigurationError: the output is there already or within `folder`, or `until` is before the checkpoint.
        UnknownVariable: a watched variable is not there in the end.
        StorageError, DamagedFile: the journal cannot be read.
    """
    if options.output is not None:
        _check_output(options.output, folder)
    if options.until is not None and options.until < replay.shard.global_step:
        raise ConfigurationError(
            f"--until {options.until}: the replay begins at checkpoint {replay.number}, step "
            f"{replay.shard.global_step}: choose an older one with --from, if there is one"
        )
    begin, summary, write = time.monotonic(), Summary(), sys.stdout.write
    line_of = _json_line if options.as_json else _text_line
    if not options.as_json and not options.quiet:
        write(f"shard {replay.shard.shard}/{replay.shard.shards} from checkpoint {replay.number}\n{_HEADER}\n")
    observer = PushObserver(replay, options.watch)
    stopped = "the end of the journal"
    for lines in _records(observer, replay, options):
        reason = ""
        for line in lines:
            if not options.quiet:
                write(line_of(line))
            if isinstance(line, PushReport):
                summary.add(line)
                reason = reason or options.stop.reason(line)
        if reason:
            stopped = reason
            break
        if options.until is not None and replay.shard.global_step >= options.until:
            stopped = f"--until {options.until}"
            break
    for push in observer.undecided():
        summary.add(push)
        if not options.quiet:
            write(line_of(push))
    sys.stdout.flush()
    for name in options.watch:
        if name not in replay.shard.variables:
            known = ", ".join(replay.shard.variables) or "none"
            raise UnknownVariable(f"--watch {name}: shard {replay.shard.shard} has no such variable; it has {known}")
    _print_summary(replay, summary, stopped, time.monotonic() - begin, as_json=options.as_json)
    if options.output is not None:
        click.echo(f"written: {write_state(replay.shard, options.output)}", err=options.as_json)


def verified(folder: Path, replay: JournalReplay, *, as_json: bool) -> bool:
    """Print for each later checkpoint whether the replay gives its bits, and return whether all are equal.

    Raises `StorageError` or `DamagedFile`, also if there is no later checkpoint.
    """
    progress, compared = _Progress(replay), []
    for one in verify(folder, replay, progress.note):
        compared.append(one)
        if as_json:
            click.echo(json.dumps({"kind": "checkpoint", **one._asdict()}))
            continue
        where = f"checkpoint {one.number}, global step {one.global_step:,}"
        same = f"the same bits in all {one.variables:,} variables and their slots"
        click.echo(f"{where}: {one.difference or same}")
    if not compared:
        raise StorageError(f"{folder} has no checkpoint after {replay.number}: there is nothing to compare with")
    if not as_json:
        click.echo(f"{replay.entries_read:,} records, {replay.nbytes:,} bytes, from checkpoint {replay.number} on")
    return not compared[-1].difference


class _Progress:
    """A line on standard error, now and then."""

    def __init__(self, replay: JournalReplay) -> None:
        self._replay, self._noted = replay, time.monotonic()

    def note(self) -> None:
        """Print it if it is time for it."""
        replay = self._replay
        if not replay.entries_read % 1024 and time.monotonic() > self._noted + PROGRESS_EVERY:
            self._noted = time.monotonic()
            click.echo(f"{replay.entries_read:,} records, global step {replay.shard.global_step:,}", err=True)


def _records(observer: PushObserver, replay: JournalReplay, options: ReplayOptions) -> Iterator[list[Line]]:
    """The records, with a note about the progress if nothing else is printed."""
    if options.until is not None and replay.shard.global_step == options.until:
        return
    progress = _Progress(replay)
    for lines in observer.records():
        yield lines
        if options.quiet:
            progress.note()


# --- lines ------------------------------------------------------------------------------------------------------------


def _text_line(line: Line) -> str:
    if isinstance(line, Happening):
        return f"{line.step:>9} {line.text}\n"
    rate, loss, update = _number(line.learning_rate, 9), _number(line.loss, 11), _number(line.update, 11)
    step = _NONE if line.step is None else line.step
    staleness = _NONE if line.staleness is None else line.staleness
    numbers = f"{line.sequence:>8} {staleness:>5} {loss} {rate} {_number(line.gradient, 11)} {update}"
    return f"{step:>9} {line.worker:<10} {numbers}  {_outcome(line)}{''.join(_watched(line))}\n"


def _outcome(push: PushReport) -> str:
    others = ", ".join([f"{worker} {sequence}" for worker, sequence in push.group])
    words = push.fate.value + (f" with {others}" if others else "")
    return words + (f": {push.reason}" if push.reason and push.fate is not Fate.APPLIED else "")


def _watched(push: PushReport) -> Iterator[str]:
    for name, one in push.watched.items():
        value = "" if one.after is None else f" {_short(one.before)} -> {_short(one.after)}"
        yield f"; {name}{value}, gradient {_short(one.gradient)}, update {_short(one.update)}"


def _short(value: float | None) -> str:
    return _NONE if value is None else f"{value:.5g}"


def _number(value: float | None, width: int) -> str:
    return f"{_short(value):>{width}}"


def _json_line(line: Line) -> str:
    if isinstance(line, Happening):
        return json.dumps({"kind": "event", "step": line.step, "text": line.text}) + "\n"
    watched = {name: {key: _plain(getattr(one, key)) for key in one.__slots__} for name, one in line.watched.items()}
    data = {
        "kind": "push",
        "step": line.step,
        "worker": line.worker,
        "incarnation": line.incarnation,
        "sequence": line.sequence,
        "staleness": line.staleness,
        "loss": _plain(line.loss),
        "learning_rate": _plain(line.learning_rate),
        "gradient": _plain(line.gradient),
        "update": _plain(line.update),
        "outcome": line.fate.value,
        "reason": line.reason,
        "group": [{"worker": worker, "sequence": sequence} for worker, sequence in line.group],
        "watched": watched,
    }
    return json.dumps(data) + "\n"


def _plain(value: float | None) -> float | str | None:
    """A number that JSON has; NaN and infinity as text."""
    return value if value is None or math.isfinite(value) else str(value)


# --- the summary ------------------------------------------------------------------------------------------------------


def _print_summary(replay: JournalReplay, summary: Summary, stopped: str, seconds: float, *, as_json: bool) -> None:
    step, rate = replay.shard.global_step, replay.entries_read / max(seconds, 1e-9)
    if as_json:
        workers = {name: _counts(one) for name, one in summary.workers.items()}
        data: dict[str, Any] = {"kind": "summary", "from": replay.number, "step": step, "stopped": stopped}
        data |= {"records": replay.entries_read, "bytes": replay.nbytes, "seconds": seconds}
        click.echo(json.dumps(data | _counts(summary.total) | {"workers": workers}))
        return
    click.echo(f"\nstopped at global step {step:,}: {stopped}")
    click.echo(f"{replay.entries_read:,} records, {replay.nbytes:,} bytes, in {seconds:.1f} s ({rate:,.0f} records/s)")
    header = ("worker", *[fate.value for fate in Fate], "stale p50", "p99", "|gradient| mean", "max", "|update| max")
    rows = [header, *[_row(name, one) for name, one in summary.workers.items()], _row("all", summary.total)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    for first, *others in rows:
        cells = [f"{cell:>{width}}" for cell, width in zip(others, widths[1:], strict=True)]
        click.echo(f"{first:<{widths[0]}}  {'  '.join(cells)}")


def _row(name: str, counts: PushCounts) -> tuple[str, ...]:
    fates = [f"{counts.fates[fate]:,}" for fate in Fate]
    norms = [_short(one) for one in (counts.gradient_mean, counts.gradient_max, counts.update_max)]
    return (name, *fates, f"{counts.staleness(50):,}", f"{counts.staleness(99):,}", *norms)


def _counts(counts: PushCounts) -> dict[str, Any]:
    fates: dict[str, Any] = {fate.value: counts.fates[fate] for fate in Fate}
    return fates | {
        "staleness_p50": counts.staleness(50),
        "staleness_p99": counts.staleness(99),
        "gradient_mean": _plain(counts.gradient_mean),
        "gradient_max": _plain(counts.gradient_max),
        "update_max": _plain(counts.update_max),
    }


# --- the state --------------------------------------------------------------------------------------------------------


def write_state(shard: Shard, output: Path) -> Path:
    """Write the variables as a safetensors file, if `output` ends so; otherwise a checkpoint into this new folder.

    A server with this --checkpoint-dir continues from the checkpoint. Returns what was written. Raises `StorageError`
    or `ModelFileError` if it cannot be.
    """
    if output.suffix == ".safetensors":
        arrays = [(variable.spec, [variable.value]) for variable in shard.variables.values()]
        write_tensors(output, arrays, {"format": "np", "global_step": str(shard.global_step)})
        return output
    state = shard.state()
    state = replace(state, cut=max(state.cut, state.global_step))
    try:
        return checkpoints.write(output, state, iter(shard.arrays().items()), tuple, final=True)
    except OSError as error:
        raise StorageError(f"the checkpoint cannot be written to {output}: {error.strerror or error}") from error


def _check_output(output: Path, folder: Path) -> None:
    """Raise `ConfigurationError` unless the state may be written there."""
    place, source = output.resolve(), folder.resolve()
    if place == source or source in place.parents:
        raise ConfigurationError(f"--output {output}: it is within {folder}, which is only read: choose another place")
    if output.suffix != ".safetensors" and output.exists() and any(_names(output)):
        raise ConfigurationError(f"--output {output}: it is there already, and not empty: choose a new folder")


def _names(path: Path) -> Sequence[Path]:
    return list(path.iterdir()) if path.is_dir() else [path]
