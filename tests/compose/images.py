"""The image under test and its base, built under unique names and removed again.

The classic builder leaves unnamed images of the stages of a build. It prints their identifiers, which tells them
from those of other builds. BuildKit leaves only the named image. Standard library only.
"""

from __future__ import annotations

import os
import re
import tempfile

from tests.compose.docker import ROOT, Cluster, Failed, docker, image_size, images, run, text_of

#: The default of deploy/Dockerfile.
BASE_IMAGE = "python:3.11-slim"
_STEP = re.compile(r"^ ---> ([0-9a-f]{12})$", re.MULTILINE)
_RUNNING = re.compile(r"^ ---> Running in ([0-9a-f]{12})$", re.MULTILINE)


def made(log: str) -> tuple[set[str], set[str]]:
    """Images that a build has created or used, and containers that it has run, from the output of the builder."""
    return set(_STEP.findall(log)), set(_RUNNING.findall(log))


class Images:
    """The images of one run of the test.

    Args:
        run: makes their names unique.
    """

    def __init__(self, run: str) -> None:
        self.name = f"paramserver-test:{run}"
        self.base = os.environ.get("BASE_IMAGE", "")
        self.network = os.environ.get("BUILD_NETWORK", "")
        self._substitute = f"paramserver-test-base:{run}"
        self._before: set[str] = set()
        self._log = tempfile.TemporaryFile("a+", errors="replace")  # noqa: SIM115 - open as long as this object

    def find_base(self) -> str:
        """Finds, pulls or builds the base image; returns a description. Raises `Failed`."""
        self._before = images("--all")
        chosen, self.base = self.base, self.base or BASE_IMAGE
        try:
            if images(self.base):
                return self.base
            docker("pull", "--quiet", self.base, timeout=300)
            return f"{self.base}, pulled"
        except Failed:
            if chosen:
                raise
        self.base, self.network = self._substitute, "host"
        run(str(ROOT / "deploy" / "offline-base-image.sh"), self._substitute, timeout=600, log=self._log)
        return f"a substitute built here, because {BASE_IMAGE} cannot be pulled"

    def build(self, cluster: Cluster) -> None:
        """Builds the image of the cluster's services. Raises `Failed`."""
        cluster.build(self.base, self.network, self._log)

    def sizes(self) -> str:
        whole, base = image_size(self.name) / 1e6, image_size(self.base) / 1e6
        return f"{whole:.0f} MB: {base:.0f} MB base image, {whole - base:.0f} MB paramserver"

    def remove(self) -> None:
        """Removes all images and containers of the build. Raises `Failed`."""
        _, run_in = made(text_of(self._log))
        if running := run_in & set(docker("ps", "--all", "--quiet").split()):
            docker("rm", "--force", *running)
        if left := self.left():
            docker("image", "rm", "--force", *left)

    def left(self) -> list[str]:
        """The remaining images, without layers of other images, which are removed with those."""
        steps, _ = made(text_of(self._log))
        unnamed = steps & (images("--filter", "dangling=true") - self._before)
        return [*unnamed, *(name for name in (self.name, self._substitute) if images(name))]
