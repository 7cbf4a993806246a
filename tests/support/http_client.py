"""Requests by HTTP for tests, over real sockets."""

import http.client
import json
import socket
import ssl
from contextlib import closing, contextmanager

from tests.support.commands import BOUND


def request(address, path="/", method="GET", tls=None, **headers):
    """Status, headers and body of an answer; underscores in names of headers are hyphens."""
    with closing(connect(address, tls)) as connection:
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()


def connect(address, tls=None):
    host, port = split(address)
    if tls is None:
        return http.client.HTTPConnection(host, port, timeout=BOUND)
    return http.client.HTTPSConnection(host, port, timeout=BOUND, context=tls)


def get_json(address, path, tls=None, **headers):
    """The JSON of an answer that has one."""
    status, _, body = request(address, path, tls=tls, **headers)
    assert status == 200, body
    return json.loads(body)


@contextmanager
def following(address, path="/api/stream", tls=None, **headers):
    """The numbers and samples of a stream, as they come; ends with the stream."""
    with closing(connect(address, tls)) as connection:
        connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        assert (answer.status, answer.headers["Content-Type"]) == (200, "text/event-stream")
        with closing(samples_of(answer)) as samples:
            yield samples


def samples_of(lines):
    number = None
    for line in lines:
        name, _, value = line.decode().rstrip("\n").partition(": ")
        if name == "id":
            number = int(value)
        elif name == "data":
            yield number, json.loads(value)


def exchange(address, data):
    """What a server answers to these bytes, to the end of the connection."""
    with socket.create_connection(split(address), BOUND) as connection:
        connection.sendall(data)
        return read_all(connection)


def read_all(connection):
    found = b""
    while part := connection.recv(1 << 16):
        found += part
    return found


def split(address):
    """Host and port of an address, or of a URL."""
    host, _, port = address.rpartition("//")[2].rstrip("/").rpartition(":")
    return host, int(port)


def trusting(ca, certificate=None, key=None):
    """A TLS context that checks servers by a CA."""
    context = ssl.create_default_context(cafile=str(ca))
    if certificate is not None:
        context.load_cert_chain(str(certificate), str(key))
    return context
