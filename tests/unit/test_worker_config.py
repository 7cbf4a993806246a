"""What a worker is told, by arguments, the environment, or defaults."""

import pytest

from pswire.errors import ConfigurationError
from psworker import config
from psworker.config import DEFAULT_TIMEOUT, worker_config


@pytest.fixture(autouse=True)
def own_environment(monkeypatch):
    for name in (config.SERVERS, config.NAME, config.TIMEOUT, config.KEEP_MEMORY):
        monkeypatch.delenv(name, raising=False)


def test_an_argument_comes_before_the_environment_and_that_before_the_default(monkeypatch):
    assert worker_config().servers == ()
    assert worker_config().timeout == DEFAULT_TIMEOUT
    monkeypatch.setenv(config.SERVERS, "h:1, h:2")
    monkeypatch.setenv(config.NAME, "w7")
    monkeypatch.setenv(config.TIMEOUT, "7.5")
    told = worker_config()
    assert (told.servers, told.name, told.timeout) == (("h:1", "h:2"), "w7", 7.5)
    told = worker_config(["h:3"], "w8", 9)
    assert (told.servers, told.name, told.timeout) == (("h:3",), "w8", 9)


@pytest.mark.parametrize(
    ("text", "kept"), [(None, True), ("", True), ("1", True), ("Yes", True), ("0", False), ("false", False)]
)
def test_memory_is_kept_unless_the_environment_says_no(monkeypatch, text, kept):
    if text is not None:
        monkeypatch.setenv(config.KEEP_MEMORY, text)
    assert worker_config().keep_memory is kept


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        (config.SERVERS, " , ", "no server is named"),
        (config.SERVERS, "h:1,h:1", "a server is named twice"),
        (config.TIMEOUT, "soon", "PSWORKER_TIMEOUT must be a number of seconds, got 'soon'"),
        (config.TIMEOUT, "-1", "the timeout must be a positive number"),
        (config.KEEP_MEMORY, "maybe", "PSWORKER_KEEP_MEMORY must be 1 or 0, got 'maybe'"),
    ],
)
def test_what_cannot_be_is_refused_by_name(monkeypatch, name, text, complaint):
    monkeypatch.setenv(name, text)
    with pytest.raises(ConfigurationError, match=complaint):
        worker_config()
