"""The command `psworker`, also as `python -m psworker`."""

from pswire.system.signals import end_at_interrupt


def main() -> None:
    """Run the command; Ctrl-C while it is still being imported ends it silently."""
    end_at_interrupt()
    from psworker.launch.cli import main as command

    command(prog_name="psworker")


if __name__ == "__main__":
    main()
