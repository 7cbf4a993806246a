"""The machines of tests (`tests.support.machines`) and their network."""

from contextlib import ExitStack

import pytest

from tests.support.commands import environment
from tests.support.machines import Machine, connect, reason_for_none

#: Prints the hardware addresses that a machine has learnt, as soon as there is one.
NEIGHBOURS = "until ip neighbour | grep lladdr; do sleep 0.01; done"


def test_a_machine_alone_answers_for_its_address_also_the_one_with_the_switch(tmp_path):
    if reason := reason_for_none():
        pytest.skip(reason)
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost\n")
    with ExitStack() as stack:
        first, second = (
            Machine(name, "sleep", "infinity", hosts=hosts, console=tmp_path / name, env=environment())
            for name in ("first", "second")
        )
        stack.callback(first.kill)
        stack.callback(second.kill)
        connect({"10.78.0.1": first, "10.78.0.2": second})
        second.run("bash", "-c", "exec 3<>/dev/udp/10.78.0.1/9; echo >&3", namespaces=("--net",))
        own = first.run("ip", "-brief", "link", "show", "eth0", namespaces=("--net",)).split()[2]
        found = second.run("bash", "-c", NEIGHBOURS, namespaces=("--net",)).split()
        assert found[found.index("lladdr") + 1] == own
