"""A small name server: answers questions by UDP from a table of records that a test changes.

As a process: `python -m tests.support.name_server HOST PORT FILE`, with records in a JSON file, read for each answer.
"""

import json
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingUDPServer
from typing import Self

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset

#: By name and type ("A", "AAAA", "SRV"), the records; a name without any does not exist.
Records = dict[str, dict[str, list[str]]]


def answer(request: bytes, records: Records) -> bytes:
    """The answer to a question, without a time to live."""
    question = dns.message.from_wire(request)
    reply = dns.message.make_response(question)
    reply.flags |= dns.flags.RA
    one = question.question[0]
    known = records.get(one.name.to_text(omit_final_dot=True))
    if known is None:
        reply.set_rcode(dns.rcode.NXDOMAIN)
    elif found := known.get(dns.rdatatype.to_text(one.rdtype)):
        reply.answer.append(dns.rrset.from_text_list(one.name, 0, "IN", one.rdtype, found))
    return reply.to_wire()


class NameServer(ThreadingUDPServer):
    """Serves records at an address, as a context manager that ends when all threads have."""

    def __init__(self, address: tuple[str, int], records: Callable[[], Records]) -> None:
        super().__init__(address, _Question)
        self.records = records
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join()


class _Question(BaseRequestHandler):
    def handle(self) -> None:
        data, connection = self.request
        assert isinstance(self.server, NameServer)
        connection.sendto(answer(data, self.server.records()), self.client_address)


if __name__ == "__main__":
    _host, _port, _file = sys.argv[1:]
    with NameServer((_host, int(_port)), lambda: json.loads(Path(_file).read_text())):
        sys.stdout.write("answers\n")
        sys.stdout.flush()
        signal.pause()
