"""Names of other libraries: each error names ours, and what it names exists and takes these arguments."""

import ast
import copy
import importlib
import inspect
import pickle
import pydoc
import re
import shlex
import subprocess
import sys
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import psserver.testing
import psworker as ps
from pswire.errors import ConfigurationError, DatasetError
from psworker import familiar_names, nn, ops
from psworker.familiar_names import ABSENT_KEYWORDS, DATASET, KEYWORDS, MODULES, NAMES, Absent
from psworker.trainer import History
from tests.repository.test_docs import GROUPS, anchors, check_click

ROOT = Path(__file__).resolve().parents[3]
PUBLIC = {"ps": ps, **{name: getattr(ps, name) for name in MODULES}}
ANSWERING = [name for name, module in PUBLIC.items() if hasattr(module, "__getattr__")]
CLASSES = {
    ps.Tensor: familiar_names.TENSOR,
    nn.Layer: familiar_names.LAYER,
    ps.Optimizer: familiar_names.OPTIMIZER,
    ps.Session: familiar_names.SESSION,
    ps.Trainer: familiar_names.TRAINER,
    History: familiar_names.HISTORY,
}
HINTS = {hint for table in (NAMES, ABSENT_KEYWORDS, DATASET, *CLASSES.values()) for hint in table.values()}
ABSTRACT = ps.Optimizer, ps.CustomOptimizer
CLASSES_OF_PS = [one for one in map(ps.__getattr__, ps.__all__) if inspect.isclass(one)]
HINTED = [getattr(nn, name) for name in nn.__all__ if name not in ("Flatten", "Layer")]
HINTED += [one for one in CLASSES_OF_PS if issubclass(one, ps.Optimizer) and one not in ABSTRACT]
HINTED += [ps.LBFGS, ps.OWLQN, ps.ConjugateGradient, ps.Variable, ps.session, ps.Trainer, ps.Trainer.fit]
HINTED += [ps.Session.batches, ps.Dataset]
HINTED += [ps.callbacks.EarlyStopping, ps.callbacks.BestModel, ps.Dataset.split]
HINTED += [getattr(ps.schedules, name) for name in ps.schedules.__all__ if name != "Schedule"]
HINTED += [ops.sum, ops.softmax, ops.one_hot, ops.concatenate, ops.maximum, ops.clip, ops.softmax_cross_entropy]


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
    assert set(ANSWERING) == {*PUBLIC} - {"errors"}
    for label in ANSWERING:
        for name in NAMES.keys() - set(vars(PUBLIC[label])):
            with pytest.raises(AttributeError) as raised:
                getattr(PUBLIC[label], name)
            assert NAMES.get(f"{label}.{name}", NAMES[name]) in str(raised.value)
    assert "`ps.metrics.mean_absolute_error(" in NAMES["metrics.mae"]
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


@pytest.mark.slow
def test_public_modules_are_imported_by_their_names_too():
    program = """for name in {MODULES}:
        exec(f"import psworker.{{name}} as a; from psworker import {{name}} as b; from psworker.{{name}} import *")
        exec("import psworker, sys; assert a is b is getattr(psworker, name) is sys.modules[f'psworker.{{name}}']")"""
    subprocess.run([sys.executable, "-c", program.format(MODULES=MODULES)], check=True, timeout=60)


@pytest.mark.parametrize(
    ("path", "ours"),
    [
        ("psworker.optim", NAMES["optim"]),
        ("psworker.layers", NAMES["layers"]),
        ("psworker.nn.functional", NAMES["functional"]),
        ("psworker.optim.lr_scheduler", NAMES["optim"]),
        ("psworker.dataset", "; did you mean ps.Dataset?"),
        ("psworker.Adam", "; did you mean ps.Adam?"),
        ("paramserver", "use `import psworker as ps`"),
    ],
)
def test_an_import_of_a_module_by_a_familiar_name_says_ours(path, ours):
    with pytest.raises(ModuleNotFoundError, match=re.escape(ours)) as raised:
        importlib.import_module(path)
    assert path.startswith(raised.value.name)
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'psworker\.qwertyuiop'$"):
        importlib.import_module("psworker.qwertyuiop")
    assert importlib.util.find_spec("psworker.qwertyuiop") is None


def test_methods_that_numpy_or_torch_have_are_ops_here():
    x = ps.Tensor([1.0, 2.0])
    for name in ops.__all__:
        if not hasattr(np.ndarray, name) and name not in familiar_names.TENSOR:
            with pytest.raises(AttributeError, match=f"^Tensor has no attribute '{name}': use `ops.{name}`, a"):
                getattr(x, name)


def test_objects_answer_familiar_names_and_none_of_their_own_takes_longer_or_is_hidden():
    objects = ps.Tensor([1.0, 2.0]), ps.Variable([1.0]), nn.Sequential(), ps.Adam(), ps.session(), History()
    objects += (ps.Trainer(nn.Sequential(), ops.hinge_loss, ps.Adam()),)
    for kind, hints in CLASSES.items():
        assert not any(
            "__getattr__" in vars(base) or "__getattribute__" in vars(base)
            for base in kind.__mro__
            if base not in (list, object)
        )
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
    with pytest.raises(AttributeError, match=r"^Dataset has no attribute 'from_csv': use `ps\.Dataset\("):
        ps.Dataset.from_csv("cars.csv")
    assert ps.Dataset({"sample": [1, 2]}).sample.tolist() == [1, 2], "a column is found before a hint"
    assert "sample" not in dir(batch)
    for table in (batch, ps.Dataset({"image": [1]})):
        with pytest.raises(AttributeError, match="is read-only, 'image' is not set"):
            table.image = [2]
    with pytest.raises(DatasetError, match=r"has no column 0; columns have names, such as batch\.image,"):
        _image, _label = batch


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nn.Dense(64, activation=ops.relu), r"^Dense: missing .* 'units'; .* first, Dense\(inputs, units\); "),
        (lambda: nn.Dense(6, 64, ops.relu), "too many positional arguments; by name are given activation, bias,"),
        (lambda: nn.Dense(6, 64, activation="relu"), r"is 'relu'; did you mean ops\.relu\?$"),
        (lambda: nn.Sequential([ops.relu]), r"argument 0 is \[<.*: give its elements, nn\.Sequential\(\*layers\)$"),
        (lambda: nn.Sequential(ops.relu, "tanh"), r"argument 1 is 'tanh'; did you mean ops\.tanh\?$"),
        (lambda: ps.session().batches({"x": [1]}, 1, [2]), r"are integers, got \[2\]; labels are a column of the data"),
        (lambda: ps.Adam(nn.Dense(2, 1).variables), r"^Adam: learning_rate comes first.*minimize\(loss, variables\)$"),
        (lambda: ps.save(nn.Dense(2, 1), "x"), r"the path first, save\('model.safetensors', variables\), got Dense"),
        (lambda: ps.Adam().minimize(lambda: 1.0), "but this one is function: call it, and give its result$"),
        (lambda: ps.Trainer(nn.Dense(2, 1), "mse", ps.Adam()), r"got 'mse': use `ops\.mean_squared_error\("),
        (lambda: ps.Trainer(nn.Dense(2, 1), ops.square, "adam"), r"got 'adam'; did you mean ps\.Adam\?$"),
        (lambda: ps.Trainer(len, ops.square, ps.Adam(), metrics="mae"), r"'mae': use `ps\.metrics\.mean_absolute_err"),
        (lambda: ps.Dataset([[1.0]], [1]), r"^Dataset: name the columns, ps\.Dataset\(\{.x.: x, .y.: y\}\); its "),
        (lambda: ps.Dataset({"x": [1, 2]}).split([0.8, 0.2]), r"^split takes the fraction .*, got \[0\.8, 0\.2\]$"),
    ],
)  # fmt: skip
def test_calls_in_the_manner_of_others_say_how_it_is_done_here(call, message):
    with ps.collection(), pytest.raises(TypeError, match=message):
        call()


def test_values_of_an_optimizer_are_not_set():
    optimizer = ps.Adam(0.1)
    with pytest.raises(FrozenInstanceError, match=r"session\.set_hyperparameters\(optimizer, learning_rate=0\.2\)$"):
        optimizer.learning_rate = 0.2
    assert optimizer == ps.Adam(0.1) == replace(ps.Adam(), learning_rate=0.1)


def test_models_and_losses_of_torch_are_told_from_ours():
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match=r"argument 0 is torch\.Linear: a program of PyTorch .*docs/pytorch\.md"):
        nn.Sequential(torch.nn.Linear(6, 8), ops.relu)
    with pytest.raises(TypeError, match=r"model must be .*, got torch\.Linear: a program of PyTorch"):
        ps.Trainer(torch.nn.Linear(6, 8), ops.square, ps.Adam())
    with pytest.raises(TypeError, match=r"this one is torch\.Tensor: a program of PyTorch"):
        ps.Adam().minimize(torch.ones(1))


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
    assert "Annotated" not in pydoc.render_doc(ps.Adam)
    assert str(inspect.signature(nn.Flatten)) == str(inspect.signature(nn.Layer)) == "()"
    with pytest.raises(
        TypeError,
        match=r"^GradientDescent: missing .* 'learning_rate'; its arguments are learning_rate$",
    ):
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


@pytest.mark.parametrize("path", ["psworker.nn.linear", "psworker.nn.functional"])
def test_a_module_within_a_public_one_is_not_imported_a_second_time_under_another_name(path):
    with pytest.raises(ModuleNotFoundError, match=f"No module named '{path}'"):
        importlib.import_module(path)
