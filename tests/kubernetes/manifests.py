"""The manifests of deploy/kubernetes, rendered by `kubectl kustomize`, and the objects in them."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]

#: The oldest kubectl that may be used with the versions of Kubernetes that the manifests are for.
OLDEST = 1, 31

Object = Mapping[str, Any]


def reason_for_none() -> str:
    """The reason why manifests cannot be rendered here; empty if they can."""
    need = f"install {'.'.join(map(str, OLDEST))} or newer: https://kubernetes.io/docs/tasks/tools"
    if shutil.which("kubectl") is None:
        return f"kubectl is not installed: {need}"
    command = ["kubectl", "version", "--client", "--output=json"]
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    version = json.loads(output)["clientVersion"]["gitVersion"]  # such as v1.32.4
    major, minor = re.match(r"v(\d+)\.(\d+)", version).groups()
    return "" if (int(major), int(minor)) >= OLDEST else f"kubectl {version} is too old: {need}"


def copy(folder: Path) -> Path:
    """A copy of the manifests and of what they include, with credentials for `tls`; returns deploy/kubernetes in it."""
    there = folder / "deploy" / "kubernetes"
    shutil.copytree(ROOT / "deploy" / "kubernetes", there, ignore=shutil.ignore_patterns("credentials"))
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    for command in credential_commands():
        psserver = [sys.executable, "-m", *command]
        subprocess.run(psserver, check=True, cwd=there / "tls", capture_output=True, timeout=60)
    return there


def credential_commands() -> list[list[str]]:
    """The commands in tls/kustomization.yaml that make the credentials."""
    text = (ROOT / "deploy" / "kubernetes" / "tls" / "kustomization.yaml").read_text()
    return [line[1:].split() for line in text.splitlines() if line.startswith("#   psserver ")]


def render(folder: Path) -> "Manifests":
    """What `kubectl apply --kustomize FOLDER` would send."""
    command = ["kubectl", "kustomize", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return Manifests(list(yaml.safe_load_all(done.stdout)))


class Manifests:
    """Objects of a namespace by kind and name."""

    def __init__(self, objects: list[Object]) -> None:
        self.objects = objects
        self._found = {(one["kind"], one["metadata"]["name"]): one for one in objects}
        assert len(self._found) == len(objects), "two objects with one name"

    def __call__(self, kind: str, name: str) -> Object:
        """The object. Raises KeyError: there is none, so that a pod that names it would not start."""
        return self._found[kind, name]

    def all(self, *kinds: str) -> list[Object]:
        return [one for one in self.objects if one["kind"] in kinds]

    def templates(self) -> list[tuple[Object, Object]]:
        """What makes pods, each with the template of its pods."""
        return [(one, one["spec"]["template"]) for one in self.all("StatefulSet", "Job", "Deployment")]


def selects(selector: Object, labels: Mapping[str, str]) -> bool:
    """Whether a label selector, of which only `matchLabels` is known here, selects an object with these labels."""
    assert set(selector) <= {"matchLabels"}
    return selector.get("matchLabels", {}).items() <= labels.items()
