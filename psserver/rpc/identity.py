"""Authentication of callers: tokens of members.

A token has a message authentication code (HMAC-SHA256) by the key that all servers of a job have and workers do not. So
a server needs no table of tokens: tokens given before a restart, or by another shard, are valid too.
"""

import functools
import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from google.protobuf.message import DecodeError

from psserver.core.shard import Shard
from psserver.rpc import access
from pswire import messages as ms
from pswire.errors import InvalidMessage, Unauthenticated, Unavailable
from pswire.network.channel import CALLED_SHARD, MEMBER_TOKEN
from pswire.v1 import paramserver_pb2 as pb

#: The messages that `Identity.check`, `hashed` and `with_token` concern: those of workers without a sender.
OF_IDENTITIES = tuple(
    [call.request for call in ms.CALLS if call.role == "worker" and not hasattr(call.request, "sender")]
)

_MAC_BYTES = hashlib.sha256().digest_size


class Call(Protocol):
    """A call of a worker: that of gRPC, or a direct connection."""

    def invocation_metadata(self) -> Iterable[tuple[str, Any]] | None:
        """What comes before its message."""


@dataclass(frozen=True, slots=True)
class Claims:
    """The contents of a token."""

    sender: ms.Sender
    process_nonce: int
    job: ms.Job


class Identity:
    """Gives tokens of a `key`, and checks them. All methods are called in the event loop."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._claims = functools.lru_cache(4096)(self._checked_claims)

    def caller(self, context: Call, shard: Shard) -> Claims | None:
        """The member that calls, by its token; None: a stranger.

        Raises `Unauthenticated` for an invalid token, and `Unavailable` if the call is for another shard.
        """
        claims = None
        for name, value in context.invocation_metadata() or ():
            if name == MEMBER_TOKEN:
                claims = self._claims(value)
            elif name == CALLED_SHARD and value != str(shard.shard):
                raise Unavailable(
                    f"a call for shard {value[:10]} has reached shard {shard.shard} of {shard.shards}: another server "
                    "has its address now, or there is something between that distributes calls"
                )
        return claims

    def member(self, context: Call, shard: Shard) -> Claims:
        """The member that calls. Raises `Unauthenticated` for a stranger, as `caller`, and as `Shard.check_sender`."""
        caller = self.caller(context, shard)
        if caller is None:
            raise Unauthenticated(
                "a Transfer is for members: join first, and send the token of the answer in the metadata of the call"
            )
        shard.check_sender(caller.sender)
        return caller

    def check_sender(self, sender: ms.Sender, caller: Claims | None) -> None:
        """Raise `Unauthenticated` unless the caller is the member that sends a message."""
        if caller is None:
            raise Unauthenticated(
                f"a message of worker {sender.worker!r}, incarnation {sender.incarnation}, without the token that it "
                "was given when it joined: send it in the metadata of each call"
            )
        if caller.sender != sender:
            raise Unauthenticated(
                f"a message of worker {sender.worker!r}, incarnation {sender.incarnation}, with the token of "
                f"{caller.sender.worker!r}, incarnation {caller.sender.incarnation}"
            )

    def check(self, message: ms.Request, caller: Claims | None) -> None:
        """Raise `Unauthenticated` unless the caller is the member that it acts for, or may act for none."""
        match message:
            case ms.Join():
                self._check_join(message, caller)
            case ms.Cut() if message.holder is not None:
                self.check_sender(message.holder, caller)
            case _ if caller is None and not access.caller.get().is_admin:
                raise Unauthenticated(f"a {type(message).__name__} is for members and admins: join first")

    def hashed(self, message: ms.Request) -> ms.Request:
        """The message without secrets, as the shard, its journal and its checkpoints have it.

        A Join with the random number of a live process, or with the key of its name, is answered with a token. So of
        both only codes are kept.
        """
        if not isinstance(message, ms.Join):
            return message
        key, nonce = message.name_key, message.process_nonce
        return replace(
            message,
            name_key=key and hashlib.sha256(key).digest(),
            process_nonce=nonce and int.from_bytes(self._mac("process", nonce)[:8]) >> 1 | 1,
        )

    def with_token(self, message: ms.Request, answer: ms.Answer) -> ms.Answer:
        """The answer to a message; that to a Join with a token."""
        if not isinstance(answer, ms.Joined):
            return answer
        assert isinstance(message, ms.Join)
        sender = ms.Sender(message.worker, answer.incarnation)
        return replace(answer, token=self._token(Claims(sender, message.process_nonce, answer.job)))

    # --- tokens ---------------------------------------------------------------------------------------------------

    def _token(self, claims: Claims) -> bytes:
        sender, job = claims.sender, claims.job
        body = pb.MemberClaims(
            sender=pb.Sender(worker=sender.worker, incarnation=sender.incarnation),
            process_nonce=claims.process_nonce,
            job=pb.Job(number=job.number, name=job.name, session=job.session),
        ).SerializeToString(deterministic=True)
        return self._mac_of(b"member\0" + body) + body

    def _checked_claims(self, token: bytes) -> Claims:
        mac, body = token[:_MAC_BYTES], token[_MAC_BYTES:]
        if not hmac.compare_digest(mac, self._mac_of(b"member\0" + body)):
            raise Unauthenticated(
                "the token of this worker is not of this job: it was invented, or given by a server with another key "
                "(all servers of a job need the same: see docs/security.md)"
            )
        try:
            claims = pb.MemberClaims.FromString(body)
        except DecodeError:  # with a valid code: of another version
            raise Unauthenticated("the token of this worker is of another version of the server") from None
        sender, job = claims.sender, claims.job
        of_job = ms.Job(job.number, job.name, job.session)
        return Claims(ms.Sender(sender.worker, sender.incarnation), claims.process_nonce, of_job)

    def _check_join(self, message: ms.Join, caller: Claims | None) -> None:
        if not message.incarnation:
            if message.shard or message.job.number:
                raise InvalidMessage(
                    f"worker {message.worker!r} joins without an incarnation: it joins shard 0 first, which gives it "
                    "one, and its job"
                )
            return
        claimed = Claims(ms.Sender(message.worker, message.incarnation), message.process_nonce, message.job)
        if caller != claimed:
            raise Unauthenticated(
                f"worker {message.worker!r} joins as incarnation {message.incarnation} without the token that it was "
                "given with that: a new process joins shard 0 with incarnation 0"
            )

    def _mac(self, *parts: object) -> bytes:
        """HMAC of numbers, strings and tuples of these, encoded by `repr`."""
        return self._mac_of(repr(parts).encode())

    def _mac_of(self, data: bytes) -> bytes:
        return hmac.digest(self._key, data, "sha256")
