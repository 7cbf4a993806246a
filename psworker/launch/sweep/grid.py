"""The combinations of a sweep: a value of each option that is varied. Standard library only, but for the errors."""

import csv
import hashlib
import itertools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import quote

from pswire.errors import ConfigurationError

#: Characters of the name of a run's folder, at most; file systems allow 255 bytes.
LONGEST_NAME = 150


class Setting(NamedTuple):
    """An option of the program and the values that it gets, as texts."""

    name: str
    values: tuple[str, ...]


def parse_setting(text: str) -> Setting:
    """The setting `NAME=VALUE,...`; a value with a comma is in double quotes. Raises `ConfigurationError`."""
    name, equals, rest = text.partition("=")
    name = name.removeprefix("--")
    if not re.fullmatch(r"[A-Za-z0-9][\w-]*", name) or not equals or not rest or "\n" in rest:
        raise ConfigurationError(
            f"a setting is the name of an option of the program and its values, such as rate=0.1,0.01, got {text!r}"
        )
    (values,) = csv.reader([rest])
    return Setting(name, tuple(dict.fromkeys(values)))


@dataclass(frozen=True)
class Combination:
    """A value of each option that is varied, by name."""

    values: dict[str, str]

    @property
    def arguments(self) -> list[str]:
        """The arguments by which the program gets the values: `--rate=0.1`."""
        return [f"--{name}={value}" for name, value in self.values.items()]

    @property
    def label(self) -> str:
        """A text for people: `rate=0.1,layers=2`."""
        return ",".join(f"{name}={value}" for name, value in self.values.items())

    @property
    def folder(self) -> str:
        """The name of the folder of its run: the label, where other characters are quoted; one for each combination."""
        name = quote(self.label, safe="=,+")
        if len(name) <= LONGEST_NAME:
            return name
        digest = hashlib.sha256(name.encode()).hexdigest()[:8]
        return f"{name[: LONGEST_NAME - len(digest) - 1]}-{digest}"


def combinations(settings: Sequence[Setting]) -> list[Combination]:
    """All combinations, the last option varied first. Raises `ConfigurationError` for an option that is set twice."""
    names = [setting.name for setting in settings]
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise ConfigurationError(f"{twice[0]} is set twice: give all of its values at once, {twice[0]}=VALUE,VALUE")
    return [
        Combination(dict(zip(names, values, strict=True)))
        for values in itertools.product(*(setting.values for setting in settings))
    ]
