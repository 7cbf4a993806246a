"""`psworker local --http [ADDRESS] train.py`: the script is not taken for the address."""

import pytest

from psworker.launch.cli import main

FREE = "127.0.0.1:0"


@pytest.mark.parametrize(
    ("words", "address", "arguments"),
    [
        (["SCRIPT"], None, ()),
        (["--http", "SCRIPT"], FREE, ()),
        (["--http", "SCRIPT", "--http", "x"], FREE, ("--http", "x")),
        (["--http", "127.0.0.1:8080", "SCRIPT"], "127.0.0.1:8080", ()),
        (["--http=[::1]:80", "SCRIPT", "1"], "[::1]:80", ("1",)),
        (["--workers", "2", "--http", "--shards", "1", "SCRIPT"], FREE, ()),
        (["--journal", "--http", "--", "SCRIPT"], FREE, ()),
        (["--progress", "off", "SCRIPT", "--http"], None, ("--http",)),
    ],
)
def test_the_address_may_be_left_out(tmp_path, words, address, arguments):
    script = tmp_path / "train.py"
    script.touch()
    command = main.commands["local"]
    context = command.make_context("local", [str(script) if word == "SCRIPT" else word for word in words])
    assert (context.params["http"], context.params["arguments"]) == (address, arguments)
    assert context.params["script"] == str(script)
