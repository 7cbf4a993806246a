"""The Ray cluster of these tests: one for all, since a node takes seconds to start; a test adds those that it needs."""

from collections.abc import Iterator

import pytest

from tests.ray.nodes import Nodes, missing


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """A cluster of nodes with two CPUs each."""
    if what := missing():
        pytest.skip(what)
    with Nodes(tmp_path_factory.mktemp("nodes")) as nodes:
        yield nodes


@pytest.fixture
def nodes(cluster: Nodes) -> Iterator[Nodes]:
    """The cluster, of two nodes or more; what jobs of a test have left on it fails the test."""
    cluster.grow(2)
    with cluster.commands:
        yield cluster
        assert not cluster.jobs(), "processes of a job were left behind"
