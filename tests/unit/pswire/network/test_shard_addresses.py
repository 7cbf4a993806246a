"""The addresses of shards behind a name: found in time, looked up again, and kept where the new ones do not fit."""

import logging
import threading
import time

import pytest

from pswire import errors
from pswire.network import shard_addresses
from pswire.network.shard_addresses import ShardAddresses
from tests.support.commands import BOUND


@pytest.fixture
def file(tmp_path):
    return tmp_path / "servers"


@pytest.fixture
def often(monkeypatch):
    """Looks follow each other at once."""
    monkeypatch.setattr(shard_addresses, "LOOK_EVERY", 0.01)


def settled(addresses):
    """The addresses after one more look."""
    addresses._next_look = 0.0
    addresses.look_again()
    with addresses._state:
        assert addresses._state.wait_for(lambda: not addresses._looking, BOUND)
    return addresses.current


def test_addresses_stay_as_they_are_and_are_never_looked_up():
    changes = []
    addresses = ShardAddresses(["a:1", " b:2"], changed=lambda: changes.append(1))
    assert addresses.find(0.0) == addresses.current == ("a:1", "b:2")
    threads = threading.active_count()
    addresses.look_again()
    assert (threading.active_count(), addresses.name, changes) == (threads, "", [])


def test_a_file_that_comes_later_is_found(file, often):
    addresses = ShardAddresses([f"file:{file}"])
    assert addresses.current == ()
    timer = threading.Timer(0.1, file.write_text, ("a:1\nb:2\n",))
    timer.start()
    assert addresses.find(BOUND) == ("a:1", "b:2")
    timer.join()


def test_a_wait_says_for_what_and_ends_in_time(file, often, monkeypatch, caplog):
    monkeypatch.setattr(shard_addresses, "LOG_EVERY", 0.05)
    began = time.monotonic()
    with pytest.raises(errors.Unavailable, match=rf"gave up after 0\.\d s: {file}, the file of .* cannot be read"):
        ShardAddresses([f"file:{file}"]).find(0.2)
    assert time.monotonic() - began < BOUND
    assert f"waits for the servers, for 0 s: {file}, the file of the servers' addresses" in caplog.text


def test_what_waiting_does_not_mend_is_an_error_at_once(file):
    file.write_text("here\n")
    with pytest.raises(errors.ConfigurationError, match="line 1: 'here' is not an address"):
        ShardAddresses([f"file:{file}"]).find(3_600.0)


def test_a_change_is_found_by_the_next_look_and_is_announced(file):
    file.write_text("a:1\nb:2\n")
    changes = []
    addresses = ShardAddresses([f"file:{file}"], changed=lambda: changes.append(addresses.current))
    addresses.find(BOUND)
    assert settled(addresses) == ("a:1", "b:2")
    file.write_text("a:1\nc:3\n")
    assert settled(addresses) == ("a:1", "c:3")
    assert changes == [("a:1", "c:3")]


@pytest.mark.parametrize("content", ["a:1\n", "a:1\nb:2\nc:3\n", "", "here\nb:2\n"])
def test_addresses_that_do_not_fit_the_job_leave_those_of_before_and_are_logged_once(file, content, caplog):
    file.write_text("a:1\nb:2\n")
    addresses = ShardAddresses([f"file:{file}"])
    addresses.find(BOUND)
    file.write_text(content)
    for _ in range(2):
        assert settled(addresses) == ("a:1", "b:2")
    assert [one.levelno for one in caplog.records] == [logging.WARNING]
    assert "the servers' addresses stay as they are: " in caplog.text
    file.write_text("d:4\nb:2\n")
    assert settled(addresses) == ("d:4", "b:2")


def test_another_wording_of_a_reason_is_logged_once_a_minute_and_another_reason_at_once(file, caplog, monkeypatch):
    file.write_text("a:1\nb:2\n")
    addresses = ShardAddresses([f"file:{file}"])
    addresses.find(BOUND)

    def lines(content):
        """The number of lines that a look at the file with this content logs, or without it."""
        before = len(caplog.records)
        if content is None:
            file.unlink()
        else:
            file.write_text(content)
        settled(addresses)
        return len(caplog.records) - before

    assert [lines(""), lines(None), lines("")] == [1, 0, 0]  # not readable, for a reason or another
    assert [lines("a:1\n"), lines("a:1\nb:2\nc:3\n"), lines("")] == [1, 0, 1]  # another number of shards
    monkeypatch.setattr(shard_addresses, "REPEAT_EVERY", 0.0)
    assert lines(None) == 1
    monkeypatch.undo()
    assert [lines("a:1\nb:2\n"), lines("")] == [0, 1]  # readable meanwhile


def test_looks_are_made_about_once_a_second_at_most(file):
    file.write_text("a:1\n")
    addresses = ShardAddresses([f"file:{file}"])
    addresses.find(BOUND)
    file.write_text("b:2\n")
    addresses.look_again()  # less than a second after the first
    assert not addresses._looking
    assert addresses.current == ("a:1",)


def test_after_close_there_are_no_looks(file):
    addresses = ShardAddresses([f"file:{file}"])
    addresses.close()
    addresses.look_again()
    assert not addresses._looking
