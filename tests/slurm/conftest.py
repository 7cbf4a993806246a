"""A Slurm cluster for the tests of this folder."""

from collections.abc import Iterator

import pytest

from tests.slurm.slurm_cluster import SlurmCluster, reason_for_none_of_slurm


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """A cluster of three nodes."""
    if reason := reason_for_none_of_slurm():
        pytest.skip(reason)
    cluster = SlurmCluster(tmp_path_factory.mktemp("slurm"), nodes=3)
    try:
        yield cluster
    finally:
        cluster.end()
