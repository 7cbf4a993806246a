"""Ray clusters of tests, and that no process of a job is left on them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ray.nodes import Nodes, missing


def _cluster(logs: Path) -> Iterator[Nodes]:
    if what := missing():
        pytest.skip(what)
    with Nodes(logs) as nodes:
        yield nodes
        assert not nodes.jobs(), "processes of a job were left behind"


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    """A cluster without nodes, for one test; what jobs have left on it fails the test."""
    yield from _cluster(tmp_path)


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """A cluster of two nodes with two CPUs each, which no test changes."""
    for nodes in _cluster(tmp_path_factory.mktemp("nodes")):
        nodes.add(cpus=2, count=2)
        yield nodes
