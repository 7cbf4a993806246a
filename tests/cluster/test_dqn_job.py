"""Q-learning as a job of real processes: all actors' updates count, and one that reaches the goal ends the others."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

EXAMPLE = str(Path(__file__).resolve().parents[2] / "examples" / "dqn_cartpole.py")
LAST = re.compile(
    r"^worker-(\d) +\| (solved|not solved) after ([\d,]+) steps of this worker and ([\d,]+) updates by all: "
    r"mean return ([\d.]+) over (\d+) episodes"
)


def last_lines(out):
    """Of each worker: outcome, steps, updates, mean return and episodes; in the order of their names."""
    found = sorted(match.groups() for match in map(LAST.match, out) if match)
    return [
        (outcome, *(int(number.replace(",", "")) for number in (steps, updates)), float(mean), int(episodes))
        for _, outcome, steps, updates, mean, episodes in found
    ]


def test_two_workers_play_environments_of_their_own_and_all_of_their_updates_count(commands):
    """Their weights stay as they are, so that they would play the same if they drew the same numbers."""
    options = ("--max-steps", "600", "--learning-rate", "0")
    code, out, err = commands.run("psworker", "local", "--workers", "2", EXAMPLE, *options)
    assert code == 0, err
    one, other = last_lines(out)
    assert [(outcome, steps) for outcome, steps, *_ in (one, other)] == [("not solved", 600)] * 2
    each = len(range(500, 601, 4))
    assert max(one[2], other[2]) == 2 * each
    assert re.search(rf"^{2 * each} steps in .* 2 workers$", err[-1])
    assert one[3:] != other[3:]


def test_a_worker_that_reaches_the_goal_ends_the_job_for_all(commands):
    code, out, err = commands.run("psworker", "local", "--workers", "2", EXAMPLE, "--goal", "9")
    assert code == 0, err
    workers = last_lines(out)
    assert [outcome for outcome, *_ in workers] == ["solved"] * 2
    assert all(steps < 20_000 for _, steps, *_ in workers)
    assert max(episodes for *_, episodes in workers) == 100
