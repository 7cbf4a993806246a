"""AdamW: Adam, and weights that decay. May import `pswire`'s pure half and Adam."""

from __future__ import annotations

from psserver.core.rules.adam import AdamRule
from pswire import optimizers


class AdamWRule(AdamRule):
    """Formula and source: `pswire.optimizers.AdamW`."""

    def __init__(self, spec: optimizers.AdamW) -> None:
        super().__init__(spec, spec.weight_decay)
