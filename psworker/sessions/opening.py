"""The session of a program: made of arguments, environment variables and defaults (`psworker.config`)."""

import os
from collections.abc import Sequence

from pswire import optimizers
from pswire.system.host import keep_memory
from psworker.config import worker_config
from psworker.familiar_names import hint_keywords
from psworker.model.interactive import is_interactive
from psworker.sessions.session import Session
from psworker.sessions.strategies.local_steps import OUTER

__all__ = ["session"]


@hint_keywords
def session(
    servers: str | Sequence[str] | None = None,
    name: str | None = None,
    timeout: float | None = None,
    *,
    job: str | None = None,
    resume: bool | None = None,
    push_every: int | None = None,
    pull_every: int | None = None,
    overlap: bool | None = None,
    local_steps: int | None = None,
    encoding: str | None = None,
    compress: str | None = None,
    transport: str | None = None,
    shared_memory: bool | None = None,
    checkpoint_dir: str | os.PathLike[str] | None = None,
    checkpoint_every: str | None = None,
    keep: int | None = None,
    progress: str | None = None,
    summary_dir: str | os.PathLike[str] | None = None,
    tls_ca: str | os.PathLike[str] | None = None,
    tls_cert: str | os.PathLike[str] | None = None,
    tls_key: str | os.PathLike[str] | None = None,
    tls_name: str | None = None,
    token_file: str | os.PathLike[str] | None = None,
    outer: optimizers.OptimizerSpec = OUTER,
) -> Session:
    """A session, to be used as `with psworker.session() as session:`, or by its `open` and `close`.

    Each argument but `outer` defaults to the environment variable of its name, such as `$PSWORKER_PUSH_EVERY`, which
    `psworker run` and `psworker local` set from their flags, and then to the value in brackets.

    The sessions of a program are one job after another, in step over all its workers: the n-th session of each worker
    is the n-th job, which begins with the values that the program's variables have (docs/jobs.md). A session with a
    `job` or `resume=True` as its argument names its job itself.

    With a `checkpoint_dir` an embedded job continues where it stopped: the same program begins at the newest
    checkpoint in it. Servers write their own checkpoints (`psserver serve --checkpoint-dir`); with servers the folder
    is for `Session.save_best` alone.

    Args:
        servers: addresses in the order of their shards, or a name that stands for all, such as file:/path (see
            docs/deploy/discovery.md) [none: the shard is embedded in this process].
        name: the worker's name [the host's name and process id].
        timeout: seconds for which a call is tried while a server cannot be reached [60].
        job: the name of the job on the servers: the one that they have, or else a new one [none: the job that is
            running or was interrupted; if there is none, a new one].
        resume: continue the job of the servers or of the `checkpoint_dir`, also if it is over [False].
        push_every: steps whose gradients are summed and pushed together, as in Downpour SGD [1].
        pull_every: steps after which fresh weights are pulled [1].
        overlap: whether computing continues while a push is under way [False].
        local_steps: steps of the program's optimizer in this worker, whose sum is pushed as one gradient, as in DiLoCo
            [0: none]. Not together with the three before it.
        encoding: of float32 gradients and weights, on their way in both directions: "float32", "bfloat16" or "float16"
            ["float32"]. Servers always store and sum float32.
        compress: of gradients: "none", "int8", or "topk:0.01" for the largest hundredth ["none"]. The rest is added to
            the next gradient (`psworker.client.error_feedback`).
        transport: what carries tensors to servers: "direct", connections beside gRPC; "grpc"; or "auto", the first
            where it can be reached; a line of the log says where it cannot ["auto"].
        shared_memory: whether tensors go through shared memory to servers on this host, and calls through their Unix
            sockets [True].
        checkpoint_dir: the folder of this job's checkpoints and of its best model, made if it is not there [none].
        checkpoint_every: the interval between checkpoints, such as "60s", "5m" or "1000steps" ["60s"]. One more is
            written at the end of the session, also after an exception.
        keep: how many checkpoints stay; older ones are removed [5].
        progress: how the job's progress is shown on stderr: "auto", a line if it is a terminal; "plain", a line every
            two seconds; "off" ["auto"].
        summary_dir: the folder to which this worker writes scalars and event files of TensorBoard (`Session.summary`),
            made if it is not there; of several workers of one run the same [none].
        tls_ca: a file with the CA to check servers by; with it connections use TLS [none].
        tls_cert: a file with this worker's certificate, for servers that ask for one [none].
        tls_key: its private key [none].
        tls_name: the host name that the certificates of all servers must have [that in the address].
        token_file: a file with a token for the servers [none; that of a `psworker local` of this user for its servers].
        outer: the servers' optimizer for the gradient of local steps; without them it is not used.

    Raises:
        ConfigurationError: an invalid value.
    """
    given = dict(locals())
    del given["outer"]
    config = worker_config(**given)
    if config.keep_memory:
        keep_memory()
    return Session(config, outer=outer, numbered=job is None and not resume and not is_interactive())
