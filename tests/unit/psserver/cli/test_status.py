"""`psserver status`: readable tables of a job, and JSON for programs."""

import dataclasses
import json
from dataclasses import asdict, replace
from unittest import mock

import pytest
from rich.console import Console

from psjob.status.job_status import ShardAnswer, merge_reports
from psserver.cli.status import tables, to_json
from pswire.messages import AcceptedPoint, MinimizationStatus, StatusReport, VariableStatus
from pswire.optimizers import Adam, Momentum
from pswire.specs.schedules import CosineDecay, WarmUp
from pswire.tensors.values import TensorSpec
from tests.support.job_reports import GRPC, row, two_shards, worker


def shown(*answers, width=400) -> str:
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(tables(merge_reports(answers)))
    return capture.get()


def test_the_tables_of_a_job():
    text = shown(*two_shards())
    line = "global step 12 · 2 shards · consistency bounded:2 · staleness handling none · 3 repeated · 1 dropped"
    assert text.splitlines()[0] == line
    assert row(text, "0/2") == ["0/2", "host:1", "12", "2", "1.1 KiB", "3.2", "2.0 KiB", "1.5 MiB", "1", "7", "2"]
    assert row(text, "1/2") == ["1/2", "host:2", "11", "2", "516 B", "0.0", "0 B", "0 B", "0", "0", "1"]
    chief = "w0 (chief)|live|8|1|0.25|0.2500|3|8.5 s|gRPC and shared memory|–"
    assert row(text, "w0 (chief)") == chief.split("|")
    assert row(text, "w1") == ["w1", "lost", "4", "0", "1.00", "1.5000", "–", "–", "gRPC", "w0, 2 steps behind"]
    optimizer = "momentum learning_rate=0.5 momentum=0.9 nesterov=False"
    assert row(text, "W") == ["W", "float32[2, 3]", "0", "12", "12", "48 B", "momentum", optimizer]
    split = ["table", "float32[100, 4] table", "0,1", "7 to 9", "6 to 8", "1.6 KiB", "–", "–"]
    assert row(text, "table") == split
    assert row(text, "2", "w1") == ["2", "w1", "W, b", "gradient_descent learning_rate=0.25"]


def test_a_data_queue_is_shown_with_its_epoch_and_how_far_it_is():
    text = shown(*two_shards())
    assert row(text, "mnist") == ["mnist", "2 of 10", "60,000", "66,400 of 600,000", "2", "█▍░░░░░░░░░░ 11 %"]
    assert row(text, "stream") == ["stream", "–", "unknown", "1,250 batches", "1", "–"]
    sizes = {"name": "mnist", "size": 60_000, "block": 1600, "epochs": 10, "seed": 1, "limit": 0, "in_order": False}
    sizes |= {"evaluates": False}
    for data in (to_json(merge_reports(two_shards()), 1.5), to_json(merge_reports(two_shards()), 1.5)["shards"][0]):
        assert data["queues"][0] == sizes | {"epoch": 2, "done": 66_400, "blocks_out": 2}


def test_a_minimization_is_shown_with_its_last_accepted_point_and_how_many_portions_of_its_evaluation_are_counted():
    number = 1_000_000_002  # the second one after all shards went back to a checkpoint
    running = MinimizationStatus(
        name="minimize-2", evaluation=number, portions=1200, counted=900, out=12, claimed=40, backups=5, backups_won=3
    )
    answer = ShardAnswer(
        "a:1", StatusReport(shard=0, shards=1, global_step=0, repeated=0, minimizations=(replace(running, end="{}"),))
    )
    counts = ["900 of 1,200", "12", "40", "5", "3"]
    assert row(shown(answer), "minimize-2") == ["minimize-2", "over", *"–––––", *counts]
    running = replace(
        running, point=AcceptedPoint(iterations=1012, evaluations=1056, loss=0.26939, gradient=0.0069, step=0.5)
    )
    answer = replace(answer, report=replace(answer.report, minimizations=(running,)))
    point = ["1,012", "0.26939", "6.9e-03", "0.5", "1,056"]
    assert row(shown(answer), "minimize-2") == ["minimize-2", "running", *point, *counts]
    assert to_json(merge_reports([answer]), 1.5)["minimizations"] == [asdict(running)]


def test_names_are_shown_as_they_are_and_infinity_too():
    odd = worker("[bold]\x1b[2Jw[/bold] :smile:", loss=float("inf"))
    text = shown(ShardAnswer("a:1", StatusReport(shard=0, shards=1, global_step=0, repeated=0, workers=(odd,))))
    assert "[bold]\N{REPLACEMENT CHARACTER}[2Jw[/bold] :smile: " in text
    assert " inf " in text


def test_a_schedule_is_shown_with_its_fields_and_the_learning_rate_of_the_next_push():
    optimizer = Momentum(WarmUp(10, CosineDecay(0.1, 100)))
    variable = VariableStatus(spec=TensorSpec("W", (2,)), version=5, updates=4, optimizer=optimizer)
    text = shown(
        ShardAnswer("host:1", StatusReport(shard=0, shards=1, global_step=35, repeated=0, variables=(variable,)))
    )
    assert "learning_rate=WarmUp(steps=10, then=CosineDecay(initial=0.1, decay_steps=100, alpha=0.0))" in text
    assert "(learning rate now 0.0853553)" in text  # (1 + cos(pi / 4)) / 20


def test_programs_get_the_job_and_each_shard_as_json_without_nan():
    silent = ShardAnswer("host:3", problem="gone")
    data = json.loads(json.dumps(to_json(merge_reports([*two_shards(), silent]), 1.5), allow_nan=False))
    whole = {"time": 1.5, "global_step": 12, "consistency": "bounded:2", "problems": ["gone"]}
    assert whole.items() <= data.items()
    assert data["epochs"] == [{"queue": "mnist", "epoch": 1, "cost": None, "examples": 60000, "sums": []}], (
        "its cost is NaN"
    )
    table = {"name": "table", "shape": [100, 4], "dtype": "float32", "shards": [0, 1], "versions": [9, 7]}
    table |= {"table": True, "updates": [8, 6], "optimizer": None, "slots": [], "nbytes": 1600}
    table |= {"sampled": 0, "unchanged": 0}
    assert data["variables"][1] == table
    workers = [asdict(worker) for worker in merge_reports(two_shards()).workers]
    of_shards = {"staleness": mock.ANY, "staleness_sum": mock.ANY}
    assert [one | of_shards for one in data["workers"]] == [workers[0], workers[1] | {"lease_left": None}]
    assert not of_shards.keys() & data["workers"][0].keys()
    change = {"global_step": 2, "worker": "w1", "optimizer": {"kind": "gradient_descent", "learning_rate": 0.25}}
    assert data["changes"][1] == change | {"names": ["W", "b"], "others": 0}
    first, second, third = data["shards"]
    assert third == {"address": "host:3", "problem": "gone"}
    own = {"address": "host:1", "shard": 0, "nbytes": 1168, "changes": [change | {"names": ["W"], "others": 0}]}
    assert own.items() <= first.items()
    assert first["traffic"] == {"pushes": 3.25, "bytes_in": 2048.0, "bytes_out": 1572864.0}
    assert first["staleness"] == {"p50": 1, "p99": 7}
    assert second["variables"][1]["part"] == {"first": 70, "of": 100}
    assert (second["workers"][0]["lease_left"], second["workers"][0]["tensor_transport"]) == (8.5, "shared memory")


def test_a_silent_shard_is_named_with_its_reason_and_the_others_are_shown():
    silent = ShardAnswer("host:2", problem="no server answers at host:2: Connection refused")
    text = shown(two_shards()[0], silent)
    assert "warning: no server answers at host:2: Connection refused\n" in text
    assert text.count("warning") == 1
    assert row(text, "?", "host:2") == ["?", "host:2", "silent", *["–"] * 8]
    assert row(text, "0/2", "host:1")[2] == "12"
    assert shown(silent) == "warning: no server answers at host:2: Connection refused\n"


def test_a_narrow_terminal_shows_addresses_and_hyperparameters_unbroken_and_no_line_is_cut():
    first, second = two_shards()
    large = VariableStatus(
        spec=TensorSpec("classifier/dense_1/weights", (3136, 1024)),
        version=12_345,
        updates=12_345,
        optimizer=Adam(0.001),
        slots=("m", "v"),
        nbytes=38_535_168,
    )
    report = replace(first.report, global_step=1_234_567, nbytes=13_100_000, variables=(large,))
    text = shown(ShardAnswer("10.0.12.34:5000", report), ShardAnswer("10.0.12.35:5000", second.report), width=80)
    assert row(text, "0/2", "10.0.12.34:5000")[2:] == ["1,234,567", "1", "12.5 MiB", "3.2", "1", "7", "2"]
    for words in ("learning_rate=0.001", "beta1=0.9", "beta2=0.999", "epsilon=1e-08", "amsgrad=False"):
        assert words in text
    assert "out/s" not in text
    large = ["classifier/", "float32[3136,", "0", "12,345", "36.8 MiB", "m, v", "adam"]
    assert row(text, "classifier/") == large
    assert row(text, "dense_1/weights") == ["dense_1/weights", "1024]"]


SCHEDULE = Adam(WarmUp(100, CosineDecay(0.001, 10_000)))
HOST = "gpu-node-17.cluster.example.com"


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize(("shards", "workers"), [(2, 2), (4, 12)])
def test_any_width_from_60_columns_shows_whole_numbers_all_letters_of_names_and_each_optimizer_once(
    width, shards, workers
):
    names = [f"{HOST}-{12_340 + number}" for number in range(workers)]
    waits = {"waiting_for": f"{HOST}-12341, which is 2 steps behind", "chief": True}
    members = [worker(name, number=n, steps=51_234, loss=0.4567, **GRPC) for n, name in enumerate(names)]
    members[0] = dataclasses.replace(members[0], **waits)
    variables = [
        VariableStatus(
            spec=TensorSpec(f"classifier/dense_{number}/weights", (3136, 1024)),
            version=123_456,
            updates=123_456,
            optimizer=SCHEDULE,
        )
        for number in range(12)
    ]
    reports = [
        StatusReport(
            shard=shard, shards=shards, global_step=1_234_567, repeated=0, variables=(), workers=tuple(members)
        )
        for shard in range(shards)
    ]
    reports[0] = dataclasses.replace(reports[0], variables=tuple(variables), nbytes=13_000_000)
    text = shown(*[ShardAnswer(f"{HOST}:{7070 + report.shard}", report) for report in reports], width=width)
    assert max(map(len, text.splitlines())) <= width
    assert text.count("1,234,567") == 1 + shards
    assert [text.count(number) for number in ("51,234", "0.4567")] == [workers] * 2
    joined = "".join(text.split())
    for address in [f"{HOST}:{7070 + shard}" for shard in range(shards)]:
        assert address.partition(":")[2] in text
    for number in (12_340, 12_340 + workers - 1):
        assert f"-{number}" in text
    for number in range(12):
        assert f"dense_{number}/" in text
    assert text.count("beta1=0.9 ") + text.count("beta1=0.9\n") == 1
    assert "…" not in joined
    assert "alpha=0.0))" in text


def test_a_wide_terminal_shows_the_optimizer_of_each_variable_in_its_row():
    text = shown(*two_shards(), width=160)
    assert row(text, "W")[-1] == "momentum learning_rate=0.5 momentum=0.9 nesterov=False"
    assert "Optimizers" not in text
