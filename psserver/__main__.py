"""`python -m psserver`: the same as the command `psserver`."""

from psserver.cli.main import main

main(prog_name="psserver")
