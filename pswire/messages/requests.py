"""Requests and answers, and what is not sent: ticks and replies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from pswire.errors import ParamServerError
from pswire.messages.generated import CALLS, Answer, Request, Tick

#: What a shard takes: requests, and what time has brought about, as data (`Shard.due`).
Message: TypeAlias = Request | Tick


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to the message with this ticket; or the error that ends its call."""

    ticket: int
    answer: Answer | ParamServerError


#: The class of each request's answer.
ANSWERS: dict[type[Request], type[Answer]] = {call.request: call.answer for call in CALLS}
