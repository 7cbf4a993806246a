"""Configuration of a server, and the options of `psserver serve`."""

import dataclasses
import logging
import math
import signal

import pytest
from click.testing import CliRunner

from psjob.terminal.log_options import LogOptions
from psserver.cli import main, serve
from psserver.config import ServerConfig, StorageConfig, parse_shard, parse_size, parse_timeout
from psserver.rpc import server
from psserver.rpc.server import ServerThread
from pswire.errors import ConfigurationError
from pswire.security.token_files import Role, add_token, read_tokens
from pswire.specs.checkpoints import EverySteps, JournalSync
from pswire.specs.consistency import Asynchronous, DropStalePushes, IgnoreStaleness, Synchronous
from pswire.specs.gradient_norm import GradientNormLimit
from pswire.system import host
from tests.support.combinations import together

SIZES = {"0": 0, "512": 512, "1K": 1024, "8G": 8 * 1024**3, "1.5m": 1536 * 1024, " 2T ": 2 * 1024**4}
TIMEOUTS = {"45": 45.0, " 0.5": 0.5, "off": None, "off ": None, "1e9": 1e9}
SHARDS = {"0/1": (0, 1), "1/2": (1, 2), " 09/10 ": (9, 10)}
NONE = ["a:1,", "a:1 b:2", "", "G", "-1G", "8 GB", "1e9", "0x10", "٣", "1/1", "2/1", "-1/2", "0/0", "0/1/2", "٠/١"]


def test_a_timeout_is_a_number_of_seconds_or_off():
    assert {text: parse_timeout(text) for text in TIMEOUTS} == TIMEOUTS
    for text in ("", "0", "-1", "nan", "inf", "1 s", "on"):
        with pytest.raises(ConfigurationError, match="write a number of seconds above 0, or off"):
            parse_timeout(text)


@pytest.mark.parametrize(
    ("parse", "texts", "advice"),
    [(parse_size, SIZES, "8G"), (parse_shard, SHARDS, "or 1/2")],
)
def test_sizes_and_shards_are_parsed_and_other_text_is_refused_with_an_example(parse, texts, advice):
    assert {text: parse(text) for text in texts} == texts
    for text in NONE:
        with pytest.raises(ConfigurationError, match=advice):
            parse(text)


@together(
    ("fields", "complaint"),
    [
        ({"bind": "nonsense"}, "nonsense"),
        ({"bind": "127.0.0.1:65536"}, "65536"),
        ({"shard": 1}, "shard 1 of 1"),
        ({"shard": -1}, "shard -1 of 1"),
        *[({"lease": seconds}, "lease, in seconds, must be more than 0") for seconds in (0.0, math.inf, math.nan)],
        *[({"grace": seconds}, "grace period, in seconds, must be at least 0") for seconds in (-1.0, math.nan)],
        *[({"linger": seconds}, "linger, in seconds, must be at least 0") for seconds in (-1.0, math.inf, math.nan)],
        *[({"progress_timeout": seconds}, "progress timeout, in seconds, must be") for seconds in (0.0, math.inf)],
        ({"memory_limit": 0}, "memory limit, in bytes, must be at least 1"),
        ({"shared_memory_limit": 0}, "limit of shared memory, in bytes, must be at least 1"),
        ({"max_calls": 0}, "max_calls must be at least 1"),
        ({"max_workers": 0}, "max_workers must be at least 1"),
    ],
)
def test_an_invalid_field_is_refused_by_name(fields, complaint):
    with pytest.raises(ConfigurationError, match=complaint):
        ServerConfig(**fields)


def test_a_folder_gets_every_option_of_storage_and_without_one_there_is_none(tmp_path):
    options = {
        "checkpoint_every": EverySteps(7),
        "keep": 3,
        "journal": True,
        "journal_sync": JournalSync.OFF,
        "journal_limit": 1000,
        "keep_journal": True,
        "on_lost_state": "fail",
    }
    storage = ServerConfig(checkpoint_dir=tmp_path, **options).storage
    assert {field.name: getattr(storage, field.name) for field in dataclasses.fields(storage)} == {
        "folder": tmp_path,
        **options,
    }
    assert ServerConfig(checkpoint_dir=tmp_path).storage == StorageConfig(tmp_path)
    assert ServerConfig(keep=3).storage is None


def test_defaults_and_limits(monkeypatch):
    monkeypatch.setattr(host, "memory", lambda: 1001)
    config = ServerConfig()
    assert config.memory_limit == 800, "a fifth of the memory is for others"
    assert (config.consistency, config.staleness, config.shared_memory) == (Asynchronous(), IgnoreStaleness(), True)
    limited = ServerConfig(memory_limit=1001)
    assert limited.variables_limit + limited.traffic_limit == 1001
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.lease = 1.0


def test_options_become_the_fields_of_their_names_before_the_environment_and_others_are_the_defaults(
    monkeypatch, tmp_path
):
    configs = []
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    monkeypatch.setattr(serve, "serve_until_signal", configs.append)
    monkeypatch.setattr(LogOptions, "set_up", lambda self: None)  # it is for a process of its own
    text = "--no-keep-memory --bind 127.0.0.1:5000 --shard 1/3 --lease 7 --memory-limit 2K --grace 1.5 --max-calls 9 "
    text += "--consistency sync:3,backup=1 --staleness drop:4 --shared-memory --linger 0 --progress-timeout off "
    text += "--max-gradient-norm 10:clip"
    text += " --no-insecure --max-workers 8"
    environment = {
        "PSSERVER_LINGER": "2.5",
        "PSSERVER_SHARED_MEMORY": "0",
        "PSSERVER_BIND": "0.0.0.0:0",
        "PSSERVER_INSECURE": "1",
    }
    for options, given in ((text, {}), (text, environment), ("", environment), ("", {})):
        done = CliRunner().invoke(main.main, ["serve", *options.split()], env=given)
        assert done.exit_code == 0, done.output
    policies = {"consistency": Synchronous(3, backup=1), "staleness": DropStalePushes(4)}
    sizes = {"lease": 7.0, "memory_limit": 2048, "grace": 1.5, "max_calls": 9, "keep_memory": False, "linger": 0.0}
    sizes |= {"progress_timeout": None, "max_workers": 8, "max_gradient_norm": GradientNormLimit(10, "clip")}
    key = {"default_key": None}
    by_options = ServerConfig(bind="127.0.0.1:5000", shard=1, shards=3, **policies, **sizes, **key)
    assert configs == [by_options] * 2 + [
        ServerConfig("0.0.0.0:0", linger=2.5, shared_memory=False, insecure=True, **key),
        ServerConfig("127.0.0.1:7070", **key),
    ]
    of_job, of_user = [config.job_key() for config in configs], (tmp_path / "paramserver" / "job.key").read_bytes()
    assert of_job == [of_user, of_user, b"insecure", of_user]


def test_the_key_of_the_user_is_made_only_for_servers_that_have_no_other(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    add_token(tmp_path / "tokens", "w", Role.WORKER)
    key = read_tokens(tmp_path / "tokens").key
    assert ServerConfig(token_file=tmp_path / "tokens", default_key=None).job_key() == key
    assert not (tmp_path / "state").exists()


def test_a_server_that_shares_memory_first_removes_the_sockets_of_killed_servers(monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(server, "sweep", lambda: 2)
    with ServerThread(ServerConfig(shared_memory=False)):
        assert not [text for text in caplog.messages if "sockets" in text]
    with ServerThread(ServerConfig()):
        assert "removed 2 sockets for shared memory of killed servers" in caplog.messages
