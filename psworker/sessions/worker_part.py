"""The worker's part of a checkpoint: the state an embedded job needs besides its shard to continue with the same bits.

The masks of dropout, and which reports of epochs the program has had. May import the engine.
"""

from collections.abc import Mapping
from typing import Any

from pswire.errors import StorageError
from psworker.autodiff.ops.elementwise.activations import dropout_state, set_dropout_state


class SessionPart:
    """The worker's part of the checkpoints of one session (`psworker.transport.WorkerPart`).

    `reports` has, by data queue, the epochs whose reports the program has had: whose `on_epoch` has returned.
    """

    def __init__(self) -> None:
        self.reports: dict[str, int] = {}
        self._dropout: dict[str, Any] | None = None  # of this worker's generator, as of its last push

    def note_push(self) -> None:
        """Notes the state of the generator: masks of a step that has not been pushed are drawn again."""
        self._dropout = dropout_state()

    def data(self) -> dict[str, Any]:
        """The reports as of now, and the generator as of the last push; None: there was no push."""
        return {"dropout": self._dropout, "reports": dict(self.reports)}

    def restore(self, data: Mapping[str, Any]) -> None:
        """Continues from `data`, for the thread that calls. Raises `StorageError` if it does not have its form."""
        try:
            reports, dropout = dict(data["reports"]), data["dropout"]
            if not all(type(count) is int and count >= 0 for count in reports.values()):
                raise ValueError(f"reports of epochs are counted, got {reports!r}")
            if dropout is not None:
                set_dropout_state(dropout)
        except (TypeError, KeyError, ValueError) as error:
            raise StorageError(f"the worker's part of the checkpoint cannot be read: {error!r}") from error
        self.reports, self._dropout = reports, dropout
