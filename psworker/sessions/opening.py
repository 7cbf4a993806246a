"""Opens sessions: from arguments and the environment to a configuration, and from that to a session.

May import the session and the configuration.
"""

from __future__ import annotations

from collections.abc import Sequence

from pswire import optimizers
from pswire.system.malloc import keep_memory
from psworker.config import worker_config
from psworker.sessions.session import Session
from psworker.sessions.strategies import OUTER


def session(
    servers: str | Sequence[str] | None = None,
    name: str | None = None,
    timeout: float | None = None,
    *,
    push_every: int | None = None,
    pull_every: int | None = None,
    overlap: bool | None = None,
    local_steps: int | None = None,
    encoding: str | None = None,
    compress: str | None = None,
    shared_memory: bool | None = None,
    outer: optimizers.OptimizerSpec = OUTER,
) -> Session:
    """A session, to be used as `with psworker.session() as session:`.

    What is not given is what the environment says; `psworker run` and `psworker local` set it from their flags.

    Args:
        servers: addresses in the order of their shards, `$PSWORKER_SERVERS`; when there are none, the shard runs in
            this process.
        name: the worker's name, `$PSWORKER_NAME`, or the host's name and process id.
        timeout: seconds that a call goes on trying to reach a server, `$PSWORKER_TIMEOUT`, or 60.
        push_every: steps whose gradients are added up and pushed together (Downpour SGD), `$PSWORKER_PUSH_EVERY`, or 1.
        pull_every: steps after which fresh weights are taken, `$PSWORKER_PULL_EVERY`, or 1.
        overlap: whether computing goes on while a push is under way, `$PSWORKER_OVERLAP`, or False.
        local_steps: steps of the program's optimizer in this worker, whose sum is pushed as one gradient (DiLoCo),
            `$PSWORKER_LOCAL_STEPS`; or 0, none. Not together with the three before it.
        outer: what the servers do with that gradient; without local steps it is not used.
        encoding: the form of gradients and weights that are float32, on their way in both directions: "float32",
        "bfloat16"
            or "float16", `$PSWORKER_ENCODING`. What servers keep, and add up, is float32 in any case.
        compress: of gradients: "none", "int8", or "topk:0.01" for the hundredth that is largest, `$PSWORKER_COMPRESS`.
            What is left out goes into the next gradient (`psworker.client.error_feedback`).
        shared_memory: whether tensors go through shared memory to servers on this host, `$PSWORKER_SHARED_MEMORY`, or
            True.

    Raises:
        ConfigurationError: a value that cannot be.
    """
    config = worker_config(
        servers,
        name,
        timeout,
        push_every=push_every,
        pull_every=pull_every,
        overlap=overlap,
        local_steps=local_steps,
        encoding=encoding,
        compress=compress,
        shared_memory=shared_memory,
    )
    if config.keep_memory:
        keep_memory()
    return Session(config, outer=outer)
