"""The state of one worker on a shard. May import messages."""

from __future__ import annotations

from dataclasses import dataclass

from pswire.messages import Assigned, LastPush, Pushed, Tuned


@dataclass(slots=True)
class Member:
    """A worker that is `live`, has `left` or was `lost`, in its latest incarnation.

    Attributes:
        number: 0 for the first worker that ever joined; kept over all incarnations.
        process_nonce: the random number of the worker's process; 0: none.
        steps, dropped: its pushes in this incarnation that were applied, and that the policy dropped.
        staleness, staleness_sum, loss: of its last applied push; of all of them; the last one that it sent.
        training, finished, out_of_data, clock: see `psserver.core.members.progress`; `clock` counts steps and dropped.
        settled, answer: sequence number of its last settled push, assign or tune, 0 before the first, and the answer,
            without values; None: it was abandoned, or others went on without it.
        half_pushes, last_push: see `psserver.core.members.membership.HalfPushes`.
    """

    name: str
    number: int
    incarnation: int = 0
    process_nonce: int = 0
    state: str = "live"
    expires: float = 0.0
    steps: int = 0
    staleness: int = 0
    staleness_sum: int = 0
    loss: float | None = None
    training: bool = False
    finished: bool = False
    out_of_data: bool = False
    clock: int = 0
    dropped: int = 0
    tensor_transport: str = ""
    settled: int = 0
    answer: Pushed | Assigned | Tuned | None = None
    half_pushes: int = 0
    last_push: LastPush | None = None
