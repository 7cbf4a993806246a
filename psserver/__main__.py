"""The command `psserver`, also as `python -m psserver`."""

from pswire.system.signals import end_at_interrupt


def main() -> None:
    """Run the command; Ctrl-C while it is still being imported ends it silently."""
    end_at_interrupt()
    from psserver.cli.main import main as command

    command(prog_name="psserver")


if __name__ == "__main__":
    main()
