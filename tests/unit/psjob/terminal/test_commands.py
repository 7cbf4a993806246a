"""Sections of options in help, defaults as one types them, and names of values as they are."""

import click
from click.testing import CliRunner

from psjob.terminal.commands import Command
from psjob.terminal.options import Parsed, option, section
from pswire.addresses import check_address


@click.command(cls=Command)
@section("Advanced", option("--late", default=2.0, help="Late."))
@option("--plain", show_default="a description", help="Plain.")
@section(
    "Storage",
    option("--to", type=Parsed("host:port|off", check_address), help="To."),
    option("--keep/--no-keep", default=True, help="Keep."),
)
@click.option("--hidden", hidden=True)
def command(**_):
    """Text."""


def test_help_has_the_options_of_a_section_together_and_the_sections_in_one_order():
    lines = CliRunner().invoke(command, ["--help"]).output.splitlines()
    assert [" ".join(line.split()) for line in lines[4:]] == [
        "Options:",
        "--plain TEXT Plain. [default: a description]",
        "--help Show this message and exit.",
        "",
        "Storage:",
        "--to host:port|off To.",
        "--keep / --no-keep Keep. [default: keep]",
        "",
        "Advanced:",
        "--late FLOAT Late. [default: 2]",
    ]


def test_a_value_that_cannot_be_parsed_is_refused_with_the_name_of_its_option():
    refused = CliRunner().invoke(command, ["--to", "host:port:port"])
    assert (refused.exit_code, "Invalid value for '--to': " in refused.output) == (2, True)
