"""Token files of servers: named tokens with roles, as hashes, and the key of the job's servers.

A line is `token NAME ROLE SHA256`, `key HEX`, or a comment after `#`. The tokens themselves are not in it. A token is
32 random bytes, which no one can try out, so that a plain SHA-256 protects it; a slow hash is for passwords, which
people choose, and would cost each call. Standard library only.
"""

import hmac
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from hashlib import sha256
from pathlib import Path

from pswire.errors import ConfigurationError
from pswire.security.private_files import read_secret, write_private_file

#: Tokens of one file, at most: an unknown token is compared with each of them, 0.2 us each.
MAX_TOKENS = 1_000

#: Random bytes of a token, and of a job key.
_RANDOM_BYTES = 32
_PREFIX = "pst_"  # by which scanners for leaked secrets find it
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_TOKEN = re.compile(r"[\x21-\x7e]{16,200}")
_HEX = re.compile(r"[0-9a-f]{64}")
_HEADER = "# Tokens of a parameter server, by their SHA-256; psserver token changes this file. Keep it private.\n"


class Role(StrEnum):
    """A role of a caller: an observer reads the status, a worker trains too, an admin may do everything."""

    OBSERVER = "observer"
    WORKER = "worker"
    ADMIN = "admin"


_ROLES = frozenset(role.value for role in Role)


@dataclass(frozen=True, slots=True)
class TokenEntry:
    """A token of a file: its name, for people and logs, its role, and the SHA-256 of the token in hexadecimal."""

    name: str
    role: Role
    digest: str


@dataclass(frozen=True, slots=True)
class TokenFile:
    """The content of a token file; `key` is the job key, the same for all servers of a job, None without one."""

    key: bytes | None = None
    tokens: tuple[TokenEntry, ...] = ()

    def find(self, token: str) -> TokenEntry | None:
        """The entry of a token. Takes the same time for all unknown tokens."""
        digest, found = digest_of(token), None
        for entry in self.tokens:
            if hmac.compare_digest(entry.digest, digest):
                found = entry
        return found

    def text(self) -> str:
        """The content, as `parse_tokens` reads it."""
        key = [f"key {self.key.hex()}\n"] if self.key is not None else []
        return "".join([_HEADER, *key, *[f"token {one.name} {one.role} {one.digest}\n" for one in self.tokens]])


def digest_of(token: str) -> str:
    """The SHA-256 of a token, in hexadecimal."""
    return sha256(token.encode(errors="replace")).hexdigest()


def new_token() -> str:
    """A random token of 256 bits."""
    return _PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)


def is_token(text: str) -> bool:
    """True if a text has the form of a token."""
    return _TOKEN.fullmatch(text) is not None


def check_token(text: str, where: str) -> str:
    """A token without surrounding whitespace. Raises `ConfigurationError` that names the file, and not the token."""
    token = text.strip()
    if is_token(token):
        return token
    if re.search(r"^\s*(key|token)\s", text, re.MULTILINE):
        raise ConfigurationError(
            f"{where} is the token file of a server, with hashes: use a file that has one token alone, as "
            "`psserver token add` prints it"
        )
    raise ConfigurationError(
        f"{where} has no token: it needs one line of 16 to 200 printable characters without spaces"
    )


def parse_tokens(data: bytes, where: str) -> TokenFile:
    """The content of a token file. Raises `ConfigurationError`, with the number of the line, and nothing of a key."""
    key: bytes | None = None
    tokens: dict[str, TokenEntry] = {}
    for number, line in enumerate(data.decode(errors="replace").splitlines(), 1):
        match line.partition("#")[0].split():
            case []:
                pass
            case ["key", value] if key is None and _HEX.fullmatch(value):
                key = bytes.fromhex(value)
            case ["token", name, role, digest] if (
                _NAME.fullmatch(name) and role in _ROLES and _HEX.fullmatch(digest) and name not in tokens
            ):
                tokens[name] = TokenEntry(name, Role(role), digest)
            case _:
                raise ConfigurationError(
                    f"line {number} of {where}: it must be `token NAME ROLE SHA256`, with a name that is there once "
                    f"and a role of {', '.join(Role)}, or one line `key HEX` of {2 * _RANDOM_BYTES} digits; "
                    "`psserver token add` writes it"
                )
    if len(tokens) > MAX_TOKENS:
        raise ConfigurationError(f"{where} has {len(tokens):,} tokens, and may have {MAX_TOKENS:,}")
    return TokenFile(key, tuple(tokens.values()))


def read_tokens(path: str | Path) -> TokenFile:
    """The token file at `path`. Raises `ConfigurationError`, also if others can read it."""
    return parse_tokens(read_secret(path, "the token file"), str(path))


def add_token(path: Path, name: str, role: Role) -> str:
    """Add a token to a file, which is made with a new job key if it is not there; the token, which nothing else has.

    Raises `ConfigurationError` if the name is invalid or taken, or the file cannot be used.
    """
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"{name!r} is no name of a token: use up to 64 letters, digits, dots, hyphens, underscores"
        )
    with _locked(path):
        content = read_tokens(path) if path.exists() else TokenFile()
        if any(one.name == name for one in content.tokens):
            raise ConfigurationError(f"{path} has a token {name!r} already: remove it first, or use another name")
        if len(content.tokens) == MAX_TOKENS:
            raise ConfigurationError(f"{path} has {MAX_TOKENS:,} tokens, which is the limit: remove some")
        token = new_token()
        entry = TokenEntry(name, role, digest_of(token))
        _write(
            path,
            replace(content, key=content.key or secrets.token_bytes(_RANDOM_BYTES), tokens=(*content.tokens, entry)),
        )
    return token


def remove_token(path: Path, name: str) -> None:
    """Remove a token from a file; running servers refuse it within a second. Raises `ConfigurationError`."""
    with _locked(path):
        content = read_tokens(path)
        kept = tuple(one for one in content.tokens if one.name != name)
        if len(kept) == len(content.tokens):
            names = ", ".join(one.name for one in kept) or "none"
            raise ConfigurationError(f"{path} has no token {name!r}; it has {names}")
        _write(path, replace(content, tokens=kept))


def _write(path: Path, content: TokenFile) -> None:
    write_private_file(path, content.text().encode())


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lock the file's folder, so that commands that change the file do not undo each other's changes."""
    import fcntl  # not on Windows, where programs import this module too

    try:
        folder = os.open(path.parent, os.O_RDONLY)
    except OSError as error:
        raise ConfigurationError(f"the folder of {path} cannot be used: {error.strerror}") from error
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)
