"""The specs of update rules: what each field may be, and plain data and back. A new spec is found by itself."""

import dataclasses
import json
import math

import pytest

from pswire import optimizers
from pswire.specs import schedules

EVERY_SPEC = [optimizers.UpdateSpec.kinds[kind] for kind in sorted(optimizers.UpdateSpec.kinds)]
EVERY_OPTIMIZER = [spec for spec in EVERY_SPEC if issubclass(spec, optimizers.OptimizerSpec)]


def valid(spec: type[optimizers.UpdateSpec]) -> dict[str, float | bool | int]:
    """Each field's default; 0.125 for what has none, which is within every range and exact in binary."""
    return {
        field.name: 0.125 if field.default is dataclasses.MISSING else field.default
        for field in dataclasses.fields(spec)
    }


def altered(value: float | bool | int) -> float | bool | int:
    """Another value of the same field."""
    return value + 7 if type(value) is int else value if isinstance(value, bool) else value * 0.7


def every_field_of(kind: type) -> list:
    """(spec, name) for every field whose valid value is exactly of this type."""
    return [
        pytest.param(spec, name, id=f"{spec.kind}.{name}")
        for spec in EVERY_SPEC
        for name, value in valid(spec).items()
        if type(value) is kind
    ]


every_spec = pytest.mark.parametrize("spec", EVERY_SPEC, ids=lambda spec: spec.kind)
every_optimizer = pytest.mark.parametrize("spec", EVERY_OPTIMIZER, ids=lambda spec: spec.kind)
every_number = pytest.mark.parametrize(("spec", "name"), every_field_of(float))
every_count = pytest.mark.parametrize(("spec", "name"), every_field_of(int))
every_flag = pytest.mark.parametrize(("spec", "name"), every_field_of(bool))


@every_spec
def test_every_field_is_a_number_a_count_or_a_flag(spec):
    assert {type(value) for value in valid(spec).values()} <= {float, int, bool}


# --- validation -----------------------------------------------------------------------------------------------------


@every_number
@pytest.mark.parametrize(
    "bad", [math.nan, math.inf, -math.inf, -1e-300, -1, pytest.param(10**400, id="an int beyond every float")]
)
def test_a_number_that_is_negative_or_not_finite_is_refused_by_spec_and_field(spec, name, bad):
    with pytest.raises(ValueError, match=rf"^{spec.__name__}: {name} must be (at least|more than) 0 and "):
        spec(**valid(spec) | {name: bad})


@every_number
@pytest.mark.parametrize("bad", [True, False, "0.1", b"0.1", None, [0.1], 0.1j], ids=repr)
def test_what_is_no_number_is_refused_by_spec_and_field(spec, name, bad):
    with pytest.raises(
        TypeError, match=rf"^{spec.__name__}: {name} must be an int(, | or )a float( or a schedule)?, got "
    ):
        spec(**valid(spec) | {name: bad})


@every_count
@pytest.mark.parametrize("bad", [0, -1, 1.5, math.nan, math.inf, 2.0**53], ids=repr)
def test_a_count_that_is_not_whole_or_out_of_range_is_refused_by_spec_and_field(spec, name, bad):
    with pytest.raises(ValueError, match=rf"^{spec.__name__}: {name} must be "):
        spec(**valid(spec) | {name: bad})


@every_flag
@pytest.mark.parametrize("bad", [0, 1, 0.0, "True", "", None], ids=repr)
def test_what_is_no_flag_is_refused_by_spec_and_field(spec, name, bad):
    with pytest.raises(TypeError, match=rf"^{spec.__name__}: {name} must be True or False, got "):
        spec(**valid(spec) | {name: bad})


@pytest.mark.parametrize("bad", [1, 1.0, 1.5])
@pytest.mark.parametrize(
    ("spec", "name"),
    [
        (optimizers.Momentum, "momentum"),
        (optimizers.Adam, "beta1"),
        (optimizers.Adam, "beta2"),
        (optimizers.AdamW, "beta1"),
        (optimizers.Lamb, "beta2"),
        (optimizers.RMSProp, "decay"),
        (optimizers.RMSProp, "momentum"),
        (optimizers.MovingAverage, "decay"),
    ],
)
def test_a_decay_of_one_or_more_is_refused(spec, name, bad):
    with pytest.raises(ValueError, match=f"{name} must be at least 0 and below 1, got {bad}"):
        spec(**valid(spec) | {name: bad})


def test_an_epsilon_is_refused_where_zero_would_divide_by_zero():
    with pytest.raises(ValueError, match="Adam: epsilon must be more than 0 and finite, got 0"):
        optimizers.Adam(epsilon=0)
    with pytest.raises(ValueError, match="initial_accumulator or epsilon must be more than 0"):
        optimizers.Adagrad(0.1, initial_accumulator=0, epsilon=0)
    for spec in (optimizers.AdagradDecay, optimizers.Ftrl):
        with pytest.raises(ValueError, match="initial_accumulator must be more than 0 and finite, got 0"):
            spec(0.1, initial_accumulator=0)
    for spec in (optimizers.RMSProp, optimizers.AdamW, optimizers.Lamb):
        with pytest.raises(ValueError, match=f"{spec.__name__}: epsilon must be more than 0 and finite, got 0"):
            spec(epsilon=0)


@pytest.mark.parametrize(
    ("spec", "name"), [(optimizers.AdagradDecay, "decay_rate"), (optimizers.Ftrl, "learning_rate_power")]
)
def test_a_share_above_one_is_refused(spec, name):
    with pytest.raises(ValueError, match=f"{name} must be at least 0 and at most 1, got 1.5"):
        spec(0.1, **{name: 1.5})


@pytest.mark.parametrize(
    "build",
    [
        lambda: optimizers.GradientDescent(0),
        lambda: optimizers.GradientDescent(1),
        lambda: optimizers.GradientDescent(1.7976931348623157e308),
        lambda: optimizers.Momentum(0.1, momentum=0.0),
        lambda: optimizers.Momentum(0.1, momentum=math.nextafter(1, 0)),
        lambda: optimizers.Adagrad(0.1, initial_accumulator=0, epsilon=1e-10),
        lambda: optimizers.Adagrad(0.1, initial_accumulator=5e-324, epsilon=0),
        lambda: optimizers.AdagradDecay(0.1, 5e-324, decay_steps=1, decay_rate=0),
        lambda: optimizers.AdagradDecay(0.1, decay_steps=2**53 - 1, decay_rate=1),
        lambda: optimizers.Ftrl(0, learning_rate_power=0),
        lambda: optimizers.Ftrl(0, learning_rate_power=1),
        lambda: optimizers.RMSProp(0, decay=0, momentum=0, epsilon=5e-324),
        lambda: optimizers.AdamW(0, weight_decay=0),
        lambda: optimizers.Lamb(0, weight_decay=1e300),
        lambda: optimizers.MovingAverage(0),
        lambda: optimizers.MovingAverage(math.nextafter(1, 0)),
        lambda: optimizers.Adam(0, beta1=0, beta2=0, epsilon=5e-324),
    ],
)
def test_the_ends_of_a_range_that_belong_to_it_are_taken(build):
    build()


@every_spec
def test_a_spec_cannot_be_changed_and_equals_another_with_the_same_fields(spec):
    one = spec(**valid(spec))
    assert one == spec(**valid(spec))
    assert hash(one) == hash(spec(**valid(spec)))
    first = dataclasses.fields(spec)[0].name
    assert one != spec(**valid(spec) | {first: 0.25})
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(one, first, 0.5)


@every_optimizer
def test_a_learning_rate_may_be_a_schedule_that_servers_know(spec):
    class Own(schedules.Schedule):
        kind = "own"

    class Steeper(schedules.CosineDecay):
        """Would arrive as what it inherits."""

    scheduled = spec(**valid(spec) | {"learning_rate": schedules.CosineDecay(0.1, 10)})
    assert scheduled == spec(**valid(spec) | {"learning_rate": schedules.CosineDecay(0.1, 10)})
    assert hash(scheduled) == hash(spec(**valid(spec) | {"learning_rate": schedules.CosineDecay(0.1, 10)}))
    assert scheduled != spec(**valid(spec) | {"learning_rate": schedules.CosineDecay(0.1, 11)})
    for unknown in (Own(), Steeper(0.1, 10)):
        with pytest.raises(TypeError, match=r"learning_rate must be a schedule that servers know, ExponentialDecay, "):
            spec(**valid(spec) | {"learning_rate": unknown})


# --- plain data -----------------------------------------------------------------------------------------------------


@every_spec
def test_from_plain_is_the_inverse_of_to_plain_also_through_json(spec):
    own = {name: altered(value) for name, value in valid(spec).items()}
    for original in (spec(**valid(spec)), spec(**own)):
        plain = optimizers.to_plain(original)
        assert plain == {"kind": spec.kind} | vars(original)
        for copy in (optimizers.from_plain(plain), optimizers.from_plain(json.loads(json.dumps(plain)))):
            assert copy == original
            assert type(copy) is spec


@every_optimizer
def test_a_schedule_is_plain_data_within_plain_data(spec):
    warm = schedules.WarmUp(5, schedules.PiecewiseConstant([10, 20.5], [1, 0.5, 0.25]))
    original = spec(**valid(spec) | {"learning_rate": warm})
    plain = optimizers.to_plain(original)
    assert plain["learning_rate"] == {
        "kind": "warm_up",
        "steps": 5,
        "then": {"kind": "piecewise_constant", "boundaries": [10, 20.5], "values": [1, 0.5, 0.25]},
    }
    for copy in (optimizers.from_plain(plain), optimizers.from_plain(json.loads(json.dumps(plain)))):
        assert copy == original
        assert repr(copy) == repr(original)


@every_optimizer
def test_an_optimizer_that_inherits_a_spec_gives_the_same_plain_data(spec):
    class Optimizer(spec):
        """As a worker's optimizer does."""

        def minimize(self):
            """Something that no spec has."""

    plain = optimizers.to_plain(Optimizer(**valid(spec)))
    assert plain == optimizers.to_plain(spec(**valid(spec)))
    assert type(optimizers.from_plain(plain)) is spec


@every_optimizer
def test_an_optimizer_that_inherits_a_spec_is_validated_under_its_own_name(spec):
    optimizer = type("MyOptimizer", (spec,), {})
    with pytest.raises(ValueError, match=r"^MyOptimizer: learning_rate must be "):
        optimizer(**valid(spec) | {"learning_rate": math.nan})


@pytest.mark.parametrize("plain", [{}, {"kind": "sgd"}, {"kind": None}, {"kind": ["adam"]}, {"kind": ""}], ids=repr)
def test_an_unknown_kind_is_refused_and_the_known_ones_are_named(plain):
    with pytest.raises(
        ValueError, match=r"^unknown optimizer .*; there are adagrad, adagrad_decay, adam, adamw, ftrl, "
    ):
        optimizers.from_plain(plain | {"learning_rate": 0.1})


@every_spec
def test_a_field_too_few_or_too_many_is_refused_and_named(spec):
    plain = optimizers.to_plain(spec(**valid(spec)))
    for name in plain.keys() - {"kind"}:
        fewer = {key: value for key, value in plain.items() if key != name}
        with pytest.raises(ValueError, match=rf"^optimizer {spec.kind}: missing \['{name}'\], unknown \[\]"):
            optimizers.from_plain(fewer)
    with pytest.raises(ValueError, match=rf"^optimizer {spec.kind}: missing \[\], unknown \['colour'\]"):
        optimizers.from_plain(plain | {"colour": 0.5})


@every_spec
def test_plain_data_is_validated_as_the_spec_is(spec):
    plain, first = optimizers.to_plain(spec(**valid(spec))), dataclasses.fields(spec)[0].name
    with pytest.raises(ValueError, match=first):
        optimizers.from_plain(plain | {first: -1.0})
    with pytest.raises(TypeError, match=first):
        optimizers.from_plain(plain | {first: "fast"})


# --- slots ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "names"),
    [
        (optimizers.GradientDescent(0.1), ()),
        (optimizers.Momentum(0.1), ("momentum",)),
        (optimizers.Adagrad(0.1), ("accumulator",)),
        (optimizers.AdagradDecay(0.1), ("accumulator", "accumulator_decay_power")),
        (optimizers.RMSProp(), ("mean_square",)),
        (optimizers.RMSProp(centered=True), ("mean_square", "mean_gradient")),
        (optimizers.RMSProp(momentum=0.5), ("mean_square", "momentum")),
        (optimizers.RMSProp(momentum=0.5, centered=True), ("mean_square", "mean_gradient", "momentum")),
        (optimizers.Adam(), ("m", "v")),
        (optimizers.Adam(amsgrad=True), ("m", "v", "v_max")),
        (optimizers.AdamW(), ("m", "v")),
        (optimizers.AdamW(amsgrad=True), ("m", "v", "v_max")),
        (optimizers.Lamb(), ("m", "v")),
        (optimizers.Ftrl(0.1), ("accumulator", "linear")),
        (optimizers.MovingAverage(0.9), ()),
    ],
    ids=str,
)
def test_a_spec_names_its_slots(spec, names):
    assert spec.slot_names() == names
    assert type("Optimizer", (type(spec),), {})(**vars(spec)).slot_names() == names
