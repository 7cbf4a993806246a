"""Servers as addresses or as a name for all of them, and the addresses in a file."""

import pytest

from pswire import errors
from pswire.network.discovery import check_servers, is_name, look_up, parse_servers, tls_name
from tests.support.combinations import together

INVALID = ["", " , ", "file:", "file://host/servers", "file:/run/\0", "a:1,file:/b", "a:1,b", "a:1, a:1"]
INVALID += ["dns:ps:7070", "dns://ps:7070", "dns:///", "dns:///ps:0", "dns:///ps:70700", "dns:///a:1,b:2"]
INVALID += ["dns:///unix:/a", "dns+srv:ps", "dns+srv:///ps", "dns+srv://ps:7070", "dns+srv://"]
INVALID += ["dns+srv://a,dns+srv://b"]


def test_several_addresses_have_commas_between_them():
    assert parse_servers(" a:1, [::1]:2,unix:/run/ps.sock,") == ("a:1", "[::1]:2", "unix:/run/ps.sock")
    assert not is_name(parse_servers("a:1")[0])


def test_a_file_stands_alone_and_its_path_becomes_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert parse_servers(" file:/run/job/servers ") == ("file:/run/job/servers",)
    assert parse_servers("file:servers") == check_servers(["file:servers"]) == (f"file:{tmp_path}/servers",)
    assert parse_servers("file:///run/servers") == ("file:/run/servers",)


@pytest.mark.parametrize(
    ("text", "name", "certificate"),
    [
        ("dns:///ps", "dns:///ps:7070", "ps"),
        (" dns:///ps.example.org:5000 ", "dns:///ps.example.org:5000", "ps.example.org"),
        ("dns:///[::1]", "dns:///[::1]:7070", "::1"),
        ("dns:///[::1]:5000", "dns:///[::1]:5000", "::1"),
        ("dns+srv://example.org", "dns+srv://_psserver._tcp.example.org", ""),
        ("dns+srv://_ps._tcp.example.org", "dns+srv://_ps._tcp.example.org", ""),
        ("file:/run/servers", "file:/run/servers", ""),
    ],
)
def test_a_name_gets_its_defaults_and_says_for_whom_certificates_must_be(text, name, certificate):
    assert parse_servers(text) == parse_servers(name) == (name,)
    assert tls_name(name) == certificate


@together("text", INVALID, ids=ascii)
def test_what_is_neither_addresses_nor_a_name_is_a_configuration_error(text):
    with pytest.raises(errors.ConfigurationError):
        parse_servers(text)


def test_a_file_has_an_address_a_line_and_comments(tmp_path):
    file = tmp_path / "servers"
    file.write_text("# of job 7\n\n ps-0:7070  # shard 0\nunix:/run/ps.sock\r\n[::1]:7072")
    assert look_up(f"file:{file}", 1.0) == ("ps-0:7070", "unix:/run/ps.sock", "[::1]:7072")


@pytest.mark.parametrize(
    ("content", "kind", "problem"),
    [
        (None, errors.Unavailable, "cannot be read: No such file or directory; whatever starts the servers writes it"),
        (b"", errors.Unavailable, "has no address yet"),
        (b"\n# soon\n", errors.Unavailable, "has no address yet"),
        (b"a:1\n\nb\n", errors.ConfigurationError, "servers, line 3: 'b' is not an address"),
        (b"a:1\nb:2\na:1\n", errors.ConfigurationError, "servers, line 3: a:1 is there twice"),
        (b"a:0\n", errors.ConfigurationError, "servers, line 1: a:0 has port 0"),
        (b"\xff\xfe:1\n", errors.ConfigurationError, "line 1: .* is not an address"),
        (b"a:1\n" * (1 << 19), errors.ConfigurationError, "more than 1,048,576 bytes"),
    ],
    ids=["missing", "empty", "comment", "no-address", "twice", "port-0", "no-text", "large"],
)
def test_a_file_that_does_not_list_addresses_is_refused_or_may_do_so_later(tmp_path, content, kind, problem):
    file = tmp_path / "servers"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(kind, match=problem):
        look_up(f"file:{file}", 1.0)
