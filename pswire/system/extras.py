"""Packages of extras that are not installed, and the command that installs them. Standard library only."""

import re
import sys
from importlib.metadata import PackageNotFoundError, requires

from pswire.errors import ConfigurationError


def install_command(extra: str) -> str:
    """The command for this environment: the packages themselves, for in a checkout pip would not find `paramserver`."""
    try:
        found = requires("paramserver") or []
    except PackageNotFoundError:  # not installed: the checkout is on the path
        found = []
    mark = re.compile(rf"\bextra == ['\"]{re.escape(extra)}['\"]")
    packages = [one.partition(";")[0].strip() for one in found if mark.search(one)] or [f"paramserver[{extra}]"]
    return " ".join([sys.executable, "-m", "pip", "install", *(f"'{one}'" for one in packages)])


def missing_package(what: str, extra: str) -> ConfigurationError:
    """The error for what needs a package of an extra, such as "plots need"."""
    return ConfigurationError(f"{what} a package that is not installed: {install_command(extra)}")
