"""Optimizers, schedules, row initializers, policies and compressions as specs: field ranges, plain data and back."""

import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pswire import optimizers
from pswire.errors import ConfigurationError
from pswire.optimizers import UpdateSpec
from pswire.specs import checkpoints, consistency, encodings, initializers, schedules
from pswire.specs.checkpoints import parse_checkpoint_every
from pswire.specs.consistency import parse_consistency, parse_staleness
from pswire.specs.schedules import Schedule
from pswire.specs.spec import from_plain, to_plain
from tests.support.combinations import together

FAMILIES = (UpdateSpec, Schedule, initializers.RowInitializer)
BELOW, ABOVE = math.nextafter(1, 0), math.nextafter(1, 2)
COUNTS = [7.0, np.int64(7), np.float32(7), 2**53 - 1]
NO_COUNTS = [-1, 1.5, 2**53]

#: The numbers at the ends of a range, numbers outside of it, and its description in the message.
RANGES = {
    "finite": ([-0.25, 0.25], [], "finite"),
    ">=0": ([0, 1e300], [-1e-300, -1], "at least 0 and finite"),
    ">0": ([5e-324, 1e300], [-1, 0], "more than 0 and finite"),
    "[0,1)": ([0, BELOW], [-1e-300, 1], "at least 0 and below 1"),
    "[0,1]": ([0, 1], [-1e-300, ABOVE], "at least 0 and at most 1"),
    "(0,1]": ([5e-324, 1], [0, ABOVE], "more than 0 and at most 1"),
    "(0,0.5)": ([5e-324, 0.5 - 2**-54], [0, 0.5], "more than 0 and below 0.5"),
    "count": ([1, *COUNTS], [0, *NO_COUNTS], "(at least 1 and below 9.0072e|a whole number)"),
    "count>=0": ([0, *COUNTS], NO_COUNTS, "(at least 0 and below 9.0072e|a whole number)"),
}
MOMENTS = "learning_rate >=0, beta1 [0,1), beta2 [0,1), epsilon >0"
RMSPROP = "learning_rate >=0, decay [0,1), momentum [0,1), epsilon >0, centered flag"
FTRL = "learning_rate >=0, l1 >=0, l2 >=0, learning_rate_power [0,1], initial_accumulator >0"
DECAYED = "learning_rate >=0, initial_accumulator >0, decay_steps count, decay_rate [0,1]"

#: A spec of every kind, and the ranges of its fields.
EXAMPLES = [
    (optimizers.GradientDescent(0.1), "learning_rate >=0"),
    (optimizers.Momentum(0.1), "learning_rate >=0, momentum [0,1), nesterov flag"),
    (optimizers.Adagrad(0.1, 0.25, 0.5), "learning_rate >=0, initial_accumulator >=0, epsilon >=0"),
    (optimizers.AdagradDecay(0.1), DECAYED),
    (optimizers.Adam(), f"{MOMENTS}, amsgrad flag"),
    (optimizers.AdamW(), f"{MOMENTS}, amsgrad flag, weight_decay >=0"),
    (optimizers.Lamb(), f"{MOMENTS}, weight_decay >=0"),
    (optimizers.RMSProp(), RMSPROP),
    (optimizers.Ftrl(0.1), FTRL),
    (optimizers.MovingAverage(0.5), "decay [0,1)"),
    (schedules.ExponentialDecay(0.1, 9, 0.5), "initial >=0, decay_steps count, decay_rate (0,1], staircase flag"),
    (schedules.PolynomialDecay(0.1, 10), "initial >=0, decay_steps count, end >=0, power >0"),
    (schedules.CosineDecay(0.1, 10), "initial >=0, decay_steps count, alpha [0,1]"),
    (schedules.WarmUp(10, 0.1), "steps count, then >=0"),
    (schedules.PiecewiseConstant([10, 20.5], [1, 0.5, 0.25]), ""),
    (initializers.RowConstant(-2.5), "value finite"),
    (initializers.RowUniform(-1, 1), "low finite, high finite, seed count>=0"),
    (initializers.RowNormal(0.5, 1, 2**53 - 1), "stddev >=0, mean finite, seed count>=0"),
    (initializers.random_normal(0.5), "stddev >=0, mean finite"),
    (initializers.orthogonal(), "gain finite, blocks count"),
    (initializers.truncated_normal(0.5), "stddev >=0, mean finite"),
    (consistency.Bounded(1), "steps count>=0"),
    (consistency.Synchronous(2), "workers count, backup count>=0"),
    (consistency.TrimmedMean(0.2), "share (0,0.5)"),
    (consistency.DelayCompensation(), "strength >=0"),
    (consistency.DropStalePushes(1), "above count>=0"),
    (encodings.TopK(0.5), "fraction (0,1]"),
    (checkpoints.EverySeconds(60), "seconds >0"),
    (checkpoints.EverySteps(1000), "steps count"),
]
NESTED = optimizers.Adam(schedules.WarmUp(5, schedules.PiecewiseConstant([10, 20.5], [1, 0.5, 0.25])))
PLAIN = [example for example, _ in EXAMPLES if isinstance(example, FAMILIES)]

every_plain = pytest.mark.parametrize("spec", [*PLAIN, NESTED], ids=lambda spec: spec.kind)


def family_of(spec):
    return next(family for family in FAMILIES if isinstance(spec, family))


@together(("spec", "fields"), EXAMPLES)
def test_a_field_takes_the_ends_of_its_range_and_an_error_names_spec_and_field(spec, fields):
    assert {type(example) for example in PLAIN} == {one for family in FAMILIES for one in family.kinds.values()}
    ranges = dict(entry.split() for entry in fields.split(", ") if entry)
    others = tuple, consistency.Aggregate
    numeric = {field.name for field in dataclasses.fields(spec) if not isinstance(getattr(spec, field.name), others)}
    assert ranges.keys() == numeric - ({"seed"} if isinstance(spec, initializers.RowConstant) else set())
    for name, kind in ranges.items():
        error = f"^{type(spec).__name__}: {name} must be "
        if kind == "flag":
            ends, bad, expected = [False, True], [], "True or False, got "
            no_numbers = [0, 1, 0.0, "True", "", None]
        else:
            ends, bad, bounds = RANGES[kind]
            expected = "an int(, | or )a float( or a schedule)?, got "
            no_numbers = [True, "0.1", b"0.1", None, [0.1], 0.1j]
            for number in (math.nan, math.inf, -math.inf, 10**400, *bad):
                with pytest.raises(ValueError, match=error + bounds):
                    dataclasses.replace(spec, **{name: number})
        for end in ends:
            taken = getattr(dataclasses.replace(spec, **{name: end}), name)
            assert (taken, type(taken)) == (end, int if kind.startswith("count") else type(taken))
            assert type(taken) in (int, float, bool)
        for other in no_numbers:
            with pytest.raises(TypeError, match=error + expected):
                dataclasses.replace(spec, **{name: other})


@every_plain
def test_plain_data_and_back_is_the_same_through_json_and_for_subclasses_and_frozen(spec):
    plain, names = to_plain(spec), [field.name for field in dataclasses.fields(spec)]
    assert list(plain) == ["kind", *names]
    for name in names:
        value = getattr(spec, name)
        if isinstance(value, int | float):
            assert (plain[name], type(plain[name])) == (value, bool if isinstance(value, bool) else float)
    for copy in (plain, json.loads(json.dumps(plain))):
        again = from_plain(family_of(spec), copy)
        assert (again, hash(again), repr(again), type(again)) == (spec, hash(spec), repr(spec), type(spec))
    own = type("Own", (type(spec),), {})(**{name: getattr(spec, name) for name in names})
    assert (to_plain(own), own.is_known(), spec.is_known()) == (plain, False, True)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(spec, names[0], 0.5)


def test_a_schedule_is_plain_data_within_plain_data_and_counts_in_equality():
    pieces = {"kind": "piecewise_constant", "boundaries": [10, 20.5], "values": [1, 0.5, 0.25]}
    assert to_plain(NESTED)["learning_rate"] == {"kind": "warm_up", "steps": 5, "then": pieces}
    assert len({NESTED, *PLAIN}) == len(PLAIN) + 1


@every_plain
def test_plain_data_is_checked_and_a_field_too_few_or_too_many_is_named(spec):
    family, plain = family_of(spec), to_plain(spec)
    for name in plain.keys() - {"kind"}:
        fewer = {key: value for key, value in plain.items() if key != name}
        with pytest.raises(ValueError, match=rf"^{family.family} {spec.kind}: missing \['{name}'\], unknown \['x'\]"):
            from_plain(family, fewer | {"x": 1.0})
        for bad in (None, "fast", {"kind": "adam"}):
            with pytest.raises((TypeError, ValueError)):
                from_plain(family, plain | {name: bad})
    with pytest.raises(ValueError, match=r"missing \[\], unknown \['colour'\]"):
        from_plain(family, plain | {"colour": 0.5})
    for kind in ("sgd", "", None, 3.0, [spec.kind]):
        with pytest.raises(ValueError, match=f"^unknown {family.family} .*; known kinds: {sorted(family.kinds)[0]}, "):
            from_plain(family, plain | {"kind": kind})


def test_a_learning_rate_may_be_a_schedule_that_servers_know():
    own = type("Own", (Schedule,), {"kind": "own"})()
    steeper = type("Steeper", (schedules.CosineDecay,), {})(0.1, 10)  # would arrive as its base
    holders = [(spec, "learning_rate") for spec in PLAIN if isinstance(spec, optimizers.OptimizerSpec)]
    for spec, name in [*holders, (schedules.WarmUp(10, 0.1), "then")]:
        cosine = schedules.CosineDecay(0.1, 10)
        assert getattr(dataclasses.replace(spec, **{name: cosine}), name) is cosine
        for unknown in (own, steeper):
            with pytest.raises(TypeError, match=f"{name} must be a schedule that servers know, ExponentialDecay, "):
                dataclasses.replace(spec, **{name: unknown})
    with pytest.raises(ValueError, match="initial_accumulator or epsilon must be more than 0"):
        optimizers.Adagrad(0.1, initial_accumulator=0, epsilon=0)


# --- text -------------------------------------------------------------------------------------------------------------


def parser_of(spec):
    return parse_consistency if isinstance(spec, consistency.Consistency) else parse_staleness


@pytest.mark.parametrize(
    ("text", "spec", "decides"),
    [
        ("async", consistency.Asynchronous(), False),
        ("bounded:12", consistency.Bounded(steps=12), True),
        ("sync:1", consistency.Synchronous(1), True),
        ("sync:3,backup=1", consistency.Synchronous(workers=3, backup=1), True),
        ("sync:3,aggregate=median", consistency.Synchronous(3, aggregate=consistency.Median()), True),
        ("sync:5,backup=2,aggregate=trimmed:0.2", consistency.Synchronous(5, 2, consistency.TrimmedMean(0.2)), True),
        ("none", consistency.IgnoreStaleness(), False),
        ("scale", consistency.ScaleByStaleness(), False),
        ("delay-compensated:0.04", consistency.DelayCompensation(), False),
        ("delay-compensated:1e-05", consistency.DelayCompensation(strength=0.00001), False),
        ("drop:10", consistency.DropStalePushes(above=10), True),
    ],
)
def test_a_policy_is_read_as_it_is_written(text, spec, decides):
    assert (parser_of(spec)(f" {text}\n"), str(spec), spec.decides) == (spec, text, decides)
    others = {"delay-compensated": 0.04, "delay-compensated:.5": 0.5, "delay-compensated:1E2": 100.0}
    assert all(parse_staleness(other) == consistency.DelayCompensation(strength) for other, strength in others.items())


@given(st.integers(0, 10**15 - 1), st.integers(1, 10**15 - 1), st.floats(0, allow_infinity=False))
def test_any_policy_is_read_back(count, workers, strength):
    specs = [consistency.Bounded(count), consistency.Synchronous(workers, count), consistency.DropStalePushes(count)]
    for spec in [*specs, consistency.DelayCompensation(strength)]:
        assert parser_of(spec)(str(spec)) == spec


@pytest.mark.parametrize(
    ("text", "spec", "written"),
    [
        ("60s", checkpoints.EverySeconds(60), "60s"),
        (".5m", checkpoints.EverySeconds(30), "30s"),
        ("1h", checkpoints.EverySeconds(3600), "3600s"),
        ("1e-5s", checkpoints.EverySeconds(1e-5), "1e-05s"),
        ("1000steps", checkpoints.EverySteps(1000), "1000steps"),
    ],
)
def test_an_interval_between_checkpoints_is_read_in_each_unit(text, spec, written):
    assert (parse_checkpoint_every(f" {text}\n"), str(spec), parse_checkpoint_every(written)) == (spec, written, spec)


@given(st.floats(0, exclude_min=True, allow_infinity=False), st.integers(1, 10**15 - 1))
def test_any_interval_between_checkpoints_is_read_back(seconds, steps):
    for spec in (checkpoints.EverySeconds(seconds), checkpoints.EverySteps(steps)):
        assert parse_checkpoint_every(str(spec)) == spec


def test_a_checkpoint_is_due_after_its_seconds_or_after_its_steps():
    seconds, steps = checkpoints.EverySeconds(60), checkpoints.EverySteps(1000)
    assert [seconds.due(59.9, 1000), seconds.due(60, 0)] == [False, True]
    assert [steps.due(1e9, 999), steps.due(0, 1000)] == [False, True]


@pytest.mark.parametrize(
    ("aggregate", "error"),
    [
        ("middle", "'middle' is not a valid aggregate: use mean; median; or trimmed:F"),
        ("trimmed:0.5", "TrimmedMean: share must be more than 0 and below 0.5"),
        ("trimmed:0", "TrimmedMean: share must be more than 0 and below 0.5"),
        ("trimmed:0.3", "trimmed:0.3 of 4 gradients leaves none: choose a smaller share"),
    ],
)
def test_an_aggregate_that_does_not_exist_or_leaves_no_gradient_is_refused(aggregate, error):
    with pytest.raises(ConfigurationError, match=error):
        parse_consistency(f"sync:4,aggregate={aggregate}")
    assert parse_consistency("sync:4,aggregate=mean") == consistency.Synchronous(4)


@pytest.mark.parametrize(
    ("aggregate", "left_out"),
    [
        (consistency.Mean(), [0] * 10),
        (consistency.Median(), [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]),
        (consistency.TrimmedMean(0.2), [0, 0, 1, 1, 1, 2, 2, 2, 2, 2]),
        (consistency.TrimmedMean(0.4), [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]),
    ],
)
def test_an_aggregate_leaves_out_its_share_rounded_up_and_never_all(aggregate, left_out):
    assert [aggregate.left_out(gradients) for gradients in range(1, 11)] == left_out


CONSISTENCY_FORMS = "async", "bounded:S", "sync:N", "sync:N,backup=B", "sync:N,aggregate=A"
STALENESS_FORMS = "none", "scale", "delay-compensated", "delay-compensated:L", "drop:T"
NO_CONSISTENCY = [
    *("", "asynchronous", "ASYNC", "async:1", "bounded", "bounded:", "bounded:-1", "bounded:1.5", "bounded:٣", "none"),
    *("sync", "sync:2,", "sync:2,backup", "sync:2,backup=-1", "sync:2, backup=1", "bounded:" + "9" * 5000),
]
INTERVAL_FORMS = "60s", "5m", "1h", "1000steps"
NO_INTERVAL = ["", "60", "s", "60 s", "-1s", "1d", "1000 steps", "1.5steps", "steps", "60sec", "nans", "٣s", "60s1h"]
NO_STALENESS = ["", "None", "scale:2", "delay-compensated:", "delay-compensated:nan", "drop", "drop:1.5", "drop:-1"]


@pytest.mark.parametrize(
    ("parse", "texts", "forms"),
    [
        (parse_consistency, NO_CONSISTENCY, CONSISTENCY_FORMS),
        (parse_staleness, NO_STALENESS, STALENESS_FORMS),
        (parse_checkpoint_every, NO_INTERVAL, INTERVAL_FORMS),
    ],
)
def test_other_text_is_refused_with_all_forms(parse, texts, forms):
    for text in texts:
        with pytest.raises(ConfigurationError) as refusal:
            parse(text)
        assert all(form in str(refusal.value) for form in (*forms, repr(text)))
    with pytest.raises(ConfigurationError, match="DelayCompensation: strength must be at least 0 and finite, got inf"):
        parse_staleness("delay-compensated:1e999")  # the form of one, and its range is named
    for text, field in (("0s", "seconds"), ("1e999h", "seconds"), ("0steps", "steps")):
        with pytest.raises(ConfigurationError, match=f"'{text}': Every.*: {field} must be .*, got "):
            parse_checkpoint_every(text)
