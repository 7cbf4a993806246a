"""Files of JSON, an object a line, as they are read: a line that is cut or is no object is counted, and skipped."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pswire.system.files import open_file

#: Bytes of a line, at most.
MAX_LINE = 1 << 20


@dataclass(eq=False)
class JsonLines:
    """The lines of a file with their numbers, for a `for` loop.

    Afterwards `problem` names the lines that could not be read; "" if all could.
    """

    path: Path
    problem: str = field(default="", init=False)
    _bad: list[int] = field(default_factory=list, init=False)

    def __iter__(self) -> Iterator[tuple[int, dict[str, Any]]]:
        try:
            with open_file(self.path) as file:
                for number, line in enumerate(iter(lambda: file.readline(MAX_LINE), b""), 1):
                    try:
                        data = json.loads(line)
                    except (ValueError, RecursionError):
                        data = None
                    if isinstance(data, dict):
                        yield number, data
                    elif line.strip():
                        self.bad(number)
        except OSError as error:
            self.problem = f"{self.path} cannot be read: {error.strerror}"

    def bad(self, number: int) -> None:
        """Note a line that is skipped."""
        self._bad.append(number)
        more = f" and {len(self._bad) - 1:,} others" if len(self._bad) > 1 else ""
        self.problem = f"{self.path}: line {self._bad[0]:,}{more} skipped: cut, or of another kind"
