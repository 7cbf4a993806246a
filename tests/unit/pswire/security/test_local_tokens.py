"""Tokens of local clusters: who finds them, and what is left of them."""

import os
import tempfile

import pytest

from pswire.errors import ConfigurationError
from pswire.security.credentials import NO_CREDENTIALS, Credentials
from pswire.security.local_tokens import local_tokens
from pswire.security.private_files import write_private_file
from pswire.security.token_files import Role, add_token, read_tokens


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"paramserver-{os.getuid()}"


def test_a_command_of_this_user_finds_the_admin_s_token_by_the_address_while_the_cluster_runs(home):
    with local_tokens() as first, local_tokens() as second:
        assert NO_CREDENTIALS.token("127.0.0.1:7070") == "", "not published yet"
        first.publish(["127.0.0.1:7070", "unix:/run/ps"])
        second.publish(["127.0.0.1:7071"])
        token = NO_CREDENTIALS.token("127.0.0.1:7070")
        assert read_tokens(first.servers).find(token).role is Role.ADMIN
        assert read_tokens(second.servers).find(token) is None
        for address in ("localhost:7070", "unix:/run/ps"):
            assert NO_CREDENTIALS.token(address) == token
        assert NO_CREDENTIALS.token("127.0.0.1:707") == ""
        assert NO_CREDENTIALS.token("ps-0:7070") == "", "it goes to the servers of the cluster only"
        worker = Credentials(token_file=str(first.token(Role.WORKER))).token("127.0.0.1:7070")
        assert read_tokens(first.servers).find(worker).role is Role.WORKER
    assert NO_CREDENTIALS.token("127.0.0.1:7070") == ""
    assert not home.exists()


def test_the_token_of_a_cluster_on_other_machines_goes_there_by_tls_only(home):
    with local_tokens() as tokens:
        tokens.publish(["10.1.2.3:7070"])
        token = Credentials(tls_ca="ca.crt").token("10.1.2.3:7070")
        assert read_tokens(tokens.servers).find(token).role is Role.ADMIN
        with pytest.raises(ConfigurationError, match=r"the token of this user's cluster would be sent .* without encr"):
            NO_CREDENTIALS.token("10.1.2.3:7070")


def test_the_tokens_and_the_key_of_a_file_are_valid_too(home, tmp_path):
    token = add_token(tmp_path / "tokens", "guest", Role.WORKER)
    with local_tokens((tmp_path / "tokens").read_bytes()) as tokens:
        content = read_tokens(tokens.servers)
        assert content.find(token).name == "guest"
        assert len(content.tokens) == 4
        assert content.key == read_tokens(tmp_path / "tokens").key
    assert len(read_tokens(tmp_path / "tokens").tokens) == 1


def test_what_a_killed_cluster_has_left_is_removed_and_what_runs_is_not(home):
    with local_tokens() as running:
        left = home / "cluster-left"
        left.mkdir()
        write_private_file(left / "admin", b"a token")
        with local_tokens():
            assert not left.exists()
            assert running.servers.exists()


def open_folder(path):
    path.mkdir(mode=0o755)
    path.chmod(0o777)


#: What another user may have put where the folder would be.
SQUATTERS = {
    "folder": open_folder,
    "file": lambda path: path.touch(),
    "link": lambda path: path.symlink_to("/"),
    "link to nothing": lambda path: path.symlink_to("nowhere"),
}


@pytest.mark.parametrize("squat", SQUATTERS.values(), ids=SQUATTERS)
def test_where_another_user_has_made_the_folder_a_new_one_is_used_and_found(home, squat, caplog):
    squat(home)
    open_folder(home.with_name(f"{home.name}-open"))
    with local_tokens() as first, local_tokens() as second:
        first.publish(["127.0.0.1:7070"])
        second.publish(["127.0.0.1:7071"])
        fresh = first.folder.parent
        assert fresh == second.folder.parent != home
        assert fresh.stat().st_mode & 0o777 == 0o700
        for address, tokens in (("127.0.0.1:7070", first), ("127.0.0.1:7071", second)):
            assert read_tokens(tokens.servers).find(NO_CREDENTIALS.token(address)).role is Role.ADMIN
    assert len([text for text in caplog.messages if "is not a folder of this user alone" in text]) == 1
    assert NO_CREDENTIALS.token("127.0.0.1:7070") == ""
    assert not fresh.exists()


def test_a_folder_for_temporary_files_that_cannot_be_used_is_named(home, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(home / "nowhere"))
    with pytest.raises(ConfigurationError, match=r"nowhere/paramserver-.* cannot be made: No such"), local_tokens():
        pass
