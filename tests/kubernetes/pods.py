"""Pods as the controllers and the kubelet of Kubernetes make them of a manifest: names, labels, environment, files.

Follows the API reference of Kubernetes 1.32 and later, for what deploy/kubernetes uses. Another field is an error here,
so that nothing in a manifest is left out unseen.
"""

import base64
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tests.kubernetes.manifests import Manifests, Object

#: Fields of pods that need nodes, an API server or seccomp, or repeat a default. The others of `POD` and `CONTAINER`
#: are carried out.
POD_IGNORED = {
    "automountServiceAccountToken",  # there is no API server
    "enableServiceLinks",  # there are no variables of services
    "topologySpreadConstraints",  # there is one node
    "restartPolicy",  # of the kind of controller, and of no use for the container itself
}
POD = {"containers", "volumes", "securityContext", "terminationGracePeriodSeconds", "shareProcessNamespace"}
CONTAINER_IGNORED = {"imagePullPolicy", "ports"}
CONTAINER = {"name", "image", "command", "args", "env", "envFrom", "resources", "volumeMounts", "securityContext"}
PROBES = ("startupProbe", "readinessProbe", "livenessProbe")


@dataclass(frozen=True)
class Pod:
    """A pod with one container. `claims`: the persistent volume claim of a volume; `index`: among its controller's."""

    name: str
    index: int
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    hostname: str
    subdomain: str
    spec: Object
    claims: Mapping[str, str]

    @property
    def container(self) -> Object:
        [one] = self.spec["containers"]
        return one


def of_stateful_set(controller: Object, index: int) -> Pod:
    """The pod of an ordinal."""
    name, spec = f"{controller['metadata']['name']}-{index}", controller["spec"]
    labels = {"statefulset.kubernetes.io/pod-name": name, "apps.kubernetes.io/pod-index": str(index)}
    claims = [one["metadata"]["name"] for one in spec.get("volumeClaimTemplates", ())]
    pod = _of_template(spec["template"], name, index, name, labels, {})
    return replace(pod, subdomain=spec["serviceName"], claims={claim: f"{claim}-{name}" for claim in claims})


def of_job(controller: Object, index: int, suffix: str) -> Pod:
    """A pod of an index of an Indexed Job; `suffix` tells it from its predecessors."""
    job = controller["metadata"]["name"]
    assert controller["spec"]["completionMode"] == "Indexed"
    place = {"batch.kubernetes.io/job-completion-index": str(index)}
    labels = {"batch.kubernetes.io/job-name": job, "job-name": job, **place}
    return _of_template(
        controller["spec"]["template"], f"{job}-{index}-{suffix}", index, f"{job}-{index}", labels, place
    )


def _of_template(
    template: Object, name: str, index: int, hostname: str, labels: Mapping[str, str], annotations: Mapping[str, str]
) -> Pod:
    meta, spec = template["metadata"], template["spec"]
    [container] = spec["containers"]
    unknown = (set(spec) - POD - POD_IGNORED) | (set(container) - CONTAINER - CONTAINER_IGNORED - set(PROBES))
    assert unknown == set(), f"fields of {name} that this runner does not know"
    labels, annotations = meta["labels"] | labels, meta.get("annotations", {}) | annotations
    return Pod(name, index, labels, annotations, hostname, "", spec, {})


def action(job: Object, exit_code: int, disrupted: bool) -> str:
    """What becomes of a failed pod by the Job's podFailurePolicy: `Ignore`, `Count` or `FailJob`.

    disrupted: its condition DisruptionTarget is True, as after preemption, eviction, drain and loss of the node.
    """
    for rule in job["spec"]["podFailurePolicy"]["rules"]:
        conditions, codes = rule.get("onPodConditions", ()), rule.get("onExitCodes")
        if any(one == {"type": "DisruptionTarget", "status": "True"} for one in conditions) and disrupted:
            return rule["action"]
        if codes and (exit_code in codes["values"]) == (codes["operator"] == "In"):
            return rule["action"]
    return "Count"


# --- environment ------------------------------------------------------------------------------------------------------


def environment(pod: Pod, manifests: Manifests) -> dict[str, str]:
    """The variables of its container, as the kubelet computes them. Raises KeyError for what does not exist."""
    found: dict[str, str] = {}
    for source in pod.container.get("envFrom", ()):
        [(kind, reference)] = source.items()
        found |= data(manifests, kind, reference["name"])
    own: dict[str, str] = {}  # $(NAME) in a value means a variable further up in `env`, not one of `envFrom`
    for variable in pod.container.get("env", ()):
        value = variable["value"] if "value" in variable else _from(variable["valueFrom"], pod, manifests)
        own[variable["name"]] = expand(value, own)
    return found | own


def data(manifests: Manifests, kind: str, name: str) -> dict[str, str]:
    """The texts of a ConfigMap or Secret."""
    if kind in ("configMapRef", "configMapKeyRef", "configMap"):
        return manifests("ConfigMap", name)["data"]
    assert kind in ("secretRef", "secretKeyRef", "secret"), kind
    return {key: base64.b64decode(text).decode() for key, text in manifests("Secret", name)["data"].items()}


def expand(text: str, values: Mapping[str, str]) -> str:
    """Replaces $(NAME) by its value, if it has one, and $$ by $."""

    def value(found: re.Match[str]) -> str:
        return "$" if found[0] == "$$" else values.get(found[1], found[0])

    return re.sub(r"\$\$|\$\(([\w.-]+)\)", value, text)


def _from(source: Object, pod: Pod, manifests: Manifests) -> str:
    [(kind, reference)] = source.items()
    if kind == "fieldRef":
        return field(pod, reference["fieldPath"])
    if kind == "resourceFieldRef":
        assert reference["containerName"] == pod.container["name"]
        where, what = reference["resource"].split(".")
        amount = quantity(pod.container["resources"][where][what])
        return str(math.ceil(amount / quantity(reference.get("divisor", "1"))))
    return data(manifests, kind, reference["name"])[reference["key"]]


def field(pod: Pod, path: str) -> str:
    """A field of the downward API."""
    if found := re.fullmatch(r"metadata\.(labels|annotations)\['([^']+)'\]", path):
        return {"labels": pod.labels, "annotations": pod.annotations}[found[1]][found[2]]
    return {"metadata.name": pod.name}[path]


def quantity(text: str | int) -> float:
    """A number such as `250m`, `2Gi` or `1`."""
    number, unit = re.fullmatch(r"([\d.]+)([a-zA-Z]*)", str(text)).groups()
    return float(number) * {"": 1, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}[unit]


# --- volumes ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mount:
    """A volume in the container. `kind`: `files` (with `texts` and `mode`), `empty` (with `size`) or `claim`."""

    path: str
    kind: str
    read_only: bool
    name: str
    texts: Mapping[str, str]
    mode: int = 0o644
    size: int | None = None


def mounts(pod: Pod, manifests: Manifests) -> Iterator[Mount]:
    """The mounts of its container. Raises KeyError for a volume, claim, ConfigMap or Secret that does not exist."""
    volumes = {one["name"]: one for one in pod.spec.get("volumes", ())}
    for mount in pod.container.get("volumeMounts", ()):
        assert set(mount) <= {"name", "mountPath", "readOnly"}
        name, path, read_only = mount["name"], mount["mountPath"], mount.get("readOnly", False)
        if name in pod.claims:
            yield Mount(path, "claim", read_only, pod.claims[name], {})
            continue
        volume: dict[str, Any] = dict(volumes[name])
        [(kind, source)] = [(key, value) for key, value in volume.items() if key != "name"]
        if kind == "emptyDir":
            assert set(source) <= {"sizeLimit"}
            size = quantity(source["sizeLimit"]) if "sizeLimit" in source else None
            yield Mount(path, "empty", read_only, name, {}, size=int(size) if size else None)
        else:
            assert set(source) <= {"name", "secretName", "defaultMode"}
            texts = data(manifests, kind, source.get("name") or source["secretName"])
            # A volume of files is always read-only.
            yield Mount(path, "files", True, name, texts, mode=source.get("defaultMode", 0o644))
