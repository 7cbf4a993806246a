"""The commands for the files of secure servers: `psserver token ...` and `psserver certs`.

Imports neither numpy nor rich (`psserver.cli.main`).
"""

from pathlib import Path

import click

from psjob.terminal.commands import Command, CommandGroup
from psjob.terminal.options import option
from pswire.errors import ConfigurationError
from pswire.security.private_files import write_private_file
from pswire.security.token_files import Role, add_token, read_tokens, remove_token
from pswire.system.host import refuse_windows

_file = click.argument("file", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))


@click.group("token", short_help="Add, list and remove tokens.", cls=CommandGroup)
def token_group() -> None:
    """Add, list and remove the tokens in a file of servers (--token-file), which running servers read again.

    The file has the SHA-256 of each token, not the token, and the key of the job's servers: all of them need the same
    file. Only its user can read it.

    \b
    psserver token add tokens alice --role worker > alice.token
    psserver token list tokens
    psserver token remove tokens alice
    """  # noqa: D301
    refuse_windows("psserver token")


@token_group.command("add", short_help="Add a token to a file.")
@_file
@click.argument("name")
@option(
    "--role", type=click.Choice([role.value for role in Role]), required=True, help="What the token allows, as above."
)
@option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    show_default="standard output",
    help="A new file for the token, which only its user can read.",
)
def add_command(file: Path, name: str, role: str, output: Path | None) -> None:
    """Add a token called NAME to FILE, which is made if it is not there, and print it: nothing else has it.

    \b
    --role
      observer   read the status
      worker     take part in training too
      admin      everything: also psserver reset, and checkpoints
    """  # noqa: D301
    if output is not None and output.exists():
        raise ConfigurationError(f"{output} is there already: remove it, or use another file")
    token = add_token(file, name, Role(role))
    if output is None:
        click.echo(token)
        return
    try:
        write_private_file(output, f"{token}\n".encode())
    except ConfigurationError:
        remove_token(file, name)
        raise


@token_group.command("list", short_help="List the tokens in a file.")
@_file
def list_command(file: Path) -> None:
    """List the tokens in FILE: name and role of each."""
    for one in read_tokens(file).tokens:
        click.echo(f"{one.name} {one.role}")


@token_group.command("remove", short_help="Remove a token from a file.")
@_file
@click.argument("name")
def remove_command(file: Path, name: str) -> None:
    """Remove the token called NAME from FILE; running servers refuse it within a second."""
    remove_token(file, name)


@click.command("certs", short_help="Make certificates for servers and clients.", cls=Command)
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@option(
    "--hosts",
    default="",
    metavar="HOST,...",
    show_default="localhost and 127.0.0.1",
    help="Names and IP addresses of the servers.",
)
@option(
    "--days", type=click.IntRange(1, 3650), metavar="N", default=365, help="Days for which the certificates are valid."
)
@option("--renew", is_flag=True, help="Make new certificates with the CA and the keys that are in DIR.")
@option("--force", is_flag=True, help="Replace all files in DIR, the CA included.")
def certs_command(folder: Path, hosts: str, days: int, renew: bool, force: bool) -> None:
    """Make a private CA in DIR, and certificates for servers at the --hosts and for clients (extra `certs`).

    Server certificates are for localhost and 127.0.0.1 too. The CA is valid for ten years; keep ca.key off the machines
    of the cluster, since its holder can make certificates.

    \b
    server   --tls-cert server.crt --tls-key server.key   (--tls-ca ca.crt --client-certificates required)
    client   --tls-ca ca.crt                              (--tls-cert client.crt --tls-key client.key)

    \b
    psserver certs certs --hosts ps-0,ps-1,10.0.0.5
    psserver certs certs --renew
    """  # noqa: D301
    from psserver.certificates import make_certificates, renew_certificates

    if renew and force:
        raise click.UsageError("--renew keeps the CA, and --force replaces it: use one of them.")
    names = [host for host in hosts.split(",") if host.strip()]
    if renew:
        found = renew_certificates(folder, names, days)
        click.echo(f"{folder}: new certificates for {', '.join(found)}, valid for {days} days")
        return
    make_certificates(folder, names, days, force=force)
    click.echo(f"{folder}: ca.crt, server.crt, server.key, client.crt, client.key, ca.key (keep it elsewhere)")
