"""A hint for one who trains small models: numpy's BLAS threads that cost processor time and gain nothing. Pure.

OpenBLAS divides a product of matrices among all cores from about a quarter of a million multiplications on, and its
threads wait actively for each other. How many are best depends on the machine and what else it does, so they are not
changed here: that would change results, and a library cannot do it safely beside other threads of the program.
"""

#: Seconds of the training thread's processor time after which a job is judged; the processor time of all threads for
#: each such second at least; and the longest steps, in such seconds.
AFTER, THREADS, STEP = 2.0, 1.5, 0.010


class ThreadsHint:
    """Judges a process once, from the steps it has made and processor times in seconds.

    Not from wall time: on a machine with other work the threads wait most of it, and the process seems idle.
    """

    def __init__(self) -> None:
        self._first: tuple[int, float, float] | None = None  # as they were at the first step
        self._judged = False

    def observe(self, steps: int, training: float, processor: float) -> str:
        """The hint, at most once; "" as long as there is none.

        Args:
            steps: those so far.
            training: the processor time of the thread that trains.
            processor: that of all threads of the process.
        """
        if self._judged or not steps:
            return ""
        if self._first is None:
            self._first = steps, training, processor
        made, seconds, used = (new - old for new, old in zip((steps, training, processor), self._first, strict=True))
        if seconds < AFTER or not made:
            return ""
        self._judged = True
        threads, step = used / seconds, seconds / made
        if threads < THREADS or step > STEP:
            return ""
        return (
            f"psworker: this process takes {threads:.1f} times the processor time of its training thread, in steps of "
            f"{1000 * step:.1f} ms: the threads of numpy's BLAS may only wait for each other, which slows it down "
            "several times beside others. Try one: OPENBLAS_NUM_THREADS=1 (docs/performance.md, threads)"
        )
