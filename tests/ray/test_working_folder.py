"""The folder that Ray copies to the nodes, and the address of a cluster."""

import json

import pytest

from pswire.errors import ConfigurationError

pytest.importorskip("ray", reason="Ray is not installed: python -m pip install 'paramserver[ray]'")

from psworker.launch.on_ray.nodes import RayOptions, working_folder


@pytest.fixture
def script(tmp_path):
    (tmp_path / "train.py").touch()
    return str(tmp_path / "train.py")


def submitted(monkeypatch, **environment):
    """Makes this process the entrypoint of a job that was submitted with this runtime environment."""
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", json.dumps({"runtime_env": environment, "metadata": {}}))


def test_it_is_that_of_the_program_unless_another_is_given(script, tmp_path):
    assert working_folder(script, None) == tmp_path
    assert working_folder(script, str(tmp_path.parent)) == tmp_path.parent


def test_a_program_outside_of_it_is_an_error(script, tmp_path):
    (tmp_path / "other").mkdir()
    with pytest.raises(ConfigurationError, match="is not in --working-dir"):
        working_folder(script, str(tmp_path / "other"))


def test_a_job_that_was_submitted_with_a_folder_has_that_alone(script, tmp_path, monkeypatch):
    submitted(monkeypatch, working_dir="gcs://_ray_pkg_1.zip")
    assert working_folder(script, None) is None
    with pytest.raises(ConfigurationError, match="leave one out"):
        working_folder(script, str(tmp_path))


def test_a_job_that_was_submitted_without_a_folder_has_that_of_its_program(script, tmp_path, monkeypatch):
    submitted(monkeypatch, env_vars={"A": "b"})
    assert working_folder(script, None) == tmp_path


@pytest.mark.parametrize(("address", "error"), [("ray://h:1", "use ray job submit"), ("head", "is not an address")])
def test_an_address_that_is_none_of_a_node_is_an_error(address, error):
    with pytest.raises(ConfigurationError, match=error):
        RayOptions(address)
