"""The command that installs the packages of an extra, wherever this package came from. Standard library only."""

import re
import sys
from importlib.metadata import PackageNotFoundError, requires


def install_command(extra: str) -> str:
    """The command for this environment: the packages themselves, for in a checkout pip would not find `paramserver`."""
    try:
        found = requires("paramserver") or []
    except PackageNotFoundError:  # not installed: the checkout is on the path
        found = []
    mark = re.compile(rf"\bextra == ['\"]{re.escape(extra)}['\"]")
    packages = [one.partition(";")[0].strip() for one in found if mark.search(one)] or [f"paramserver[{extra}]"]
    return " ".join([sys.executable, "-m", "pip", "install", *(f"'{one}'" for one in packages)])
