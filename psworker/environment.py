"""Environment variables, of which no other module of psworker reads any.

Those of a worker's options are named after these (`psworker.config`).
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path


def variable(option: str) -> str:
    """The environment variable of an option: `PSWORKER_PUSH_EVERY` of `push_every`."""
    return f"PSWORKER_{option.upper()}"


def of_option(option: str) -> str:
    """The text of an option's environment variable; "" without one."""
    return os.environ.get(variable(option), "")


def of_worker(options: Mapping[str, object]) -> dict[str, str]:
    """The environment variables, of the options of a worker that are not None."""
    given = {name: value for name, value in options.items() if value is not None}
    return {variable(name): str(int(value) if isinstance(value, bool) else value) for name, value in given.items()}


def of_server(options: Mapping[str, str]) -> dict[str, str]:
    """The environment variables of these options of `psserver serve`."""
    return {f"PSSERVER_{name.upper()}": value for name, value in options.items()}


def of_paramserver() -> dict[str, str]:
    """The environment variables of paramserver that this process has, for processes on other machines."""
    ours = ("PSSERVER_", "PSWORKER_", "PARAMSERVER_")
    return {name: value for name, value in os.environ.items() if name.startswith(ours)}


#: The environment variables from which numpy's BLAS libraries take their number of threads when they are loaded.
BLAS_VARIABLES = tuple(
    f"{library}_THREADS"
    for library in ("OPENBLAS_NUM", "OMP_NUM", "MKL_NUM", "BLIS_NUM", "VECLIB_MAXIMUM", "NUMEXPR_NUM")
)


def blas_threads(threads: int) -> dict[str, str]:
    """The environment that gives numpy this many threads."""
    return dict.fromkeys(BLAS_VARIABLES, str(threads))


def blas_threads_are_set(environment: Mapping[str, str] = os.environ) -> bool:
    """True if the user, or a launcher, has chosen the number of numpy's threads."""
    return any(environment.get(variable) for variable in BLAS_VARIABLES)


def ray_address() -> str:
    """The Ray cluster that the user names, `$RAY_ADDRESS`; "" without one."""
    return os.environ.get("RAY_ADDRESS", "")


def use_ray_token() -> None:
    """Turn Ray's token authentication on if there is a token, as Ray does where it finds the cluster by itself.

    Before Ray is imported. The user's `$RAY_AUTH_MODE` has precedence; a cluster without tokens ignores it.
    """
    named = os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")
    if named or Path("~/.ray/auth_token").expanduser().exists():
        os.environ.setdefault("RAY_AUTH_MODE", "token")


def ray_folder() -> str:
    """The folder in which Ray has its own, as it finds that: `$RAY_TMPDIR`, `$TMPDIR`, /tmp."""
    return os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"


def submitted_with_folder() -> bool:
    """True if `ray job submit --working-dir` has started this process: all nodes have that folder."""
    job = json.loads(os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR") or "{}")
    return bool((job.get("runtime_env") or {}).get("working_dir"))


def data_dir() -> str | None:
    """The user's folder of datasets, `$PARAMSERVER_DATA`; None when it is unset or empty."""
    return os.environ.get("PARAMSERVER_DATA") or None


def worker_name() -> str:
    """The name that a launcher has given to this worker, `$PSWORKER_NAME`; "" without one."""
    return of_option("name")


def terminal() -> str:
    """The type of the terminal, `$TERM`; "" without one."""
    return os.environ.get("TERM", "")


def cache_dir() -> Path:
    """The user's cache for this project: `$XDG_CACHE_HOME/paramserver`, by default `~/.cache/paramserver`.

    As the XDG Base Directory Specification asks, a relative `$XDG_CACHE_HOME` is ignored.
    """
    root = os.environ.get("XDG_CACHE_HOME", "")
    return Path(root if os.path.isabs(root) else os.path.expanduser("~/.cache")) / "paramserver"
