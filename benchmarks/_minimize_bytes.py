"""The program of `minimize.py` for models of PARAMETERS float32: bytes through the coordinator, and its two loops.

A quadratic function of one example, in one worker. Bytes are those of requests and answers, as protobuf, of the
Compute and Evaluate messages of a step.
"""

import json
import statistics
import sys
import time

import numpy as np

import psworker as ps
from pswire import messages as ms
from pswire.codec import encode
from pswire.tensors.transport import InlineSender
from psworker import ops
from psworker.minimize.lbfgs import LBFGS
from psworker.transport.calls import UnaryCall

parameters, steps = int(sys.argv[1]), 20
calls, loops = [0], []  # bytes by step, seconds of each direction


def counted(self):
    """The answer of a call, whose bytes are counted."""
    answer = result(self)
    if isinstance(self._message, ms.Compute | ms.Evaluate):
        request = encode(self._message, InlineSender())
        calls[-1] += request.ByteSize() + self._call.result().ByteSize()
        if getattr(self._message, "note", ""):
            calls.append(0)
    return answer


def timed(self, space):
    """A direction, whose time is noted."""
    began = time.perf_counter()
    slope = direct(self, space)
    loops.append(time.perf_counter() - began)
    return slope


result, direct = UnaryCall.result, LBFGS.direct
UnaryCall.result, LBFGS.direct = counted, timed

curvature = np.geomspace(1.0, 100.0, parameters, dtype=np.float32)
x = ps.Variable(np.ones(parameters, np.float32), name="x")
with ps.session() as session:
    method = ps.LBFGS(gradient=0, decrease=0, iterations=steps)
    found = session.minimize(lambda batch: ops.sum(x * x * curvature) / parameters, {"n": np.zeros(1)}, method)
    sizes, seconds = statistics.median(calls[11:steps]), statistics.median(loops[11:])
    sys.stdout.write(json.dumps({"bytes": sizes, "seconds": seconds, "steps": found.iterations}) + "\n")
