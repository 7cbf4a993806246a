"""What `psserver status` shows of a job: put together of its shards, readable, and the same for programs."""

import json
import re
from dataclasses import replace

import pytest
from rich.console import Console

from psserver.cli.job_status import JobWorker, ShardAnswer, put_together
from psserver.cli.status_json import plain
from psserver.cli.status_tables import size, view
from psserver.config import parse_addresses
from pswire.errors import ConfigurationError
from pswire.messages import Change, EpochReport, Staleness, StatusReport, Traffic, VariableStatus, WorkerStatus
from pswire.optimizers import Adam, GradientDescent, Momentum
from pswire.specs.schedules import CosineDecay, WarmUp
from pswire.tensors.values import Part, TensorSpec

TUNED = Change(2, "w1", ("W",), GradientDescent(0.25))


def worker(name="w0", **fields) -> WorkerStatus:
    known = {"incarnation": 1, "number": 0, "state": "live", "steps": 0, "staleness": 0, "staleness_sum": 0}
    return WorkerStatus(name, **{**known, "loss": None, "epoch": 0, "lease_left": 15.0, **fields})


def two_shards() -> list[ShardAnswer]:
    """`table` is on both, 70 rows and 30; `W` on the first and `b` on the second only."""
    first = StatusReport(
        0,
        2,
        global_step=12,
        repeated=1,
        variables=(
            VariableStatus(TensorSpec("W", (2, 3)), 12, 12, Momentum(0.5), ("momentum",), 48),
            VariableStatus(TensorSpec("table", (70, 4)), 9, 8, None, (), 1120, Part(0, 100), True),
        ),
        workers=(
            worker(
                "w0",
                steps=8,
                staleness_sum=4,
                loss=0.25,
                epoch=3,
                lease_left=9.5,
                dropped=1,
                tensor_transport="gRPC",
                chief=True,
            ),
            worker(
                "w1",
                number=1,
                steps=4,
                staleness_sum=4,
                loss=1.5,
                waiting_for="w0, 2 steps behind",
                tensor_transport="gRPC",
            ),
        ),
        epochs=(EpochReport("mnist", 1, float("nan"), 60000),),
        dropped=1,
        nbytes=1168,
        consistency="bounded:2",
        traffic=Traffic(3.25, 2048.0, 1.5 * 2**20),
        staleness=Staleness(1, 7),
        changes=(TUNED,),
    )
    second = StatusReport(
        1,
        2,
        global_step=11,
        repeated=2,
        variables=(
            VariableStatus(TensorSpec("b", (3,)), 11, 11, Adam(0.5), ("m", "v"), 36),
            VariableStatus(TensorSpec("table", (30, 4)), 7, 6, None, (), 480, Part(70, 100), True),
        ),
        workers=(
            worker("w0", steps=8, staleness_sum=0, loss=0.25, lease_left=8.5, tensor_transport="shared memory"),
            worker("w1", number=1, steps=3, staleness_sum=3, state="lost", lease_left=0.0),
        ),
        nbytes=516,
        consistency="bounded:2",
        changes=(Change(2, "w1", ("b",), GradientDescent(0.25)), Change(1, "w0", ("b",), GradientDescent(0.125))),
    )
    return [ShardAnswer("host:1", first), ShardAnswer("host:2", second)]


def shown(*answers, width=400) -> str:
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(view(put_together(answers)))
    return capture.get()


def row(text: str, *first: str) -> list[str]:
    """The cells of the row that begins with these."""
    lines = [re.split(r" {2,}", line.strip()) for line in text.splitlines()]
    (line,) = [line for line in lines if line[: len(first)] == list(first)]
    return line


# --- one job of several shards ----------------------------------------------------------------------------------------


def test_a_split_variable_is_shown_whole():
    W, table, b = put_together(two_shards()).variables
    assert (table.spec, table.nbytes, table.table) == (TensorSpec("table", (100, 4)), 1600, True)
    assert (table.shards, table.versions, table.updates) == ((0, 1), (9, 7), (8, 6))
    assert (W.spec.shape, W.shards, W.versions, W.slots) == ((2, 3), (0,), (12,), ("momentum",))
    assert (b.spec.shape, b.shards, b.versions, b.slots) == ((3,), (1,), (11,), ("m", "v"))


def test_a_worker_is_what_all_shards_say_of_it():
    w0, w1 = put_together(two_shards()).workers
    assert w0 == JobWorker("w0", 0, 1, "live", 8, 1, 4 / 16, 0.25, 3, 8.5, "", "gRPC and shared memory", True)
    assert w1 == JobWorker("w1", 1, 1, "lost", 4, 0, 7 / 7, 1.5, 0, None, "w0, 2 steps behind", "gRPC", False)


def test_a_shard_that_knows_only_an_earlier_life_of_a_worker_says_nothing_of_this_one():
    now = StatusReport(0, 2, 5, 0, workers=(worker(incarnation=2, steps=5, staleness_sum=5),))
    before = StatusReport(1, 2, 90, 0, workers=(worker(state="lost", steps=90, loss=0.5, tensor_transport="gRPC"),))
    (merged,) = put_together([ShardAnswer("a:1", now), ShardAnswer("a:2", before)]).workers
    assert merged == JobWorker("w0", 0, 2, "live", 5, 0, 1.0, None, 0, 15.0, "", "")


def test_counts_are_of_the_job_and_a_change_on_several_shards_is_one():
    job = put_together(two_shards())
    assert (job.global_step, job.shards, job.repeated, job.dropped, job.nbytes) == (12, 2, 3, 1, 1684)
    assert (job.consistency, job.handling, job.problems) == ("bounded:2", "none", ())
    earlier, later = job.changes
    assert earlier == Change(1, "w0", ("b",), GradientDescent(0.125))
    assert later == Change(2, "w1", ("W", "b"), GradientDescent(0.25))


def test_the_order_of_the_addresses_changes_only_the_table_of_shards_and_is_warned_of():
    job, other = put_together(two_shards()), put_together(two_shards()[::-1])
    assert (other.variables, other.workers, other.changes) == (job.variables, job.workers, job.changes)
    assert other.problems == (
        "workers must name the servers in the order of their shards, and this is another: "
        "host:2 is shard 1 of 2, host:1 is shard 0 of 2",
    )


# --- what is amiss ----------------------------------------------------------------------------------------------------


def test_a_part_of_the_job_is_shown_and_said_to_be_one():
    job = put_together(two_shards()[1:])
    assert job.problems == ("this is not the whole job: it has 2 shards, and 1 of their addresses are given",)
    assert [(variable.spec.name, variable.spec.shape) for variable in job.variables] == [
        ("b", (3,)),
        ("table", (100, 4)),
    ]


def test_a_silent_shard_is_named_with_its_reason_and_the_others_are_shown():
    silent = ShardAnswer("host:2", problem="no server answers at host:2: Connection refused")
    text = shown(two_shards()[0], silent)
    assert "warning: no server answers at host:2: Connection refused\n" in text
    assert text.count("warning") == 1
    assert row(text, "?", "host:2") == ["?", "host:2", "silent", *["–"] * 8]
    assert row(text, "0/2", "host:1")[2] == "12"


def test_a_narrow_terminal_shows_addresses_and_hyperparameters_unbroken_and_no_line_is_cut():
    first, second = two_shards()
    large = VariableStatus(
        TensorSpec("classifier/dense_1/weights", (3136, 1024)), 12_345, 12_345, Adam(0.001), ("m", "v"), 38_535_168
    )
    report = replace(first.report, global_step=1_234_567, nbytes=13_100_000, variables=(large,))
    text = shown(ShardAnswer("10.0.12.34:5000", report), ShardAnswer("10.0.12.35:5000", second.report), width=80)
    assert row(text, "0/2", "10.0.12.34:5000")[2:] == ["1,234,567", "1", "12.5 MiB", "1", "7", "2"]
    for words in ("learning_rate=0.001", "beta1=0.9", "beta2=0.999", "epsilon=1e-08", "amsgrad=False"):
        assert words in text
    assert "pushes/s" not in text
    assert "1.6 KiB" not in text
    assert re.search(r"classifier/den +float32\[3136,  0 +12,345  m, v +adam", text)
    assert re.search(r"\nse_1/weights +1024\] ", text)


def test_one_address_twice_is_counted_once_and_warned_of():
    first, _ = two_shards()
    job = put_together([first, first])
    assert job.problems == ("a shard is named twice: host:1 is shard 0 of 2, host:1 is shard 0 of 2",)
    assert (job.nbytes, job.variables[1].shards) == (1168, (0,))


def test_servers_of_different_jobs_and_policies_are_warned_of():
    alone, other = ShardAnswer("a:1", StatusReport(0, 1, 0, 0)), two_shards()[1]
    (problem,) = put_together([alone, other]).problems
    assert problem == "these servers are not of one job: a:1 is shard 0 of 1, host:2 is shard 1 of 2"
    first = ShardAnswer("a:1", StatusReport(0, 2, 0, 0, handling="scale"))
    assert put_together([first, other]).problems == (
        "all servers of a job need the same --consistency, these have async and bounded:2",
        "all servers of a job need the same --staleness, these have none and scale",
    )


def test_when_nobody_answers_there_are_problems_only():
    job = put_together([ShardAnswer("a:1", problem="gone"), ShardAnswer("a:2", problem="gone too")])
    assert job.problems == ("gone", "gone too")
    assert "global step 0 · 2 shards · consistency – ·" in shown(*job.answers)


# --- tables -----------------------------------------------------------------------------------------------------------


def test_the_tables_of_a_job():
    text = shown(*two_shards())
    line = "global step 12 · 2 shards · consistency bounded:2 · staleness handling none · 3 repeated · 1 dropped"
    assert text.splitlines()[0] == line
    assert row(text, "0/2") == ["0/2", "host:1", "12", "2", "1.1 KiB", "3.2", "2.0 KiB", "1.5 MiB", "1", "7", "2"]
    assert row(text, "1/2") == ["1/2", "host:2", "11", "2", "516 B", "0.0", "0 B", "0 B", "0", "0", "1"]
    assert row(text, "w0 (chief)") == [
        "w0 (chief)",
        "live",
        "8",
        "1",
        "0.25",
        "0.2500",
        "3",
        "8.5 s",
        "gRPC and shared memory",
        "–",
    ]
    assert row(text, "w1") == ["w1", "lost", "4", "0", "1.00", "1.5000", "–", "–", "gRPC", "w0, 2 steps behind"]
    optimizer = "momentum learning_rate=0.5 momentum=0.9 nesterov=False"
    assert row(text, "W") == ["W", "float32[2, 3]", "0", "12", "12", "48 B", "momentum", optimizer]
    split = ["table", "float32[100, 4] table", "0,1", "7 to 9", "6 to 8", "1.6 KiB", "–", "–"]
    assert row(text, "table") == split
    assert row(text, "2", "w1") == ["2", "w1", "W, b", "gradient_descent learning_rate=0.25"]


def test_a_table_without_rows_is_left_out():
    assert re.findall(r"^(\w+) *$", shown(ShardAnswer("a:1", StatusReport(0, 1, 0, 0))), re.MULTILINE) == ["Shards"]


def test_names_are_shown_as_they_are():
    text = shown(ShardAnswer("a:1", StatusReport(0, 1, 0, 0, workers=(worker("[bold]\x1b[2Jw[/bold] :smile:"),))))
    assert "[bold]\N{REPLACEMENT CHARACTER}[2Jw[/bold] :smile: " in text


def report_with(optimizer, global_step=0) -> ShardAnswer:
    variable = VariableStatus(TensorSpec("W", (2,)), 5, 4, optimizer)
    return ShardAnswer("host:1", StatusReport(0, 1, global_step, 0, (variable,)))


def test_a_schedule_is_shown_with_its_fields_and_the_learning_rate_of_the_next_push():
    text = shown(report_with(Momentum(WarmUp(10, CosineDecay(0.1, 100))), global_step=35))
    assert "learning_rate=WarmUp(steps=10, then=CosineDecay(initial=0.1, decay_steps=100, alpha=0.0))" in text
    assert "(learning rate now 0.0853553)" in text  # (1 + cos(pi / 4)) / 20


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1023.6, "1.0 KiB"),
        (1024, "1.0 KiB"),
        (1024**2 - 1, "1.0 MiB"),
        (1.25 * 1024**3, "1.2 GiB"),
        (5000 * 1024**4, "5,000.0 TiB"),
    ],
)
def test_bytes_are_in_units_that_people_read(nbytes, text):
    assert size(nbytes) == text


# --- for programs -----------------------------------------------------------------------------------------------------


def test_programs_get_the_job_and_each_shard_as_json_without_nan():
    silent = ShardAnswer("host:3", problem="gone")
    data = json.loads(json.dumps(plain(put_together([*two_shards(), silent]), 1.5), allow_nan=False))
    assert (data["time"], data["global_step"], data["consistency"], data["problems"]) == (
        1.5,
        12,
        "bounded:2",
        ["gone"],
    )
    assert data["epochs"] == [{"queue": "mnist", "epoch": 1, "cost": None, "examples": 60000}]
    assert data["variables"][1] == {
        "name": "table",
        "shape": [100, 4],
        "dtype": "float32",
        "shards": [0, 1],
        "versions": [9, 7],
        "updates": [8, 6],
        "optimizer": None,
        "slots": [],
        "nbytes": 1600,
        "table": True,
    }
    assert data["workers"][1] == {
        "name": "w1",
        "number": 1,
        "incarnation": 1,
        "state": "lost",
        "steps": 4,
        "dropped": 0,
        "mean_staleness": 1.0,
        "loss": 1.5,
        "epoch": 0,
        "lease_left": None,
        "waiting_for": "w0, 2 steps behind",
        "tensor_transport": "gRPC",
        "chief": False,
    }
    assert data["changes"][1] == {
        "global_step": 2,
        "worker": "w1",
        "names": ["W", "b"],
        "optimizer": {"kind": "gradient_descent", "learning_rate": 0.25},
    }
    first, second, third = data["shards"]
    assert third == {"address": "host:3", "problem": "gone"}
    assert (first["address"], first["shard"], second["shard"], first["nbytes"]) == ("host:1", 0, 1, 1168)
    assert first["traffic"] == {"pushes": 3.25, "bytes_in": 2048.0, "bytes_out": 1572864.0}
    assert first["staleness"] == {"p50": 1, "p99": 7}
    assert second["variables"][1]["part"] == {"first": 70, "of": 100}
    assert second["workers"][0]["lease_left"] == 8.5
    assert [shard["workers"][0]["tensor_transport"] for shard in (first, second)] == ["gRPC", "shared memory"]
    assert first["changes"] == [data["changes"][1] | {"names": ["W"]}]


def test_a_loss_that_is_no_number_is_none_for_programs_and_said_to_people():
    answer = ShardAnswer("a:1", StatusReport(0, 1, 1, 0, workers=(worker(steps=1, loss=float("inf")),)))
    data = plain(put_together([answer]), 0.0)
    assert data["workers"][0]["loss"] is None
    assert data["shards"][0]["workers"][0]["loss"] is None
    assert row(shown(answer), "w0")[5] == "inf"


def test_programs_get_a_schedule_as_plain_data():
    (variable,) = plain(put_together([report_with(Momentum(WarmUp(10, 0.5)))]), 0.0)["variables"]
    assert variable["optimizer"]["learning_rate"] == {"kind": "warm_up", "steps": 10, "then": 0.5}


# --- addresses --------------------------------------------------------------------------------------------------------


def test_addresses_are_separated_by_commas():
    assert parse_addresses("a:1, [::1]:2,unix:/run/ps") == ("a:1", "[::1]:2", "unix:/run/ps")
    for text in "", "a:1,", "a:1 b:2":
        with pytest.raises(ConfigurationError, match="is no address"):
            parse_addresses(text)
