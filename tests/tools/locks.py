"""Writes locks/: the packages of each extra with the SHA-256 of their files, of the versions in constraints.txt.

    python -m tests.tools.locks          # make locks

`package.txt` has the dependencies of the package, `build.txt` what builds it, and the file of an extra what that needs
in addition. They are for all platforms and Python versions, and for `pip install --require-hashes`: pip takes no hashes
from a constraints file. Needs uv; the index is that of pip, and its address is not written.
"""

import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ROOT / "locks"

#: Beside hatchling, for an editable installation.
EDITABLES = "editables>=0.5"

HEADER = "# Made by `make locks` of pyproject.toml and constraints.txt.\n"

#: The oldest Python of all packages of extras; the package itself runs with 3.11.0.
PYTHON = "3.11.5"


def lock(name: str, requirements: list[str], without: list[str]) -> list[str]:
    """Write the lock of these requirements, without some packages; returns the names of its packages."""
    with tempfile.NamedTemporaryFile("w", suffix=".in") as file:
        file.write("\n".join(requirements))
        file.flush()
        command = [
            sys.executable,
            "-m",
            "uv",
            "pip",
            "compile",
            file.name,
            "--constraint",
            str(ROOT / "constraints.txt"),
        ]
        command += ["--universal", "--python-version", PYTHON, "--generate-hashes", "--quiet"]
        command += ["--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links"]
        command += [f"--no-emit-package={one}" for one in without]
        text = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout
    text = "".join([line for line in text.splitlines(keepends=True) if not line.lstrip().startswith("#")])
    (LOCKS / f"{name}.txt").write_text(HEADER + text)
    return [line.partition("==")[0] for line in text.splitlines() if line and not line.startswith(" ")]


def main() -> None:
    """Write all locks."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    LOCKS.mkdir(exist_ok=True)
    dependencies = pyproject["project"]["dependencies"]
    package = lock("package", dependencies, [])
    lock("build", [*pyproject["build-system"]["requires"], EDITABLES], [])
    for extra, requirements in pyproject["project"]["optional-dependencies"].items():
        lock(extra, [*dependencies, *requirements], package)


if __name__ == "__main__":
    main()
