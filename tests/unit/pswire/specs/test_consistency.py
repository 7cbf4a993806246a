"""Consistency and staleness policies as text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pswire.errors import ConfigurationError
from pswire.specs import consistency as policies
from pswire.specs.consistency import Bounded, DelayCompensation, parse_consistency, parse_staleness


def parser_of(spec):
    return parse_consistency if isinstance(spec, policies.Consistency) else parse_staleness


@pytest.mark.parametrize(
    ("text", "spec", "decides"),
    [
        ("async", policies.Asynchronous(), False),
        ("bounded:12", Bounded(steps=12), True),
        ("sync:1", policies.Synchronous(1), True),
        ("sync:3,backup=1", policies.Synchronous(workers=3, backup=1), True),
        ("none", policies.IgnoreStaleness(), False),
        ("scale", policies.ScaleByStaleness(), False),
        ("delay-compensated:0.04", DelayCompensation(), False),
        ("delay-compensated:1e-05", DelayCompensation(strength=0.00001), False),
        ("drop:10", policies.DropStalePushes(above=10), True),
    ],
)
def test_a_policy_is_read_as_it_is_written(text, spec, decides):
    assert (parser_of(spec)(f" {text}\n"), str(spec), spec.decides) == (spec, text, decides)
    others = {"delay-compensated": 0.04, "delay-compensated:.5": 0.5, "delay-compensated:1E2": 100.0}
    assert all(parse_staleness(other) == DelayCompensation(strength) for other, strength in others.items())


@given(st.integers(0, 10**15 - 1), st.integers(1, 10**15 - 1), st.floats(0, allow_infinity=False))
def test_any_policy_is_read_back(count, workers, strength):
    for spec in (
        Bounded(count),
        policies.Synchronous(workers, count),
        policies.DropStalePushes(count),
        DelayCompensation(strength),
    ):
        assert parser_of(spec)(str(spec)) == spec


CONSISTENCY_FORMS = "async", "bounded:S", "sync:N", "sync:N,backup=B"
STALENESS_FORMS = "none", "scale", "delay-compensated", "delay-compensated:L", "drop:T"
NO_CONSISTENCY = [
    *("", "asynchronous", "ASYNC", "async:1", "bounded", "bounded:", "bounded:-1", "bounded:1.5", "bounded:٣", "none"),
    *("sync", "sync:2,", "sync:2,backup", "sync:2,backup=-1", "sync:2, backup=1", "bounded:" + "9" * 5000),
]
NO_STALENESS = ["", "None", "scale:2", "delay-compensated:", "delay-compensated:nan", "drop", "drop:1.5", "drop:-1"]


@pytest.mark.parametrize(
    ("parse", "texts", "forms"),
    [(parse_consistency, NO_CONSISTENCY, CONSISTENCY_FORMS), (parse_staleness, NO_STALENESS, STALENESS_FORMS)],
)
def test_other_text_is_refused_with_all_forms(parse, texts, forms):
    for text in texts:
        with pytest.raises(ConfigurationError) as refusal:
            parse(text)
        assert all(form in str(refusal.value) for form in (*forms, repr(text)))


def test_a_number_out_of_range_is_named():
    with pytest.raises(ConfigurationError, match=r"'sync:0': Synchronous: workers must be at least 1 .* got 0"):
        parse_consistency("sync:0")
    with pytest.raises(ConfigurationError, match="DelayCompensation: strength must be at least 0 and finite, got inf"):
        parse_staleness("delay-compensated:1e999")
