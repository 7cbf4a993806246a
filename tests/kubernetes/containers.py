"""Pods of rendered manifests as containers of a Docker engine, on a network that resolves their stable names.

Does what the kubelet does with a pod: environment, files, users, limits, probes. Each pod gets an address of its own,
which no earlier one had, as when it is scheduled to another node; a claim keeps its folder.
"""

import http.client
import json
import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from tests.compose.docker import docker, moment, run, wait_for
from tests.kubernetes.manifests import Manifests, Object, selects
from tests.kubernetes.pods import Mount, Pod, environment, expand, mounts, quantity

SUBNET = "10.233.77.0/24"
NAMESPACE = "training"


@dataclass(frozen=True)
class Ended:
    """The end of a pod's container: its exit code, when, in seconds since 1970, and its output as of `docker logs`."""

    exit_code: int
    at: float
    log: str


@dataclass(frozen=True)
class Running:
    """A pod, and the container that runs it."""

    pod: Pod
    container: str
    address: str

    def ended(self) -> Ended | None:
        """Its end, or None while it runs."""
        [data] = json.loads(docker("inspect", self.container))
        state = data["State"]
        return None if state["Running"] else Ended(state["ExitCode"], moment(state["FinishedAt"]), self.log())

    def log(self) -> str:
        return run("sh", "-c", f"docker logs --timestamps {self.container} 2>&1", timeout=60)

    def ready(self) -> bool:
        return probe(self.pod, "readinessProbe", self.address)

    def start(self) -> "Running":
        """Itself, when its startup probe has succeeded. Raises `Failed`: not in the time that the manifest gives."""
        rule = self.pod.container["startupProbe"]
        seconds = rule["periodSeconds"] * rule["failureThreshold"]
        wait_for(f"{self.pod.name}: startup", lambda: probe(self.pod, "startupProbe", self.address), seconds, bool)
        return self

    def delete(self) -> Ended:
        """SIGTERM, SIGKILL after the time of grace, and the container is removed; returns its end."""
        docker("stop", self.container, timeout=self.pod.spec["terminationGracePeriodSeconds"] + 60)
        return self._remove()

    def lose(self) -> Ended:
        """The death of its node: SIGKILL; returns its end."""
        docker("kill", self.container)
        return self._remove()

    def _remove(self) -> Ended:
        ended = self.ended()
        docker("rm", "--force", self.container)
        assert ended is not None
        return ended

    def exec(self, *command: str) -> str:
        """The output of `kubectl exec POD -- COMMAND`."""
        return docker("exec", self.container, *command)


class Namespace:
    """The pods of a namespace. Files and claims are below `folder`; `images` are those of the engine, by container."""

    def __init__(self, project: str, folder: Path, manifests: Manifests, images: dict[str, str]) -> None:
        self.project, self._folder, self.manifests, self._images = project, folder, manifests, images
        self._hosts = (f"{SUBNET.rpartition('.')[0]}.{host}" for host in range(10, 250))
        self._mine = f"label={project}"

    @contextmanager
    def network(self) -> Iterator[None]:
        """The network of the pods; at the end they and it are removed."""
        docker("network", "create", "--subnet", SUBNET, "--label", self.project, self.project)
        try:
            yield
        finally:
            if left := docker("ps", "--all", "--quiet", "--filter", self._mine).split():
                docker("rm", "--force", *left)
            docker("network", "rm", self.project)

    def left(self) -> list[str]:
        """Its containers and networks."""
        kinds = ("container", "ls", "--all"), ("network", "ls")
        return [one for kind in kinds for one in docker(*kind, "--quiet", "--filter", self._mine).split()]

    def run(self, pod: Pod) -> Running:
        """Starts a pod. Raises KeyError: an object that it needs is not there; `Failed`: the engine refuses it."""
        container, address = pod.container, next(self._hosts)
        found = environment(pod, self.manifests)
        command = [expand(one, found) for one in (*container["command"], *container.get("args", ()))]
        options = [f"--name={self.project}-{pod.name}-{address.rpartition('.')[2]}", f"--label={self.project}"]
        options += [f"--network={self.project}", f"--ip={address}", f"--hostname={pod.hostname}"]
        options += [f"--network-alias={name}" for name in self._names(pod)]
        options += [f"--env={name}={value}" for name, value in found.items()]
        options += security(pod) + limits(container["resources"])
        for mount in mounts(pod, self.manifests):
            options += self._mount(pod, mount)
        options += ["--no-healthcheck", f"--stop-timeout={pod.spec['terminationGracePeriodSeconds']}"]
        entry = [f"--entrypoint={command[0]}", self._images[container["image"]], *command[1:]]
        return Running(pod, docker("run", "--detach", *options, *entry).strip(), address)

    def _names(self, pod: Pod) -> list[str]:
        """What the pod's address is found by: its own name and that of the headless service, short and complete."""
        names = []
        for service in self.manifests.all("Service"):
            assert service["spec"]["clusterIP"] == "None"
            if selects({"matchLabels": service["spec"]["selector"]}, pod.labels):
                name = service["metadata"]["name"]
                own = [f"{pod.hostname}.{name}"] if pod.subdomain == name else []
                names += [one + end for one in (name, *own) for end in ("", f".{NAMESPACE}.svc.cluster.local")]
        return names

    def _mount(self, pod: Pod, mount: Mount) -> list[str]:
        if mount.kind == "empty":
            size = f",tmpfs-size={mount.size}" if mount.size else ""
            return [f"--mount=type=tmpfs,destination={mount.path},tmpfs-mode=1777{size}"]
        group = pod.spec["securityContext"]["fsGroup"]
        if mount.kind == "claim":
            folder = self._folder / "claims" / mount.name
            if not folder.exists():
                folder.mkdir(parents=True)
                os.chown(folder, 0, group)
                folder.chmod(0o2775)
        else:
            folder = self._folder / "files" / pod.name / mount.name
            write_files(folder, mount, group)
        end = ",readonly" if mount.read_only else ""
        return [f"--mount=type=bind,source={folder},destination={mount.path}{end}"]


def write_files(folder: Path, mount: Mount, group: int) -> None:
    """The files of a ConfigMap or Secret as the kubelet lays them out: links to a folder replaced as a whole."""
    inner = folder / "..2026_01_01_00_00_00.1"
    inner.mkdir(parents=True, exist_ok=True)
    for name, text in mount.texts.items():
        (inner / name).write_text(text)
        (inner / name).chmod(mount.mode)
        os.chown(inner / name, 0, group)
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"..data/{name}")
    if not (folder / "..data").is_symlink():
        (folder / "..data").symlink_to(inner.name)
    for one in (folder, inner):
        os.chown(one, 0, group)
        one.chmod(0o755)


def security(pod: Pod) -> list[str]:
    """Options of `docker run` for the security contexts of a pod and its container."""
    whole, own = pod.spec["securityContext"], pod.container["securityContext"]
    assert set(whole) - {"fsGroupChangePolicy"} == {
        "runAsNonRoot", "runAsUser", "runAsGroup", "fsGroup", "seccompProfile"
    }  # fmt: skip
    assert own == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert (whole["runAsNonRoot"], whole["seccompProfile"]) == (True, {"type": "RuntimeDefault"})  # Docker's default
    user = f"--user={whole['runAsUser']}:{whole['runAsGroup']}", f"--group-add={whole['fsGroup']}"
    init = ["--init"] if pod.spec.get("shareProcessNamespace") else []  # stands for the pause container, process 1
    return [*user, *init, "--cap-drop=ALL", "--security-opt=no-new-privileges", "--read-only"]


def limits(resources: Object) -> list[str]:
    """Options of `docker run` for the resources of a container: requests of CPU are its share."""
    assert {what for kind in resources.values() for what in kind} <= {"cpu", "memory"}
    cpu, most = quantity(resources["requests"]["cpu"]), resources["limits"]
    options = [f"--cpu-shares={int(1024 * cpu)}", f"--memory={int(quantity(most['memory']))}"]
    return [*options, *([f"--cpus={quantity(most['cpu'])}"] if "cpu" in most else [])]


# --- probes -----------------------------------------------------------------------------------------------------------


def probe(pod: Pod, kind: str, address: str) -> bool:
    """One probe of a pod, as the kubelet makes it: by gRPC without TLS, or by HTTPS without a check of certificates."""
    rule = pod.container[kind]
    timeout = rule.get("timeoutSeconds", 1)
    ports = {one["name"]: one["containerPort"] for one in pod.container["ports"]}
    if "grpc" in rule:
        return probe_grpc(f"{address}:{rule['grpc']['port']}", timeout)
    get = rule["httpGet"]
    assert get["scheme"] == "HTTPS"
    return probe_https(address, ports[get["port"]], get["path"], timeout)


def probe_grpc(address: str, timeout: float) -> bool:
    with grpc.insecure_channel(address) as channel:
        try:
            answer = HealthStub(channel).Check(HealthCheckRequest(), timeout=timeout)
        except grpc.RpcError:
            return False
    return answer.status == HealthCheckResponse.SERVING


def probe_https(address: str, port: int, path: str, timeout: float) -> bool:
    unchecked = ssl._create_unverified_context()
    connection = http.client.HTTPSConnection(address, port, timeout=timeout, context=unchecked)
    try:
        connection.request("GET", path)
        return 200 <= connection.getresponse().status < 400
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
