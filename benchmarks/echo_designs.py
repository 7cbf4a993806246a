"""Ways of writing a server of messages: round trips of 31 KB and of 13.1 MB each way, without anything that is served.

    python benchmarks/echo_designs.py                            # over TCP, a Unix socket, and TCP with TLS 1.3
    python benchmarks/echo_designs.py asyncio-add-reader grpc-aio

One client in this process, which blocks, and a server process for each design: gRPC, asyncio's own transports, sockets
that the event loop watches, threads, ZeroMQ and uvloop where they are installed. `-and-loop` are designs whose threads
leave the answer to the event loop, as a server must whose state belongs to the loop. All take turns, so that the load
of the machine is the same for each. "server" is the processor time of the server process for a round trip.
"""

import importlib.util
import statistics
import tempfile
import time
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path

import _report
from _echo import DESIGNS, Echo, Task, echo

from psserver.certificates import make_certificates
from pswire.system.host import keep_memory

#: Bytes of a message, round trips in a turn, and turns, by the name of the work.
WORKS = {"31KB": (31_400, *_report.size((50, 40), (2, 1))), "13MB": (13_098_536, *_report.size((4, 8), (1, 1)))}

UNITS = {"31KB": ("us", 1e6), "13MB": ("ms", 1e3)}

#: The connections of each work.
LINKS = {"31KB": ("tcp", "unix", "tls"), "13MB": ("tcp", "tls")}

#: Modules that a design needs, by a part of its name.
NEEDS = {"pyzmq": "zmq", "uvloop": "uvloop"}


def missing(design: str) -> str:
    """The module that a design needs and that is not installed; "" for none."""
    needed = (module for part, module in NEEDS.items() if part in design)
    return next((module for module in needed if importlib.util.find_spec(module) is None), "")


def turn(one: Echo, count: int) -> tuple[list[float], float]:
    """Seconds of each round trip, and the server's processor time for all of them."""
    seen, before = [], one.processor_time()
    for _ in range(count):
        began = time.perf_counter()
        one.step()
        seen.append(time.perf_counter() - began)
    return seen, one.processor_time() - before


def measure(designs: list[str], work: str, link: str, certificates: Path) -> dict[str, tuple[float, float]]:
    """Time of a round trip and processor time of the server in it, medians by design, in `UNITS`; prints them too."""
    unit, in_a_second = UNITS[work]
    nbytes, count, turns = WORKS[work]
    tls = certificates if link == "tls" else None
    with ExitStack() as stack:
        echoes = {
            design: stack.enter_context(echo(Task(design, nbytes, link == "unix", tls)))
            for design in designs
            if not (tls and design == "pyzmq")  # it has an encryption of its own
        }
        walls, servers = defaultdict(list), defaultdict(list)
        for number in range(turns + 1):
            for design, one in echoes.items():
                seen, processor = turn(one, count)
                if number:  # the first is to warm up
                    walls[design] += seen
                    servers[design].append(processor / count)
    found = {}
    for design in echoes:
        wall, server = found[design] = tuple(statistics.median(one[design]) * in_a_second for one in (walls, servers))
        print(f"RESULT echo-{work}-{link} {design} {wall:.1f} {unit} (fastest {min(walls[design]) * in_a_second:.1f})")
        print(f"RESULT echo-{work}-{link}-server {design} {server:.1f} {unit}", flush=True)
    return found


def table(columns: dict[tuple[str, str], dict[str, tuple[float, float]]], designs: list[str]) -> None:
    """Prints all figures as Markdown: a round trip, and the server in it."""
    heads = (f"{work}, {link}, {UNITS[work][0]}" for work, link in columns)
    print(f"\n| design | {' | '.join(heads)} |")
    print(f"| --- |{' --- |' * len(columns)}")
    for design in designs:
        figures = (column.get(design) for column in columns.values())
        cells = ("" if one is None else f"{one[0]:.3g}, {one[1]:.3g}" for one in figures)
        print(f"| {design} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    """All works, over all connections."""
    parser = _report.arguments(__doc__.splitlines()[0])
    parser.add_argument("designs", nargs="*", type=_report.one_of(DESIGNS), metavar="DESIGN", help=", ".join(DESIGNS))
    options = parser.parse_args()
    _report.describe_machine()
    keep_memory()
    began = time.monotonic()
    designs = []
    for design in options.designs or DESIGNS:
        if module := missing(design):
            print(f"skipped {design}: {module} is not installed")
        else:
            designs.append(design)
    with tempfile.TemporaryDirectory() as folder:
        make_certificates(Path(folder), (), 1)
        columns = {
            (work, link): measure(designs, work, link, Path(folder)) for work, links in LINKS.items() for link in links
        }
    table(columns, designs)
    print(f"took {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
