"""What workers have written down in their ledgers, read: one `Story` for each life, made of its pushes and its looks.

Pure, but for reading files. May import the scheme.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos import scheme


@dataclass
class Sent:
    """One push, as its worker has written it down.

    Attributes:
        number: among those of its life, from 1.
        shards: that it has gradients for.
        dense: whether it had one for the dense variable.
        seen, rows_seen: updates that the weights had seen, on every shard; and the rows, on each of `shards`.
        epoch, examples: that it was computed with.
        at: when it was sent (monotonic).
        answered: when its answer had come; None: never.
        dropped, staleness: what the answer said.
        placed: by shard, what became of it there, as the worker's own column tells; shards where it left nothing are
            not in it.
    """

    number: int
    shards: list[int]
    dense: bool
    seen: list[int]
    rows_seen: list[int]
    epoch: int
    examples: list[int]
    at: float
    answered: float | None = None
    dropped: bool = False
    staleness: int = 0
    placed: dict[int, scheme.Push] = field(default_factory=dict)


@dataclass
class Look:
    """Values that came from the servers: own column, updates and versions by shard, and shards where two differ."""

    own: list[float]
    updates: list[int]
    versions: list[int]
    torn: list[int]
    push: Sent | None  # that they came with


@dataclass
class Story:
    """One life.

    `joined` is when it had, as `incarnation`; `ended` when it came to its end in good order.
    `waits` has the times in which it asked for a block, and whether it got one (None: no answer); `blocks` what it
    got; `reports` the epochs of which it heard.
    """

    column: int
    name: str
    fate: str = ""
    code: int | None = None
    hurt: list[tuple[float, str]] = field(default_factory=list)
    said: str = ""
    joined: float | None = None
    incarnation: int = 0
    ended: float | None = None
    pushes: list[Sent] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    waits: list[tuple[float, float | None, bool | None]] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    reports: list[tuple[int, int]] = field(default_factory=list)

    @property
    def open(self) -> Sent | None:
        """The push that was not answered, if there is one."""
        return self.pushes[-1] if self.pushes and self.pushes[-1].answered is None else None


def read_events(path: Path) -> list[dict[str, Any]]:
    """The lines of a ledger; none where there is no file, for its worker was killed before."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def tell(story: Story, events: Iterable[dict[str, Any]]) -> Story:
    """The story with what was written down in it."""
    for event in events:
        at = event["at"]
        match event["event"]:
            case "push":
                fields = ("number", "shards", "dense", "seen", "rows_seen", "epoch", "examples", "at")
                story.pushes.append(Sent(**{name: event[name] for name in fields}))
            case "answer" | "joined" | "pulled" as kind:
                push = None
                if kind == "answer":
                    push = story.pushes[-1]
                    assert push.number == event["number"]
                    push.answered, push.dropped, push.staleness = at, event["dropped"], event["staleness"]
                elif kind == "joined":
                    story.joined, story.incarnation = at, event["incarnation"]
                story.looks.append(Look(event["own"], event["updates"], event["versions"], event["torn"], push))
            case "take":
                story.waits.append((at, None, None))
            case "taken":
                began, _, _ = story.waits[-1]
                story.waits[-1] = began, at, event["block"] is not None
                if event["block"] is not None:
                    story.blocks.append(event["block"])
                story.reports += [(epoch, examples) for epoch, examples in event["reports"]]
            case "end":
                story.ended = at
    return story
