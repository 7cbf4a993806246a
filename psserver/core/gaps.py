"""Gaps: numbers of messages that a shard counts on from, or adds up, are not far above its own."""

from pswire.errors import InvalidMessage

#: By how much one message may raise a number that the shard counts on from, or adds up: more than a worker counts while
#: the shard does not hear of it, and far below the largest that the protocol carries.
MAX_GAP = 1 << 32


def check_count(message: object, what: str, number: int, known: int, gap: int = MAX_GAP) -> None:
    """Raise `InvalidMessage` for a number that the shard counts on from, or adds up, and that is far above its own.

    All other integers of a message are bounded by its codec, and compared with what the shard has, or only kept.
    """
    if number > known + gap:
        raise InvalidMessage(
            f"{type(message).__name__} with {what} {number:,}, but the last one known here is {known:,}: it "
            "counts without such gaps"
        )
