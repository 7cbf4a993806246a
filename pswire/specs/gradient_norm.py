"""The largest norm of the gradients in a push, and what a server does with larger ones: a spec, as text."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

from pswire.specs.spec import DECIMAL, Positive, TextSpec, parse


@dataclass(frozen=True)
class GradientNormLimit(TextSpec):
    """A push whose gradients have a larger L2 norm than `norm`, all of them together, is scaled down to it, or dropped.

        clip:   g <- g * min(1, norm / ||g||)

    Source: R. Pascanu, T. Mikolov, Y. Bengio, "On the Difficulty of Training Recurrent Neural Networks", ICML 2013,
    algorithm 1. A shard knows the norm of the gradients that it gets, and not of those on other shards.
    """

    form: ClassVar[str] = "N:clip or N:reject (N: the largest norm, above 0)"
    pattern: ClassVar[str] = f"(?P<norm>{DECIMAL}):(?P<action>clip|reject)"
    norm: Positive
    action: str

    def __str__(self) -> str:
        return f"{repr(self.norm).removesuffix('.0')}:{self.action}"

    @classmethod
    def of_texts(cls, texts: Mapping[str, str]) -> Self:
        """As in `TextSpec`."""
        return cls(float(texts["norm"]), texts["action"])

    def factor(self, norm: float) -> float:
        """The factor for a push of this norm."""
        return 1.0 if self.action != "clip" or norm <= self.norm else self.norm / norm


def parse_gradient_norm(text: str) -> GradientNormLimit | None:
    """The value of `--max-gradient-norm`; None for "off" or "". Raises `ConfigurationError` with the expected form."""
    return None if text.strip() in ("", "off") else parse(text, [GradientNormLimit], "limit of gradients")
