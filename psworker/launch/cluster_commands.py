"""The commands that run a whole cluster: on this machine (`psworker local`), and on Ray (`psworker ray`).

Must not import numpy, rich or grpc before a command has begun (`psworker.launch.cli`).
"""

from __future__ import annotations

import shlex
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from psjob.terminal.log_options import LogOptions
from psjob.terminal.options import option, section
from pswire.addresses import shard_addresses
from pswire.errors import ConfigurationError, ParamServerError
from psworker import environment
from psworker.launch.http_option import LocalCommand
from psworker.launch.options import (
    COMMAND,
    POSITIVE,
    SECONDS,
    THREADS,
    cluster_options,
    note_misplaced,
    refuse_on_windows,
    run_folder,
    worker_options,
)

if TYPE_CHECKING:
    from psworker.launch.job import Job
    from psworker.launch.machines import Machines


@click.command("local", short_help="Train on a cluster on this machine.", cls=LocalCommand, context_settings=COMMAND)
@cluster_options
@section(
    "Cluster",
    THREADS,
    option(
        "--bind",
        metavar="HOST[:PORT]",
        default="127.0.0.1",
        envvar="PSSERVER_BIND",
        help="Address of the first server; each further one has the next port. Without a port, free ones are used. "
        "0.0.0.0:7070 is for workers on other machines, and needs TLS (or --insecure).",
    ),
)
def local_command(
    debug: bool,
    /,
    progress: str,
    quiet: bool,
    logs: LogOptions,
    script: str,
    arguments: tuple[str, ...],
    **options: Any,  # noqa: ANN401 - of all types
) -> None:
    """Run SCRIPT on a cluster of processes on this machine, and stop all of them at the end.

    Lines that the workers print are shown after the worker's name. A worker that is killed is started again, while the
    others train on; one that fails ends the job, and its exit code is this command's (--restarts). Ctrl-C stops all of
    them; a second Ctrl-C kills them.

    On a terminal tables of the workers and shards are shown below these lines (--progress). With --log-format json
    each line of stderr is a JSON object. --log-level is for servers and workers.

    The first line has the servers' addresses: for `psserver status`, and for further workers (`psworker run`). Other
    options of servers are set by their environment variables (`psserver serve --help`).

    With --run-dir the servers write checkpoints and are started again too, and --resume continues a run that was
    stopped, also on another number of shards or with another number of workers.

    \b
      psworker local train.py
      psworker local --workers 4 --shards 2 train.py --epochs 3
      psworker local --workers 4 --http train.py
      psworker local --workers 3 --consistency bounded:2 train.py
      psworker local --workers 3 --restarts 5 train.py
      psworker local --bind 0.0.0.0:7070 --tls-cert server.crt --tls-key server.key --tls-ca ca.crt train.py
      psworker local --run-dir runs/a --checkpoint-every 5m --restarts 5 train.py
      psworker local --run-dir runs/a --resume train.py
      psworker local --workers 4 --push-every 4 --pull-every 4 --overlap train.py
      psworker local --workers 4 --consistency sync:4 --local-steps 50 train.py
      psworker local --workers 4 --encoding bfloat16 --compress topk:0.01 train.py
      psworker local --progress off --workers 8 --threads 1 train.py > log.txt
    """  # noqa: D301
    refuse_on_windows("psworker local")
    # imported here, since `run` needs neither rich nor grpc
    try:
        options["bind"] = shard_addresses(options["bind"], options["shards"])
    except ConfigurationError as error:
        raise click.BadParameter(str(error), param_hint="--bind") from None
    _run(cluster_job(debug, logs, quiet, script, arguments, options), None, progress, logs, quiet)


@click.command("ray", short_help="Train on a Ray cluster.", cls=LocalCommand, context_settings=COMMAND)
@cluster_options
@section(
    "Ray",
    option(
        "--address",
        metavar="HOST:PORT",
        default="auto",
        help="The Ray cluster, of which this machine is a node; local: a new one on this machine; auto: $RAY_ADDRESS, "
        "or the one that you have started here, or else a new one.",
    ),
    option(
        "--cpus", type=POSITIVE, metavar="N", default=1, help="CPUs that Ray gives to each worker: its BLAS threads."
    ),
    option(
        "--server-cpus",
        type=click.FloatRange(min=0, min_open=True),
        metavar="N",
        default=1.0,
        help="CPUs that Ray gives to each server.",
    ),
    option(
        "--working-dir",
        type=click.Path(exists=True, file_okay=False),
        metavar="DIR",
        show_default="the folder of the program; in a submitted job, the job's",
        help="The folder that Ray copies to all nodes, in which the workers run: the program, its modules and data.",
    ),
    option(
        "--start-timeout",
        type=SECONDS,
        metavar="SECONDS",
        default=300.0,
        help="Time for Ray to find room for all shards, and for them to answer.",
    ),
)
def ray_command(
    debug: bool,
    /,
    progress: str,
    quiet: bool,
    logs: LogOptions,
    script: str,
    arguments: tuple[str, ...],
    address: str,
    cpus: int,
    server_cpus: float,
    working_dir: str | None,
    start_timeout: float,
    **options: Any,  # noqa: ANN401 - of all types
) -> None:
    """Run SCRIPT on a Ray cluster, and stop all processes at the end (extra `ray`).

    Ray places the shards, spread over its nodes, and each worker where there is room. Workers without a place are
    pending until a node joins; the job trains with the others, and ends when the work is done. Lines, progress and the
    exit code are as with psworker local, and so is Ctrl-C; Ray ends all processes if this command is killed.

    A process that is killed or lost with its node is started again, where Ray has room (--restarts, which is also for
    one that fails): a worker joins again; a shard continues at its new address from --run-dir, a folder that all nodes
    see at this path.

    Without a Ray cluster one is started on this machine, and ends with the job. The first line says which it is.

    Where the cluster is this machine, as after ray start --head, servers listen on 127.0.0.1, with tokens. On several
    nodes they need --tls-cert, --tls-key and --tls-ca, which are sent to the nodes as Ray sends them; or, in a network
    that you trust, --insecure. paramserver must be installed on all nodes.

    \b
      psworker ray train.py
      psworker ray --insecure --workers 8 --shards 2 train.py
      psworker ray --insecure --workers 8 --cpus 4 --restarts 5 --run-dir /shared/a --journal train.py
      ray job submit --working-dir . -- psworker ray --insecure --workers 8 train.py
    """  # noqa: D301
    refuse_on_windows("psworker ray")
    from psworker.launch.on_ray import require_ray

    try:
        require_ray()
        from psworker.launch.on_ray.nodes import RayNodes, RayOptions, working_folder

        folder = working_folder(script, working_dir)
        beyond = bool(options["tls_cert"] or options["insecure"])  # other nodes may reach the servers
        ray_options = RayOptions(
            address, options["workers"], cpus, server_cpus, folder, start_timeout, this_machine=not beyond
        )
    except ConfigurationError as error:
        raise click.ClickException(str(error)) from None
    options |= {"threads": cpus, "bind": shard_addresses("0.0.0.0" if beyond else "127.0.0.1", options["shards"])}
    job = cluster_job(debug, logs, quiet, script, arguments, options)
    _run(job, RayNodes(job.server_names, ray_options, environment.of_paramserver()), progress, logs, quiet)


def cluster_job(
    debug: bool, logs: LogOptions, quiet: bool, script: str, arguments: tuple[str, ...], options: dict[str, Any]
) -> Job:
    """The job of a command with these options, from which the options of machines are removed."""
    from psworker.launch.cluster_security import ClusterSecurity
    from psworker.launch.job import Job

    given, folder = worker_options(options), run_folder(options)
    if options["guard"] == "rollback" and folder is None:
        raise click.UsageError("--guard rollback goes back to a checkpoint: it needs --run-dir, the folder of the run.")
    security = {field.name: options.pop(field.name, None) for field in fields(ClusterSecurity)}
    try:
        options["security"] = ClusterSecurity(**{name: value for name, value in security.items() if value is not None})
        options["security"].check([*options["bind"], *filter(None, [options["http"]])])
    except ConfigurationError as error:
        raise click.UsageError(str(error)) from None
    try:
        options |= {"log_level": logs.level or "error" * quiet, "log_format": logs.form}
        return Job(script, arguments, debug=debug, worker_options=given, run_folder=folder, **options)
    except ConfigurationError as error:
        raise click.BadParameter(str(error), param_hint="--workers") from None


def _run(job: Job, machines: Machines | None, progress: str, logs: LogOptions, quiet: bool) -> None:
    """Run a job, show it, and exit with its code."""
    from psworker.launch.cluster import Cluster
    from psworker.launch.display.choice import make_display

    if not quiet:
        note_misplaced(job.script, job.arguments)
    names = job.worker_names + job.server_names
    display = make_display(progress, names, title=Path(job.script).name, log_format=logs.form, quiet=quiet)
    cluster = Cluster(job, display, machines)
    try:
        outcome = cluster.run()
    except ParamServerError as error:
        if job.debug:
            raise
        raise click.ClickException(str(error)) from None
    folder = job.run_folder
    if outcome.code and not outcome.error and folder is not None and folder.has_written_checkpoints() and not quiet:
        display.problem("info", f"psworker: continue with: {_resuming(resumes=folder.resume)}")
    if outcome.warning:
        display.problem("warning", f"psworker: {outcome.warning}")
    if outcome.error:
        display.problem("error", f"Error: {outcome.error}")
    if outcome.last_lines:
        display.problem("error", "Its last lines:\n" + "\n".join(f"  {line}" for line in outcome.last_lines))
    sys.exit(outcome.code)


def _resuming(*, resumes: bool) -> str:
    """This command, with --resume."""
    name = click.get_current_context().info_name or ""
    words = sys.argv[sys.argv.index(name) + 1 :] if name in sys.argv else []
    return shlex.join(["psworker", name, *([] if resumes else ["--resume"]), *words])
