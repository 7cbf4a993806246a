"""Variables, tables without a server, and layers: names, initial values, what they compute, and errors."""

import tracemalloc
import zlib
from functools import partial

import numpy as np
import pytest

import psworker as ps
from pswire.errors import ConfigurationError, ShapeMismatch
from pswire.specs import initializers
from pswire.specs.initializers import fill
from psworker import nn, ops

SEED = 20131016
UNIFORM = ps.RowUniform(-1, 1, seed=SEED)
IDS = [[5, 1, 5, 5, 0, 1], [[9, 2, 9], [0, 9, 2]], np.zeros((2, 0), np.uint8), [[], []], 4]


def test_scopes_nest_before_the_name_and_decide_what_is_trainable_and_found():
    with ps.variable_scope("target", trainable=False):
        layer = ps.nn.Dense(2, 3, name="out")
        with ps.variable_scope("inner", trainable=True):
            inner = ps.Variable([1.0], name="x")
    with ps.variable_scope("tar"):
        short = ps.Variable([1.0], name="y")
    outside = ps.Variable([1.0], name="y")
    assert [variable.name for variable in (inner, short, outside)] == ["target/inner/x", "tar/y", "y"]
    assert ps.trainable_variables() == [short, outside]
    assert ps.global_variables("target/") == [layer.kernel, layer.bias, inner]
    assert ps.global_variables("tar") == [short]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: [ps.Variable([1.0], name="W") for _ in range(2)], "there is already a variable 'W'"),
        (lambda: ps.Variable(np.ones(2, np.complex128), name="z"), "complex128"),
        (lambda: ps.set_random_seed(-1), "must not be negative, got -1"),
        *((lambda name=name: ps.variable_scope(name).__enter__(), "needs a name") for name in ("", "/a", "a/")),
    ],
)
def test_invalid_names_dtypes_and_seeds_are_refused(call, message):
    with pytest.raises(ConfigurationError, match=message):
        call()


def test_initial_values_depend_on_the_seed_and_the_whole_name_and_not_on_the_order():
    def kernels(seed, names):
        with ps.collection():
            ps.set_random_seed(seed)
            made = {name: ps.nn.Dense(3, 2, name=name).kernel.value.tolist() for name in names}
        return [made[name] for name in sorted(made)]

    [a, b], [other_seed] = kernels(1, "ab"), kernels(2, "a")
    assert [a, b] == kernels(1, "ba")
    assert a not in (b, other_seed)
    one, other = sorted("ab", key=lambda name: zlib.crc32(name.encode()))  # seed and name of the same sum
    seed = zlib.crc32(other.encode()) - zlib.crc32(one.encode())
    assert kernels(seed, one) != kernels(0, other)


def test_a_value_is_assigned_before_a_session_and_cannot_be_set():
    x, table = ps.Variable([1.0, 2.0], name="x"), ps.Table((3, 2), UNIFORM, name="table")
    values = np.array([3.0, 4.0])
    x.assign(values)
    values[0] = 9
    assert (x.value.tolist(), x.dtype, x.value.flags.writeable) == ([3, 4], np.float32, False)
    x.assign_add(2 * x)
    assert (x.value.tolist(), x.trainable) == ([9, 12], True)
    with pytest.raises(AttributeError, match=r"the value of 'x' cannot be set, .* use variable\.assign\(value\)"):
        x.value = np.zeros(2, np.float32)
    with pytest.raises(ShapeMismatch, match=r"'x' is float32\[1\], the variable is float32\[2\]"):
        x.assign([1.0])
    with pytest.raises(TypeError, match="'x': Cannot cast complex128 to float32"):
        x.assign([1j, 0])
    with ps.collection(), pytest.raises(ConfigurationError, match="'x' is not a variable of this thread's collection"):
        x.assign([1.0, 1.0])
    for assign in (table.assign, table.assign_add):
        with pytest.raises(TypeError, match=r"'table' is a Table.* assigned as a whole: .* by table\.assign_rows"):
            assign(np.zeros((3, 2)))
    with pytest.raises(ConfigurationError, match="the rows of 'table' are kept by the server, and no session is open"):
        table.assign_rows(0, np.zeros((1, 2)))
    assert x.value.tolist() == [9, 12]


def test_an_initializer_is_seeded_by_the_whole_name_as_in_a_layer():
    ps.set_random_seed(SEED)
    with ps.variable_scope("a"):
        kernel = nn.Dense(3, 2, name="out", kernel_initializer=initializers.he_normal()).kernel
        first = ps.Variable(initializers.he_normal(), shape=[3, 2])
        second = ps.Variable(initializers.he_normal(), shape=(3, 2))
    for variable, name in ((first, "a/variable"), (second, "a/variable_1"), (kernel, "a/out/kernel")):
        generator = np.random.default_rng([SEED, zlib.crc32(name.encode())])
        assert (variable.name, variable.dtype, variable.shape) == (name, np.float32, (3, 2))
        np.testing.assert_array_equal(variable.value, initializers.he_normal()((3, 2), generator))
    with ps.collection():
        ps.set_random_seed(SEED)
        again = ps.Variable(initializers.he_normal(), shape=(3, 2), name="a/out/kernel")
    np.testing.assert_array_equal(again.value, kernel.value)
    assert not again.value.flags.writeable


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ps.Variable(initializers.zeros(), name="W"), TypeError, "'W': an initializer needs a shape"),
        (lambda: ps.Variable(initializers.zeros(), shape=3), TypeError, "'variable': shape must be a tuple of int"),
        (lambda: ps.Variable(initializers.zeros(), shape=(3, 1.5)), TypeError, r"a tuple of integers, got \(3, 1.5\)"),
        (lambda: ps.Variable(initializers.zeros, shape=(3,)), TypeError, r"he_normal\(\) \(with parentheses\), but"),
        (lambda: ps.Variable(lambda shape, _: np.zeros(2), shape=(3,)), ValueError, r"shape \(2,\) instead of \(3,\)"),
        (lambda: ps.Variable(lambda shape, _: np.zeros(3, int), shape=(3,)), TypeError, "returned int64 instead of"),
        (lambda: ps.Variable([1.0], shape=(1,)), TypeError, r"shape=\(1,\) is for an initializer .* value is list"),
    ],
)
def test_an_initializer_and_its_shape_are_checked_before_a_variable_is_made(call, error, message):
    with pytest.raises(error, match=message):
        call()
    assert ps.global_variables() == []


def test_a_variable_that_is_not_of_floating_point_is_logged_as_not_trained_unless_that_is_intended(caplog):
    with ps.variable_scope("frozen", trainable=False):
        ps.Variable(np.ones(2, np.int64))
    ps.Variable(np.ones(2, np.int64), name="intended", trainable=False)
    ps.Variable(np.ones(2), name="trained")
    assert caplog.messages == []
    count = ps.Variable(np.ones(2, np.int64), name="count")
    [message] = caplog.messages
    assert message.startswith("variable 'count' is int64, and is not trained: only floating point is")
    assert not count.trainable


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([1.5, [1.0, 2.0], 10, [10, 3], [[1], [2.5]], -(2**40), np.float32([1])], "float32"),
        ([True, [True, False], np.ones(2, bool)], "bool"),
        *(([kind(3), np.ones(2, kind)], kind) for kind in (np.float64, np.float16, np.int64, np.uint8)),
    ],
)
def test_python_numbers_become_float32_and_arrays_keep_their_dtype(values, dtype):
    assert {ps.Variable(value).dtype for value in values} == {np.dtype(dtype)}


def test_a_variable_copies_its_value_and_is_read_only():
    array = np.ones(2, np.float32)
    variable = ps.Variable(array)
    array[0] = 5
    assert variable.value[0] == 1
    with pytest.raises(ValueError, match="read-only"):
        variable.value[0] = 5


@pytest.mark.parametrize(
    ("value", "decay", "settings", "error", "message"),
    [
        ([1.0], 0.5, {}, ValueError, r"value must have the shape of 'mean', \(2,\), but its shape is \(1,\)"),
        ([1.0, 2.0], 1, {}, ValueError, "decay must be from 0 up and below 1, got 1"),
        ([1.0, 2.0], float("nan"), {}, ValueError, "decay must be"),
        ([1.0, 2.0], 0.5, {"trainable": True}, ValueError, "'mean' is trainable.*trainable=False"),
        ([1.0, 2.0], 0.5, {"value": np.zeros(2, int)}, TypeError, "'mean' is int64"),
    ],
)
def test_an_update_that_the_server_would_refuse_is_refused_when_it_is_made(value, decay, settings, error, message):
    mean = ps.Variable(**{"value": np.zeros(2, np.float32), "name": "mean", "trainable": False} | settings)
    with pytest.raises(error, match=rf"^UpdateOp: .*{message}"):
        ps.UpdateOp(mean, value, decay)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_observations_of_one_variable_count_once_with_the_mean_of_float64(dtype):
    mean, large = ps.Variable(np.zeros(2, dtype), trainable=False), 0.9 * np.finfo(dtype).max
    seen = np.random.default_rng(20261122).uniform(0, 2, (3000, 2)).astype(dtype)
    seen[1000:] += 10
    for values in (seen, dtype([[np.inf, large], [np.inf, large], [5, large]])):
        ps.discard_update_ops()
        for value in values:
            ps.note_update(ps.UpdateOp(mean, value.astype(np.float64), np.float32(0.5)))
        [update] = ps.update_ops()
        assert (update.value.dtype, type(update.decay)) == (dtype, float)
        expected = seen.mean(axis=0, dtype=np.float64) if values is seen else [np.inf, large]
        np.testing.assert_allclose(update.value, expected, rtol=2**-11 if dtype == np.float16 else 1e-5)


@pytest.mark.parametrize("ids", [*IDS, np.random.default_rng(SEED).integers(0, 10, 1000)])
@pytest.mark.parametrize("shape", [(10, 3), (10,), (10, 2, 2)], ids=str)
def test_a_lookup_and_its_gradient_equal_those_of_an_array_to_the_last_bit(ids, shape):
    rows = np.empty(shape, np.float32)
    fill(UNIFORM, rows)
    table, array = ps.Table(shape, UNIFORM), ps.Tensor(rows, requires_grad=True)
    vectors, expected = ops.embedding(table, ids), ops.embedding(array, ids)
    np.testing.assert_array_equal(vectors.value, expected.value, strict=True)
    weights = np.random.default_rng(SEED).normal(size=vectors.shape).astype(np.float32)
    [gradient] = ps.gradients(ops.sum(ops.square(vectors) * weights), table)
    [reference] = ps.gradients(ops.sum(ops.square(expected) * weights), array)
    assert (gradient.indices.tolist(), gradient.shape) == (sorted(set(np.ravel(ids).tolist())), shape)
    np.testing.assert_array_equal(gradient.values, reference.summed().values, strict=True)


def test_a_table_is_in_its_collection_beside_the_variables():
    with ps.variable_scope("model"):
        table = ps.Table((1000, 4), UNIFORM, name="words")
        frozen = ps.Table((5, 1), ps.RowConstant(1), dtype="float16", trainable=False)
    assert not isinstance(table, ps.Variable)
    assert (ps.global_variables("model"), ps.trainable_variables()) == ([table, frozen], [table])
    assert repr(table) == "Table(model/words float32[1000, 4], version 0)"
    assert repr(frozen) == "Table(model/variable float16[5, 1], version 0)"
    assert (frozen.ndim, len(frozen)) == (2, 5)
    assert ops.embedding(frozen, [1]).value.tolist() == [[1]]
    assert [ops.embedding(one, [1]).requires_grad for one in (table, frozen)] == [True, False]


def test_nothing_as_large_as_the_table_is_made():
    tracemalloc.start()
    try:
        table = ps.Table((10**9, 64), ps.RowNormal(0.1, seed=3))
        vectors = ops.embedding(table, [10**9 - 1, 5, 5])
        [gradient] = ps.gradients(ops.sum(ops.square(vectors)), table)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert gradient.indices.tolist() == [5, 10**9 - 1]
    np.testing.assert_array_equal(gradient.values, (2 * vectors.value)[[1, 0]] * np.float32([[2], [1]]))
    assert peak < 10**7


@pytest.mark.parametrize(
    "use",
    [
        lambda table: table.value,
        lambda table: np.ones(2, np.float32) @ table,
        lambda table: ops.gather(table, np.array([1])),
        lambda table: table[1],
        lambda table: ops.accuracy(table, np.zeros(4, int)),
        lambda table: ps.Variable(table),
        lambda table: bool(table),
        lambda table: ps.add_decayed_weights([(np.ones((4, 2)), table)], 0.1),
    ],
)
def test_any_other_use_of_a_table_is_refused_with_what_to_do(use):
    with pytest.raises(TypeError, match=r"'words' is a Table.*ops\.embedding\(table, ids\).*session\.rows\(table"):
        use(ps.Table((4, 2), UNIFORM, name="words"))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (((), UNIFORM), ValueError, "at least one axis"),
        (((2.5, 3), UNIFORM), TypeError, r"shape is a tuple of whole numbers.*got \(2\.5, 3\)"),
        ((5, UNIFORM), TypeError, r"shape is a tuple of whole numbers.*got 5"),
        (((-1, 3), UNIFORM), ConfigurationError, "sizes from 0 up"),
        (((1 << 62, 4), UNIFORM), ValueError, r"has 73,786,976,294,838,206,464 bytes, and no memory has more"),
        (((1 << 62, 0), UNIFORM), ValueError, "no memory has more"),
        (((2, 3), initializers.zeros()), TypeError, r"such as psworker\.RowUniform"),
        (((2, 3), ps.RowConstant(1e6), None, "float16"), ValueError, "float16 cannot hold"),
        (((2, 3), UNIFORM, None, "int32"), TypeError, "not int32"),
    ],
)
def test_an_invalid_table_is_refused_and_leaves_nothing_behind(arguments, error, message):
    with pytest.raises(error, match=message):
        ps.Table(*arguments)
    assert ps.global_variables() == []


def normal(*shape, dtype=np.float32):
    return np.random.default_rng(SEED).standard_normal(shape).astype(dtype)


def test_layers_name_their_variables_by_kind_and_count_in_the_current_scope():
    with ps.variable_scope("model"):
        layers = [nn.Dense(2, 3), nn.Dense(3, 4), nn.Conv2D(1, 2, (5, 3)), nn.Embedding(9, 2), nn.LayerNorm(2)]
    layers += [nn.BatchNorm(7), nn.Dense(2, 3, name="logits", bias=False)]
    layers += [nn.Embedding(10**8, 3, initializer=UNIFORM, name="users")]
    parts = "kernel bias", "kernel bias", "kernel bias", "table", "gamma beta", "gamma beta", "kernel", "table"
    of_layers = [f"{layer.name}/{part}" for layer, some in zip(layers, parts, strict=True) for part in some.split()]
    assert [variable.name for variable in ps.trainable_variables()] == of_layers
    assert [repr(layer) for layer in layers] == [
        "Dense('model/dense': 2 -> 3)",
        "Dense('model/dense_1': 3 -> 4)",
        "Conv2D('model/conv2d': 1 -> 2, 5 x 3)",
        "Embedding('model/embedding': 9 rows of 2)",
        "LayerNorm('model/layer_norm': 2)",
        "BatchNorm('batch_norm': 7)",
        "Dense('logits': 2 -> 3)",
        "Embedding('users': 100000000 rows of 3)",
    ]
    assert isinstance(layers[-1].table, ps.Table)
    moving = [variable.name for variable in ps.global_variables() if not variable.trainable]
    assert moving == ["batch_norm/moving_mean", "batch_norm/moving_variance"]
    kept = ps.Variable([1.0], name="net/bias")
    for name, taken in (("logits", "kernel"), ("net", "bias")):  # of the second the kernel would be new
        with pytest.raises(ConfigurationError, match=f"'{name}/{taken}'"):
            nn.Dense(2, 3, name=name)
    assert ps.global_variables("net") == [kept]


def test_kernels_are_by_default_glorot_biases_zero_and_tables_small_uniform():
    given = {"kernel_initializer": initializers.constant(0.5), "bias_initializer": initializers.constant(0.1)}
    for layer in (nn.Dense(2, 3, **given), nn.Conv2D(2, 3, (1, 2), **given)):
        assert set(layer.kernel.value.flat) == {0.5}
        assert set(layer.bias.value) == {np.float32(0.1)}
    assert set(nn.Embedding(2, 3, initializer=initializers.ones()).table.value.flat) == {1}
    dense, conv, embedding = nn.Dense(300, 200), nn.Conv2D(3, 4, 5), nn.Embedding(100, 20)
    limits = [(dense.kernel, (6 / 500) ** 0.5), (conv.kernel, (6 / 175) ** 0.5), (embedding.table, 0.05)]
    for variable, limit in limits:
        assert 0.9 * limit < np.abs(variable.value).max() <= limit
    assert not any([*dense.bias.value, *conv.bias.value])


def test_sizes_are_any_integers_and_initial_values_of_float64_become_float32():
    for size in (np.int64(3), (3, np.int32(3)), [3, 3]):
        assert nn.Conv2D(1, 2, size, strides=np.int64(2)).kernel.shape == (3, 3, 1, 2)
    for made, kept in (("float16", "float16"), ("float32", "float32"), ("float64", "float32")):
        layer = nn.Dense(3, 4, kernel_initializer=lambda shape, random, dtype=made: np.ones(shape, dtype))
        assert layer.kernel.dtype == kept


@pytest.mark.parametrize("shape", [(3,), (2, 4, 3), (0, 3)])
def test_dense_is_a_matrix_product_a_bias_and_an_activation(shape):
    x, layer = normal(*shape), nn.Dense(3, 2, activation=ops.tanh, bias_initializer=initializers.constant(0.5))
    np.testing.assert_allclose(layer(x).value, np.tanh(x @ layer.kernel.value + 0.5), rtol=1e-5, atol=1e-6)
    plain = nn.Dense(3, 2, bias=False)
    np.testing.assert_allclose(plain(x).value, x @ plain.kernel.value, rtol=1e-5, atol=1e-6)


def test_norms_are_their_ops_with_the_moments_of_the_batch_or_moving_averages():
    x, layer, batch = normal(6, 5, 3), nn.LayerNorm(3, epsilon=0.1), nn.BatchNorm(3, decay=0.9, epsilon=0.5)
    for variable in ps.global_variables():
        variable.assign(np.random.default_rng(len(variable.name)).uniform(0.5, 2, 3))
    moving, scaled = (batch.moving_mean, batch.moving_variance), (batch.gamma, batch.beta)
    for y, expected in (
        (layer(x), ops.layer_norm(x, layer.gamma, layer.beta, 0.1)),
        (batch(x, training=False), ops.batch_norm_inference(x, *moving, *scaled, 0.5)),
        (batch(x, training=True), ops.batch_norm(x, *scaled, 0.5)),
    ):
        np.testing.assert_array_equal(y.value, expected.value)
    updates = ps.update_ops()
    assert [(one.variable, one.decay) for one in updates] == [(one, 0.9) for one in moving]
    expected = x.mean(axis=(0, 1)), x.reshape(30, 3).var(axis=0, ddof=1)
    np.testing.assert_allclose([one.value for one in updates], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_without_center_or_scale_lacks_that_variable_alone(training):
    x, settings = normal(5, 3), [{"center": False, "scale": False}, {"center": False}, {"scale": False}]
    for layer in [nn.BatchNorm(3, **some) for some in settings]:
        np.testing.assert_allclose(layer(x, training).value, nn.BatchNorm(3)(x, training).value, rtol=1e-6)
    assert [one.name for one in ps.trainable_variables()][:2] == ["batch_norm_1/gamma", "batch_norm_2/beta"]


@pytest.mark.parametrize(
    ("layer", "x", "error", "message"),
    [
        (lambda: nn.Dense(784, 10), np.zeros((5, 28, 28)), ValueError, r"\(\.\.\., 784\), but .* is \(5, 28, 28\)"),
        (lambda: nn.Dense(784, 10), 1.0, ValueError, r"Dense\('net/dense': 784 -> 10\): x must have .* is \(\)"),
        (lambda: nn.Conv2D(1, 2, 3), np.zeros((5, 28, 28)), ValueError, r"\(batch, height, width, 1\), .* 28, 28\)"),
        (lambda: nn.LayerNorm(3), np.zeros((5, 2)), ValueError, r"LayerNorm\('net/layer_norm': 3\): .* \(\.\.\., 3\)"),
        (lambda: partial(nn.BatchNorm(3), training=False), np.zeros((5, 1)), ValueError, r"BatchNorm\('net/.*\., 3\)"),
        (lambda: partial(nn.BatchNorm(3), training=True), np.zeros((0, 3)), ValueError, "no elements"),
        (lambda: nn.Dense(3, 4), np.ones((2, 3), complex), TypeError, r"Dense\(.*must be of real numbers, .*complex"),
        (lambda: nn.Embedding(5, 2), [2, 5], IndexError, r"'net/embedding/table'.*ids must be in 0 \.\.\. 4"),
    ],
)
def test_an_invalid_x_is_refused_in_the_name_of_the_layer(layer, x, error, message):
    with ps.variable_scope("net"):
        layer = layer()
    with pytest.raises(error, match=message):
        layer(x)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: nn.Dense(3, 4, activation="relu"), TypeError, "^Dense: activation must be .*ops.relu, .*'relu'"),
        (lambda: nn.Conv2D(1, 2, 3, activation="relu"), TypeError, "^Conv2D: activation must be a function"),
        (lambda: nn.Conv2D(1, 2, 1.5), TypeError, "^Conv2D: kernel_size must be an integer or two"),
        (lambda: nn.Conv2D(1, 2, (3, 3, 3)), ValueError, "^Conv2D: kernel_size must be at least 1, as one"),
        (lambda: nn.Conv2D(1, 2, 3, strides=0), ValueError, "^Conv2D: strides must be at least 1"),
        (lambda: nn.Conv2D(1, 2, 3, dilations="2"), TypeError, "^Conv2D: dilations must be an integer"),
        (lambda: nn.Dense(3.0, 4), TypeError, r"'dense/kernel': shape must be .* integers, got \(3.0, 4\)"),
        (lambda: nn.BatchNorm(3, decay=1), ValueError, "BatchNorm: decay must be at least 0 and below 1"),
        (lambda: nn.Dense(3, 4, kernel_initializer=initializers.he_normal), TypeError, "'dense/kernel': .*parentheses"),
        (lambda: nn.Conv2D(1, 2, 3, bias_initializer="zeros"), TypeError, "'conv2d/bias': .*with parentheses"),
        (lambda: nn.Dense(3, 4, bias_initializer=lambda *_: np.ones(3)), ValueError, r"'dense/bias': .*\(3,\) inst"),
        (lambda: nn.Conv2D(1, 2, 3, kernel_initializer=lambda *_: 0.5), ValueError, r"'conv2d/kernel': .*\(\) inst"),
        (lambda: nn.Dense(3, 2, bias_initializer=lambda *_: [0, 0]), TypeError, "'dense/bias': .*int64 instead of"),
    ],
)
def test_an_invalid_argument_is_refused_when_the_layer_is_created(make, error, message):
    with pytest.raises(error, match=message):
        make()
    assert ps.global_variables() == []
    assert nn.Dense(3, 4).name == "dense"  # the name is free


@pytest.mark.parametrize(
    "layer",
    [
        lambda: nn.Dense(2, 3),
        lambda: nn.Conv2D(2, 3, 3),
        lambda: nn.LayerNorm(2),
        lambda: partial(nn.BatchNorm(2), training=True),
        lambda: partial(nn.BatchNorm(2), training=False),
    ],
)
def test_x_of_another_dtype_is_cast_to_that_of_the_variables_and_its_gradient_back(layer):
    layer = layer()
    for dtype in ("float64", "float16", "uint8", "int64", "bool"):
        x = np.random.default_rng(SEED).integers(0, 9, (3, 4, 5, 2)).astype(dtype)
        expected = layer(x.astype(np.float32)).value
        for given in (x, ps.Tensor(x), x.tolist()):
            np.testing.assert_array_equal(layer(given).value, expected, strict=True)
    wide, narrow = (ps.Tensor(normal(3, 4, 5, 2, dtype=dtype), requires_grad=True) for dtype in ("f8", "f4"))
    [found], [expected] = (ps.gradients(ops.sum(ops.square(layer(x)) * layer(x)), [x]) for x in (wide, narrow))
    np.testing.assert_allclose(found, expected.astype("f8"), rtol=1e-4, atol=1e-5, strict=True)
