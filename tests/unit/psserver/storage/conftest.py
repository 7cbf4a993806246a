"""A small disk that can become full."""

import subprocess

import pytest


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 400 KiB, with a file `ballast` that leaves room for some 110 KB until it is removed."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(folder)]
    made = subprocess.run(mount, capture_output=True, text=True, timeout=20)
    if made.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {made.stderr.strip()}")
    (folder / "ballast").write_bytes(bytes(290_000))
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True, timeout=20)
