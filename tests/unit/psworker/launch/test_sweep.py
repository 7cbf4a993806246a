"""The combinations of a sweep, the folders of their runs, and the options that each `psworker local` gets."""

import itertools

import pytest
from click.testing import CliRunner

from pswire.errors import ConfigurationError
from psworker.launch.cli import main
from psworker.launch.sweep import sweep
from psworker.launch.sweep.grid import LONGEST_NAME, Combination, Setting, combinations, parse_setting


def test_each_combination_has_a_value_of_each_option_and_the_last_one_varies_first():
    grid = combinations([parse_setting("rate=0.1,0.01"), parse_setting("--layers=2,3,2")])
    assert [one.arguments for one in grid] == [
        ["--rate=0.1", "--layers=2"],
        ["--rate=0.1", "--layers=3"],
        ["--rate=0.01", "--layers=2"],
        ["--rate=0.01", "--layers=3"],
    ]
    assert grid[1].folder == "rate=0.1,layers=3"


def test_a_value_with_a_comma_is_quoted():
    assert parse_setting('sizes="64,32",128') == Setting("sizes", ("64,32", "128"))


@pytest.mark.parametrize("text", ["rate", "=1", "rate=", "a b=1", "rate=1\n2", "-=1"])
def test_a_setting_without_a_name_or_values_is_refused(text):
    with pytest.raises(ConfigurationError, match=r"such as rate=0\.1,0\.01, got"):
        parse_setting(text)


def test_each_combination_has_a_folder_of_its_own_within_the_sweeps():
    values = ["a/b", "..", "a%2Fb", "a b", "ä", "x" * 300, "x" * 301]
    folders = [Combination({"v": one, "w": other}).folder for one, other in itertools.product(values, values)]
    assert len(set(folders)) == len(folders)
    assert all(len(name) <= LONGEST_NAME and "/" not in name for name in folders)


class Recorded:
    """In place of `Sweep`: what it is made of."""

    def __init__(self, *given, **options):
        Recorded.made = given, options

    def run(self):
        return 0


def swept(monkeypatch, tmp_path, *arguments):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    monkeypatch.setattr(sweep, "Sweep", Recorded)
    return CliRunner().invoke(main, ["sweep", *arguments])


def test_options_of_psworker_local_go_to_each_run_and_others_to_the_program_wherever_they_stand(monkeypatch, tmp_path):
    typed = "--shards 2 train.py data.csv --set rate=1,2 --epochs 3 --jobs 2 --overlap --consistency bounded:2 --deep"
    result = swept(monkeypatch, tmp_path, *typed.split(), "--compress", "topk:0.5", "--", "--shards", "9")
    assert result.exit_code == 0, result.output
    (job, grid, folder, options), settings = Recorded.made
    assert job.arguments == ("data.csv", "--epochs", "3", "--deep", "--shards", "9")
    assert [one.label for one in grid] == ["rate=1", "rate=2"]
    assert (str(folder), settings["jobs"], settings["resume"]) == ("runs/train", 2, False)
    pairs = {"--shards": "2", "--consistency": "bounded:2", "--compress": "topk:0.5", "--bind": "127.0.0.1"}
    assert {name: options[options.index(name) + 1] for name in pairs} == pairs
    assert "--overlap" in options


@pytest.mark.parametrize(("given", "each"), [("7170", "0"), ("off", "off")])
def test_runs_of_a_sweep_have_free_direct_ports_or_none(monkeypatch, tmp_path, given, each):
    result = swept(monkeypatch, tmp_path, "train.py", "--set", "rate=1", "--direct-port", given)
    assert result.exit_code == 0, result.output
    options = Recorded.made[0][3]
    assert [options[place + 1] for place, one in enumerate(options) if one == "--direct-port"] == [each]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["train.py"], "Missing option '--set'"),
        (["train.py", "--set", "rate=1", "--set", "rate=2"], "rate is set twice"),
        (["train.py", "--set", "rate=1", "--consistency", "sync:4"], "each update waits for 4 workers"),
    ],
)
def test_what_no_run_could_be_started_with_is_refused_at_once(monkeypatch, tmp_path, arguments, error):
    result = swept(monkeypatch, tmp_path, *arguments)
    assert result.exit_code == 2
    assert error in result.stderr
