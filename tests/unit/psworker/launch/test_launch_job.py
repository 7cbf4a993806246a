"""What the launcher starts: commands, their environment, and the server's first line."""

import pytest

from pswire.errors import ConfigurationError
from psworker.config import EncodingConfig
from psworker.launch.local_cluster import Job, child_environment, listening_address
from psworker.launch.processes import BLAS_VARIABLES, blas_threads


def test_every_shard_and_worker_has_a_name_and_a_command():
    job = Job("train.py", ("--epochs", "3"), workers=3, shards=2)
    assert job.worker_names == ("worker-0", "worker-1", "worker-2")
    assert job.server_names == ("server-0", "server-1")
    assert job.server_command(1) == [
        *(
            "psserver",
            "serve",
            "--bind",
            "127.0.0.1:0",
            "--shard",
            "1/2",
            "--consistency",
            "async",
            "--staleness",
            "none",
        )
    ]
    assert job.worker_command("worker-2", ["h:1", "h:2"]) == [
        *("psworker", "run", "--servers", "h:1,h:2", "--name", "worker-2", "--", "train.py", "--epochs", "3"),
    ]


def test_the_servers_are_told_the_policy():
    job = Job("train.py", consistency="bounded:2", staleness="drop:5")
    assert job.server_command(0)[-4:] == ["--consistency", "bounded:2", "--staleness", "drop:5"]


def test_servers_do_not_share_memory_when_workers_shall_not():
    assert "--no-shared-memory" not in Job("train.py").server_command(0)
    assert Job("train.py", travel=EncodingConfig(shared_memory=False)).server_command(0)[-1] == "--no-shared-memory"


def test_a_job_with_fewer_workers_than_an_update_waits_for_is_refused():
    with pytest.raises(ConfigurationError, match=r"--consistency sync:3 each update waits for 3 workers.* there are 2"):
        Job("train.py", workers=2, consistency="sync:3")
    assert Job("train.py", workers=2, consistency="sync:2,backup=1").workers == 2


def test_debug_is_handed_to_the_workers():
    assert Job("train.py", debug=True).worker_command("worker-0", ["h:1"])[:3] == ["psworker", "--debug", "run"]


def test_a_child_gets_its_share_of_the_cores():
    environment = child_environment({"PATH": "/bin"}, None, share=3)
    assert environment == {"PATH": "/bin", "PYTHONUNBUFFERED": "1", **dict.fromkeys(BLAS_VARIABLES, "3")}


@pytest.mark.parametrize("variable", BLAS_VARIABLES)
def test_threads_that_the_user_has_set_stay_as_they_are(variable):
    environment = child_environment({variable: "7"}, None, share=3)
    assert {name: environment.get(name) for name in BLAS_VARIABLES if name in environment} == {variable: "7"}


def test_an_empty_variable_is_not_set():
    assert child_environment({"OMP_NUM_THREADS": ""}, None, share=3)["OMP_NUM_THREADS"] == "3"


def test_the_flag_goes_before_what_the_user_has_set():
    assert child_environment({"OMP_NUM_THREADS": "7"}, 2, share=3).items() >= blas_threads(2).items()


@pytest.mark.parametrize(
    ("line", "address"),
    [
        ("psserver: shard 0/1 listening on 127.0.0.1:43211", "127.0.0.1:43211"),
        ("psserver: shard 1/2 listening on [::1]:5000", "[::1]:5000"),
        ("psserver: shard 0/1 stopped at global step 3", None),
        ("somebody is listening on 127.0.0.1:43211", None),
        ("", None),
    ],
)
def test_the_address_is_read_from_the_servers_own_line(line, address):
    assert listening_address(line) == address
