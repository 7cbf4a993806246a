"""Addresses of servers: valid ones, those of the shards of one machine, and those by which they are reached."""

import socket

import pytest

from pswire import errors
from pswire.addresses import check_address, local_address, parse_port, remote_address, shard_addresses
from pswire.network.channel import open_channel
from tests.support.combinations import together

VALID = "127.0.0.1:0 0.0.0.0:65535 ps-0.svc.cluster.local:5000 my_host:1 [2001:db8::7:1]:80 [::]:0 unix:/run/ps/0.sock"
UNFIT = """localhost :5000 localhost: localhost:http localhost:-1 localhost:65536 localhost:5000:5001 localhost:٣
::1:5000 [::1] [::1:5000 [localhost]:5000 [1.2.3.4]:5000 http://localhost:5000 dns:///localhost:5000 a:1,b:2 -rf:1
*:5000 unix: unix:relative.sock unix://run/ps.sock"""
INVALID = [*UNFIT.split(), "", " ", "localhost:" + "9" * 5_000, "local host:5000", "unix:/a\0b", "unix:/" + 107 * "x"]


def test_an_address_is_taken_as_it_is_and_without_blanks_around_it():
    for address in VALID.split():
        assert check_address(address) == check_address(f" {address}\n") == address


@together("text", INVALID, ids=lambda text: ascii(text[:24]))
def test_what_is_no_address_is_a_configuration_error_that_shows_it(text):
    for check in (check_address, open_channel):
        with pytest.raises(errors.ConfigurationError, match=r"address|unix:") as caught:
            check(text)
        assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("bind", "addresses"),
    [
        ("127.0.0.1", "127.0.0.1:0 127.0.0.1:0 127.0.0.1:0"),
        (" 10.0.0.1:0", "10.0.0.1:0 10.0.0.1:0 10.0.0.1:0"),
        ("0.0.0.0:7070", "0.0.0.0:7070 0.0.0.0:7071 0.0.0.0:7072"),
        ("[::]:65533", "[::]:65533 [::]:65534 [::]:65535"),
        ("[::1]", "[::1]:0 [::1]:0 [::1]:0"),
        ("unix:/run/ps", "unix:/run/ps.0 unix:/run/ps.1 unix:/run/ps.2"),
    ],
)
def test_the_shards_of_a_machine_listen_on_ports_that_follow_each_other_or_on_free_ones(bind, addresses):
    assert shard_addresses(bind, 3) == tuple(addresses.split())
    assert shard_addresses("unix:/run/ps", 1) == ("unix:/run/ps",)


@pytest.mark.parametrize("bind", ["here:65534", "here:", "::1", "*", "", "unix:ps", "h:1,h:2"])
def test_an_address_that_cannot_be_that_of_three_shards_is_refused_and_shown(bind):
    with pytest.raises(errors.ConfigurationError) as caught:
        shard_addresses(bind, 3)
    assert bind in str(caught.value)


def test_a_port_is_a_number_up_to_65535_or_off():
    assert [parse_port(text) for text in ("7170", " 0 ", "65535", "off")] == [7170, 0, 65535, None]
    for text in ("65536", "-1", "", "on", "7170.0", "٣", "127.0.0.1:7170"):
        with pytest.raises(errors.ConfigurationError, match="a port up to 65535") as caught:
            parse_port(text)
        assert repr(text) in str(caught.value)


def test_a_server_that_listens_everywhere_is_reached_by_the_loopback_here_and_by_the_hosts_name_from_elsewhere():
    assert [local_address(bind) for bind in ("0.0.0.0:70", "[::]:70")] == ["127.0.0.1:70", "[::1]:70"]
    assert [remote_address(bind) for bind in ("0.0.0.0:70", "[::]:70")] == [f"{socket.gethostname()}:70"] * 2
    for bind in ("10.0.0.1:70", "[fe80::1]:70", "ps-0:70"):
        assert local_address(bind) == remote_address(bind) == bind
    for bind in ("unix:/run/0.0.0.0:1", "unix:/run/ps.sock", "127.3.0.1:70", "[::1]:70", "localhost:70"):
        assert (local_address(bind), remote_address(bind)) == (bind, "")
