"""deploy/kubernetes: valid for current versions of Kubernetes, and its parts fit together. Rendered by kubectl."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from psserver.cli.main import main as psserver
from psworker.launch.cli import main as psworker
from tests.kubernetes import manifests
from tests.kubernetes.containers import Ended
from tests.kubernetes.controllers import Job
from tests.kubernetes.manifests import ROOT, Manifests, selects
from tests.kubernetes.pods import Pod, action, environment, expand, mounts, of_job, of_stateful_set, quantity
from tests.support.combinations import few_fast, together

VERSIONS = few_fast([f"1.{minor}" for minor in range(37, 31, -1)])

#: Of the pages, as of the folder: an overlay of a user is the example in docs/deploy/kubernetes.md.
OVERLAYS = ["small", "tls", "mine"]

REASON = manifests.reason_for_none()

pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON)


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    """deploy/kubernetes, with credentials, and the example of the page beside its overlays as `mine`."""
    there = manifests.copy(tmp_path_factory.mktemp("manifests"))
    page = (ROOT / "docs/deploy/kubernetes.md").read_text()
    [example] = re.findall(r"^```yaml\n(resources: .*?)^```", page, re.DOTALL | re.MULTILINE)
    (there / "mine").mkdir()
    (there / "mine/train.py").write_text("print('mine')\n")
    text = example.replace("paramserver/deploy/kubernetes/tls", "../tls")
    assert text != example
    (there / "mine/kustomization.yaml").write_text(text)
    return there


@pytest.fixture(scope="session", params=OVERLAYS)
def rendered(request, folder) -> Manifests:
    return manifests.render(folder / request.param)


def server_pods(rendered: Manifests) -> list[Pod]:
    controller = rendered("StatefulSet", "ps")
    return [of_stateful_set(controller, index) for index in range(controller["spec"]["replicas"])]


def worker_pods(rendered: Manifests) -> list[Pod]:
    controller = rendered("Job", "train")
    return [of_job(controller, index, "a1b2c") for index in range(controller["spec"]["completions"])]


def pods(rendered: Manifests) -> list[Pod]:
    return [*server_pods(rendered), *worker_pods(rendered)]


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("rendered", few_fast(OVERLAYS, slow=2), indirect=True)
def test_every_object_fits_the_schema_of_kubernetes_with_no_unknown_field(version, rendered):
    validator = pytest.importorskip("kubernetes_validate", reason="pip install -e '.[dev]'")
    assert {one["kind"] for one in rendered.objects} >= {"StatefulSet", "Job", "Service", "NetworkPolicy"}
    for one in rendered.objects:
        validator.validate(one, version, strict=True)


def test_the_base_alone_chooses_no_security_so_that_its_servers_do_not_start(folder):
    [server, *_] = server_pods(base := manifests.render(folder / "base"))
    found = environment(server, base)
    assert found["PSSERVER_BIND"].startswith("0.0.0.0:")
    assert not {"PSSERVER_INSECURE", "PSSERVER_TLS_CERT", "PSSERVER_TOKEN_FILE"} & set(found)


def test_all_that_a_pod_names_exists_and_every_volume_is_mounted_once(rendered):
    for pod in pods(rendered):
        assert environment(pod, rendered)
        paths = [mount.path for mount in mounts(pod, rendered)]
        assert len(set(paths)) == len(paths)
        named = {mount["name"] for mount in pod.container["volumeMounts"]}
        assert named == {volume["name"] for volume in pod.spec["volumes"]} | set(pod.claims)


def test_environment_variables_are_those_of_options_with_values_that_they_take(rendered, monkeypatch):
    for pod in (server_pods(rendered)[0], worker_pods(rendered)[0]):
        program, name = pod.container["command"]
        group = {"psserver": psserver, "psworker": psworker}[program]
        command = group.commands[name]
        prefix = command.context_settings["auto_envvar_prefix"]
        known = {option.envvar or f"{prefix}_{option.name}".upper() for option in command.params}
        known |= {"PSWORKER_WORKERS"} if name == "run" else set()  # from launchers
        found = {key: value for key, value in environment(pod, rendered).items() if key.startswith("PS")}
        assert set() < set(found) <= known
        with monkeypatch.context() as patch:
            for key, value in found.items():
                patch.setenv(key, value)
            parent = group.make_context(program, [name])
            context = command.make_context(name, [__file__] if name == "run" else [], parent)
        if name == "serve":
            assert context.params["shard"] == (0, len(server_pods(rendered)))
            assert (context.params["journal"], context.params["shared_memory"]) == (True, False)


def test_the_program_of_the_workers_is_in_the_folder_in_which_they_start(rendered):
    for pod in worker_pods(rendered):
        [program] = [mount for mount in mounts(pod, rendered) if mount.path == "/job"]
        assert pod.container["args"][0] in program.texts


def test_shards_are_numbered_by_their_pods_and_found_by_the_name_of_the_headless_service(rendered):
    servers = server_pods(rendered)
    found = [environment(pod, rendered) for pod in servers]
    assert [one["PSSERVER_SHARD"] for one in found] == [f"{index}/{len(servers)}" for index in range(len(servers))]
    [service] = rendered.all("Service")
    [port] = [one["port"] for one in service["spec"]["ports"] if one["name"] == "grpc"]
    name = f"dns:///{service['metadata']['name']}:{port}"
    assert (service["spec"]["clusterIP"], service["spec"]["publishNotReadyAddresses"]) == ("None", True)
    assert {one["PSSERVER_HTTP_SERVERS"] for one in found} == {name}
    assert {environment(pod, rendered)["PSWORKER_SERVERS"] for pod in worker_pods(rendered)} == {name}


def test_workers_have_the_name_of_their_index_the_job_of_their_controller_and_as_many_threads_as_cores(rendered):
    for index, pod in enumerate(worker_pods(rendered)):
        found = environment(pod, rendered)
        assert (found["PSWORKER_NAME"], found["PSWORKER_JOB"]) == (f"worker-{index}", "train")
        assert int(found["PSWORKER_THREADS"]) - quantity(pod.container["resources"]["requests"]["cpu"]) in (0, 0.75)


def test_workers_know_how_many_of_them_are_awaited_in_a_session(rendered):
    spec = rendered("Job", "train")["spec"]
    found = {environment(pod, rendered)["PSWORKER_WORKERS"] for pod in worker_pods(rendered)}
    assert found == {str(spec["completions"])} == {str(spec["parallelism"])}


def test_a_stopped_worker_has_not_finished_and_servers_stay_until_they_are_deleted(rendered):
    """Code 0 completes an index of the Job for ever; a StatefulSet starts a server that ends again and again."""
    assert all("PSWORKER_SIGTERM_CODE" not in environment(pod, rendered) for pod in worker_pods(rendered))
    assert all("PSSERVER_LINGER" not in environment(pod, rendered) for pod in server_pods(rendered))


def test_ports_of_servers_services_and_probes_agree(rendered):
    [service] = rendered.all("Service")
    for pod in server_pods(rendered):
        ports = {one["name"]: one["containerPort"] for one in pod.container["ports"]}
        found = environment(pod, rendered)
        bound = {"grpc": found["PSSERVER_BIND"], "http": found["PSSERVER_HTTP"]}
        bound["direct"] = f"0.0.0.0:{found['PSSERVER_DIRECT_PORT']}"  # on the interfaces of PSSERVER_BIND
        assert bound == {name: f"0.0.0.0:{port}" for name, port in ports.items()}
        assert {one["targetPort"]: one["port"] for one in service["spec"]["ports"]} == ports
        assert pod.annotations["prometheus.io/port"] == str(ports["http"])
        secure = "PSSERVER_TLS_CERT" in found
        assert (pod.annotations.get("prometheus.io/scheme") == "https") == secure
        for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
            rule = pod.container[kind]
            if secure:  # the gRPC probes of Kubernetes have no TLS
                assert (rule["httpGet"]["port"], rule["httpGet"]["scheme"], "grpc" in rule) == ("http", "HTTPS", False)
            else:
                assert rule["grpc"] == {"port": ports["grpc"]}


def test_selectors_select_the_servers_and_no_other_pods(rendered):
    [service], [budget] = rendered.all("Service"), rendered.all("PodDisruptionBudget")
    controller = rendered("StatefulSet", "ps")
    [spread] = controller["spec"]["template"]["spec"]["topologySpreadConstraints"]
    selectors = [{"matchLabels": service["spec"]["selector"]}, spread["labelSelector"]]
    selectors += [budget["spec"]["selector"], controller["spec"]["selector"]]
    assert controller["spec"]["serviceName"] == service["metadata"]["name"]
    for selector in selectors:
        assert all(selects(selector, pod.labels) for pod in server_pods(rendered))
        assert not any(selects(selector, pod.labels) for pod in worker_pods(rendered))
        assert not selects(selector, {"app.kubernetes.io/component": "server"}), "a server of something else"


# --- network policies -------------------------------------------------------------------------------------------------

PROMETHEUS = {"app": "prometheus"}, {"kubernetes.io/metadata.name": "monitoring"}
STRANGER = {"app": "other"}, {"kubernetes.io/metadata.name": "other"}
NEIGHBOUR = {"app": "other"}, {}


def peers(rule, side, labels, namespace):
    """Whether a rule is for a peer: its labels, and those of its namespace, which are empty for that of the policy."""
    for peer in rule.get(side, ()):
        [(kind, selector)] = peer.items()
        if kind == "podSelector" and not namespace and selects(selector, labels):
            return True
        if kind == "namespaceSelector" and selects(selector, namespace):
            return True
    return side not in rule


def allowed(rendered, one, side, other, port):
    """Whether the policies of pod `one` allow a connection from (`from`) or to (`to`) another one at this port."""
    direction = {"from": "Ingress", "to": "Egress"}[side]
    policies = [
        policy["spec"]
        for policy in rendered.all("NetworkPolicy")
        if selects(policy["spec"]["podSelector"], one) and direction in policy["spec"]["policyTypes"]
    ]
    rules = [rule for policy in policies for rule in policy.get(direction.lower(), ())]
    return not policies or any(
        peers(rule, side, *other) and port in [each["port"] for each in rule["ports"]] for rule in rules
    )


def test_workers_and_servers_reach_servers_prometheus_their_metrics_and_nobody_else_anything(rendered):
    server, worker = server_pods(rendered)[0].labels, worker_pods(rendered)[0].labels
    for one in (server, worker):
        assert allowed(rendered, one, "to", (server, {}), 7070)
        assert allowed(rendered, server, "from", (one, {}), 7070)
        assert allowed(rendered, server, "from", (one, {}), 7170) == (one is worker)
        assert allowed(rendered, one, "to", (server, {}), 7170) == (one is worker)
        assert allowed(rendered, one, "to", STRANGER, 53)
        assert not allowed(rendered, one, "to", STRANGER, 443)
        assert not allowed(rendered, one, "to", (server, {}), 8080)
        assert not allowed(rendered, worker, "from", (one, {}), 7070)
    assert allowed(rendered, server, "from", PROMETHEUS, 8080)
    for stranger in (STRANGER, NEIGHBOUR):
        assert not any(allowed(rendered, server, "from", stranger, port) for port in (7070, 7170, 8080))


# --- security ---------------------------------------------------------------------------------------------------------


def test_pods_keep_the_pod_security_standard_restricted_and_more(rendered):
    for _, template in rendered.templates():
        spec = template["spec"]
        assert not {"hostNetwork", "hostPID", "hostIPC", "serviceAccountName"} & set(spec)
        assert spec["automountServiceAccountToken"] is spec["enableServiceLinks"] is False
        security = spec["securityContext"]
        assert (security["runAsNonRoot"], security["runAsUser"], security["fsGroup"]) == (True, 10001, 10001)
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert all({"emptyDir", "configMap", "secret"} & set(volume) for volume in spec["volumes"])
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert {"cpu", "memory"} <= set(container["resources"]["requests"])
            assert "memory" in container["resources"]["limits"]


@pytest.mark.slow
def test_no_pod_gets_the_key_of_the_ca_nor_a_worker_that_of_the_servers(folder):
    rendered = manifests.render(folder / "tls")
    files = {
        kind: {name for mount in mounts(pod, rendered) if mount.path.startswith("/credentials") for name in mount.texts}
        for kind, pod in (("server", server_pods(rendered)[0]), ("worker", worker_pods(rendered)[0]))
    }
    assert files == {
        "server": {"ca.crt", "server.crt", "server.key", "tokens", "token"},
        "worker": {"ca.crt", "token"},
    }
    every = {name for secret in rendered.all("Secret") for name in secret["data"]}
    assert every == files["server"] | files["worker"]
    for pod in pods(rendered):
        assert {mount.mode for mount in mounts(pod, rendered) if mount.path.startswith("/credentials")} == {0o440}


@pytest.mark.slow
def test_every_file_that_an_option_names_is_in_a_secret_of_the_pod(folder):
    rendered = manifests.render(folder / "tls")
    for pod in pods(rendered):
        there = {f"{mount.path}/{name}" for mount in mounts(pod, rendered) for name in mount.texts}
        named = {value for value in environment(pod, rendered).values() if value.startswith("/credentials")}
        assert named
        assert named <= there


@pytest.mark.slow
def test_the_certificate_is_for_the_name_by_which_the_servers_are_found(folder):
    rendered = manifests.render(folder / "tls")
    [certs] = [command for command in manifests.credential_commands() if command[1] == "certs"]
    found = environment(worker_pods(rendered)[0], rendered)["PSWORKER_SERVERS"]
    assert certs[certs.index("--hosts") + 1] == found.removeprefix("dns:///").partition(":")[0] == "ps"


# --- the end of workers -----------------------------------------------------------------------------------------------


@together(
    ("exit_code", "disrupted", "expected"),
    [
        (143, True, "Ignore"),  # preempted, and stopped in time
        (137, True, "Ignore"),  # its node was lost
        (143, False, "Ignore"),  # kubectl delete pod
        (69, False, "Count"),  # no server for PSWORKER_TIMEOUT
        (1, False, "Count"),  # an exception of the program
        (137, False, "Count"),  # out of memory
        (139, False, "Count"),
        (2, False, "FailJob"),  # a wrong option
        (2, True, "Ignore"),
    ],
)
def test_a_preempted_worker_is_no_failure_one_without_servers_is_and_a_wrong_option_fails_the_job_at_once(
    exit_code, disrupted, expected, rendered
):
    job = rendered("Job", "train")
    assert action(job, exit_code, disrupted) == expected
    assert job["spec"]["template"]["spec"]["restartPolicy"] == "Never"


class Ending:
    """A namespace in which each pod ends at once, with this code."""

    def __init__(self, manifests, code):
        self.manifests, self.started, self._ended = manifests, 0, Ended(code, 0.0, "")

    def run(self, pod):
        self.started += 1
        return SimpleNamespace(pod=pod, ended=lambda: self._ended)


@pytest.mark.parametrize(("code", "bounded"), [(69, True), (1, True), (143, False)])
def test_a_job_without_servers_and_one_with_a_program_that_fails_end_at_last_with_any_number_of_workers(
    code, bounded, rendered
):
    limit = rendered("Job", "train")["spec"]["backoffLimitPerIndex"]
    namespace = Ending(rendered, code)
    job = Job(namespace, "train", lambda name, text: 0.0)
    job.scale(20)
    for _ in range(20):
        job.sync()
    assert job.failed == bounded
    assert (20 * limit < job.failures <= 20 * (limit + 1)) if bounded else (job.failures == 0 < 400 < namespace.started)


def test_workers_wait_for_servers_that_are_gone_for_an_hour_and_not_for_ever(rendered):
    worker = worker_pods(rendered)[0]
    seconds = float(environment(worker, rendered)["PSWORKER_TIMEOUT"])
    assert 3600 <= seconds * (1 + rendered("Job", "train")["spec"]["backoffLimitPerIndex"]) <= 7200


# --- the runner -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [("$(A)/$(B)", "1/2"), ("$(C)", "$(C)"), ("$$(A)", "$(A)"), ("$A", "$A"), ("a $$ b", "a $ b"), ("$(A", "$(A")],
)
def test_the_runner_expands_variables_as_kubernetes_does(text, expected):
    assert expand(text, {"A": "1", "B": "2"}) == expected


@pytest.mark.parametrize(("text", "expected"), [("250m", 0.25), ("2Gi", 2**31), (1, 1), ("1.5", 1.5), ("3M", 3e6)])
def test_the_runner_reads_quantities(text, expected):
    assert quantity(text) == expected
