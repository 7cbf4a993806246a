"""Token files: what is in them, what is refused, and changes that are whole."""

import hashlib
import stat
import threading

import pytest

from pswire.errors import ConfigurationError
from pswire.security.token_files import (
    MAX_TOKENS,
    Role,
    TokenFile,
    add_token,
    check_token,
    parse_tokens,
    read_tokens,
    remove_token,
)

HASH = "a" * 64


def test_a_new_file_is_private_and_has_a_job_key_and_the_hash_of_the_token_and_not_the_token(tmp_path):
    path = tmp_path / "tokens"
    token = add_token(path, "alice", Role.WORKER)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    text = path.read_text()
    assert token not in text
    assert f"token alice worker {hashlib.sha256(token.encode()).hexdigest()}\n" in text
    assert len(read_tokens(path).key) == 32
    assert [one.name for one in tmp_path.iterdir()] == ["tokens"], "nothing temporary is left"


def test_the_key_stays_when_tokens_are_added_and_removed_and_each_token_is_found_by_itself_alone(tmp_path):
    path = tmp_path / "tokens"
    tokens = {role: add_token(path, role, role) for role in Role}
    key = read_tokens(path).key
    assert len(set(tokens.values())) == 3
    remove_token(path, Role.WORKER)
    content = read_tokens(path)
    assert content.key == key
    assert content.find(tokens[Role.ADMIN]).role is Role.ADMIN
    assert content.find(tokens[Role.OBSERVER]).role is Role.OBSERVER
    assert content.find(tokens[Role.WORKER]) is None
    assert content.find("") is None
    assert content.find(tokens[Role.ADMIN] + " ") is None
    assert content.find("\udcff") is None, "no text that UTF-8 has"


def test_a_file_is_the_same_after_a_round_trip():
    content = parse_tokens(
        f"key {HASH}\n# people\ntoken a worker {HASH}  # Alice\n\ntoken b admin {HASH}\n".encode(), "t"
    )
    assert content.key == bytes.fromhex(HASH)
    assert [(one.name, one.role) for one in content.tokens] == [("a", Role.WORKER), ("b", Role.ADMIN)]
    assert parse_tokens(content.text().encode(), "t") == content
    assert parse_tokens(b"", "t") == TokenFile()


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        "key",
        f"key {HASH[1:]}",
        f"key {HASH.upper()}",
        f"token a worker {HASH}0",
        f"token a root {HASH}",
        f"token a/b worker {HASH}",
        f"token {'a' * 65} worker {HASH}",
        f"token b worker {HASH}\ntoken b worker {HASH}",
        f"key {HASH}\nkey {HASH}",
        "\udcff".encode("utf-8", "surrogateescape"),
        b"\0",
    ],
)
def test_a_line_that_is_none_is_an_error_with_its_number_and_not_its_content(line):
    data = line.encode() if isinstance(line, str) else line
    with pytest.raises(ConfigurationError, match=r"line [23] of /a/tokens: it must be") as caught:
        parse_tokens(b"# comment\n" + data, "/a/tokens")
    assert HASH[:20] not in str(caught.value)


def test_more_tokens_than_the_limit_are_refused(tmp_path):
    lines = "".join([f"token t{number} worker {HASH}\n" for number in range(MAX_TOKENS + 1)])
    with pytest.raises(ConfigurationError, match=r"tokens has 1,001 tokens, and may have 1,000"):
        parse_tokens(lines.encode(), "tokens")
    path = tmp_path / "tokens"
    path.touch(0o600)
    path.write_text(lines.replace(f"token t0 worker {HASH}\n", ""))
    with pytest.raises(ConfigurationError, match="which is the limit"):
        add_token(path, "more", Role.WORKER)


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o620, 0o644, 0o666])
def test_a_file_that_others_can_read_or_change_is_refused_with_what_to_do(tmp_path, mode):
    path = tmp_path / "tokens"
    add_token(path, "a", Role.WORKER)
    path.chmod(mode)
    with pytest.raises(ConfigurationError, match=rf"can be read or changed by others \(mode {mode:04o}\): chmod 600 "):
        read_tokens(path)
    path.chmod(0o640)  # as secrets that an orchestrator mounts for a group
    assert len(read_tokens(path).tokens) == 1


def test_names_are_there_once_and_errors_say_what_there_is(tmp_path):
    path = tmp_path / "tokens"
    add_token(path, "a", Role.WORKER)
    with pytest.raises(ConfigurationError, match="has a token 'a' already"):
        add_token(path, "a", Role.ADMIN)
    with pytest.raises(ConfigurationError, match="'b c' is no name of a token"):
        add_token(path, "b c", Role.ADMIN)
    with pytest.raises(ConfigurationError, match="has no token 'b'; it has a"):
        remove_token(path, "b")
    with pytest.raises(ConfigurationError, match=r"cannot be read: No such file"):
        remove_token(tmp_path / "nowhere", "b")
    with pytest.raises(ConfigurationError, match=r"the folder of .* cannot be used: No such file"):
        add_token(tmp_path / "nowhere" / "tokens", "b", Role.WORKER)


def test_tokens_that_several_add_at_once_are_all_there(tmp_path):
    path = tmp_path / "tokens"
    threads = [threading.Thread(target=add_token, args=(path, f"t{one}", Role.WORKER)) for one in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {one.name for one in read_tokens(path).tokens} == {f"t{one}" for one in range(8)}


def test_a_file_with_a_token_has_one_alone_and_a_mistaken_one_is_explained_without_its_content(tmp_path):
    token = add_token(tmp_path / "tokens", "a", Role.WORKER)
    assert check_token(f" {token}\n", "f") == token
    with pytest.raises(ConfigurationError, match="is the token file of a server, with hashes") as caught:
        check_token((tmp_path / "tokens").read_text(), "f")
    assert "key " not in str(caught.value)
    for text in ("", "short", "two tokens-of-enough-characters", "x" * 201, "ä" * 30):
        with pytest.raises(ConfigurationError, match="f has no token: it needs one line"):
            check_token(text, "f")
