"""The picture of a job on a terminal: what is in it, that it fits every size, and who stays when there is no room."""

import io
import itertools
import json
import re
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console

from psjob.status.job_status import ShardAnswer, merge_reports
from psjob.status.job_view import JobView
from pswire import messages as ms
from psworker.launch.display import colors
from psworker.launch.display.choice import make_display
from psworker.launch.display.dashboard import Note, dashboard
from psworker.launch.display.rows import chosen, fitted_rows
from tests.support.combinations import combinations
from tests.unit.psjob.status.views import status

QUEUE = ms.QueueSpec(name="train", size=1000, block=100, epochs=10)


def worker(number, state="live", steps=100, **fields):
    name = f"worker-{number}"
    fields = {"staleness_sum": 2 * steps, "cost": 1 / (1 + steps), "epoch": 4} | fields
    return status(name, state, steps, number=number, **fields)


def event(number, text, warning=False):
    return ms.EventReport(number=number, time=1e9 + number, kind="joined", text=text, warning=warning)


def report(shard, shards, step, workers, events=()):
    traffic, storage = ms.Traffic(90.5, 3 << 20, 5 << 10), ms.StorageStatus(folder="run", last=1200, age=7.0)
    queues = (ms.QueueStatus(spec=QUEUE, epoch=5, done=4300, blocks_out=3),) * (shard == 0)
    known = {"shards": shards, "global_step": step, "nbytes": 19 << 20, "traffic": traffic, "storage": storage}
    detail = ms.StatusDetail(tuple(events))
    return ms.StatusReport(shard=shard, workers=tuple(workers), queues=queues, detail=detail, **known)


def job(*workers, step=300, shards=1, events=()):
    reports = [report(shard, shards, step, workers, events) for shard in range(shards)]
    return merge_reports([ShardAnswer(f"127.0.0.1:{7070 + one.shard}", one) for one in reports])


def followed(*statuses):
    """The view after these statuses, a second apart."""
    view = JobView()
    for seconds, one in enumerate(statuses):
        view = view.follow(one, float(seconds))
    return view


def drawn(progress, width=120, height=40, *, unicode=True, **options):
    out = Console(file=io.StringIO(), width=width, height=height, highlight=False)
    out.print(dashboard(progress, width, height, unicode=unicode, **options))
    return [line.rstrip() for line in out.file.getvalue().splitlines()]


TEN_SECONDS = [job(worker(0, steps=30 * s), worker(1, steps=20 * s), step=50 * s, shards=2) for s in range(10)]


def test_the_picture_has_the_job_the_bar_the_workers_with_trends_the_shards_and_the_newest_events():
    ends = [event(1, "worker 'worker-1' joined"), event(2, "worker 'x\x1b[2J' was silent", warning=True)]
    last = job(worker(0, steps=290), worker(1, "lost", steps=180), step=470, shards=2, events=ends)
    lines = drawn(followed(*TEN_SECONDS, last), title="train.py", findings=[Note("momentum times staleness", True)])
    text = "\n".join(lines)
    assert lines[0] == "0:10 · train.py · 1 of 2 workers live · 2 shards · async"
    assert re.match("████████████▉░{17} 43 % · epoch 5 of 10 · step 470 · ", lines[1]), lines[1]
    assert re.search(r"^worker +state +epoch +steps +steps/s +cost +trend +staleness$", text, re.MULTILINE)
    assert re.search(r"^worker-0 +live +4 +290 +\d+ +0\.0\d+ +█[▂▁]+ +2\.0$", text, re.MULTILINE), text
    assert re.search(r"^worker-1 +lost +4 +180 +0\.0 ", text, re.MULTILINE)
    shard = r"470 +19\.0 MiB +90\.5 +3\.0 MiB +5\.0 KiB +1,200, 7 s ago$"
    assert len(re.findall(rf"^[01]/2 +{shard}", text, re.MULTILINE)) == 2
    assert lines[-3] == "momentum times staleness", "what a guard has found is before the events"
    silent = " worker 'x\N{REPLACEMENT CHARACTER}[2J' was silent"
    assert [line[8:] for line in lines[-2:]] == [silent, " worker 'worker-1' joined"]


def test_events_stay_while_a_status_has_no_detail():
    with_events, without = job(worker(0), events=[event(1, "worker 'worker-0' joined")]), job(worker(0))
    assert drawn(followed(with_events, without))[-1].endswith("worker 'worker-0' joined")


SIZES = [*itertools.product((40, 57, 80, 120, 200), (2, 3, 5, 8, 12, 16, 24, 50))]


@pytest.mark.parametrize(("shards", "workers"), combinations([(1,), (8,)], [(1,), (3,), (64,)]))
def test_the_picture_has_no_line_too_wide_and_none_too_many_in_any_size_and_every_size_has_the_step(workers, shards):
    waits = {"waiting_for": "worker-3 and 2 others, which are 2 steps behind", "tensor_transport": "shared memory"}
    statuses = [
        job(
            *[worker(number, steps=(1 + number) * second, **waits) for number in range(workers)],
            step=1_234_567 + second,
            shards=shards,
            events=[event(number, f"event {number} {'long ' * 50}") for number in range(5)],
        )
        for second in range(3)
    ]
    progress = followed(*statuses)
    for width, height in SIZES:
        lines = drawn(progress, width, height, title="a_program_with_a_long_name.py")
        assert len(lines) <= height, (width, height, lines)
        assert max(map(cell_len, lines)) <= width, (width, height, lines)
        assert any("step 1,234,569" in line for line in lines), (width, height, lines)
        if height >= 16:
            assert sum(bool(re.match(r"worker-\d", line)) for line in lines) >= min(workers, 2)
            assert sum(bool(re.match(r"\d/\d ", line)) for line in lines) >= min(shards, 2)


def test_without_room_for_all_workers_those_in_trouble_stay_in_their_order_and_the_others_are_counted():
    others = [worker(number, steps=100) for number in range(64)]
    others[50], others[40] = worker(50, "lost"), worker(40, steps=100, held=7.5, waiting_for="worker-2")
    others[60], others[1] = worker(60, "left"), worker(1, steps=10)  # slow
    progress = followed(job(*[worker(number, steps=0) for number in range(64)], step=1), job(*others))
    lines = drawn(progress, 120, 12)
    assert [line.split()[0] for line in lines if re.match(r"worker-\d", line)] == [
        f"worker-{number}" for number in (0, 1, 2, 3, 40, 50)
    ]
    assert "  and 58 more workers: 57 live, 1 left" in lines
    [shown, more] = chosen(progress, 5)
    assert [one.name for one in shown] == ["worker-0", "worker-1", "worker-40", "worker-50"]
    assert more == "and 60 more workers: 59 live, 1 left"
    assert chosen(progress, 64)[1] == chosen(progress, 0)[1] == ""


def test_rows_fill_the_terminal_and_what_matters_less_gives_way_first():
    assert fitted_rows(100, 64, 2, 3).height == 1 + 1 + 65 + 3 + 3 + 3
    for height in range(1, 80):
        rows = fitted_rows(height, 64, 8, 3)
        assert rows.height <= height
        assert height - rows.height <= (1 if height < 77 else height), "the last row of a table takes its header along"
        assert rows.workers or height < 6, "workers are the last to go"


def test_without_unicode_bars_are_ascii():
    lines = drawn(followed(*TEN_SECONDS), unicode=False)
    assert re.match("#{13}-{17} 43 % · ", lines[1])
    assert re.search(r"worker-0 .* @[_.]+ ", "\n".join(lines))


def contrast(color, other):
    """The contrast ratio of two colors, as WCAG 2.2 defines it."""

    def luminance(triple):
        linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in triple]
        return sum(part * one for part, one in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    light, dark = sorted((luminance(color), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def parsed(color):
    return tuple(int(color[place : place + 2], 16) / 255 for place in (1, 3, 5))


#: What people without one kind of cones see, of linear RGB: Viénot, Brettel and Mollon (1999), table 1 as matrices.
PROTANOPIA = ((0.11238, 0.88762, 0.0), (0.11238, 0.88762, 0.0), (0.00401, -0.00401, 1.0))
DEUTERANOPIA = ((0.29275, 0.70725, 0.0), (0.29275, 0.70725, 0.0), (-0.02234, 0.02234, 1.0))


def seen(matrix, color):
    linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in color]
    return [sum(part * one for part, one in zip(row, linear, strict=True)) for row in matrix]


def test_colors_are_read_on_white_and_on_black_and_told_apart_without_red_or_green_cones():
    palette = {color: parsed(color) for color in (*colors.NAMES, colors.VERMILION)}
    for color, triple in palette.items():
        assert min(contrast(triple, (0, 0, 0)), contrast(triple, (1, 1, 1))) >= 3, color
    for matrix in (PROTANOPIA, DEUTERANOPIA):
        for (one, first), (two, second) in itertools.combinations(palette.items(), 2):
            difference = [abs(a - b) for a, b in zip(seen(matrix, first), seen(matrix, second), strict=True)]
            assert max(difference) >= 0.03, (one, two)


# --- other displays ---------------------------------------------------------------------------------------------------


def test_quiet_shows_lines_of_the_program_and_problems_and_nothing_else(capsys):
    with make_display("live", ("worker-0", "server-0"), quiet=True) as display:
        display.notice("servers at h:1")
        display.note("waiting")
        display.show(followed(*TEN_SECONDS))
        display.process_event("worker-0", "psworker: killed; restart 1 of 2")
        display.finding(Note("momentum"))
        display.lines("worker-0", "stdout", ["cost 0.5"])
        display.lines("worker-0", "stderr", ["oh"])
        display.summary(followed(*TEN_SECONDS))
    display.problem("error", "Error: worker-0 was killed")
    assert capsys.readouterr() == ("worker-0 | cost 0.5\n", "worker-0 | oh\nError: worker-0 was killed\n")


def test_with_json_each_line_of_stderr_is_an_object_with_its_process_and_stdout_is_the_programs(capsys):
    of_server = json.dumps({"time": "now", "shard": 0, "text": "joined"})
    with make_display("auto", ("worker-0", "server-0"), log_format="json") as display:
        display.notice("servers at h:1")
        display.show(replace(followed(*TEN_SECONDS), seconds=9.0))
        display.show(replace(followed(*TEN_SECONDS), seconds=9.5))
        display.process_event("server-1", "killed")
        display.finding(Note("momentum"))
        display.lines("worker-0", "stdout", ["cost 0.5"])
        display.lines("worker-0", "stderr", ['Traceback\r\x1b[2J "x"', "{not json", "[1]"])
        display.lines("server-0", "stderr", [of_server])
        display.summary(followed(*TEN_SECONDS))
    display.problem("error", "Error: it\nfailed")
    out, err = capsys.readouterr()
    lines = [json.loads(line) for line in err.splitlines()]
    assert out == "worker-0 | cost 0.5\n"
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z|now", line.pop("time")) for line in lines)
    ours = {"level": "info", "logger": "psworker.launch"}
    summary = lines.pop(-2)
    progress = lines.pop(1)
    assert (progress["event"], progress["step"], progress["text"][:13]) == ("progress", 450, "epoch 5 of 10")
    assert (summary["event"], summary["step"], summary["text"][:9]) == ("summary", 450, "450 steps")
    assert lines == [
        ours | {"text": "servers at h:1"},
        ours | {"level": "warning", "shard": 1, "event": "process", "text": "killed"},
        ours | {"level": "warning", "event": "guard", "text": "momentum"},
        {"level": "info", "logger": "stderr", "worker": "worker-0", "text": 'Traceback\r\x1b[2J "x"'},
        *[{"level": "info", "logger": "stderr", "worker": "worker-0", "text": text} for text in ("{not json", "[1]")],
        {"shard": 0, "text": "joined"},
        ours | {"level": "error", "text": "Error: it\nfailed"},
    ]
