"""`psserver token`: what it prints, where the token goes, and errors in one line."""

import pytest
from click.testing import CliRunner

from psserver.cli.main import main
from pswire.security.token_files import Role, read_tokens


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda line: CliRunner().invoke(main, line.split())


def test_a_token_is_printed_once_or_written_to_a_private_file(run, tmp_path):
    printed = run("token add tokens alice --role worker").output.strip()
    assert run("token add tokens bob --role observer --output bob.token").output == ""
    assert (tmp_path / "bob.token").stat().st_mode & 0o777 == 0o600
    tokens = read_tokens(tmp_path / "tokens")
    assert (tokens.find(printed).name, tokens.find(printed).role) == ("alice", Role.WORKER)
    assert tokens.find((tmp_path / "bob.token").read_text().strip()).role is Role.OBSERVER
    listed = run("token list tokens").output
    assert listed == "alice worker\nbob observer\n"
    assert run("token remove tokens alice").output == ""
    assert run("token list tokens").output == "bob observer\n"


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("token add tokens alice --role worker", "Error: tokens has a token 'alice' already: remove it first"),
        ("token add tokens bob --role worker --output tokens", "Error: tokens is there already: remove it"),
        ("token add tokens bob --role worker --output no/where", "Error: no/where cannot be written: No such file"),
        ("token add tokens bob", "Error: Missing option '--role'"),
        ("token add tokens bob --role root", "'root' is not one of 'observer', 'worker', 'admin'"),
        ("token remove tokens bob", "Error: tokens has no token 'bob'; it has alice"),
        ("token list nowhere", "Error: the token file nowhere cannot be read: No such file or directory"),
    ],
)
def test_an_error_leaves_the_file_as_it_was(run, tmp_path, line, error):
    run("token add tokens alice --role worker")
    before = read_tokens(tmp_path / "tokens")
    ended = run(line)
    assert ended.exit_code != 0
    assert error in ended.output
    assert read_tokens(tmp_path / "tokens") == before


def test_a_server_s_token_file_is_not_taken_for_a_token(run):
    run("token add tokens alice --role worker")
    ended = run("status 127.0.0.1:1 --token-file tokens")
    assert ended.exit_code == 1
    assert "tokens is the token file of a server, with hashes: use a file that has one token alone" in ended.output


def test_renewing_and_replacing_certificates_exclude_each_other(run):
    assert "--renew keeps the CA, and --force replaces it" in run("certs c --renew --force").output
