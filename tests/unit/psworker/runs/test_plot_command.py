"""`psworker plot`: files of the asked kind and size, whose lines have the points of the runs; errors."""

import re
import struct
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import pytest
from click.testing import CliRunner

from psworker.launch.cli import main
from psworker.runs.curves import run_curves, smoothed
from psworker.runs.run_data import read_run_data
from tests.support.combinations import few_fast
from tests.unit.psworker.runs.conftest import point

SVG = "{http://www.w3.org/2000/svg}"


def plot(*arguments):
    result = CliRunner().invoke(main, ["plot", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def numbers(path):
    """The positions of a path of straight lines."""
    return [(float(x), float(y)) for x, y in re.findall(r"[ML] (\S+) (\S+)", path)]


def scale(root, axis):
    """From positions in the file to values, by the first and the last tick of an axis and their texts."""
    ticks = [one for one in root.iter(f"{SVG}g") if re.fullmatch(rf"{axis}tick_\d+", one.get("id", ""))]
    found = []
    for tick in ticks:
        (use,) = [one for one in tick.iter(f"{SVG}use") if one.get(axis)][:1]
        text = "".join("".join(one.itertext()) for one in tick.iter(f"{SVG}text")).replace("−", "-").replace(",", "")
        found.append((float(use.get(axis)), float(text)))
    (low, low_value), (high, high_value) = found[0], found[-1]
    return lambda place: low_value + (place - low) / (high - low) * (high_value - low_value)


def lines_of(file):
    """The points of the lines in an SVG file, by the id of the line."""
    root = ElementTree.parse(file).getroot()
    x, y = scale(root, "x"), scale(root, "y")
    found = {}
    for group in root.iter(f"{SVG}g"):
        paths = [one.get("d") for one in group.findall(f"{SVG}path")]
        if paths and group.get("id") and not re.match(r"(patch|xtick|ytick|line2d|legend|text|axes)", group.get("id")):
            found[group.get("id")] = [(x(place), y(height)) for place, height in numbers(paths[0])]
    return found


def same(points, curve):
    """Whether points are those of a curve, to a hundredth of a percent of its extent."""
    extent = [max(values) - min(values) or 1 for values in curve]
    return len(points) == len(curve.x) and all(
        abs(x - a) < 1e-4 * extent[0] and abs(y - b) < 1e-4 * extent[1]
        for (x, y), a, b in zip(points, *curve, strict=True)
    )


@pytest.fixture
def two_runs(make_run):
    pytest.importorskip("matplotlib", reason="pip install -e '.[dev]'")
    one = [point(n / 10, 5 * n, 3 / n + (n % 7) / 10, examples=50 * n, staleness=1.0) for n in range(1, 100)]
    two = [point(n / 10, 6 * n, 2 / n + (n % 5) / 10, steps=n, examples=50 * n) for n in range(1, 100)]
    slow = [point(n / 2, 30 * n, 2 / n, steps=n, examples=50 * n) for n in range(1, 20)]
    events = [("lost", "worker-1", 5, 300), ("joined", "worker-1", 7, 420)]
    return [
        make_run("one", points={"worker-0": one}),
        make_run("two", points={"worker-0": two, "worker-1": slow}, events=events, workers=2),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("by", few_fast(["step", "time", "examples"]))
def test_the_points_in_an_svg_file_are_those_of_the_runs(two_runs, tmp_path, by):
    assert plot(*two_runs, "--by", by, "--workers", "--output", "both.svg").stdout == "both.svg\n"
    lines = lines_of(tmp_path / "both.svg")
    for folder in two_runs:
        curves = run_curves(read_run_data(folder), by, "cost")
        assert same(lines[str(folder)], curves.job)
        if len(curves.workers) > 1:
            for name, (curve,) in curves.workers.items():
                assert same(lines[f"{folder} {name} life 1"], curve), name
    root = ElementTree.parse(tmp_path / "both.svg").getroot()
    texts = {"".join(text.itertext()) for text in root.iter(f"{SVG}text")}
    assert {"one", "two, all workers", "two, each worker", "cost", "worker lost", "worker joined"} <= texts


def test_the_points_of_one_worker_in_an_svg_file_are_those_of_its_file(make_run, tmp_path):
    pytest.importorskip("matplotlib", reason="pip install -e '.[dev]'")
    make_run("long", points={"worker-0": [point(n / 10, 5 * n, 3 / n) for n in range(1, 500)]})  # nearly straight
    plot("long", "--output", "long.svg")
    line = lines_of(tmp_path / "long.svg")["long"]
    assert [round(x) for x, _ in line] == [5 * n for n in range(1, 500)]
    assert [y for _, y in line] == pytest.approx([3 / n for n in range(1, 500)], abs=1e-3)


@pytest.mark.slow
def test_a_smoothed_curve_is_drawn_over_the_pale_one(two_runs, tmp_path):
    plot(two_runs[0], "--smooth", "0.8", "--title", "All of it", "--output", "one.svg")
    lines, curve = lines_of(tmp_path / "one.svg"), run_curves(read_run_data(two_runs[0]), "step", "cost").job
    assert same(lines["one unsmoothed"], curve)
    assert same(lines["one"], smoothed(curve, 0.8))
    assert "All of it" in (tmp_path / "one.svg").read_text()


@pytest.mark.slow
def test_runs_differ_by_line_style_as_well_as_by_color(two_runs, tmp_path):
    plot(*two_runs, "--output", "both.svg")
    styles = {}
    for group in ElementTree.parse(tmp_path / "both.svg").getroot().iter(f"{SVG}g"):
        if group.get("id") in ("one", "two"):
            style = group.find(f"{SVG}path").get("style")
            styles[group.get("id")] = re.search(r"stroke: (\S+);", style)[1], "dasharray" in style
    (one, one_dashed), (two, two_dashed) = styles["one"], styles["two"]
    assert one != two
    assert one_dashed != two_dashed


@pytest.mark.slow
@pytest.mark.parametrize(("width", "height"), few_fast([(400, 300), (960, 600), (961, 337), (1333, 1000)]))
def test_a_png_file_has_the_asked_size_and_the_same_data_give_the_same_file(two_runs, tmp_path, width, height):
    written = []
    for name in ("a.png", "b.PNG"):
        assert plot(two_runs[1], "--size", f"{width}x{height}", "--log", "--output", name).exit_code == 0
        written.append((tmp_path / name).read_bytes())
    assert written[0][:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", written[0][16:24]) == (width, height)
    assert written[0] == written[1]
    assert len(written[0]) < 200_000


@pytest.mark.slow
def test_without_an_output_the_picture_is_in_the_folder_of_the_first_run(two_runs, tmp_path):
    assert plot(*two_runs).stdout == "one/cost-by-step.png\n"
    assert (tmp_path / "one/cost-by-step.png").read_bytes()[:4] == b"\x89PNG"
    assert plot(two_runs[0], "--value", "staleness", "--by", "time").stdout == "one/staleness-by-time.png\n"


@pytest.mark.slow
def test_a_tag_of_the_program_with_a_slash_is_no_folder(make_run, tmp_path):
    pytest.importorskip("matplotlib", reason="pip install -e '.[dev]'")
    make_run(points={"worker-0": [point(1, 1, scalars={"../test/accuracy": 0.5})]})
    assert plot("a", "--value", "../test/accuracy").stdout == "a/-test-accuracy-by-step.png\n"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["empty"], "empty has no 'cost': its workers have recorded nothing yet"),
        (["one", "--value", "speed"], "one has no 'speed': there is: cost, staleness"),
        (["one", "--output", "a.pdf"], "a.pdf must end with .png or .svg"),
        (["one", "--output", "nowhere/a.png"], "nowhere/a.png cannot be written: No such file or directory"),
        (["one", "--size", "9x9"], "a size is WIDTHxHEIGHT in pixels"),
        (["one", "--size", "999x99999"], "a picture has from 400x300"),
        (["one", "--smooth", "1"], "is not in the range 0<=x<1"),
        (["."], "run.json cannot be read: No such file or directory"),
        ([], "Missing argument 'RUN...'"),
    ],
)
def test_what_cannot_be_drawn_is_an_error_that_says_what_there_is(two_runs, make_run, arguments, error):
    make_run("empty")
    result = plot(*arguments)
    assert result.exit_code > 0
    assert error in result.stderr


@pytest.mark.slow
def test_without_matplotlib_the_error_names_the_extra_and_a_list_of_runs_needs_none(make_run):
    make_run(points={"worker-0": [point(1, 1, 0.5)]})
    program = "import sys; sys.modules['matplotlib'] = None\nfrom psworker.__main__ import main; main()"
    run = {"capture_output": True, "text": True, "timeout": 60}
    ended = subprocess.run([sys.executable, "-c", program, "plot", "a"], **run)
    assert ended.returncode == 1
    command = f"{sys.executable} -m pip install 'matplotlib>=3.9'"
    assert ended.stderr == f"Error: plots need a package that is not installed: {command}\n"
    ended = subprocess.run([sys.executable, "-c", program, "runs", "--json", "."], **run)
    assert (ended.returncode, '"path": "a"' in ended.stdout) == (0, True)
