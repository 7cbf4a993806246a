"""The choices of consistency and of what staleness does: what can be written, and what comes of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pswire.errors import ConfigurationError
from pswire.specs.consistency import (
    CONSISTENCIES,
    STALENESSES,
    Asynchronous,
    Bounded,
    Consistency,
    DelayCompensation,
    DropStalePushes,
    IgnoreStaleness,
    ScaleByStaleness,
    Synchronous,
    parse_consistency,
    parse_staleness,
)

READ = [
    ("async", Asynchronous(), False),
    ("bounded:0", Bounded(0), True),
    ("bounded:12", Bounded(steps=12), True),
    ("sync:1", Synchronous(1), True),
    ("sync:3,backup=1", Synchronous(workers=3, backup=1), True),
    ("none", IgnoreStaleness(), False),
    ("scale", ScaleByStaleness(), False),
    ("delay-compensated:0.04", DelayCompensation(), False),
    ("delay-compensated:2.0", DelayCompensation(2), False),
    ("delay-compensated:1e-05", DelayCompensation(strength=0.00001), False),
    ("drop:0", DropStalePushes(0), True),
    ("drop:10", DropStalePushes(above=10), True),
]


@pytest.mark.parametrize(("text", "spec", "decides"), READ)
def test_a_policy_is_read_as_it_is_written(text, spec, decides):
    parse = parse_consistency if isinstance(spec, Consistency) else parse_staleness
    assert (parse(f" {text}\n"), str(spec), spec.decides) == (spec, text, decides)
    others = {"delay-compensated": 0.04, "delay-compensated:.5": 0.5, "delay-compensated:1E2": 100.0}
    assert all(parse_staleness(other) == DelayCompensation(strength) for other, strength in others.items())


@given(st.integers(0, 10**15 - 1), st.integers(1, 10**15 - 1), st.floats(0, allow_infinity=False))
def test_what_is_written_is_read_back(count, workers, strength):
    for spec in (Bounded(count), Synchronous(workers, count)):
        assert parse_consistency(str(spec)) == spec
    for handling in (DropStalePushes(count), DelayCompensation(strength)):
        assert parse_staleness(str(handling)) == handling


@pytest.mark.parametrize(
    ("parse", "texts", "forms"),
    [
        (
            parse_consistency,
            [
                *("", "asynchronous", "ASYNC", "async:1", "bounded", "bounded:", "bounded:-1", "bounded:1.5"),
                *("bounded:٣", "sync", "sync:", "sync:2,", "sync:2,backup", "sync:2,backup=-1", "sync:2, backup=1"),
                *("sync:2,spare=1", "none", "bounded:" + "9" * 5000),
            ],
            ("async", "bounded:S", "sync:N", "sync:N,backup=B"),
        ),
        (
            parse_staleness,
            ["", "None", "scale:2", "delay-compensated:", "delay-compensated:nan", "drop", "drop:1.5", "drop:-1"],
            ("none", "scale", "delay-compensated", "delay-compensated:L", "drop:T"),
        ),
    ],
)
def test_what_is_no_policy_is_refused_with_all_that_can_be_written(parse, texts, forms):
    for text in texts:
        with pytest.raises(ConfigurationError) as refusal:
            parse(text)
        assert all(form in str(refusal.value) for form in (*forms, repr(text)))


def test_what_can_be_written_but_cannot_be_says_which_number():
    with pytest.raises(ConfigurationError, match=r"'sync:0': Synchronous: workers must be at least 1 .* got 0"):
        parse_consistency("sync:0")
    with pytest.raises(ConfigurationError, match="DelayCompensation: strength must be at least 0 and finite, got inf"):
        parse_staleness("delay-compensated:1e999")


@pytest.mark.parametrize(
    ("kind", "fields", "error"),
    [
        (Bounded, {"steps": -1}, ValueError),
        (Bounded, {"steps": 1.5}, ValueError),
        (Bounded, {"steps": "1"}, TypeError),
        (Synchronous, {"workers": 0}, ValueError),
        (Synchronous, {"workers": 1, "backup": -1}, ValueError),
        (Synchronous, {"workers": True}, TypeError),
        (DelayCompensation, {"strength": -0.1}, ValueError),
        (DelayCompensation, {"strength": float("nan")}, ValueError),
        (DropStalePushes, {"above": -1}, ValueError),
    ],
)
def test_a_field_that_cannot_be_is_refused_by_name(kind, fields, error):
    with pytest.raises(error, match=f"{kind.__name__}: {list(fields)[-1]} must be"):
        kind(**fields)


def test_specs_do_not_change_and_name_their_source():
    for kind in (*CONSISTENCIES, *STALENESSES):
        assert kind.__dataclass_params__.frozen
        assert "Source: " in kind.__doc__ or kind in (IgnoreStaleness, DropStalePushes)
