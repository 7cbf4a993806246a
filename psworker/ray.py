"""A training program on a Ray cluster from Python, as the command `psworker ray` runs it (extra `ray`).

    import psworker.ray

    code = psworker.ray.run("train.py", "--epochs", "3", workers=8, shards=2, insecure=True)

Ray itself is `import ray`.
"""

import click

from pswire.errors import ConfigurationError

__all__ = ["run"]


def run(script: str, *arguments: str, **options: object) -> int:
    """Run a program with its arguments on the Ray cluster, and show it; returns the exit code. Main thread only.

    `options` are those of `psworker ray`: `workers=8, run_dir="/shared/a", journal=True`; True for one without a value,
    False or None for one that is left out. If this process has called `ray.init`, its connection is used, and nodes
    have the program where its runtime environment has put it.

    Raises:
        ConfigurationError: an option that does not exist, a value that is not valid, or a Ray cluster that does not
            answer.
    """
    from psworker.launch.cli import main

    words = ["ray"]
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        words += [flag] if value is True else [] if value is None or value is False else [f"{flag}={value}"]
    try:
        code = main([*words, script, *arguments], prog_name="psworker", standalone_mode=False)
    except click.ClickException as error:
        raise ConfigurationError(error.format_message()) from error
    except SystemExit as end:
        code = end.code
    return code if isinstance(code, int) else 0
