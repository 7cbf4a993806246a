"""A small name server: answers questions by UDP from a table of records that a test changes.

As a process: `python -m tests.name_server HOST PORT FILE`, with the records in a JSON file that is read for each answer.
"""

import json
import sys
import threading
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingUDPServer

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


class NameServer:
    """Serves `records` on a port of 127.0.0.1, in threads. A context manager."""

    def __init__(self, records: Records) -> None:
        self.records = records
        records_now = lambda: self.records  # noqa: E731 - for the class below

        class Handler(BaseRequestHandler):
            def handle(self) -> None:
                data, connection = self.request
                connection.sendto(answer(data, records_now()), self.client_address)

        self._server = ThreadingUDPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def __enter__(self) -> "NameServer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
