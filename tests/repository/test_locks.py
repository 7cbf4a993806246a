"""locks/: what `make`, the image and the site install, complete and with hashes."""

import re
import tomllib
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]
_ENTRY = re.compile(r"^([\w.-]+)==(\S+)(?: ; [^\\\n]+)?((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", re.MULTILINE)


def locked(name):
    """The versions of a lock by the names of packages; each line of it must be an entry with hashes."""
    text = (ROOT / "locks" / f"{name}.txt").read_text()
    lines = [line for line in _ENTRY.sub("", text).splitlines() if line and not line.startswith("#")]
    assert lines == [], "an entry without hashes, an option or an address"
    return {canonicalize_name(package): version for package, version, _ in _ENTRY.findall(text)}


def closure(requirements):
    """Names of all packages that these requirements need here, by what is installed."""
    found, left = {}, [Requirement(one) for one in requirements]
    while left:
        one = left.pop()
        name = canonicalize_name(one.name)
        extras = [*one.extras, ""]
        if name in found or (one.marker and not any(one.marker.evaluate({"extra": extra}) for extra in extras)):
            continue
        found[name] = one
        with suppress(PackageNotFoundError):  # of an extra that is not installed
            left += map(Requirement, requires(one.name) or ())
    return found


@pytest.mark.parametrize("extra", ["", *EXTRAS])
def test_a_lock_has_all_that_pyproject_names_and_all_that_this_needs_in_versions_that_fit(extra):
    named = [*PROJECT["project"]["dependencies"], *EXTRAS.get(extra, ())]
    there = locked("package") | (locked(extra) if extra else {})
    needed = closure(named)
    assert {name for name in needed if name not in there} == set()
    assert [str(one) for name, one in needed.items() if not one.specifier.contains(there[name])] == []


def test_the_lock_of_the_build_has_the_backend():
    [backend] = PROJECT["build-system"]["requires"]
    there = locked("build")
    assert Requirement(backend).specifier.contains(there["hatchling"])
    assert "editables" in there


def test_locks_and_constraints_have_the_same_versions():
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    pinned = {canonicalize_name(name): version for name, version in pinned.items()}
    for path in (ROOT / "locks").glob("*.txt"):
        there = locked(path.stem)
        assert {n: v for n, v in there.items() if pinned.get(n, v) != v} == {}, "make locks"
    assert {path.stem for path in (ROOT / "locks").glob("*.txt")} == {"package", "build", *EXTRAS}


def test_make_the_image_and_the_site_install_by_the_hashes():
    files = [(ROOT / name).read_text() for name in ("Makefile", "deploy/Dockerfile", ".readthedocs.yaml")]
    for text in files:
        assert "--require-hashes" in text
        assert "--constraint" not in re.sub(
            r"^\t\$\(PIP\) --constraint constraints.txt uv$", "", text, flags=re.MULTILINE
        )


def test_the_base_image_is_named_by_its_digest_and_is_the_same_in_the_compose_file():
    pinned = r"(\S+@sha256:[0-9a-f]{64})"
    dockerfile, compose = [(ROOT / "deploy" / name).read_text() for name in ("Dockerfile", "compose.yaml")]
    image = re.search(rf"^ARG BASE_IMAGE={pinned}$", dockerfile, re.MULTILINE)
    composed = re.search(rf"BASE_IMAGE: \$\{{BASE_IMAGE:-{pinned}\}}$", compose, re.MULTILINE)
    assert image is not None
    assert composed is not None
    assert image[1] == composed[1]
