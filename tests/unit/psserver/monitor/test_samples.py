"""Samples: rates and means of the time between two statuses."""

import json
import math
from dataclasses import replace

import pytest

from psjob.status.job_view import JobView
from psjob.status.shard_rates import WINDOW
from psserver.monitor.json_text import encode_in_parts
from psserver.monitor.samples import MAX_CELLS, make_sample
from pswire.messages import AcceptedPoint, MinimizationStatus, Totals, Traffic
from tests.unit.psserver.monitor.reports import job, report, variable, worker


def samples(*statuses, seconds=2.0):
    """The samples of statuses that follow each other."""
    view, found = JobView(), []
    for number, status in enumerate(statuses):
        at = number * seconds
        view = view.follow(status, at)
        found.append(make_sample(view, 1000.0 + at))
    return found


def test_rates_are_differences_by_the_seconds_between_two_statuses():
    before = report(100, workers=[worker("w0", 100, 50)], stalenesses={0: 60, 1: 40}, variables=[variable("a", 10, 20)])
    after = report(
        300, workers=[worker("w0", 300, 350)], stalenesses={0: 60, 1: 140, 2: 100}, variables=[variable("a", 410, 1020)]
    )
    first, second = samples(job(before), job(after))
    assert (first["steps_per_second"], first["shards"][0]["pushes_per_second"]) == (None, None)
    assert (second["time"], second["step"], second["steps_per_second"]) == (1002.0, 300, 100.0)
    shard, one, row = second["shards"][0], second["workers"][0], second["variables"][0]
    assert (shard["pushes_per_second"], shard["bytes_in_per_second"], shard["bytes_out_per_second"]) == (
        100.0,
        200.0,
        500.0,
    )
    assert (shard["stalenesses"], shard["p50"], shard["p99"]) == ([(1, 100), (2, 100)], 1, 2)
    assert (one["steps_per_second"], one["staleness"], one["mean_staleness"]) == (100.0, 1.5, 350 / 300)
    assert (row["in"], row["out"], row["nbytes"], row["optimizer"]["learning_rate"]) == ([200.0], [500.0], [400], 0.5)


def test_rates_are_of_the_last_seconds_so_a_slow_worker_has_one_between_its_pushes():
    """`slow` pushes every three seconds; only `stalenesses` are those since the sample before."""
    counts, statuses = {}, []
    for second in range(13):
        if second % 3 == 0:
            counts[7] = counts.get(7, 0) + 1
        pushes = sum(counts.values())
        slow = worker("slow", pushes, 7 * pushes)
        matrix = {("slow", 1): {"a": (pushes, 7 * pushes)}}
        statuses.append(
            job(report(pushes, workers=[slow], stalenesses=counts, variables=[variable("a")], matrix=matrix))
        )
    found = samples(*statuses, seconds=1.0)
    for second, sample in enumerate(found[6:], 6):
        pushes = len([moment for moment in range(second - int(WINDOW) + 1, second + 1) if moment % 3 == 0])
        (one,) = sample["workers"]
        assert (one["steps_per_second"], one["staleness"]) == (pushes / WINDOW, 7.0)
        assert sample["matrix"]["cells"] == [[7.0]]
        assert (sample["shards"][0]["p50"], sample["shards"][0]["pushes_per_second"]) == (7, pushes / WINDOW)
        assert sample["shards"][0]["stalenesses"] == ([(7, 1)] if second % 3 == 0 else [])


def test_a_worker_that_joined_later_has_its_rate_since_the_first_report_with_it():
    statuses = [
        job(report(10 * second, workers=[worker("w0", 10 * second), *late]))
        for second, late in enumerate([[], [], [worker("w1", 3)], [worker("w1", 23)]])
    ]
    sample = samples(*statuses, seconds=1.0)[-1]
    assert [one["steps_per_second"] for one in sample["workers"]] == [10.0, 20.0]


def test_counters_that_go_back_have_no_rate_for_that_interval_and_one_again_for_the_next():
    """The server was started again, and its job goes on from a checkpoint."""

    def status(step, pushes, nbytes):
        workers, variables = [worker("w0", step, step)], [variable("a", nbytes, nbytes)]
        matrix = {("w0", 1): {"a": (pushes, pushes)}}
        return job(report(step, workers=workers, stalenesses={1: pushes}, variables=variables, matrix=matrix))

    _, back, on = samples(status(100, 100, 1000), status(60, 10, 100), status(80, 30, 300))
    for sample, rate in ((back, None), (on, 10.0)):
        shard, one, row = sample["shards"][0], sample["workers"][0], sample["variables"][0]
        assert (sample["steps_per_second"], shard["pushes_per_second"], one["steps_per_second"]) == (rate, rate, rate)
        assert row["in"] == [rate and 100.0]
        assert (one["staleness"], row["staleness"], sample["matrix"]["cells"]) == (
            (None, None, [[None]]) if rate is None else (1.0, 1.0, [[1.0]])
        )
    assert (back["shards"][0]["stalenesses"], back["shards"][0]["p99"]) == ([], None)


def test_a_new_incarnation_of_a_worker_has_no_rate_against_the_old_one():
    before = report(10, workers=[worker("w0", 10)])
    after = report(20, workers=[worker("w0", 15, incarnation=2)])
    _, sample = samples(job(before), job(after))
    assert (sample["workers"][0]["incarnation"], sample["workers"][0]["steps_per_second"]) == (2, None)


def test_a_silent_shard_is_a_problem_and_its_rates_are_of_the_whole_time_when_it_answers_again():
    def shard(step, number):
        return report(step, shard=number, shards=2, workers=[worker("w0", step, step)], stalenesses={1: step})

    both, one, again = (
        job(shard(10, 0), shard(10, 1)),
        job(shard(30, 0), "host1 is silent"),
        job(shard(50, 0), shard(90, 1)),
    )
    _, silent, back = samples(both, one, again)
    assert silent["problems"] == ["host1 is silent"]
    quiet = silent["shards"][1]
    assert (quiet["shard"], quiet["address"], quiet["problem"]) == (1, "host1:7070", "host1 is silent")
    assert {quiet[name] for name in ("step", "nbytes", "pushes_per_second", "p50", "live", "storage")} == {None}
    assert silent["shards"][0].keys() == quiet.keys()
    assert silent["workers"][0]["steps_per_second"] == 10.0
    assert [one["pushes_per_second"] for one in back["shards"]] == [10.0, 20.0]
    assert back["workers"][0]["steps_per_second"] == 20.0


def test_the_matrix_has_the_mean_staleness_of_the_interval_over_all_shards_for_live_workers():
    def shard(number, rows, names):
        workers = [worker("w0", 9), worker("w1", 9, state="lost"), worker("w2", 9)]
        return report(
            9, shard=number, shards=2, workers=workers, variables=[variable(name) for name in names], matrix=rows
        )

    before = job(
        shard(0, {("w0", 1): {"a": (10, 10), "b": (10, 0)}, ("w1", 1): {"a": (5, 5)}}, ["a", "b"]),
        shard(1, {("w0", 1): {"a": (10, 20)}}, ["a"]),
    )
    after = job(
        shard(
            0,
            {("w0", 1): {"a": (20, 30), "b": (10, 0)}, ("w1", 1): {"a": (9, 99)}, ("w2", 1): {"b": (4, 1)}},
            ["a", "b"],
        ),
        shard(1, {("w0", 1): {"a": (20, 60)}}, ["a"]),
    )
    _, sample = samples(before, after)
    assert sample["matrix"] == {"workers": ["w0", "w2"], "variables": ["a", "b"], "cells": [[3.0, None], [None, 0.25]]}
    assert {one["name"]: one["staleness"] for one in sample["variables"]} == {"a": 3.0, "b": 0.25}


def test_a_sample_is_json_although_losses_may_be_infinite_and_a_large_matrix_has_fewer_variables():
    workers = [worker(f"w{number}", 3, cost=float("inf"), gradient=float("nan")) for number in range(300)]
    variables = [variable(f"v{number}") for number in range(200)]
    status = job(report(3, workers=workers, variables=variables, matrix={("w0", 1): {"v0": (1, 1)}}))
    (sample,) = samples(status)
    matrix = json.loads(encode_in_parts(sample))["matrix"]
    assert (len(matrix["workers"]), len(matrix["variables"])) == (300, MAX_CELLS // 300)
    assert (sample["workers"][0]["cost"], sample["workers"][0]["gradient"]) == (None, None)


def test_of_very_many_variables_the_traffic_of_a_shard_is_what_it_counts_itself():
    status = report(5, variables=[variable("a", 100, 100)])
    status = replace(status, totals=Totals(variables=2000), traffic=Traffic(1.0, 123.0, 456.0))
    _, sample = samples(job(status), job(status))
    assert (sample["shards"][0]["bytes_in_per_second"], sample["shards"][0]["bytes_out_per_second"]) == (123.0, 456.0)


@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_two_statuses_of_one_moment_have_no_rate(seconds):
    status = report(5, workers=[worker("w0", 5)])
    later = report(9, workers=[worker("w0", 9)])
    sample = make_sample(JobView().follow(job(status), 10.0).follow(job(later), 10.0 + seconds), 0.0)
    assert (sample["steps_per_second"], sample["workers"][0]["steps_per_second"]) == (None, None)


def test_the_matrix_goes_on_when_a_variable_is_registered_or_leaves_the_list():
    def status(names, counts):
        variables = [variable(name) for name in names]
        return job(report(1, workers=[worker("w0", 1)], variables=variables, matrix={("w0", 1): counts}))

    before = status(["a", "b"], {"a": (10, 10), "b": (10, 40)})
    after = status(["new", "b"], {"new": (5, 5), "b": (12, 50)})
    _, sample = samples(before, after)
    assert sample["matrix"] == {"workers": ["w0"], "variables": ["new", "b"], "cells": [[1.0, 5.0]]}


def test_a_sample_has_the_last_accepted_point_of_each_minimization_without_numbers_that_json_does_not_have():
    point = AcceptedPoint(iterations=3, evaluations=5, loss=0.25, gradient=math.inf, step=1.0)
    one = MinimizationStatus(
        name="fit",
        evaluation=6,
        portions=64,
        counted=37,
        out=2,
        claimed=5,
        backups=3,
        backups_won=1,
        end="",
        point=point,
    )
    over = replace(one, name="before", end="{}", point=None)
    (found,) = samples(job(replace(report(1), minimizations=(over, one))))
    counts = {"portions": 64, "counted": 37, "backups": 3, "backups_won": 1}
    at = {"iterations": 3, "evaluations": 5, "loss": 0.25, "gradient": None, "step": 1.0}
    assert found["minimizations"] == [
        {"name": "before", "over": True, **counts, "point": None},
        {"name": "fit", "over": False, **counts, "point": at},
    ]
