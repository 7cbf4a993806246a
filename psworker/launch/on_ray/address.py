"""The Ray cluster that a job means: a named one, the one that this user has started on this machine, or a new one.

Ray's own search for `auto` takes any cluster with a process on this machine, also another user's, and waits for minutes
for one that has ended. Must not import Ray.
"""

import os
import socket
from dataclasses import dataclass
from pathlib import Path

from pswire.addresses import check_address
from pswire.errors import ConfigurationError
from psworker import environment

#: Seconds to reach the address of a cluster.
CONNECT_TIMEOUT = 10.0
#: The address of a new cluster of this machine, which ends with the job; and of the one to be found.
LOCAL, AUTO = "local", "auto"


@dataclass(frozen=True)
class RayAddress:
    """The address of a cluster, or `LOCAL`; `reason` says in words why it is this one."""

    address: str
    reason: str


def check_ray_address(address: str) -> None:
    """Raise `ConfigurationError` for an address that is none of a node.

    With ray://, of Ray Client, the driver is elsewhere than it seems.
    """
    if address.startswith("ray://"):
        raise ConfigurationError(
            f"--address {address}: psworker ray must run on a node of the cluster, to which ray:// connects "
            "from elsewhere: use ray job submit -- psworker ray ..."
        )
    if address not in (AUTO, LOCAL):
        check_address(address)


def find_ray(given: str) -> RayAddress:
    """The cluster that `--address` means.

    For `auto` that of `RAY_ADDRESS`, unless that is the URL of Ray's job server; else the one that this user has
    started here, if it answers; else a new one. Raises `ConfigurationError` if a named one does not answer.
    """
    named, source = given, "--address"
    if given == AUTO:
        named, source = environment.ray_address(), "RAY_ADDRESS"
        if named.startswith(("http://", "https://")):
            named = ""
    if named and named not in (AUTO, LOCAL):
        check_ray_address(named)
        try:
            _reach(named)
        except OSError as error:
            raise ConfigurationError(
                f"cannot connect to a Ray cluster at {named} ({source}): {error}. Start one with ray start --head, or "
                f"name it with --address; --address {LOCAL} starts one on this machine for this job"
            ) from error
        return RayAddress(named, f"named by {source}")
    if named == LOCAL:
        return RayAddress(LOCAL, f"{LOCAL} was named by {source}")
    if started := _started_here():
        return RayAddress(started, "which you have started on this machine")
    return RayAddress(LOCAL, "none that you have started runs here")


def _started_here() -> str:
    """The address that `ray start` of this user has written on this machine, if it answers; "" without one."""
    file = Path(environment.ray_folder(), "ray", "ray_current_cluster")
    try:
        if file.stat().st_uid != os.getuid():
            return ""
        address = file.read_text().strip()
        _reach(address)
    except (OSError, ValueError):
        return ""
    return address


def _reach(address: str) -> None:
    """Raise `OSError` if nobody listens there: Ray would try for minutes."""
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT).close()
