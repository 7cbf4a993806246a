"""Commands of the launcher's children, their environment, and the server's first line."""

import pytest

from pswire.errors import ConfigurationError
from psworker.config import TransferConfig
from psworker.launch.local_cluster import Job, child_environment, listening_address
from psworker.launch.processes import BLAS_VARIABLES, blas_threads


def test_every_shard_and_worker_has_a_name_and_a_command():
    job = Job("train.py", ("--epochs", "3"), workers=3, shards=2, consistency="bounded:2", staleness="drop:5")
    assert job.worker_names == ("worker-0", "worker-1", "worker-2")
    assert job.server_names == ("server-0", "server-1")
    serve = "psserver serve --bind 127.0.0.1:0 --shard 1/2 --consistency bounded:2 --staleness drop:5"
    assert " ".join(job.server_command(1)) == serve
    run = "psworker run --servers h:1,h:2 --name worker-2 -- train.py --epochs 3"
    assert " ".join(job.worker_command("worker-2", ["h:1", "h:2"])) == run
    other = Job("train.py", debug=True, transfer=TransferConfig(shared_memory=False))
    assert other.worker_command("worker-0", ["h:1"])[:3] == ["psworker", "--debug", "run"]
    assert other.server_command(0)[-1] == "--no-shared-memory"


def test_a_job_with_fewer_workers_than_an_update_waits_for_is_refused():
    with pytest.raises(ConfigurationError, match=r"--consistency sync:3 each update waits for 3 workers.* there are 2"):
        Job("train.py", workers=2, consistency="sync:3")
    assert Job("train.py", workers=2, consistency="sync:2,backup=1").workers == 2


@pytest.mark.parametrize(
    ("base", "threads", "blas"),
    [
        ({"PATH": "/bin"}, None, blas_threads(3)),
        ({"OMP_NUM_THREADS": ""}, None, blas_threads(3)),
        ({"OMP_NUM_THREADS": "7"}, 2, blas_threads(2)),
        *[({variable: "7"}, None, {variable: "7"}) for variable in BLAS_VARIABLES],
    ],
)
def test_blas_threads_are_as_the_flag_says_or_the_user_has_set_or_the_share_of_the_cores(base, threads, blas):
    assert child_environment(base, threads, share=3) == base | {"PYTHONUNBUFFERED": "1"} | blas


@pytest.mark.parametrize(
    ("line", "address"),
    [
        ("psserver: shard 0/1 listening on 127.0.0.1:43211", "127.0.0.1:43211"),
        ("psserver: shard 1/2 listening on [::1]:5000", "[::1]:5000"),
        ("psserver: shard 0/1 stopped at global step 3", None),
        ("somebody is listening on 127.0.0.1:43211", None),
    ],
)
def test_the_address_is_read_from_the_servers_own_line(line, address):
    assert listening_address(line) == address
