"""Spans of pushes through real servers and workers, as a collector gets them."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import psworker as ps
from psjob.tracing import config
from psjob.tracing.tracing import open_tracing
from psserver.config import ServerConfig
from psserver.rpc.server import ServerThread
from pswire.errors import ConfigurationError, NotFinite
from pswire.specs.consistency import Synchronous
from tests.integration.collector import Collector
from tests.support.commands import Command, environment

KEY = b"0" * 32
CLIENT, SERVER = 3, 2  # of SpanKind in OTLP

PROGRAM = """
import numpy as np
import psworker as ps
A, B = ps.Variable(np.zeros(3), name="A"), ps.Variable(np.zeros(3), name="B")
with ps.session():
    for _ in range(3):
        ps.GradientDescent(0.1).apply_gradients([(np.ones(3), A), (np.ones(3), B)])
"""


def train(address, name, steps, **options):
    """Steps of a worker that are pushed, each as a trace."""
    with ps.collection():
        W = ps.Variable(np.zeros(3, np.float32), name="W")
        with ps.session(address, name, progress="off", **options):
            for _ in range(steps):
                ps.GradientDescent(0.1).apply_gradients([(np.ones(3, np.float32), W)])


def parts_of(spans, parent):
    return sorted((one for one in spans if one.parent == parent.id), key=lambda one: (one.begin, one.end))


@pytest.fixture
def collector(monkeypatch):
    with Collector() as collector:
        for name, value in collector.environment.items():
            monkeypatch.setenv(name, value)
        yield collector


@pytest.mark.slow
@pytest.mark.parametrize("shared_memory", [True, False])
def test_a_push_is_a_trace_from_the_worker_through_each_server_with_its_parts_in_order(collector, shared_memory):
    with ServerThread(ServerConfig("127.0.0.1:0", default_key=KEY)) as server:
        train(server.address, "w7", 3, shared_memory=shared_memory)
    spans = collector.spans
    pushes = [one for one in spans if one.name == "push"]
    assert [(one.parent, one.service, one.instance, one.kind) for one in pushes] == [("", "psworker", "w7", CLIENT)] * 3
    assert len({one.trace for one in spans}) == 3
    for sequence, push in enumerate(pushes, 1):
        counted = {"sequence": sequence, "global_step": sequence, "staleness": 0}
        assert push.attributes == {"worker": "w7", "outcome": "applied", **counted}
        own = [one for one in parts_of(spans, push) if one.service == "psworker"]
        assert [one.name for one in own] == ["encode", "send", "wait"]
        [served] = [one for one in parts_of(spans, push) if one.service == "psserver"]
        assert (served.name, served.instance, served.kind) == ("Push", "shard-0", SERVER)
        assert (served.trace, served.attributes) == (push.trace, {"shard": 0})
        assert own[1].begin <= served.begin <= served.end, "of one clock"
        parts = parts_of(spans, served)
        assert [one.name for one in parts] == ["decode", "step", "array tasks", "encode"]
        ends = [served.begin, *[one.end for one in parts]]
        assert ends == sorted(ends)
        assert [one.begin for one in parts[1:]] == [one.end for one in parts[:-1]]
        assert parts[-1].end == served.end
        assert parts[-2].end <= push.end, "the answer leaves after them"
    assert len(spans) == 3 * (1 + 3 + 1 + 4), "no other calls are traced"


def test_a_push_that_the_policy_holds_has_the_time_until_the_step_that_releases_it_as_a_span(collector):
    configuration = ServerConfig("127.0.0.1:0", consistency=Synchronous(2), default_key=KEY)
    with ServerThread(configuration) as server, ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda name: train(server.address, name, 1), ("w0", "w1")))
    spans = collector.spans
    served = [parts_of(spans, one) for one in spans if one.name == "Push"]
    [held, released] = sorted(served, key=len, reverse=True)
    assert [one.name for one in held] == ["decode", "step", "held", "array tasks", "encode"]
    assert [one.name for one in released] == ["decode", "step", "array tasks", "encode"]
    assert held[1].end == held[2].begin < released[1].begin
    assert released[1].begin < held[2].end < released[3].end


def test_the_standard_variables_decide_what_is_sampled_and_whether_anything_is_traced(collector, monkeypatch):
    with ServerThread(ServerConfig("127.0.0.1:0", default_key=KEY)) as server:
        monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
        monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0")
        train(server.address, "w0", 2)
        monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "1")
        monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
        train(server.address, "w1", 2)
        monkeypatch.delenv("OTEL_SDK_DISABLED")
        train(server.address, "w2", 1)
    assert {one.instance for one in collector.spans} == {"w2", "shard-0"}
    assert len({one.trace for one in collector.spans}) == 1


def test_a_push_that_is_refused_has_the_error_in_both_processes(collector):
    with ServerThread(ServerConfig("127.0.0.1:0", default_key=KEY)) as server, ps.collection():
        W = ps.Variable(np.zeros(3, np.float32), name="W")
        with ps.session(server.address, "w0", progress="off"), pytest.raises(NotFinite):
            ps.GradientDescent(0.1).apply_gradients([(np.full(3, np.nan, np.float32), W)])
    refused = [one for one in collector.spans if one.error]
    assert {one.service for one in refused} == {"psworker", "psserver"}
    assert {one.error.partition(":")[0] for one in refused} == {"NotFinite"}


def test_nothing_is_traced_by_default_and_an_unknown_exporter_is_named(monkeypatch):
    monkeypatch.delenv("OTEL_TRACES_EXPORTER", raising=False)
    assert (config.exporters(), open_tracing("psworker", "w")) == ((), None)
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    assert config.exporters() == ()
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp, console")
    assert config.exporters() == ("otlp_proto_grpc", "console")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    assert config.exporters() == ("otlp_proto_http", "console")
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "smoke")
    with pytest.raises(ConfigurationError, match=r"there is no exporter 'smoke' here, but .*otlp_proto_grpc"):
        open_tracing("psworker", "w")


@pytest.mark.slow
def test_processes_of_a_cluster_with_two_shards_send_their_spans_and_a_push_has_one_on_each(tmp_path):
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    with Collector() as collector:
        command = ["psworker", "local", "--workers", "2", "--shards", "2", str(program)]
        job = Command(tmp_path / "job", "-P", "-m", *command, env=environment(**collector.environment))
        assert job.wait() == 0, job.err
        spans = collector.spans
    pushes = [one for one in spans if one.name == "push"]
    assert sorted(one.instance for one in pushes) == ["worker-0"] * 3 + ["worker-1"] * 3
    for push in pushes:
        served = [one for one in spans if one.parent == push.id and one.service == "psserver"]
        assert sorted(one.instance for one in served) == ["shard-0", "shard-1"]
        assert {one.trace for one in served} == {push.trace}
