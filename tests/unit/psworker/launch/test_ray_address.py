"""The Ray cluster that a job means, by what the user has named and started; Ray itself is not needed."""

import os
import socket

import pytest

from pswire.errors import ConfigurationError
from psworker.launch.on_ray.address import LOCAL, find_ray


def server():
    """A listening socket, and its address."""
    one = socket.create_server(("127.0.0.1", 0))
    return one, f"127.0.0.1:{one.getsockname()[1]}"


@pytest.fixture
def listening():
    """An address at which somebody listens."""
    one, address = server()
    with one:
        yield address


@pytest.fixture
def started(tmp_path, monkeypatch):
    """A function that writes what `ray start` writes for this address."""
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)

    def start(address):
        file = tmp_path / "ray" / "ray_current_cluster"
        file.parent.mkdir(exist_ok=True)
        file.write_text(address)

    return start


def test_without_a_name_it_is_the_cluster_that_this_user_has_started_here(started, listening):
    started(listening)
    assert find_ray("auto").address == listening


def test_it_is_a_new_one_without_any_and_if_that_of_before_has_ended_or_another_user_has_started_it(
    started, listening, monkeypatch
):
    assert find_ray("auto").address == LOCAL
    one, ended = server()
    one.close()
    started(ended)
    assert find_ray("auto").address == LOCAL
    started(listening)
    other = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: other)
    assert find_ray("auto").address == LOCAL


def test_an_address_that_is_named_has_precedence_and_the_url_of_a_job_server_names_no_cluster(
    started, listening, monkeypatch
):
    one, here = server()
    with one:
        started(here)
        monkeypatch.setenv("RAY_ADDRESS", listening)
        assert [find_ray(given).address for given in ("auto", LOCAL, here)] == [listening, LOCAL, here]
        monkeypatch.setenv("RAY_ADDRESS", LOCAL)
        assert find_ray("auto").address == LOCAL
        monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:8265")
        assert find_ray("auto").address == here


@pytest.mark.parametrize(("given", "variable"), [("127.0.0.1:1", ""), ("auto", "127.0.0.1:1")])
def test_an_error_says_who_has_named_a_cluster_that_does_not_answer(started, monkeypatch, given, variable):
    monkeypatch.setenv("RAY_ADDRESS", variable)
    source = "RAY_ADDRESS" if variable else "--address"
    with pytest.raises(ConfigurationError, match=rf"at 127\.0\.0\.1:1 \({source}\): .*--address local"):
        find_ray(given)
