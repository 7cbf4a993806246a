"""Hyperparameters: what each field may be, and plain data and back. A new optimizer is found by itself."""

import dataclasses
import json
import math

import pytest

from pswire import optimizers
from pswire.specs import schedules

SPECS = [optimizers.UpdateSpec.kinds[kind] for kind in sorted(optimizers.UpdateSpec.kinds)]
OPTIMIZERS = [spec for spec in SPECS if issubclass(spec, optimizers.OptimizerSpec)]
every_spec = pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.kind)
every_optimizer = pytest.mark.parametrize("spec", OPTIMIZERS, ids=lambda spec: spec.kind)


def valid(spec: type[optimizers.UpdateSpec]) -> dict[str, float | bool | int]:
    """Each field's default; 0.125 for what has none, which is within every range and exact in binary."""
    return {
        field.name: 0.125 if field.default is dataclasses.MISSING else field.default
        for field in dataclasses.fields(spec)
    }


# --- validation -----------------------------------------------------------------------------------------------------

NUMBER, COUNT, FLAG = "an int(, | or )a float( or a schedule)?, got ", "", "True or False, got "
BAD = [
    *((float, bad, ValueError, "(at least|more than) 0 and ") for bad in (math.nan, math.inf, -math.inf, -1e-300)),
    *((float, bad, ValueError, "(at least|more than) 0 and ") for bad in (-1, 10**400)),
    *((float, bad, TypeError, NUMBER) for bad in (True, "0.1", b"0.1", None, [0.1], 0.1j)),
    *((int, bad, ValueError, COUNT) for bad in (0, -1, 1.5, math.nan, math.inf, 2.0**53)),
    *((bool, bad, TypeError, FLAG) for bad in (0, 1, 0.0, "True", "", None)),
]


@every_spec
def test_a_field_of_another_type_or_out_of_its_range_is_refused_by_spec_and_field(spec):
    fields = valid(spec)
    assert {type(value) for value in fields.values()} <= {float, int, bool}
    for name, value in fields.items():
        for kind, bad, error, message in BAD:
            if type(value) is kind:
                with pytest.raises(error, match=rf"^{spec.__name__}: {name} must be {message}"):
                    spec(**fields | {name: bad})
    subclass = type("MyOptimizer", (spec,), {})
    with pytest.raises(ValueError, match=rf"^MyOptimizer: {next(iter(fields))} must be "):
        subclass(**fields | {next(iter(fields)): math.nan})


ABOVE, BELOW, SHARE = "more than 0 and finite", "at least 0 and below 1", "at least 0 and at most 1"


@pytest.mark.parametrize(
    ("spec", "name", "bad", "bounds"),
    [
        (optimizers.Momentum, "momentum", 1, BELOW),
        (optimizers.Adam, "beta1", 1.0, BELOW),
        (optimizers.AdamW, "beta2", 1.5, BELOW),
        (optimizers.RMSProp, "decay", 1, BELOW),
        (optimizers.RMSProp, "momentum", 1, BELOW),
        (optimizers.MovingAverage, "decay", 1, BELOW),
        (optimizers.AdagradDecay, "decay_rate", 1.5, SHARE),
        (optimizers.Ftrl, "learning_rate_power", 1.5, SHARE),
        (optimizers.Adam, "epsilon", 0, ABOVE),
        (optimizers.RMSProp, "epsilon", 0, ABOVE),
        (optimizers.AdagradDecay, "initial_accumulator", 0, ABOVE),
        (optimizers.Ftrl, "initial_accumulator", 0, ABOVE),
    ],
)
def test_a_number_beyond_a_bound_of_its_own_is_refused(spec, name, bad, bounds):
    with pytest.raises(ValueError, match=f"^{spec.__name__}: {name} must be {bounds}, got {bad}"):
        spec(**valid(spec) | {name: bad})
    with pytest.raises(ValueError, match="initial_accumulator or epsilon must be more than 0"):
        optimizers.Adagrad(0.1, initial_accumulator=0, epsilon=0)


def test_the_ends_of_a_range_that_belong_to_it_are_taken():
    tiny, below, huge = 5e-324, math.nextafter(1, 0), 1.7976931348623157e308
    for spec, ends in (
        (optimizers.GradientDescent, [{"learning_rate": 0}, {"learning_rate": huge}]),
        (optimizers.Momentum, [{"momentum": 0.0}, {"momentum": below}]),
        (optimizers.Adagrad, [{"initial_accumulator": 0, "epsilon": tiny}, {"initial_accumulator": tiny}]),
        (optimizers.AdagradDecay, [{"decay_steps": 1, "decay_rate": 0}, {"decay_steps": 2**53 - 1, "decay_rate": 1}]),
        (optimizers.AdagradDecay, [{"initial_accumulator": tiny}]),
        (optimizers.Ftrl, [{"learning_rate_power": 0}, {"learning_rate_power": 1}]),
        (optimizers.RMSProp, [{"learning_rate": 0, "decay": 0, "momentum": 0, "epsilon": tiny}]),
        (optimizers.AdamW, [{"weight_decay": 0}, {"weight_decay": 1e300}]),
        (optimizers.MovingAverage, [{"decay": 0}, {"decay": below}]),
        (optimizers.Adam, [{"beta1": 0, "beta2": 0, "epsilon": tiny}]),
    ):
        for fields in ends:
            made = spec(**valid(spec) | fields)
            assert {name: getattr(made, name) for name in fields} == fields


@every_optimizer
def test_a_learning_rate_may_be_a_schedule_that_servers_know(spec):
    own = type("Own", (schedules.Schedule,), {"kind": "own"})()
    steeper = type("Steeper", (schedules.CosineDecay,), {})(0.1, 10)  # would arrive as its base
    one, same, other = (
        spec(**valid(spec) | {"learning_rate": schedules.CosineDecay(0.1, steps)}) for steps in (10, 10, 11)
    )
    assert (one, hash(one)) == (same, hash(same))
    assert one != other
    for unknown in (own, steeper):
        with pytest.raises(TypeError, match=r"learning_rate must be a schedule that servers know, ExponentialDecay, "):
            spec(**valid(spec) | {"learning_rate": unknown})


# --- plain data -----------------------------------------------------------------------------------------------------


@every_spec
def test_plain_data_and_back_is_the_same_also_through_json_and_for_subclasses_and_frozen(spec):
    fields = valid(spec)
    first = next(iter(fields))
    for own in (fields, fields | {first: 0.25}):
        one, plain = spec(**own), optimizers.to_plain(spec(**own))
        assert plain == {"kind": spec.kind} | own
        assert optimizers.to_plain(type("Optimizer", (spec,), {})(**own)) == plain
        for copy in (optimizers.from_plain(plain), optimizers.from_plain(json.loads(json.dumps(plain)))):
            assert (copy, hash(copy), type(copy)) == (one, hash(one), spec)
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(one, first, 0.5)
    assert spec(**fields) != spec(**fields | {first: 0.25})


@every_optimizer
def test_a_schedule_is_plain_data_within_plain_data(spec):
    warm = schedules.WarmUp(5, schedules.PiecewiseConstant([10, 20.5], [1, 0.5, 0.25]))
    original = spec(**valid(spec) | {"learning_rate": warm})
    plain = optimizers.to_plain(original)
    pieces = {"kind": "piecewise_constant", "boundaries": [10, 20.5], "values": [1, 0.5, 0.25]}
    assert plain["learning_rate"] == {"kind": "warm_up", "steps": 5, "then": pieces}
    for copy in (optimizers.from_plain(plain), optimizers.from_plain(json.loads(json.dumps(plain)))):
        assert (copy, repr(copy)) == (original, repr(original))


@pytest.mark.parametrize("kind", [{}, {"kind": "sgd"}, {"kind": None}, {"kind": ["adam"]}, {"kind": ""}], ids=repr)
def test_an_unknown_kind_is_refused_and_the_known_ones_are_named(kind):
    with pytest.raises(ValueError, match=r"^unknown optimizer .*; known kinds: adagrad, adagrad_decay, adam, adamw, "):
        optimizers.from_plain(kind | {"learning_rate": 0.1})


@every_spec
def test_plain_data_is_validated_and_a_field_too_few_or_too_many_is_named(spec):
    plain, first = optimizers.to_plain(spec(**valid(spec))), next(iter(valid(spec)))
    for name in plain.keys() - {"kind"}:
        fewer = {key: value for key, value in plain.items() if key != name}
        with pytest.raises(ValueError, match=rf"^optimizer {spec.kind}: missing \['{name}'\], unknown \[\]"):
            optimizers.from_plain(fewer)
    with pytest.raises(ValueError, match=rf"^optimizer {spec.kind}: missing \[\], unknown \['colour'\]"):
        optimizers.from_plain(plain | {"colour": 0.5})
    for bad, error in ((-1.0, ValueError), ("fast", TypeError), ({"kind": "adam"}, ValueError)):
        with pytest.raises(error):
            optimizers.from_plain(plain | {first: bad})
