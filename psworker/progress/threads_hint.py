"""A hint for one who trains small models: numpy's BLAS threads that cost processor time and gain nothing. Pure.

OpenBLAS divides a product of matrices among all cores from about a quarter of a million multiplications on, and its
threads wait actively for each other. How many are best depends on the machine and what else it does, so they are not
changed here: that would change results, and a library cannot do it safely beside other threads of the program.
"""

#: Seconds of training after which a job is judged; the cores that it uses at least, and the longest steps, in seconds.
AFTER, CORES, STEP = 5.0, 1.5, 0.010


class ThreadsHint:
    """Judges a process once, from the steps it has made, the time and the processor time, both in seconds."""

    def __init__(self) -> None:
        self._first: tuple[int, float, float] | None = None  # as they were at the first step
        self._judged = False

    def observe(self, steps: int, now: float, processor: float) -> str:
        """The hint, at most once; "" as long as there is none. `steps` are those so far."""
        if self._judged or not steps:
            return ""
        if self._first is None:
            self._first = steps, now, processor
        made, seconds, used = (new - old for new, old in zip((steps, now, processor), self._first, strict=True))
        if seconds < AFTER or not made:
            return ""
        self._judged = True
        cores, step = used / seconds, seconds / made
        if cores < CORES or step > STEP:
            return ""
        return (
            f"psworker: {cores:.1f} cores are busy for steps of {1000 * step:.1f} ms: the threads of numpy's BLAS may "
            "only wait for each other. Try one: OPENBLAS_NUM_THREADS=1 (docs/performance.md, threads)"
        )
