"""The calls of one `apply_gradients`: two variables, Adam, in embedded mode and over gRPC.

Prints the Python functions of the packages in the order in which they are called, by thread, indented by depth,
then the number of calls and of the files they are in, and the time of one embedded `apply_gradients` without the
trace. It measures how much a reader must follow to understand one push from the program to the update rule and back.
"""

import statistics
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

import _report
import numpy as np

import psworker as ps
from psserver.config import ServerConfig
from psserver.rpc.server import ServerThread

PACKAGES = tuple(f"{_report.ROOT / name}/" for name in ("pswire", "psserver", "psworker", "psjob"))
REPEATS, ROUNDS = _report.size((2000, 7), (10, 1))

_Call = tuple[str, int, str, str]  # thread, depth, file, function


class Trace:
    """The calls of functions of the packages while it is `on`, in all threads that begin after it was made."""

    def __init__(self) -> None:
        self.calls: list[_Call] = []
        self.on = False
        threading.setprofile(self._note)

    def run(self, action: Callable[[], object]) -> None:
        """Trace an action of this thread, and what it causes in others."""
        sys.setprofile(self._note)
        self.on = True
        try:
            action()
            time.sleep(0.1)  # the server's thread continues after its answer
        finally:
            self.on = False
            sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        if self.on and event == "call" and (file := frame.f_code.co_filename).startswith(PACKAGES):
            depth, above = 0, frame.f_back
            while above is not None:
                depth, above = depth + 1, above.f_back
            place = file.removeprefix(f"{_report.ROOT}/")
            self.calls.append((threading.current_thread().name, depth, place, frame.f_code.co_qualname))


def measure(system: str, servers: tuple[str, ...], trace: Trace, *, quiet: bool) -> None:
    """Trace one `apply_gradients`, print its calls, and time it without the trace."""
    with ps.collection():
        W, b = ps.Variable(np.zeros((20, 10), np.float32), name="W"), ps.Variable(np.zeros(10, np.float32), name="b")
        pairs = [(np.ones((20, 10), np.float32), W), (np.ones(10, np.float32), b)]
        optimizer = ps.Adam(0.001)
        with ps.session(servers, shared_memory=False):
            apply = lambda: optimizer.apply_gradients(pairs)
            for _ in range(100):
                apply()
            trace.run(apply)
            threading.setprofile(None)
            medians = [_seconds(apply) for _ in range(ROUNDS)]
    if not quiet:
        for thread in dict.fromkeys(call[0] for call in trace.calls):
            mine = [call for call in trace.calls if call[0] == thread]
            least = min(depth for _, depth, _, _ in mine)
            print(f"--- {system}, {thread}")
            for _, depth, file, function in mine:
                print(f"{'  ' * (depth - least)}{function}  ({file})")
    print(f"RESULT call_trace {system} {len(trace.calls)} calls")
    print(f"RESULT call_trace {system} {len({call[2] for call in trace.calls})} files")
    if not servers:  # the threads of a server are still traced
        print(f"RESULT call_trace {system} {statistics.median(medians) * 1e6:.1f} us")


def main() -> None:
    parser = _report.arguments(__doc__ or "")
    parser.add_argument("--quiet", action="store_true", help="print only the figures")
    quiet = parser.parse_args().quiet
    _report.describe_machine()
    measure("paramserver", (), Trace(), quiet=quiet)
    trace = Trace()
    with ServerThread(ServerConfig("127.0.0.1:0")) as server:
        measure("paramserver-grpc", (server.address,), trace, quiet=quiet)


def _seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    for _ in range(REPEATS):
        action()
    return (time.perf_counter() - start) / REPEATS


if __name__ == "__main__":
    main()
