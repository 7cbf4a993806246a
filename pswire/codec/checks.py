"""Checks of fields that come from the network or a file, without the shard: ranges, lengths, names, each name once.

All raise `Malformed`, with the name of the field (`where`).
"""

import functools
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from typing import Any, NamedTuple, NoReturn, TypeVar

from google.protobuf.message import Message as Proto

from pswire.errors import Malformed
from pswire.limits import (
    MAX_ANSWER_TEXT_LENGTH,
    MAX_ENTRIES,
    MAX_LABEL_LENGTH,
    MAX_NOTE_LENGTH,
    MAX_NUMBER,
    MAX_RESULT_LENGTH,
    MAX_SECRET_BYTES,
    MAX_TEXT_LENGTH,
)
from pswire.specs.encodings import ENCODINGS
from pswire.tensors.transport import TensorReceiver, TensorSender
from pswire.tensors.values import MAX_NAME_LENGTH

T = TypeVar("T")

#: The largest integer that the protocol carries.
LARGEST = (1 << 63) - 1


class Row(NamedTuple):
    """A request or answer, its protobuf, the functions between them, and the most entries of each of its lists."""

    message: type
    proto: type[Proto]
    put: Callable[[Any, Any, TensorSender], None]
    get: Callable[[Any, TensorReceiver], Any]
    limits: Mapping[str, int]


# --- numbers ----------------------------------------------------------------------------------------------------------


def count(value: int, where: str, most: int = MAX_NUMBER) -> int:
    """An integer of at least 0."""
    if not 0 <= value <= most:
        _refuse_number(value, where, 0, most)
    return value


def positive(value: int, where: str, most: int = MAX_NUMBER) -> int:
    """An integer of at least 1."""
    if not 1 <= value <= most:
        _refuse_number(value, where, 1, most)
    return value


def integer(value: int, where: str, least: int, most: int = MAX_NUMBER) -> int:
    """An integer from `least` to `most`."""
    if not least <= value <= most:
        _refuse_number(value, where, least, most)
    return value


def amount(value: float, where: str, least: float = 0, most: float = sys.float_info.max) -> float:
    """A finite number from `least` on."""
    if not least <= value <= most:
        _refuse_number(value, where, least, most)
    return value


def below(value: int, limit: int, where: str, other: str) -> int:
    """An integer of at least 0 that is less than the field `other`."""
    if not 0 <= value < limit:
        raise Malformed(f"{where} must be at least 0 and below {other} {limit}, got {value}")
    return value


def numbers(
    values: Sequence[int], where: str, limit: int | None, least: int = 0, most: int = MAX_NUMBER
) -> tuple[int, ...]:
    """Integers from `least` to `most`, `limit` of them at most; None: any number of them."""
    if limit is not None and len(values) > limit:
        refuse_length(len(values), where, limit)
    found = tuple(values)
    if not least <= min(found) <= max(found) <= most:
        _refuse_number(min(found) if min(found) < least else max(found), where, least, most)
    return found


def any_numbers(values: Sequence[float], where: str, limit: int | None) -> tuple[float, ...]:
    """Numbers, also infinite ones and NaN, `limit` of them at most."""
    if limit is not None and len(values) > limit:
        refuse_length(len(values), where, limit)
    return tuple(values)


def _refuse_number(value: float, where: str, least: float, most: float) -> NoReturn:
    bound = f"at most {most}" if value > most else f"at least {least}"
    raise Malformed(f"{where} must be {bound}, got {value}")


# --- texts ------------------------------------------------------------------------------------------------------------


@functools.lru_cache(4096)
def name(text: str) -> str:
    """The name of a worker, a variable or a data queue."""
    if not text or len(text) > MAX_NAME_LENGTH or not text.isprintable():
        got = f"{text!r}" if len(text) <= MAX_NAME_LENGTH else f"{len(text):,} of them"
        raise Malformed(f"a name has 1 to {MAX_NAME_LENGTH} printable characters, got {got}")
    return text


def name_or_empty(text: str, where: str) -> str:
    """A name that may be left out."""
    return name(text) if text else text


def names(texts: Sequence[str], where: str, limit: int | None) -> tuple[str, ...]:
    """Names of variables or workers, each once."""
    if limit is not None and len(texts) > limit:
        refuse_length(len(texts), where, limit)
    found = tuple(map(name, texts))
    if len(set(found)) < len(found):
        _refuse_repeated(found)
    return found


def _refuse_repeated(found: Sequence[str]) -> NoReturn:
    raise Malformed(f"{Counter(found).most_common(1)[0][0]!r} is in the message more than once")


def answer_text(value: str, where: str) -> str:
    """A sentence for people in an answer."""
    return _text(value, where, MAX_ANSWER_TEXT_LENGTH, printable=False)


def label(value: str, where: str) -> str:
    """A word for displays."""
    return _text(value, where, MAX_LABEL_LENGTH)


def sentence(value: str, where: str) -> str:
    """A sentence for people, which shards keep."""
    return _text(value, where, MAX_TEXT_LENGTH)


def note(value: str, where: str) -> str:
    """A text for programs, which shards keep."""
    return _text(value, where, MAX_NOTE_LENGTH)


def result(value: str, where: str) -> str:
    """The result of a minimization."""
    return _text(value, where, MAX_RESULT_LENGTH, printable=False)


def _text(value: str, where: str, limit: int, *, printable: bool = True) -> str:
    """A text; if `printable`, without line ends and codes that a terminal would obey."""
    if len(value) > limit:
        raise Malformed(f"{where} has {limit:,} characters at most, got {len(value):,}")
    if printable and not value.isprintable():
        raise Malformed(f"{where} has characters that cannot be printed: {value[:100]!r}")
    return value


def encoding(value: str, where: str) -> str:
    """A key of `ENCODINGS`, or none."""
    return value if not value or value in ENCODINGS else _refuse_choice(value, where)


def worker_state(value: str, where: str) -> str:
    """The state of a worker."""
    return value if value in ("live", "left", "lost") else _refuse_choice(value, where)


def job_state(value: str, where: str) -> str:
    """The state of a job."""
    known = ("running", "done", "ended", "interrupted", "empty")
    return value if value in known else _refuse_choice(value, where)


def _refuse_choice(value: str, where: str) -> NoReturn:
    raise Malformed(f"{where} cannot be {value!r:.50}")


# --- bytes and parts --------------------------------------------------------------------------------------------------


def secret(data: bytes, where: str) -> bytes:
    """A token or a key."""
    if len(data) > MAX_SECRET_BYTES:
        raise Malformed(f"{where} has {MAX_SECRET_BYTES:,} bytes at most, got {len(data):,}")
    return data


def parts(
    protos: Sequence[Any],
    get: Callable[[Any, TensorReceiver], T],
    tensors: TensorReceiver,
    where: str,
    limit: int | None,
    key: Callable[[Any], str] | None = None,
    total: str = "",
) -> tuple[T, ...]:
    """Parts in order, `limit` at most; with `key`, which returns the name of a part, each name once.

    With `total`, the lists of this name in all of them have `MAX_ENTRIES` entries together at most.
    """
    if limit is not None and len(protos) > limit:
        refuse_length(len(protos), where, limit)
    if total and (entries := sum([len(getattr(one, total)) for one in protos])) > MAX_ENTRIES:
        raise Malformed(f"{where} has {MAX_ENTRIES:,} {total} at most, got {entries:,}")
    found = tuple(map(get, protos, repeat(tensors)))
    if key is not None and len(found) > 1 and len(set(names := [*map(key, found)])) < len(names):
        _refuse_repeated(names)
    return found


def refuse_length(count: int, where: str, limit: int) -> NoReturn:
    """Raises `Malformed` for a list of more than `limit` entries."""
    raise Malformed(f"{where} has {limit:,} entries at most, got {count:,}")
