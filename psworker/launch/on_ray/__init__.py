"""A job on a Ray cluster: each process is the child of an actor, which Ray places on a node."""

from importlib.util import find_spec

from pswire.errors import ConfigurationError
from pswire.system.extras import install_command
from psworker import environment


def require_ray() -> None:
    """Prepare for the import of Ray. Raises `ConfigurationError` if it is not installed."""
    if find_spec("ray") is None:
        raise ConfigurationError(
            f"Ray is not installed: {install_command('ray')}, here and on all nodes of the cluster"
        )
    environment.use_ray_token()
