"""The image under test and its base: made under names of their own, and removed again.

The classic builder leaves the stages of a build as images without a name, and those of a build that was broken off. It
prints the identifier of each as it makes it, so what it has made is known exactly, beside whatever else is built
meanwhile. BuildKit leaves no image but the one with the name. Standard library only.
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
    """The images that a build has made or found, and the containers that it has run, by what the builder prints."""
    return set(_STEP.findall(log)), set(_RUNNING.findall(log))


class Images:
    """What one run of the test builds.

    Args:
        run: makes the names its own.
    """

    def __init__(self, run: str) -> None:
        self.name = f"paramserver-test:{run}"
        self.base = os.environ.get("BASE_IMAGE", "")
        self.network = os.environ.get("BUILD_NETWORK", "")
        self._stand_in = f"paramserver-test-base:{run}"
        self._before: set[str] = set()
        self._log = tempfile.TemporaryFile("a+", errors="replace")  # noqa: SIM115 - open as long as this object

    def find_base(self) -> str:
        """Sees to it that there is a base image; says which one it is. Raises `Failed`."""
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
        self.base, self.network = self._stand_in, "host"
        run(str(ROOT / "deploy" / "offline-base-image.sh"), self._stand_in, timeout=600, log=self._log)
        return f"a stand-in made here, since {BASE_IMAGE} cannot be pulled"

    def build(self, cluster: Cluster) -> None:
        """Builds the image of the cluster's services. Raises `Failed`."""
        cluster.build(self.base, self.network, self._log)

    def sizes(self) -> str:
        """The size of the image, and how much of it is the base."""
        whole, base = image_size(self.name) / 1e6, image_size(self.base) / 1e6
        return f"{whole:.0f} MB: {base:.0f} MB of the base image, and {whole - base:.0f} MB of ours"

    def remove(self) -> None:
        """Removes all that was made. Raises `Failed` if something cannot be."""
        _, run_in = made(text_of(self._log))
        if running := run_in & set(docker("ps", "--all", "--quiet").split()):
            docker("rm", "--force", *running)
        if left := self.left():
            docker("image", "rm", "--force", *left)

    def left(self) -> list[str]:
        """What there still is of it; without what another image is built on, which goes with that one."""
        steps, _ = made(text_of(self._log))
        unnamed = steps & (images("--filter", "dangling=true") - self._before)
        return [*unnamed, *(name for name in (self.name, self._stand_in) if images(name))]
