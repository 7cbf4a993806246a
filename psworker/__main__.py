"""`python -m psworker`: the same as the command `psworker`."""

from psworker.launch.cli import main

main(prog_name="psworker")
