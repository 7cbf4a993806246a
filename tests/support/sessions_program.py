"""Programs with several sessions, for the tests of launchers: a sweep, folds, one that is tuned, and steps alone.

One more waits in its second session, so that a test can kill its processes there.
"""

import re

#: Four programs. Each result is exact: the sum of what all workers have pushed, in powers of two. Each of two
#: shards has one of two variables, which are equal.
PROGRAM = """
    import sys
    import numpy as np
    import psworker as ps
    from psworker import ops

    DATA = ps.Dataset({"x": np.arange(24, dtype=np.float64)})
    kind, workers = sys.argv[1], int(sys.argv[2])

    def model():
        return ps.Variable(np.zeros(2), name="w"), ps.Variable(np.zeros(2), name="b")

    def train(optimizer, source=DATA, epochs=2):
        '''The weight when all examples are trained, in a session of its own.'''
        with ps.session() as session:
            for batch in session.batches(source, 4, epochs=epochs):
                optimizer.minimize(-ops.sum((w + b) * len(batch)))
            session.pull()
            assert np.array_equal(w.value, b.value)
            seen.append(session.job)
            return float(w.value[0]), session.evaluate(lambda batch: float(w.value[0]) + batch.x.mean(), DATA)

    def count(learning_rate):
        '''The weight when all workers have made four steps; without a data queue.'''
        with ps.session() as session:
            for _ in range(4):
                ps.GradientDescent(learning_rate).minimize(-ops.sum(w + b))
            while min(w.value[0], b.value[0]) < 4 * learning_rate * workers:
                session.pull()
            seen.append(session.job)
            return float(w.value[0])

    seen, results = [], []
    if kind == "sweep":
        for rate in (0.25, 0.5, 1.0):
            ps.reset()
            w, b = model()
            results.append(train(ps.GradientDescent(rate))[0])
    elif kind == "folds":
        for fold in range(3):
            ps.reset()
            w, b = model()
            kept = DATA.x[np.arange(24) % 3 != fold] if fold else DATA.x[:20]
            results.append(train(ps.Momentum(0.5, 0.0), ps.Dataset({"x": kept}))[1])
    elif kind == "tuned":
        w, b = model()
        results += [train(ps.GradientDescent(0.25))[0], train(ps.Momentum(0.5, 0.0), epochs=1)[0]]
    else:
        for rate in (0.25, 0.5, 1.0):
            ps.reset()
            w, b = model()
            results.append(count(rate))
    print(*results, flush=True)
"""

#: The results of each program: what its examples, epochs and rates sum up to.
RESULTS = {
    "sweep": "12.0 24.0 48.0",
    "folds": "31.5 27.5 27.5",
    "tuned": "12.0 24.0",
}


def expected(kind, workers):
    if kind == "steps":
        return " ".join(str(4 * workers * rate) for rate in (0.25, 0.5, 1.0))
    return RESULTS[kind]


#: Three sessions of one model. Each worker says in the second one that it is held, until a file is there. With another
#: file worker-0 begins when one has ended its first session.
HELD = """
    import os, sys, time
    import numpy as np
    import psworker as ps
    from psworker import ops

    DATA = ps.Dataset({"x": np.arange(40, dtype=np.float64)})
    w, b = ps.Variable(np.zeros(2), name="w"), ps.Variable(np.zeros(2), name="b")
    while sys.argv[2:] and os.environ["PSWORKER_NAME"] == "worker-0" and not os.path.exists(sys.argv[2]):
        time.sleep(0.05)
    for number in (1, 2, 3):
        with ps.session() as session:
            for step, batch in enumerate(session.batches(DATA, 2, epochs=2)):
                if number == 2 and step == 0:
                    print("held", flush=True)
                    while not os.path.exists(sys.argv[1]):
                        time.sleep(0.05)
                ps.GradientDescent(1.0).minimize(-ops.sum((w + b) * len(batch)))
            session.pull()
            assert session.over or np.array_equal(w.value, b.value)
            print(number, session.over, w.value[0], session.evaluate(lambda batch: w.value[0], DATA), flush=True)
        for path in sys.argv[2:]:
            open(path, "w").close()
"""

#: The results of that program in the life of a worker that began with it, and in one that began in the second session.
FIRST_LIFE = ["1 False 80.0 80.0", "2 False 160.0 160.0", "3 False 240.0 240.0"]
LATER_LIFE = ["1 True 0.0 nan", *FIRST_LIFE[1:]]


def results(lines):
    """The results of a worker that was held, in order, in the lines that it has printed."""
    return [line for line in lines if re.match(r"[123] (True|False) ", line)]
