"""The command `psserver`, also as `python -m psserver`."""

import os

from pswire.system.signals import end_at_interrupt


def main() -> None:
    """Run the command; Ctrl-C while it is still being imported ends it silently."""
    end_at_interrupt()
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # one line for each failed handshake; grpc reads it when loaded
    from psserver.cli.main import main as command

    command(prog_name="psserver")


if __name__ == "__main__":
    main()
