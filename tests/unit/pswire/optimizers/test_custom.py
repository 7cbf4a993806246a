"""Custom optimizers: their values, what their results and failures change, and how their hyperparameters travel."""

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import psworker as ps
from psserver.custom_optimizers import load_optimizers
from pswire.codec import decode, encode
from pswire.errors import ConfigurationError, InvalidMessage, Malformed, NotFinite, UpdateFailed
from pswire.messages import Declaration, Register, Sender
from pswire.optimizers import UnknownOptimizer, UpdateSpec, ordinary_growth, rule_for
from pswire.optimizers.optimizer import LIMITS
from pswire.specs.consistency import Synchronous
from pswire.specs.schedules import CosineDecay
from pswire.specs.spec import to_plain
from pswire.tensors.transport import InlineReceiver, InlineSender
from pswire.tensors.values import TensorSpec
from psworker import ops
from tests.support.shards import ShardDriver, declared, state_of
from tests.unit.pswire.optimizers.rules_under_test import UnderTest
from tests.unit.pswire.optimizers.test_rules import check_against_formula

EXAMPLE = Path(__file__).resolve().parents[4] / "examples" / "custom_optimizer.py"


def lion(spec, w, slots, g, step):
    """Algorithm 2 of the paper, line by line."""
    m = slots["momentum"]
    c = spec.beta1 * m + (1 - spec.beta1) * g
    theta = w - step.learning_rate * (np.where(c > 0, 1.0, np.where(c < 0, -1.0, 0.0)) + spec.weight_decay * w)
    return theta, {"momentum": spec.beta2 * m + (1 - spec.beta2) * g}


def normalized(spec, w, slots, g, step):
    """Momentum of which each step has the length of the learning rate."""
    m = spec.decay * slots["m"] + g
    length = np.sqrt(np.sum(m**2))
    return w - step.learning_rate * m / (length if length else 1.0), {"m": m}


@pytest.fixture
def lion_class():
    [cls] = load_optimizers(str(EXAMPLE))
    return cls


def normalized_class():
    @dataclass(frozen=True)
    class Normalized(ps.CustomOptimizer):
        slots = ("m",)
        element_wise = False
        decay: float = 0.5
        initial_m: float = 0.25

        def update(self, value, gradient, slots, step):
            m = slots["m"]
            m *= self.decay  # in place
            m += gradient
            length = np.linalg.norm(m)
            return value - step.learning_rate * m / (length if length else 1.0), {"m": m}

    return Normalized


CASES = [("float16", (31, 7), False), ("float32", (9,), True), ("float64", (5, 2, 3), True), ("float64", (), False)]


@pytest.mark.parametrize(("dtype", "shape", "by_rows"), CASES, ids=str)
@pytest.mark.parametrize("whole", [False, True])
def test_a_rule_follows_its_formula_in_float64_and_by_rows_as_built_in_ones(lion_class, dtype, shape, by_rows, whole):
    if whole:
        case = UnderTest("normalized", normalized_class()(0.1), normalized)
    else:
        case = UnderTest("lion", lion_class(0.01, weight_decay=0.1), lion)
    check_against_formula(rule_for(case.spec), case, np.random.default_rng(7), dtype, shape, 8, by_rows)


def unruly_class():
    """By the first element of the gradient: descent; NaN in the value; infinity in the slot; or an exception."""

    @dataclass(frozen=True)
    class Unruly(ps.CustomOptimizer):
        slots = ("s",)

        def update(self, value, gradient, slots, step):
            kind = float(gradient[0])
            if kind == 4:
                raise RuntimeError("no luck")
            s = slots["s"] + (math.inf if kind == 3 else 1)
            slots["s"] += 7  # of a copy
            return value - step.learning_rate * gradient * (math.nan if kind == 2 else 1), {"s": s}

    return Unruly


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(("kind", "error"), [(2, NotFinite), (3, NotFinite), (4, UpdateFailed)])
def test_an_update_that_is_not_finite_or_raises_changes_nothing_of_any_variable_and_training_goes_on(
    kind, error, dtype
):
    """Together with an update by a built-in rule in the same push."""
    spec, one = unruly_class()(0.5), np.ones(3, dtype)
    assert ordinary_growth(spec, LIMITS.get(dtype)) == math.inf
    driver = ShardDriver(declared("W", one, spec), declared("b", one, ps.GradientDescent(0.5)))
    driver.push(W=one, b=one)
    before = [state_of(driver.shard.variables[name]) for name in "Wb"]
    refusal = driver.push(ticket=7, W=one * kind, b=one)[7]
    assert type(refusal) is error
    assert ("no luck" if kind == 4 else "nothing was changed") in str(refusal)
    assert [state_of(driver.shard.variables[name]) for name in "Wb"] == before
    driver.push(sequence=2, W=one, b=one)
    variable = driver.shard.variables["W"]
    np.testing.assert_array_equal(variable.value, 0)
    np.testing.assert_array_equal(variable.slots["s"], 2)


def test_where_an_update_of_several_pushes_raises_each_of_them_is_refused_and_nothing_changes():
    one = np.ones(3, np.float32)
    driver = ShardDriver(declared("W", one, unruly_class()(0.5)), consistency=Synchronous(2))
    assert driver.push("a", 1, W=one * 4) == {}
    answers = driver.push("b", 2, W=one * 4)
    assert [type(answers[ticket]) for ticket in (1, 2)] == [UpdateFailed, UpdateFailed]
    variable = driver.shard.variables["W"]
    assert (variable.value.tolist(), variable.slots["s"].tolist(), variable.version) == ([1, 1, 1], [0, 0, 0], 0)


def test_a_program_in_one_process_trains_with_it_and_its_schedule_also_in_local_steps(lion_class):
    w = ps.Variable(np.array([3.0, -4.0]), name="w")
    optimizer = lion_class(CosineDecay(0.5, decay_steps=60), beta1=0.5)
    for options in ({}, {"local_steps": 2}):
        with ps.session(**options) as session:
            for _ in range(60):
                optimizer.minimize(ops.sum(ops.square(w)))
            session.set_hyperparameters(optimizer, beta1=0.25)
            optimizer.minimize(ops.sum(ops.square(w)))
            slot = None if options else session.slot(w, "momentum")
        assert np.abs(w.value).max() < 0.5
        assert slot is None or slot.shape == (2,)


# --- hyperparameters --------------------------------------------------------------------------------------------------


def encoded(spec):
    """A registration with the optimizer, as it is sent."""
    declaration = Declaration(TensorSpec("W", (2,), "float32"), None, spec)
    return encode(Register(sender=Sender("w", 1), declarations=(declaration,)), InlineSender())


def decoded(proto):
    """Its optimizer, as a server reads it."""
    return decode(proto, InlineReceiver()).declarations[0].optimizer


def sent(spec):
    return decoded(encoded(spec))


@dataclass(frozen=True)
class Fields:
    """Stands for the fields of `Several`, which each test defines anew."""

    count: int = -3
    nested: bool = True
    share: float = 0.5


def several_class():
    @dataclass(frozen=True)
    class Several(Fields, ps.CustomOptimizer):
        learning_rate: float = 0.1

    return Several


def test_hyperparameters_arrive_with_their_types_and_others_are_refused():
    several = several_class()
    spec = several(count=5, nested=False, learning_rate=CosineDecay(0.1, 10))
    again = sent(spec)
    assert (again, type(again.count), type(again.nested), type(again.share)) == (spec, int, bool, float)
    for wrong in ({"count": 1.5}, {"count": "3"}, {"nested": 1}, {"share": math.nan}, {"learning_rate": -1}):
        [name] = wrong
        with pytest.raises((TypeError, ValueError), match=f"^Several: {name} must be "):
            several(**wrong)
    text = dataclass(frozen=True)(type("Text", (ps.CustomOptimizer,), {"__annotations__": {"mode": str}, "mode": "a"}))
    with pytest.raises(TypeError, match="Text: annotate the field mode as float, int or bool"):
        text(0.1)


def test_an_optimizer_without_a_class_here_is_shown_and_sent_on_but_has_no_rule(monkeypatch):
    several = several_class()
    spec = several(learning_rate=CosineDecay(0.1, 10))
    proto, plain = encoded(spec), to_plain(spec)
    with monkeypatch.context() as patch:
        patch.setattr(UpdateSpec, "kinds", {name: kind for name, kind in UpdateSpec.kinds.items() if kind != several})
        unknown = decoded(proto)
        assert isinstance(unknown, UnknownOptimizer)
        assert repr(unknown) == (
            "Several(learning_rate=CosineDecay(initial=0.1, decay_steps=10, alpha=0.0), count=-3.0, nested=True, "
            "share=0.5)"
        )
        assert (sent(unknown), hash(sent(unknown)), to_plain(unknown)) == (unknown, hash(unknown), plain)
        missing = r"variable 'W': no update rule for optimizer 'Several'; .*: --optimizers FILE; in one process import"
        with pytest.raises(InvalidMessage, match=missing):
            ShardDriver(declared("W", np.ones(2), unknown))
    assert decoded(proto) == spec, "its class has come"


def test_a_class_with_other_fields_than_the_servers_is_refused_with_their_names():
    spec = several_class()()
    wrong = UnknownOptimizer(0.1, "Several", (("count", 3.0), ("momentum", 0.5)))
    assert sent(spec) == spec
    with pytest.raises(Malformed, match=r"Several: missing \['nested', 'share'\], unknown \['momentum'\]: do workers"):
        sent(wrong)


@pytest.mark.parametrize("name", ["Adam", "adam", "MovingAverage"])
def test_the_name_of_a_built_in_optimizer_is_refused(name):
    with pytest.raises(ConfigurationError, match=f"class {name} has the name of a built-in optimizer"):
        type(name, (ps.CustomOptimizer,), {})
    assert dataclasses.is_dataclass(UpdateSpec.kinds["adam"])
