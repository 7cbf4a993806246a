"""Shard numbers by address: all servers are asked at once."""

import ipaddress
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import grpc

from pswire.codec import decode, encode
from pswire.errors import ParamServerError, WrongShard
from pswire.messages import Status, StatusReport
from pswire.network.channel import error_from, open_channel
from pswire.network.service_stub import ServiceStub
from pswire.security.credentials import Credentials
from pswire.tensors.transport import InlineReceiver, InlineSender

#: A status without variables, which costs a server little.
BRIEF_STATUS = Status(first_variable=1 << 40)


@dataclass(frozen=True, slots=True)
class AskedServers:
    """Answers of servers: the address of each shard, and how many shards there are (0: unknown).

    `problems` has an entry for each server that has not answered.
    """

    addresses: dict[int, str] = field(default_factory=dict)
    shards: int = 0
    problems: tuple[ParamServerError, ...] = ()

    def silent(self) -> str:
        """The problems, for people."""
        return "; ".join(map(str, self.problems))


def ask_for_shards(addresses: Sequence[str], credentials: Credentials, timeout: float) -> AskedServers:
    """Ask the server at each address which shard it has.

    Raises:
        WrongShard: two have the same shard, or differ in the number of shards: they are of different jobs.
        Unauthenticated, ConfigurationError, ...: the error of a server that answers, and refuses to.
    """
    problems: list[ParamServerError] = []
    reports: dict[str, StatusReport] = {}
    with ExitStack() as stack:
        calls = {}
        for address in addresses:
            stub = ServiceStub(stack.enter_context(open_channel(address, credentials)))
            calls[address] = stub.Status.future(encode(BRIEF_STATUS, InlineSender()), timeout=timeout)
        for address, call in calls.items():
            try:
                report = decode(call.result(), InlineReceiver())
            except grpc.RpcError as refusal:
                error = error_from(refusal, address, credentials)
                if not error.retry:
                    raise error from refusal
                problems.append(error)
            else:
                assert isinstance(report, StatusReport)
                reports[address] = report
    return by_shard({address: (one.shard, one.shards) for address, one in reports.items()}, problems)


def by_shard(answers: dict[str, tuple[int, int]], problems: Sequence[ParamServerError] = ()) -> AskedServers:
    """The answers by shard, from the shard and the number of shards at each address.

    A server that is reached by IPv4 and by IPv6 counts once, by the address that comes first. Raises `WrongShard`.
    """
    found: dict[int, str] = {}
    by_family: dict[tuple[int, int], str] = {}
    first = next(iter(answers), "")
    shards = answers[first][1] if answers else 0
    for address, (shard, number) in answers.items():
        if number != shards:
            raise WrongShard(
                f"the server at {first} is shard {answers[first][0]} of {shards}, and the one at {address} is shard "
                f"{shard} of {number}: they belong to different jobs; give each job's servers a name of their own"
            )
        found.setdefault(shard, address)
        other = by_family.setdefault((shard, _family(address)), address)
        if other != address:
            raise WrongShard(
                f"the servers at {other} and {address} both are shard {shard} of {shards}: give each another --shard, "
                "and each job's servers a name of their own"
            )
    return AskedServers(found, shards, tuple(problems))


def _family(address: str) -> int:
    """4 or 6 for an IP address, 0 for a host name."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).version
    except ValueError:
        return 0
