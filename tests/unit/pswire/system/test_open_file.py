"""Pipes, devices and folders in place of files of secrets, settings and results: refused at once with their name."""

import os
import sys
from pathlib import Path

import pytest

from psserver.key_file import user_key
from psserver.tls_files import TlsFiles
from pswire.errors import ConfigurationError, DamagedFile, ParamServerError
from pswire.network.discovery import look_up
from pswire.security.credentials import Credentials
from pswire.security.token_files import add_token, read_tokens, remove_token
from pswire.system.files import open_file
from psworker.runs.json_lines import JsonLines
from psworker.runs.run_file import read_run

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no named pipes")


def json_lines(path):
    lines = JsonLines(path)
    assert list(lines) == []
    raise DamagedFile(lines.problem)


#: What reads a file of this name in a folder.
READERS = {
    "tokens": lambda path: read_tokens(path),
    "tokens to add one": lambda path: add_token(path, "a", "worker"),
    "tokens to remove one": lambda path: remove_token(path, "a"),
    "token": lambda path: Credentials(token_file=str(path)).token("127.0.0.1:7070"),
    "CA": lambda path: Credentials(tls_ca=str(path)).certificates(),
    "certificate": lambda path: TlsFiles(path, path),
    "servers": lambda path: look_up(f"file:{path}", 1.0),
    "run.json": lambda path: read_run(path.parent),
    "events.jsonl": json_lines,
}


@pytest.mark.parametrize("name", READERS)
def test_a_pipe_without_a_writer_is_not_waited_for(tmp_path, name):
    os.mkfifo(tmp_path / name, 0o600)
    with pytest.raises(ParamServerError, match=f"{name}.*it is a pipe or a device, and no file"):
        READERS[name](tmp_path / name)


def test_a_pipe_as_the_key_of_a_user_s_servers_is_no_key(tmp_path, caplog):
    os.mkfifo(tmp_path / "job.key", 0o600)
    assert user_key(tmp_path) != user_key(tmp_path), "random ones"
    assert "it is a pipe or a device, and no file" in caplog.text


def test_a_device_and_a_folder_are_no_files_and_a_link_to_a_file_is_one(tmp_path):
    with pytest.raises(OSError, match="it is a pipe or a device, and no file"):
        open_file("/dev/zero")
    with pytest.raises(IsADirectoryError):
        open_file(tmp_path)
    with pytest.raises(ConfigurationError, match="Is a directory"):
        look_up(f"file:{tmp_path}", 1.0)
    (tmp_path / "a").write_bytes(b"content")
    Path(tmp_path / "link").symlink_to("a")
    with open_file(tmp_path / "link") as file:
        assert file.read() == b"content"
