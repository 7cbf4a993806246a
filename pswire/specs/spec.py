"""Specs: frozen dataclasses that configure a job, checked when built; as plain data and as text, and back.

The families are optimizers, schedules, row initializers, consistency policies and compressions. Imports only the
errors.
"""

import dataclasses
import functools
import inspect
import math
import numbers
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar, Self, TypeAlias, TypeVar, get_type_hints

from pswire.errors import ConfigurationError

#: Counts travel as floats, which represent every whole number below this one.
MAX_COUNT = 1 << 53

#: Patterns of a count and of a decimal number in the text of a spec.
COUNT = "[0-9]{1,15}"
DECIMAL = r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"


class _PlainSignature:
    """`__signature__` of a class, for `help` and notebooks: the types of its fields without what checks them."""

    def __get__(self, instance: object, owner: type) -> inspect.Signature:
        if instance is not None:
            raise AttributeError("__signature__")  # an instance that is called has that of its __call__
        initialize: Callable[..., None] = owner.__init__  # type: ignore[misc]
        types = get_type_hints(initialize)
        _, *parameters = inspect.signature(initialize).parameters.values()
        return inspect.Signature([one.replace(annotation=types.get(one.name, one.annotation)) for one in parameters])


class Checked:
    """A dataclass whose fields are checked when it is built, by their annotations (`Share`, `Count` and so on)."""

    __signature__ = _PlainSignature()

    def __post_init__(self) -> None:
        for name, check in _checks_of(type(self)).items():  # type: ignore[arg-type]  # a class is hashable
            value = check(f"{type(self).__name__}: {name}", getattr(self, name))
            object.__setattr__(self, name, value)  # specs are frozen


@functools.cache
def _checks_of(cls: type) -> dict[str, Callable[[str, object], object]]:
    hints = get_type_hints(cls, include_extras=True)
    return {name: hint.__metadata__[0] for name, hint in hints.items() if hasattr(hint, "__metadata__")}


class Spec(Checked):
    """A configuration object that travels as plain data: the name of its kind, and its fields.

    A subclass with `family="..."` is a family, one with `kind="..."` a member of it. One with neither, such as a
    worker's optimizer, has the kind of its base. `nested` is the family of specs within those of a family, if another.
    """

    kind: ClassVar[str] = ""
    family: ClassVar[str] = ""
    kinds: ClassVar[dict[str, type[Any]]] = {}
    nested: ClassVar[type["Spec"] | None] = None

    def __init_subclass__(cls, *, kind: str = "", family: str = "") -> None:
        super().__init_subclass__()
        if family:
            cls.family, cls.kinds = family, {}
        if kind:
            cls.kind = kind
            cls.kinds[kind] = cls

    def hyperparameters(self) -> dict[str, Any]:
        """The fields that travel, by name."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self.kinds[self.kind])}

    def is_known(self) -> bool:
        """True if servers have this very class, not only its base."""
        return type(self) is self.kinds.get(self.kind)


class TextSpec(Checked):
    """A choice that is written as text, on the command line and in the status; `str` is the inverse of `parse`.

    `form` describes the syntax for people, `pattern` has the fields as groups, `text` formats them; without fields all
    are `form` itself.
    """

    form: ClassVar[str]
    pattern: ClassVar[str] = ""
    text: ClassVar[str] = ""

    def __str__(self) -> str:
        return (self.text or self.form).format_map(vars(self))

    @classmethod
    def of_texts(cls, texts: Mapping[str, str]) -> Self:
        """With fields from the groups of `pattern`, by default numbers. Raises `ValueError` for what does not fit."""
        return cls(**{name: float(number) for name, number in texts.items()})


_Spec = TypeVar("_Spec", bound=Spec)
_TextSpec = TypeVar("_TextSpec", bound=TextSpec)


def to_plain(spec: Spec) -> dict[str, Any]:
    """Kind and fields as plain data: numbers as floats, nested specs converted likewise."""
    return {"kind": spec.kind} | {name: _plain(value) for name, value in spec.hyperparameters().items()}


def _plain(value: Any) -> object:  # noqa: ANN401 - a number, or one of these
    match value:
        case Spec():
            return to_plain(value)
        case tuple():
            return [_plain(entry) for entry in value]
        case bool():
            return value
    return float(value)


def from_plain(family: type[_Spec], plain: Mapping[str, Any]) -> _Spec:
    """The inverse of `to_plain` for specs of a family.

    Raises:
        ValueError: a kind is unknown, a field is missing or unknown, or a value is out of its range.
        TypeError: a value has the wrong type.
    """
    fields = dict(plain)
    kind = fields.pop("kind", None)
    base: Any = family.kinds.get(kind) if isinstance(kind, str) else None
    if base is None:
        raise ValueError(f"unknown {family.family} {kind!r}; known kinds: {', '.join(sorted(family.kinds))}")
    expected = {field.name for field in dataclasses.fields(base)}
    if expected != fields.keys():
        missing, unknown = sorted(expected - fields.keys()), sorted(fields.keys() - expected)
        same = "do workers and servers have the same version?"
        raise ValueError(f"{family.family} {kind}: missing {missing}, unknown {unknown}: {same}")
    for name, value in fields.items():
        if isinstance(value, Mapping):
            fields[name] = from_plain(family.nested or family, value)
    spec: _Spec = base(**fields)
    return spec


def parse(text: str, choices: Sequence[type[_TextSpec]], noun: str) -> _TextSpec:
    """The choice that `text` stands for. Raises `ConfigurationError`, which lists all forms."""
    for choice in choices:
        found = re.fullmatch(choice.pattern or re.escape(choice.form), text.strip())
        if found:
            try:
                return choice.of_texts({name: text for name, text in found.groupdict().items() if text})
            except ValueError as error:
                raise ConfigurationError(f"{text!r}: {error}") from error
    *forms, last = (choice.form for choice in choices)
    forms.append(f"or {last}" if forms else last)
    raise ConfigurationError(f"{text!r} is not a valid {noun}: use {'; '.join(forms)}")


def check_number(
    label: str,
    value: object,
    low: float = -math.inf,
    high: float = math.inf,
    *,
    open_low: bool = False,
    closed_high: bool = False,
    expected: str = "an int or a float",
) -> float:
    """The number as a float; refused outside [low, high), with `open_low` and `closed_high` outside (low, high].

    NaN and infinity are always outside. Raises `TypeError` or `ValueError`, which begin with `label`.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real):  # numpy numbers are accepted
        raise TypeError(f"{label} must be {expected}, got {value!r}")
    try:
        number = float(value)
    except OverflowError:  # an int too large for a float
        number = math.inf
    above = low < number if open_low else low <= number
    below = number <= high if closed_high else number < high
    if not (above and below and math.isfinite(number)):
        bounds = f"{'more than' if open_low else 'at least'} {low:g} and " if low > -math.inf else ""
        bounds += f"{'at most' if closed_high else 'below'} {high:g}" if high < math.inf else "finite"
        raise ValueError(f"{label} must be {bounds}, got {value!r}")
    return number


def check_whole(label: str, value: object) -> int:
    """The number as an int; refused unless whole, of any sign. -5.0 may come from the network."""
    number = check_number(label, value, -MAX_COUNT, MAX_COUNT)
    if not number.is_integer():
        raise ValueError(f"{label} must be a whole number, got {number!r}")
    return int(number)


def check_count(label: str, value: object, low: int = 1) -> int:
    """The number as an int; refused unless whole and at least `low`. 1000.0 may come from the network."""
    check_number(label, value, low, MAX_COUNT)
    return check_whole(label, value)


def check_flag(label: str, value: object) -> bool:
    """The value; refused unless it is a boolean."""
    if not isinstance(value, bool):
        raise TypeError(f"{label} must be True or False, got {value!r}")
    return value


#: Annotations of fields: a finite number, [0, inf), (0, inf), [0, 1), [0, 1], (0, 1], whole numbers from 1 and from 0.
Number: TypeAlias = Annotated[float, check_number]
NotNegative: TypeAlias = Annotated[float, partial(check_number, low=0)]
Positive: TypeAlias = Annotated[float, partial(check_number, low=0, open_low=True)]
Share: TypeAlias = Annotated[float, partial(check_number, low=0, high=1)]
ShareOrOne: TypeAlias = Annotated[float, partial(check_number, low=0, high=1, closed_high=True)]
PositiveShare: TypeAlias = Annotated[float, partial(check_number, low=0, high=1, open_low=True, closed_high=True)]
Count: TypeAlias = Annotated[int, check_count]
CountFromZero: TypeAlias = Annotated[int, partial(check_count, low=0)]
Flag: TypeAlias = Annotated[bool, check_flag]
