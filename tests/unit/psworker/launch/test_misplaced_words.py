"""Words of a `psworker` command in the wrong place: options after the script, and a script without a command."""

import pytest
from click.testing import CliRunner

from psworker.launch.cli import main
from psworker.launch.options import note_misplaced


@pytest.mark.parametrize(
    ("source", "after", "noted"),
    [
        (
            "print(1)",
            ["--workers", "2", "--shards=3", "--epochs", "1"],
            "--workers and --shards after S are arguments of",
        ),
        ("add_argument('--workers')", ["--workers", "2", "--epochs", "1"], ""),
        ("Options(push_every=3)", ["--push-every", "2"], ""),
        (
            "print(1)",
            ["--push-every", "2"],
            "--push-every after S is an argument of the script: options of psworker local ",
        ),
        ("print(1)", ["2", "workers"], ""),
    ],
)
def test_an_option_after_the_script_that_it_does_not_have_is_noted(tmp_path, capsys, source, after, noted):
    script = tmp_path / "train.py"
    script.write_text(source)
    with main.commands["local"].make_context("psworker local", [str(script), *after]) as context:
        note_misplaced(str(script), context.params["arguments"])
    err = capsys.readouterr().err
    assert err.startswith(f"psworker: {noted.replace(' S ', f' {script} ')}") if noted else not err


def test_a_script_without_a_command_is_answered_with_the_command():
    result = CliRunner().invoke(main, ["train.py", "--rate", "a b"], prog_name="psworker")
    assert (
        "train.py is a program, and no command: did you mean `psworker local train.py --rate 'a b'`?" in result.output
    )
    assert result.exit_code == 2
