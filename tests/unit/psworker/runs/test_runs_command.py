"""`psworker runs`: a line for each run, one run in full, several compared; damaged and foreign folders are named."""

import json
import re

import pytest
from click.testing import CliRunner

from psworker.launch.cli import main
from psworker.runs.comparison import argument_pairs, cost_at, first_at
from psworker.runs.curves import Curve
from psworker.runs.run_file import Results, WorkerResult
from tests.unit.psworker.runs.conftest import BEGIN, life, point


def psworker(*arguments):
    result = CliRunner().invoke(main, list(arguments))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_each_run_is_a_line_the_oldest_first_and_deeper_folders_are_found(make_run):
    make_run("runs/b", lives=[life(BEGIN - 60, state="failed", results=Results(0, 12_345, 10.0, None))])
    make_run("runs/sweep/a", workers=4, consistency="bounded:2")
    make_run("other/c")
    result = psworker("runs")
    assert result.exit_code == 0
    head, *lines = [re.split(r" {2,}", line.strip()) for line in result.stdout.splitlines()]
    assert head == ["run", "begin", "script", "workers", "consistency", "steps", "time", "steps/s", "cost", "outcome"]
    assert [line[:1] + line[2:] for line in lines] == [
        ["runs/b", "train.py", "1×1", "async", "12,345", "10.0 s", "1,234", "–", "failed"],
        ["runs/sweep/a", "train.py", "4×1", "bounded:2", "100", "10.0 s", "12", "0.2500", "completed"],
    ]
    rows = json.loads(psworker("runs", "--json", "runs", "other").stdout)
    assert [row["path"] for row in rows] == ["runs/b", "other/c", "runs/sweep/a"]
    assert (rows[0]["step"], rows[0]["steps_per_second"], rows[0]["cost"]) == (12_345, 1234.5, None)


def test_the_last_scalars_of_programs_are_columns_of_the_list_and_rows_of_a_comparison(make_run):
    found = Results(0, 10, 1.0, 0.5, scalars={"accuracy": 0.75, "rate": 3e-5}), Results(0, 10, 1.0, 0.5)
    folders = [str(make_run(f"runs/{name}", lives=[life(results=one)])) for name, one in zip("ab", found, strict=True)]
    rows = [re.split(r" {2,}", line.strip()) for line in psworker("runs").stdout.splitlines()]
    assert [row[-4:] for row in rows] == [
        ["cost", "accuracy", "rate", "outcome"],
        ["0.5000", "0.7500", "3e-05", "completed"],
        ["0.5000", "–", "–", "completed"],
    ]
    assert "· accuracy 0.7500 · rate 3e-05" in psworker("runs", folders[0]).stdout.splitlines()[0]
    compared = json.loads(psworker("runs", "--compare", "--json", *folders).stdout)
    assert compared["results"]["last accuracy"] == [0.75, None]


def test_folders_that_are_no_runs_and_files_that_are_cut_are_named_and_skipped(make_run):
    kept = make_run("runs/kept")
    cut = make_run("runs/cut") / "run.json"
    cut.write_text(cut.read_text()[:100])
    for name in ("runs/session/scalars", "runs/old/checkpoints", "runs/old/logs", "runs/notes", "runs/.hidden"):
        (kept.parent.parent / name).mkdir(parents=True)
    result = psworker("runs")
    assert [line.split()[0] for line in result.stdout.splitlines()[1:]] == ["runs/kept"]
    assert [line.split(":")[0:3] for line in result.stderr.splitlines()] == [
        ["psworker", " skipped", " runs/cut/run.json is damaged, or no file of a run"],
        ["psworker", " skipped", " runs/old has no run.json"],
        ["psworker", " skipped", " runs/session has no run.json"],
    ]


def test_a_folder_without_runs_and_one_that_is_not_there_say_how_to_make_one(tmp_path):
    result = psworker("runs")
    advice = "psworker local --run-dir runs/NAME makes one\n"
    assert (result.exit_code, result.stderr) == (1, f"Error: there is no folder runs: {advice}")
    (tmp_path / "runs").mkdir()
    result = psworker("runs")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == f"psworker: no runs below runs: {advice}"


def test_one_run_is_shown_with_its_options_versions_lives_workers_and_events(make_run):
    worker = WorkerResult("worker-0", "left", 1234, 7, 1.25, 0.5, 2)
    lives = [
        life(BEGIN, state="interrupted", results=Results(0, 50, 4.0)),
        life(BEGIN + 60, results=Results(40, 100, 4.0, 0.5, 1.25, 7, (worker,)), arguments=["--rate", "a b"]),
    ]
    events = [("joined", "worker-0", 1, 0), ("lost", "worker-0\x1b[2J", 2, 30)]
    folder = make_run(lives=lives, events=events)
    out = psworker("runs", str(folder)).stdout
    # 50 updates in 4 s, then 60 in 4 s
    assert (
        out.splitlines()[0] == "a: completed · step 100 · 20.0 s · 14 steps/s · cost 0.5000 · staleness 1.2 · 7 dropped"
    )
    rows = [re.split(r" {2,}", line.strip()) for line in out.splitlines()]
    of_worker = ["worker-0", "left", "1,234", "0.5000", "1.2", "7", "2"]
    for row in (["workers", "1"], ["versions", "paramserver 1.0"], of_worker):
        assert row in rows
    assert [row[2:] for row in rows if row[0] in ("1", "2")] == [
        ["0 to 50", "10.0 s", "interrupted"],
        ["40 to 100", "10.0 s", "completed"],
    ]
    assert rows[-1][1:] == ["30", "info", "shard 0", "worker-0�[2J lost"], "no control characters"
    data = json.loads(psworker("runs", "--json", str(folder)).stdout)
    assert data["lives"][1]["results"]["workers"][0]["steps"] == 1234
    assert [event["kind"] for event in data["events"]] == ["joined", "lost"]


def test_a_comparison_has_what_differs_and_results_side_by_side(make_run):
    # cost: 1/step; b takes twice as many examples and half the time a step
    a = [point(n / 10, n, 1 / n, examples=10 * n) for n in range(1, 201)]
    b = [point(n / 20, n, 2 / n, examples=20 * n) for n in range(1, 101)]
    folders = [
        make_run("a", points={"worker-0": a}, arguments=["--rate", "0.1", "data"], staleness="none", lives=None),
        make_run(
            "b", points={"worker-0": b}, arguments=["data", "--rate=1"], staleness="scale", versions={"numpy": "9"}
        ),
    ]
    result = psworker("runs", "--compare", "--json", "--cost", "0.05", *map(str, folders))
    data = json.loads(result.stdout)
    differ = {"--staleness": ["none", "scale"], "script --rate": ["0.1", "1"], "numpy": ["", "9"]}
    assert data["settings"] in (differ, differ | {"script argument 1": ["data", "data"]})
    results = data["results"]
    of_a = sum(1 / n for n in range(96, 101)) / 5
    assert results["cost at 100 steps"] == pytest.approx([of_a, 2 * of_a])
    assert results["cost at 5.0 s"] == pytest.approx([sum(1 / n for n in range(46, 51)) / 5, 2 * of_a])
    assert results["cost at 2,000 examples"] == pytest.approx([sum(1 / n for n in range(196, 201)) / 5, 2 * of_a])
    # 1/n averaged over five points is no more than 0.05 from 23 on, 2/n from 43 on
    assert results["steps to cost 0.05"] == [23.0, 43.0]
    assert results["time to cost 0.05"] == pytest.approx([2.3, 2.15])
    text = psworker("runs", "--compare", *map(str, folders)).stdout
    rows = [re.split(r" {2,}", line.strip()) for line in text.splitlines()]
    assert ["script --rate", "0.1", "1"] in rows
    assert ["steps/s", "12", "12"] in rows


def test_a_comparison_of_runs_without_points_has_the_results_of_the_launcher(make_run):
    folders = [str(make_run(name)) for name in "ab"]
    results = json.loads(psworker("runs", "--compare", "--json", *folders).stdout)["results"]
    assert list(results) == ["outcome", "steps", "time", "steps/s", "mean staleness", "dropped", "last cost"]
    assert results["last cost"] == [0.25, 0.25]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--compare", "a"], "--compare needs two or more folders"),
        (["--cost", "1", "a"], "--cost needs --compare"),
        (["nowhere"], "there is no folder nowhere"),
        (["--compare", "a", "empty"], "empty/run.json cannot be read: No such file or directory"),
    ],
)
def test_what_cannot_be_compared_or_listed_is_an_error(make_run, tmp_path, arguments, error):
    make_run("a")
    (tmp_path / "empty").mkdir()
    result = psworker("runs", *arguments)
    assert result.exit_code > 0
    assert error in result.stderr


def test_arguments_of_a_script_are_pairs_of_names_and_values():
    typed = ["in.csv", "--rate", "0.1", "--deep", "--size=3", "-v", "2", "--low", "-1", "out"]
    assert dict(argument_pairs(typed)) == {
        "script argument 1": "in.csv",
        "script --rate": "0.1",
        "script --deep": "yes",
        "script --size": "3",
        "script -v": "2",
        "script --low": "-1",
        "script argument 2": "out",
    }


def test_a_cost_is_the_mean_of_the_last_five_points():
    curve = Curve((1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0), (9.0, 8.0, 0.0, 8.0, 7.0, 6.0, 5.0))
    assert cost_at(curve, 6.5) == (8 + 0 + 8 + 7 + 6) / 5
    assert cost_at(curve, 2.0) == 8.5
    assert cost_at(curve, 0.5) is None
    assert first_at(curve, 6.0) == 6.0, "one point alone is below, and does not count"
    assert first_at(curve, 5.0) is None
