"""Names of other libraries: each error names ours, and what it names exists and takes these arguments."""

import ast
import copy
import inspect
import pickle
import re
import shlex
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import psserver.testing
import psworker as ps
from pswire.errors import ConfigurationError
from psworker import familiar_names, nn, ops
from psworker.familiar_names import ABSENT_KEYWORDS, DATASET, KEYWORDS, MODULES, NAMES, Absent
from tests.repository.test_docs import GROUPS, anchors, check_click

ROOT = Path(__file__).resolve().parents[3]
PUBLIC = {"ps": ps, **{name: getattr(ps, name) for name in MODULES}}
ANSWERING = [name for name, module in PUBLIC.items() if hasattr(module, "__getattr__")]
CLASSES = {
    ps.Tensor: familiar_names.TENSOR,
    nn.Layer: familiar_names.LAYER,
    ps.Optimizer: familiar_names.OPTIMIZER,
    ps.Session: familiar_names.SESSION,
}
HINTS = {hint for table in (NAMES, ABSENT_KEYWORDS, DATASET, *CLASSES.values()) for hint in table.values()}
ABSTRACT = ps.Optimizer, ps.CustomOptimizer
CLASSES_OF_PS = [one for one in map(ps.__getattr__, ps.__all__) if inspect.isclass(one)]
HINTED = [getattr(nn, name) for name in nn.__all__ if name not in ("Flatten", "Layer")]
HINTED += [one for one in CLASSES_OF_PS if issubclass(one, ps.Optimizer) and one not in ABSTRACT]
HINTED += [ps.LBFGS, ps.OWLQN, ps.ConjugateGradient, ps.Variable, ps.session]


@pytest.fixture
def named():
    """Objects by the names that code in hints has for them."""
    with ps.collection(), ps.session() as session:
        layer, x, data = nn.Dense(3, 2), ps.Tensor(np.ones((2, 3))), ps.Dataset({"x": np.ones(2)})
        yield {
            **{"ps": ps, "nn": nn, "ops": ops, "np": np, "x": x, "data": data, "batch": data.take([0])},
            **{"layer": layer, "model": nn.Sequential(layer), "variable": layer.kernel},
            **{"session": session, "optimizer": ps.Adam(), "trainer": ps.Trainer(layer, ops.hinge_loss, ps.Adam())},
        }


def resolved(node, named):
    """The object that an expression of a hint stands for, or its class; None if that is unknown."""
    if isinstance(node, ast.Name):
        return named.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = resolved(node.value, named)
        return None if owner is None else getattr(owner, node.attr)
    function = resolved(node.func, named) if isinstance(node, ast.Call) else None
    if function is None:
        return None
    inspect.signature(function).bind(*node.args, **{keyword.arg: keyword.value for keyword in node.keywords})
    return named["x"] if isinstance(function, nn.Layer) else function


def test_what_a_hint_names_exists_and_takes_these_arguments(named, tmp_path):
    script = tmp_path / "train.py"
    script.touch()
    for hint in HINTS:
        found = []
        for code in re.findall("`([^`]+)`", hint):
            words = shlex.split(code)
            if words[0] in GROUPS:
                check_click(words, str(script))
                found.append(code)
            else:
                tree = ast.parse(f"{code} ..." if code.endswith(":") else code)
                found += [resolved(node, named) for node in ast.walk(tree) if isinstance(node, ast.expr)]
        for page, anchor in re.findall(r"(docs/[\w/-]+\.md)(#[\w-]+)?", hint):
            assert anchor.removeprefix("#") in {"", *anchors(ROOT / page)}, hint
            found.append(page)
        assert [one for one in found if one is not None], f"{hint!r} names nothing of ours"


def test_public_modules_answer_familiar_names_with_ours():
    assert set(ANSWERING) >= {"ps", "nn", "ops", "data", "datasets", "metrics"}
    for label in ANSWERING:
        for name in NAMES.keys() - set(vars(PUBLIC[label])):
            with pytest.raises(AttributeError) as raised:
                getattr(PUBLIC[label], name)
            assert NAMES[name] in str(raised.value)
    assert NAMES.keys() & {*ps.__all__, *nn.__all__, *ops.__all__} == set(), "remove these hints"


@pytest.mark.parametrize(
    ("label", "name", "ours"),
    [
        ("ps", "adam", "ps.Adam"),
        ("ps", "ADAM_W", "ps.AdamW"),
        ("ps", "Momentun", "ps.Momentum"),
        ("ps", "relu", "ops.relu"),
        ("nn", "ReLU", "ops.relu"),
        ("nn", "Conv2DTransposed", "nn.Conv2DTranspose"),
        ("ps", "EarlyStopping", "callbacks.EarlyStopping"),
        ("nn", "conv2d", "nn.Conv2D or ops.conv2d"),
        ("ops", "softmx", "ops.softmax"),
        ("ops", "no_grad", "ps.no_grad"),
        ("ops", "cosine_decay_", "schedules.CosineDecay"),
    ],
)
def test_names_that_are_almost_public_get_them(label, name, ours):
    with pytest.raises(AttributeError, match=rf"has no attribute '{name}'; did you mean {re.escape(ours)}\?$"):
        getattr(PUBLIC[label], name)


def test_an_import_of_a_familiar_name_says_ours_too_and_modules_inside_are_found():
    with pytest.raises(ImportError, match=r"^cannot import name 'SGD' from 'psworker': use `ps.GradientDescent\("):
        exec("from psworker import SGD")
    with pytest.raises(ImportError, match=r"'adam' from 'psworker'; did you mean ps.Adam\?"):
        exec("from psworker import adam")
    exec("from psworker import launch")
    for private in ("__wrapped__", "_nothing"):
        assert not hasattr(ps, private)
        assert not hasattr(nn, private)


def test_objects_answer_familiar_names_and_none_of_their_own_takes_longer_or_is_hidden():
    objects = ps.Tensor([1.0, 2.0]), ps.Variable([1.0]), nn.Sequential(), ps.Adam(), ps.session()
    for kind, hints in CLASSES.items():
        assert not any("__getattr__" in vars(base) or "__getattribute__" in vars(base) for base in kind.__mro__[:-1])
        assert [name for name in hints if not isinstance(vars(kind)[name], Absent)] == [], "remove these hints"
        for one in [one for one in objects if isinstance(one, kind)]:
            assert hints.keys().isdisjoint(dir(one))
            for name, hint in hints.items():
                with pytest.raises(AttributeError) as raised:
                    getattr(one, name)
                assert hint in str(raised.value)
    assert {"value", "shape", "sum"} <= set(dir(objects[0]))
    assert {"name", "assign"} <= set(dir(objects[1]))


def test_a_layer_of_a_program_may_have_familiar_names():
    class Net(nn.Layer):
        def __init__(self):
            self.weight = ps.Variable([1.0])

        def forward(self, x):
            return x * self.weight

    net = Net()
    assert {"weight", "forward"} <= set(dir(net))
    assert net.forward(3.0).value == [3.0]
    assert net.variables == [net.weight]
    with pytest.raises(TypeError, match="Net cannot be called: a layer computes in its method __call__"):
        net(3.0)


def test_copies_pickles_and_numpy_see_objects_as_before():
    tensor, batch = ps.Tensor(np.arange(3.0)), ps.Batch({"x": np.arange(3)})
    for copied in (copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))):
        assert copied(tensor).value.tolist() == [0, 1, 2]
        assert copied(batch).x.tolist() == [0, 1, 2]
        assert copied(ps.Adam(0.1)) == ps.Adam(0.1)
        assert copied(ps.session) is ps.session
    assert np.array_equal(np.asarray(tensor), [0, 1, 2])
    assert np.concatenate([tensor, tensor]).tolist() == [0, 1, 2, 0, 1, 2]
    with pytest.raises(TypeError, match=r"not converted to an array implicitly: use its \.value"):
        np.asarray(ps.Variable([1.0]))


def test_elements_are_not_set():
    for one in (ps.Tensor([1.0]), ps.Variable([1.0])):
        with pytest.raises(TypeError, match=rf"{type(one).__name__} cannot be set: .*variable\.assign\(value\)"):
            one[...] = 2.0


def test_a_variable_is_not_changed_in_place():
    """`w -= rate * w.grad` would train nothing."""
    variable, tensor = ps.Variable([1.0], name="w"), ps.Tensor([1.0])
    for operator in ("+=", "-=", "*=", "/=", "**=", "@=", "%="):
        with pytest.raises(TypeError, match=r"^'w' is a variable, and .* use variable\.assign_add\(value\)"):
            exec(f"variable {operator} 2.0", {"variable": variable})
    tensor += 2.0
    assert (tensor.value, variable.value) == ([3.0], [1.0])
    with pytest.raises(AttributeError, match=r"'w' has a gradient cannot be set: .*layer\.trainable = False"):
        variable.requires_grad = False


def test_a_batch_lists_its_columns():
    batch = ps.Batch({"image": [1], "label": [2]})
    assert {"image", "label", "columns", "epoch"} <= set(dir(batch))
    with pytest.raises(
        AttributeError, match=r"Batch has no attribute or column 'lable'; its columns are image, label$"
    ):
        batch.lable  # noqa: B018
    for name, hint in DATASET.items():
        with pytest.raises(AttributeError) as raised:
            getattr(ps.Dataset({"x": [1]}), name)
        assert hint in str(raised.value)


def test_arguments_with_familiar_names_get_ours():
    answered = set()
    for function in HINTED:
        known = [one for one in inspect.signature(function).parameters if one != "self"]
        ours = {name: [one for one in names if one in known] for name, names in KEYWORDS.items()}
        said = ABSENT_KEYWORDS | {name: f"is {' and '.join(names)} here" for name, names in ours.items() if names}
        for name in {*said, "nothing"} - set(known):
            with pytest.raises(TypeError) as raised:
                function(**{name: 1})
            message = str(raised.value)
            assert message.startswith(f"{function.__name__} has no argument '{name}'; ")
            assert message.endswith(f"; its arguments are {', '.join(known)}")
            assert said.get(name, "") in message
            answered.add(name)
    assert answered == {*KEYWORDS, *ABSENT_KEYWORDS, "nothing"}
    assert str(inspect.signature(nn.Flatten)) == str(inspect.signature(nn.Layer)) == "()"
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'learning_rate'"):
        ps.GradientDescent()


@pytest.mark.parametrize("name", ["x.onnx", "x.PT", "runs.1/x.pkl"])
def test_models_are_not_saved_under_names_of_other_formats(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with ps.collection():
        ps.Variable([1.0])
        with pytest.raises(ConfigurationError, match=rf"safetensors: give the name '{name.rpartition('.')[0]}\.safe"):
            ps.save(name)
    assert list(tmp_path.iterdir()) == []


def public_modules():
    """The package, the modules that are public names of one, and servers for tests."""
    modules = [ps, psserver.testing]
    for module in modules:
        modules += [one for name in dir(module) if isinstance(one := getattr(module, name), ModuleType)]
    return modules


def test_dir_of_every_public_module_lists_public_names_only():
    modules = public_modules()
    assert {psserver.testing, *PUBLIC.values()} == set(modules), "in `MODULES`"
    for module in modules:
        public = set(getattr(module, "__all__", None) or ps.errors.FAMILY)
        assert {name for name in dir(module) if not name.startswith("__")} == public, module.__name__
