"""Commands of the launcher's children, and their environment."""

import pytest

from psworker.launch.local_cluster import Job, child_environment
from psworker.launch.processes import BLAS_VARIABLES, blas_threads


def test_every_shard_and_worker_has_a_name_and_a_command():
    job = Job("train.py", ("--epochs", "3"), workers=3, shards=2, consistency="bounded:2", staleness="drop:5")
    assert job.worker_names + job.server_names == ["worker-0", "worker-1", "worker-2", "server-0", "server-1"]
    serve = "psserver serve --bind 127.0.0.1:0 --shard 1/2 --consistency bounded:2 --staleness drop:5"
    assert " ".join(job.server_command(1)) == serve
    run = "psworker run --servers h:1,h:2 --name worker-2 -- train.py --epochs 3"
    assert " ".join(job.worker_command("worker-2", ["h:1", "h:2"])) == run
    other = Job("train.py", debug=True, worker_options={"shared_memory": False})
    assert other.worker_command("worker-0", ["h:1"])[:3] == ["psworker", "--debug", "run"]
    assert other.server_command(0)[-1] == "--no-shared-memory"


@pytest.mark.parametrize(
    ("base", "threads", "blas"),
    [
        ({"OMP_NUM_THREADS": ""}, None, blas_threads(3)),
        ({"OMP_NUM_THREADS": "7"}, 2, blas_threads(2)),
        *[({variable: "7"}, None, {variable: "7"}) for variable in BLAS_VARIABLES],
    ],
)
def test_blas_threads_are_as_the_flag_says_or_the_user_has_set_or_the_share_of_the_cores(base, threads, blas):
    assert child_environment(base, threads, share=3) == base | {"PYTHONUNBUFFERED": "1"} | blas
