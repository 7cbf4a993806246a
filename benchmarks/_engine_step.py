"""The paramserver side of engine.py, in a separate process: BLAS reads its number of threads when numpy is imported.

python benchmarks/_engine_step.py step [default-malloc]
python benchmarks/_engine_step.py floor | tape | memory
python benchmarks/_engine_step.py rate | products-rate
"""

import os

os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"

import statistics
import sys
import time
import tracemalloc

import _report
import numpy as np
from _push_pull import SHAPES

from pswire.system.host import keep_memory
from psworker import Tensor, gradients, ops

BATCH = 50

#: (times, rows, inner, columns) of the matrix products of a step: forward, gradient of the weights, gradient of the
#: input. Those of a convolution are for five images at a time, so that their operands stay in cache.
PRODUCTS = [
    (10, 5 * 784, 25, 32),
    (10, 25, 5 * 784, 32),
    (10, 5 * 196, 800, 64),
    (10, 800, 5 * 196, 64),
    (10, 5 * 196, 64, 800),
    (1, BATCH, 3136, 1024),
    (1, 3136, BATCH, 1024),
    (1, BATCH, 1024, 3136),
    (1, BATCH, 1024, 10),
    (1, 1024, BATCH, 10),
    (1, BATCH, 10, 1024),
]

random = np.random.default_rng(0)


def normal(*shape):
    return random.standard_normal(shape, dtype=np.float32)


def median(function, warm_up=5, runs=30):
    """Seconds, measured as the peers' scripts do."""
    warm_up, runs = _report.size((warm_up, runs), (0, 1))
    for _ in range(warm_up):
        function()
    seen = []
    for _ in range(runs):
        began = time.perf_counter()
        function()
        seen.append(time.perf_counter() - began)
    return statistics.median(seen)


def deep_mnist():
    """A function that computes one step: forward, and the gradients of all eight variables."""
    parameters = {name: Tensor(normal(*shape) * np.float32(0.1), requires_grad=True) for name, shape in SHAPES.items()}
    w1, b1, w2, b2, w3, b3, w4, b4 = parameters.values()
    images, labels = random.random((BATCH, 28, 28, 1), dtype=np.float32), random.integers(0, 10, BATCH)
    generator = np.random.default_rng(1)

    def step():
        h = ops.max_pool2d(ops.conv2d(images, w1, b1, activation="relu"))
        h = ops.max_pool2d(ops.conv2d(h, w2, b2, activation="relu"))
        h = ops.relu(ops.matmul(h.reshape(-1, 3136), w3) + b3)
        h = ops.dropout(h, 0.5, generator=generator)
        loss = ops.softmax_cross_entropy(ops.matmul(h, w4) + b4, labels)
        del h
        return gradients(loss, parameters.values())

    return step


def product(times, rows, inner, columns):
    """Seconds of equal matrix products with preallocated operands and result, as a @ b or as b.T @ a.T."""
    a, b = normal(rows, inner), normal(inner, columns)
    out, turned = np.empty((rows, columns), np.float32), np.empty((columns, rows), np.float32)
    transposed = np.ascontiguousarray(a.T), np.ascontiguousarray(b.T)

    def repeated(left, right, out):
        for _ in range(times):
            np.matmul(left, right, out=out)

    forms = (
        lambda: repeated(a, b, out),
        lambda: repeated(transposed[0].T, b, out),
        lambda: repeated(transposed[1], transposed[0], turned),
        lambda: repeated(b.T, transposed[0], turned),
    )
    return min(median(form, 2, 10) for form in forms)


def rate(step):
    """Calls per second."""
    warm_up, seconds = _report.size((3, 5.0), (0, 0.1))
    for _ in range(warm_up):
        step()
    count, began = 0, time.perf_counter()
    while time.perf_counter() < began + seconds:
        step()
        count += 1
    return count / (time.perf_counter() - began)


def products():
    """The matrix products of a step, one after the other."""
    pairs = [(times, normal(m, k), normal(k, n), np.empty((m, n), np.float32)) for times, m, k, n in PRODUCTS]

    def step():
        for times, a, b, out in pairs:
            for _ in range(times):
                np.matmul(a, b, out=out)

    return step


def chain(length):
    """Forward and backward of a chain of scalar ops."""
    x = Tensor(np.float32(1), requires_grad=True)

    def step():
        y = x
        for _ in range(length // 2):
            y = (y + 1.0) * 1.0
        return gradients(y, x)

    return step


def peak_memory(step):
    """Peak bytes of a step beyond those before it, and bytes of the gradients that it returns."""
    step()
    tracemalloc.start()  # numpy reports its arrays to tracemalloc
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    found = step()
    peak = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    return peak, sum(gradient.nbytes for gradient in found)


def main(what, malloc="kept"):
    """Measures one thing and prints its RESULT lines."""
    if malloc == "kept":
        keep_memory()
    if what == "step":
        system = "paramserver" if malloc == "kept" else f"paramserver-{malloc}"
        print(f"RESULT engine {system} {median(deep_mnist()) * 1e3:.1f} ms")
    elif what == "floor":
        print(f"RESULT engine matrix-products-alone {sum(product(*shape) for shape in PRODUCTS) * 1e3:.1f} ms")
    elif what == "rate":
        print(f"RESULT engine paramserver {rate(deep_mnist()):.2f} steps/s")
    elif what == "products-rate":
        print(f"RESULT engine matrix-products-alone {rate(products()):.2f} steps/s")
    elif what == "tape":
        print(f"RESULT tape paramserver {median(chain(1000)) / 1000 * 1e6:.2f} us")
    elif what == "memory":
        peak, given = peak_memory(deep_mnist())
        print(f"RESULT memory paramserver-peak {peak / 1e6:.1f} MB")
        print(f"RESULT memory paramserver-peak-without-the-gradients {(peak - given) / 1e6:.1f} MB")


main(*sys.argv[1:])
