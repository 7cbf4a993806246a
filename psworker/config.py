"""Configuration of a worker: argument, else environment variable, else default.

Each option is declared once, as a field of `WorkerConfig`: its environment variable, and its flag of the commands
(`psworker.launch.options`), follow from it.
"""

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from operator import index
from pathlib import Path
from typing import Annotated, Any, get_args

from pswire.addresses import DEFAULT_ADDRESS
from pswire.errors import ConfigurationError
from pswire.network.discovery import check_servers, parse_servers
from pswire.security.credentials import Credentials
from pswire.specs.checkpoints import CheckpointEvery, EverySeconds, parse_checkpoint_every
from pswire.specs.encodings import ENCODINGS, NONE, Compression, parse_compression, parse_encoding
from pswire.system.host import process_name
from psworker.environment import of_option, variable

#: Characters of a job's name, at most.
MAX_JOB_NAME = 100

#: How progress is shown on stderr (`psworker.progress.terminal`).
PROGRESS = ("auto", "live", "plain", "off")

#: What may carry tensors to servers.
TRANSPORTS = ("auto", "grpc", "direct")

#: The interval between checkpoints of an embedded job.
DEFAULT_CHECKPOINT_EVERY = EverySeconds(60.0)

#: The name of the worker of an embedded job with checkpoints or summaries: the same after each restart.
EMBEDDED_WORKER = "worker-0"


@dataclass(frozen=True, slots=True)
class Option:
    """The description of an option, besides its name, type and default.

    Attributes:
        help: the text of its flag; "": it has none.
        section: the section of the help, one of `psjob.terminal.options.SECTIONS`.
        metavar: the name of its value in the help.
        default: what is used without it, in words.
        flag_default: the default of the flag, if that is another one.
        least: the smallest integer.
        choices: the texts that it can have.
        parse: reads its text, and the text of any other value.
        path: "file" or "folder" if it is the path of one.
        cluster: whether commands that run a whole cluster have the flag, too.
        argument: whether `psworker.session` has an argument of this name.
    """

    help: str = ""
    section: str = ""
    metavar: str | None = None
    default: str | None = None
    flag_default: str | None = None
    least: int | None = None
    choices: tuple[str, ...] = ()
    parse: Callable[[str], Any] | None = None
    path: str = ""
    cluster: bool = False
    argument: bool = True


@dataclass(frozen=True)
class WorkerConfig:
    """The options of a worker, checked. Those that are arguments of `psworker.session` are described there.

    Attributes:
        keep_memory: whether the process keeps the memory of freed arrays (`pswire.system.host.keep_memory`).
        name_key: a process with the same key takes the place of a live worker of this name at once; one without it
            waits until its lease has ended.
        workers: the number of workers that the launcher has started; 0: unknown.

    Raises `ConfigurationError` for an invalid field, and for local steps together with another strategy.
    """

    servers: Annotated[
        tuple[str, ...],
        Option(
            "Addresses of all shards, in the order of the shards; unix:/path for a server on this machine. Or a name "
            "for all of them: file:/path, dns:///name:port or dns+srv://name.",
            "Worker",
            "HOST:PORT,...",
            flag_default=DEFAULT_ADDRESS,
        ),
    ] = ()
    name: Annotated[
        str,
        Option(
            "This worker's name, unique in the job; a restarted worker with the same name replaces the old one.",
            "Worker",
            "NAME",
            "host name and process id",
        ),
    ] = ""
    timeout: Annotated[
        float, Option("How long to keep trying to reach a server before giving up.", "Worker", "SECONDS")
    ] = 60.0
    job: Annotated[
        str,
        Option(
            "The job to take part in: the one that the servers have if that is its name, or else a new one.",
            "Worker",
            "NAME",
            "the one that is running or was interrupted, or else a new one",
        ),
    ] = ""
    resume: Annotated[bool, Option("Continue the job that the servers have, also if it is over.", "Worker")] = False
    push_every: Annotated[
        int, Option("Steps whose gradients are summed and pushed together.", "Strategy", "N", least=1, cluster=True)
    ] = 1
    pull_every: Annotated[
        int, Option("Steps after which fresh weights are pulled.", "Strategy", "M", least=1, cluster=True)
    ] = 1
    local_steps: Annotated[
        int,
        Option(
            "Steps of the program's optimizer in the worker, whose sum is pushed as one gradient; 0: none.",
            "Strategy",
            "H",
            least=0,
            cluster=True,
        ),
    ] = 0
    overlap: Annotated[
        bool,
        Option(
            "Continue computing with the previous weights while a push or pull is in progress.",
            "Strategy",
            cluster=True,
        ),
    ] = False
    encoding: Annotated[
        str,
        Option(
            "The encoding of gradients and weights for transfer; servers keep float32.",
            "Transfer",
            choices=("float32", *ENCODINGS),
            parse=parse_encoding,
            cluster=True,
        ),
    ] = "float32"
    compress: Annotated[
        Compression,
        Option(
            "The compression of gradients: none, int8 or topk:FRACTION. The residual is added to the next gradient.",
            "Transfer",
            "COMPRESSION",
            parse=parse_compression,
            cluster=True,
        ),
    ] = NONE
    transport: Annotated[
        str,
        Option(
            "What carries tensors: direct connections to the second port of a server where it is reached, otherwise "
            "gRPC (auto); or one of both.",
            "Transfer",
            choices=TRANSPORTS,
            cluster=True,
        ),
    ] = "auto"
    shared_memory: Annotated[
        bool, Option("Share memory with servers on this host, and use their Unix sockets.", "Advanced", cluster=True)
    ] = True
    checkpoint_dir: Annotated[str, Option(path="folder")] = ""
    checkpoint_every: Annotated[CheckpointEvery, Option(parse=parse_checkpoint_every)] = DEFAULT_CHECKPOINT_EVERY
    keep: Annotated[int, Option(least=1)] = 5
    progress: Annotated[
        str,
        Option(
            "How to show progress on stderr: a line on a terminal (auto), plain lines or off.",
            "Output",
            choices=PROGRESS,
        ),
    ] = "auto"
    summary_dir: Annotated[
        str,
        Option("Folder for scalars of this worker, and event files of TensorBoard.", "Output", "DIR", path="folder"),
    ] = ""
    tls_ca: Annotated[
        str,
        Option(
            "A file with the CA to check servers by; with it connections use TLS.",
            "Security",
            default="no TLS",
            path="file",
        ),
    ] = ""
    tls_cert: Annotated[
        str,
        Option("A file with this worker's certificate, for servers that ask for one.", "Security", path="file"),
    ] = ""
    tls_key: Annotated[str, Option("A file with its private key.", "Security", path="file")] = ""
    tls_name: Annotated[
        str,
        Option(
            "The host name that the certificates of all servers must have.", "Security", "HOST", "that in the address"
        ),
    ] = ""
    token_file: Annotated[
        str,
        Option(
            "A file with a token for the servers.",
            "Security",
            default="that of a psworker local of this user",
            path="file",
        ),
    ] = ""
    keep_memory: Annotated[
        bool,
        Option("Keep the memory of freed arrays: faster, but the process never shrinks.", "Advanced", argument=False),
    ] = True
    name_key: Annotated[str, Option(argument=False)] = ""
    workers: Annotated[int, Option(least=0, argument=False)] = 0

    def __post_init__(self) -> None:
        """Check every field."""
        for name, (kind, option) in OPTIONS.items():
            object.__setattr__(self, name, _checked(name, kind, option, getattr(self, name)))
        object.__setattr__(self, "servers", check_servers(self.servers) if self.servers else ())
        if not self.name:
            continues = (self.checkpoint_dir or self.summary_dir) and not self.servers
            object.__setattr__(self, "name", EMBEDDED_WORKER if continues else process_name())
        if not 0 < self.timeout < math.inf:
            raise ConfigurationError(f"the timeout must be a positive number of seconds, got {self.timeout}")
        if self.local_steps and (self.push_every, self.pull_every, self.overlap) != (1, 1, False):
            raise ConfigurationError(
                f"local_steps={self.local_steps} determines when to push and pull, and cannot be combined with "
                f"push_every={self.push_every}, pull_every={self.pull_every}, overlap={self.overlap}: leave those out, "
                "or it"
            )
        if len(self.job) > MAX_JOB_NAME or not self.job.isprintable():
            raise ConfigurationError(f"a job's name has {MAX_JOB_NAME} printable characters at most, got {self.job!r}")
        _ = self.credentials  # checked

    @property
    def steps(self) -> int:
        """Steps between two pushes."""
        return self.local_steps or self.push_every

    @property
    def pushes_every_step(self) -> bool:
        """True if each step is pushed, and its answer has fresh weights."""
        return (self.push_every, self.pull_every, self.overlap, self.local_steps) == (1, 1, False, 0)

    @property
    def folder(self) -> Path | None:
        """The folder of checkpoints, absolute; None without checkpoints."""
        return Path(self.checkpoint_dir).absolute() if self.checkpoint_dir else None

    @property
    def credentials(self) -> Credentials:
        """The files by which servers and this worker know each other."""
        return Credentials(**{one.name: getattr(self, one.name) for one in fields(Credentials)})


#: By name, the type and the description of each option of a worker.
OPTIONS: dict[str, tuple[object, Option]] = {one.name: get_args(one.type) for one in fields(WorkerConfig)}


def worker_config(servers: str | Sequence[str] | None = None, name: str | None = None, **options: Any) -> WorkerConfig:  # noqa: ANN401
    """The configuration: each argument that is not None, or else its environment variable, or else the default.

    Arguments are fields of `WorkerConfig`; texts are taken where they can be parsed, as those of `servers`, `compress`
    and `checkpoint_every`. In the environment, booleans are 1 or 0, and empty variables are ignored.

    Raises:
        ConfigurationError: an invalid value.
    """
    given = {"servers": servers, "name": name or None, **options}
    given = {name: value for name, value in given.items() if value is not None}
    for name, (kind, _) in OPTIONS.items():
        text = of_option(name)
        if text and name not in given:
            given[name] = _parsed(name, kind, text)
    if isinstance(given.get("servers"), str):
        given["servers"] = parse_servers(given["servers"])
    return WorkerConfig(**given)


_FLAGS = dict.fromkeys(("1", "true", "t", "yes", "y", "on"), True)  # as click accepts them
_FLAGS |= dict.fromkeys(("0", "false", "f", "no", "n", "off"), False)

#: By type of a field: how the text of its environment variable is read, and its description. Others have a `parse`.
_PARSERS: dict[object, tuple[Callable[[str], object], str]] = {
    int: (int, "a whole number"),
    float: (float, "a number of seconds"),
    bool: (lambda text: _FLAGS[text.lower()], "1 or 0"),
}


def _parsed(name: str, kind: object, text: str) -> object:
    """The value of an environment variable; text if that is parsed with the other values."""
    parse, expected = _PARSERS.get(kind, (str, ""))
    try:
        return parse(text)
    except (ValueError, KeyError):
        raise ConfigurationError(f"{variable(name)} must be {expected}, got {text!r}") from None


def _checked(name: str, kind: object, option: Option, value: Any) -> object:  # noqa: ANN401 - of any type
    """The value of an option in its type, such as an int for an integer of numpy."""
    if option.parse is not None:
        return option.parse(str(value))
    if option.choices and value not in option.choices:
        raise ConfigurationError(f"{name} must be one of {', '.join(option.choices)}, got {value!r}")
    if option.least is not None:
        if not hasattr(value, "__index__") or isinstance(value, bool) or value < option.least:
            raise ConfigurationError(f"{name} must be an integer of at least {option.least}, got {value!r}")
        return index(value)
    if kind is bool and not isinstance(value, bool):
        raise ConfigurationError(f"{name} must be True or False, got {value!r}")
    return os.fspath(value) if option.path else value
