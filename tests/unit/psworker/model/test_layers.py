"""Layers: composition, pooling, dropout, recurrence and attention."""

from functools import partial

import numpy as np
import pytest

import psworker as ps
from pswire.errors import ConfigurationError
from psworker import nn, ops
from tests.support.combinations import few_fast

SEED = 20140603


def normal(*shape, seed=SEED):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def test_dir_of_nn_shows_the_public_names_alone():
    assert dir(nn) == sorted(nn.__all__)
    assert all(isinstance(getattr(nn, name), type) for name in dir(nn))


# --- Composition ------------------------------------------------------------------------------------------------------


class Block(nn.Layer):
    """Variables and layers in attributes, lists, tuples and dicts, one of them twice."""

    def __init__(self, width, *, name=None):
        with self.scope(name):
            self.scale = ps.Variable([1.0], name="scale")
            self.hidden = [nn.Dense(width, width, bias=False), (nn.Dense(width, width, bias=False),)]
            self.norms = {"first": nn.BatchNorm(width, center=False)}
            self.tied, self.first = self.hidden[0], self.scale
            self.hidden.append(self.hidden)
        self.width = width

    def __call__(self, x, training=False):
        return self.norms["first"](self.hidden[1][0](self.hidden[0](x)), training) * self.scale


PARTS = ["scale", "dense/kernel", "dense_1/kernel", "batch_norm/gamma", "batch_norm/moving_mean"]
PARTS += ["batch_norm/moving_variance"]


def test_a_composed_layer_names_and_finds_its_variables_once_in_the_order_of_its_attributes():
    with ps.variable_scope("net"):
        blocks = Block(2), Block(2), Block(2, name="last")
    assert [block.name for block in blocks] == ["net/block", "net/block_1", "net/last"]
    assert [repr(block) for block in blocks][:2] == ["Block('net/block')", "Block('net/block_1')"]
    for block in blocks:
        assert [variable.name for variable in block.variables] == [f"{block.name}/{part}" for part in PARTS]
        assert block.trainable_variables == block.variables[:4] == ps.trainable_variables(block.name)
    model = nn.Sequential(blocks[1], ops.relu, nn.Sequential(nn.Flatten(), blocks[0]))
    assert model.variables == blocks[1].variables + blocks[0].variables
    assert (nn.Flatten().variables, nn.Flatten().trainable, nn.Flatten().name) == ([], False, "")


@pytest.mark.parametrize(
    ("kind", "scope"), [("MLPBlock", "mlp_block"), ("Conv2DPair", "conv2d_pair"), ("_Small", "small"), ("GAN", "gan")]
)
def test_the_default_scope_of_a_composed_layer_is_its_class_in_lower_case(kind, scope):
    layer = type(kind, (nn.Layer,), {})()
    with layer.scope():
        ps.Variable([1.0], name="x")
    assert layer.name == scope


def test_a_composed_layer_that_fails_leaves_no_variable():
    class Twice(nn.Layer):
        def __init__(self):
            with self.scope():
                self.layers = [nn.Dense(2, 3, name="one") for _ in range(2)]

    with pytest.raises(ConfigurationError, match="already a variable 'twice/one/kernel'"):
        Twice()
    assert ps.global_variables() == []


def test_a_frozen_layer_gets_no_gradients_and_is_trained_again_as_it_was_made():
    with ps.variable_scope("fixed", trainable=False):
        fixed = nn.Dense(2, 2)
    table = nn.Embedding(5, 2, initializer=ps.RowConstant(0.5))
    block, model = Block(2), nn.Sequential(table, fixed)
    model.block = block
    trained = [table.table, *block.trainable_variables]

    def with_gradients():
        y = ops.sum(block(model(np.array([1, 2])), training=True))
        ps.discard_update_ops()
        return [v for v, g in zip(model.variables, ps.gradients(y, model.variables), strict=True) if g is not None]

    assert with_gradients() == model.trainable_variables == ps.trainable_variables() == trained
    block.trainable = False
    assert with_gradients() == ps.trainable_variables() == [table.table]
    assert (model.trainable, block.trainable) == (True, False)
    model.trainable = False
    model.trainable = False
    assert with_gradients() == ps.trainable_variables() == []
    block.tied.trainable = True  # part of a frozen layer
    assert with_gradients() == [block.tied.kernel]
    recorded = ops.sum(block.tied(normal(3, 2)))
    model.trainable = True
    assert ps.gradients(recorded, block.tied.kernel)[0] is not None
    assert with_gradients() == model.trainable_variables == trained
    assert not block.norms["first"].moving_mean.trainable


def test_sequential_applies_layers_and_functions_in_order():
    x, hidden, out = normal(4, 3, 2), nn.Dense(6, 5), nn.Dense(5, 2)
    model = nn.Sequential(nn.Flatten(), hidden, ops.relu, out)
    np.testing.assert_array_equal(model(x).value, out(ops.relu(hidden(x.reshape(4, 6)))).value)
    assert repr(model) == "Sequential(Flatten(), Dense('dense': 6 -> 5), relu, Dense('dense_1': 5 -> 2))"
    assert (len(model), model.layers[1], model[-1], list(model)) == (4, hidden, out, list(model.layers))
    assert nn.Sequential()(x) is x


@pytest.mark.parametrize("training", [True, False])
def test_sequential_passes_training_to_the_layers_that_take_it(training):
    seen = []

    class Own(nn.Layer):
        def __call__(self, x, training=None):
            seen.append(training)
            return x

    def function(x, training):
        seen.append(training)
        return x

    x, norm = normal(6, 3), nn.BatchNorm(3)
    model = nn.Sequential(Own(), nn.Sequential(function, np.asarray), partial(function, training=not training), norm)
    np.testing.assert_array_equal(model(x, training=training).value, norm(x, training).value)
    assert seen == [training, training, not training]
    assert bool(ps.update_ops()) == training
    nn.Sequential(Own())(x)
    assert seen[-1] is None


@pytest.mark.parametrize("layer", [lambda: nn.BatchNorm(3), lambda: nn.Sequential(ops.relu, nn.Dropout(0.5))])
def test_sequential_does_not_guess_whether_it_trains(layer):
    with pytest.raises(TypeError, match="one of the layers requires training"):
        nn.Sequential(layer())(normal(2, 3))


@pytest.mark.parametrize("layer", [[], nn.Dense, 3, None])
def test_sequential_refuses_what_is_neither_a_layer_nor_a_function(layer):
    with pytest.raises(TypeError, match=r"^Sequential: each argument must be a layer or .* argument 1 is "):
        nn.Sequential(ops.relu, layer)


# --- Pooling, flattening and dropout ----------------------------------------------------------------------------------


POOLS = [  # the shape of x, a size of windows, and layers with their ops
    ((2, 7, 6, 3), (3, 2), [(nn.MaxPool2D, ops.max_pool2d), (nn.AvgPool2D, ops.avg_pool2d)]),
    ((2, 7, 3), 3, [(nn.MaxPool1D, ops.max_pool1d), (nn.AvgPool1D, ops.avg_pool1d)]),
]


@pytest.mark.parametrize(("shape", "size", "layers"), POOLS, ids=["images", "sequences"])
def test_pooling_layers_pass_their_settings_to_the_ops(shape, size, layers):
    x, rest = normal(*shape), {"strides": 2, "padding": "SAME"}
    for layer, op in layers:
        np.testing.assert_array_equal(layer()(x).value, op(x).value)
        np.testing.assert_array_equal(layer(pool_size=size, **rest)(x).value, op(x, size=size, **rest).value)
        np.testing.assert_array_equal(layer(pool_size=3)(x).value, op(x, size=3).value)
    assert (repr(nn.MaxPool2D((3, 2))), repr(nn.MaxPool1D(3))) == ("MaxPool2D(3 x 2)", "MaxPool1D(3)")


def test_flatten_keeps_the_first_axis():
    for shape, flat in (((2, 3, 4), (2, 12)), ((3,), (3, 1)), ((0, 2, 3), (0, 6))):
        np.testing.assert_array_equal(nn.Flatten()(normal(*shape)).value, normal(*shape).reshape(flat))


def test_dropout_draws_the_masks_of_its_op_in_training_and_none_otherwise():
    x, layer = normal(50, 4), nn.Dropout(0.3)
    found = []
    for drop in (layer, lambda x, training: ops.dropout(x, 0.3, training)):
        ps.set_random_seed(5)
        found.append([drop(x, training=True).value, drop(x, training=False).value, drop(x, training=True).value])
    np.testing.assert_array_equal(*found)
    np.testing.assert_array_equal(found[0][1], x)
    assert not np.array_equal(found[0][0], found[0][2])
    assert repr(layer) == "Dropout(0.3)"


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: nn.Dropout(1), ValueError, "^Dropout: rate, .* below 1, got 1"),
        (lambda: nn.MaxPool2D(0), ValueError, "^MaxPool2D: pool_size must be at least 1"),
        (lambda: nn.AvgPool2D(2, strides="2"), TypeError, "^AvgPool2D: strides must be an integer"),
        (lambda: nn.MaxPool1D((2, 1)), TypeError, r"^MaxPool1D: pool_size must be one integer, but it is \(2, 1\)"),
        (lambda: nn.AvgPool1D(2, strides=0), ValueError, "^AvgPool1D: strides must be at least 1, but it is 0"),
        (lambda: nn.AvgPool1D(2, padding="same"), ValueError, '^AvgPool1D: padding must be "SAME" or "VALID", got'),
        (lambda: nn.MaxPool1D()(normal(2, 3)), ValueError, r"^max_pool1d: x must have the axes \(batch, length"),
        (lambda: nn.AvgPool2D(2, padding="same"), ValueError, '^AvgPool2D: padding must be "SAME" or "VALID", got'),
        (lambda: nn.Flatten()(1.0), ValueError, r"^Flatten\(\): x must have shape \(batch, \.\.\.\)"),
        (lambda: nn.MaxPool2D()(normal(2, 3)), ValueError, r"^max_pool2d\(.*axes \(batch, height, width"),
    ],
)
def test_invalid_arguments_are_refused_in_the_name_of_the_layer(make, error, message):
    with pytest.raises(error, match=message):
        make()
    assert ps.global_variables() == []


# --- Recurrent layers -------------------------------------------------------------------------------------------------


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gru(x, lengths, kernel, recurrent_kernel, bias, recurrent_bias, h):
    """The states of one example at a time, in float64. Source: cuDNN Developer Guide, CUDNN_GRU, and torch.nn.GRU.

    r = sigmoid(W_r x + R_r h + b_Wr + b_Rr), i (here z) likewise, h' = tanh(W_h x + r * (R_h h + b_Rh) + b_Wh),
    h_t = (1 - z) * h' + z * h; Cho et al., 2014, equations 5 to 8, have r * h before the product.
    """
    (w_r, w_z, w_n), (u_r, u_z, u_n) = np.split(kernel, 3, axis=1), np.split(recurrent_kernel, 3, axis=1)
    (b_r, b_z, b_n), (c_r, c_z, c_n) = np.split(bias, 3), np.split(recurrent_bias, 3)
    states = np.empty((*x.shape[:2], h.shape[1]))
    for example, length in enumerate(lengths):
        now = h[example]
        for t in range(x.shape[1]):
            if t < length:
                one = x[example, t]
                r = sigmoid(one @ w_r + b_r + now @ u_r + c_r)
                z = sigmoid(one @ w_z + b_z + now @ u_z + c_z)
                now = (1 - z) * np.tanh(one @ w_n + b_n + r * (now @ u_n + c_n)) + z * now
            states[example, t] = now
    return states, states[:, -1]


def lstm(x, lengths, kernel, recurrent_kernel, bias, h, c):
    """The outputs of one example at a time, in float64, and the last h and c.

    Source: Hochreiter and Schmidhuber, 1997, with the forget gate of Gers et al., 2000: i, f, o = sigmoid(W x + U h +
    b), c_t = f * c + i * tanh(W_g x + U_g h + b_g), h_t = o * tanh(c_t).
    """
    (w_i, w_f, w_g, w_o), (u_i, u_f, u_g, u_o) = np.split(kernel, 4, axis=1), np.split(recurrent_kernel, 4, axis=1)
    b_i, b_f, b_g, b_o = np.split(bias, 4)
    outputs, last_c = np.empty((*x.shape[:2], h.shape[1])), np.empty_like(c)
    for example, length in enumerate(lengths):
        now, cell = h[example], c[example]
        for t in range(x.shape[1]):
            if t < length:
                one = x[example, t]
                i, f = sigmoid(one @ w_i + now @ u_i + b_i), sigmoid(one @ w_f + now @ u_f + b_f)
                o = sigmoid(one @ w_o + now @ u_o + b_o)
                cell = f * cell + i * np.tanh(one @ w_g + now @ u_g + b_g)
                now = o * np.tanh(cell)
            outputs[example, t] = now
        last_c[example] = cell
    return outputs, outputs[:, -1], last_c


def differences(function, args):
    """Central differences of a function of arrays, by each element of each."""
    found = [np.zeros_like(x) for x in args]
    for x, derivative in zip(args, found, strict=True):
        for index in np.ndindex(x.shape):
            before, values = x[index], []
            for step in (6e-6, -6e-6):
                x[index] = before + step
                values.append(function(*args))
            x[index], derivative[index] = before, (values[0] - values[1]) / 12e-6
    return found


BATCH, TIME, INPUTS, UNITS = 3, 4, 2, 3
RECURRENT = {
    "GRU": (nn.GRU, gru, 3, ["kernel", "recurrent_kernel", "bias", "recurrent_bias"], 1),
    "LSTM": (nn.LSTM, lstm, 4, ["kernel", "recurrent_kernel", "bias"], 2),
}


def recurrent_case(kind):
    """A function of the layer, its reference, and arguments in float64: x, the variables and the initial state."""
    make, reference, gates, parts, states = RECURRENT[kind]
    layer = make(INPUTS, UNITS, return_sequences=True, return_state=True)
    shapes = {"kernel": (INPUTS, gates * UNITS), "recurrent_kernel": (UNITS, gates * UNITS)}
    args = [normal(BATCH, TIME, INPUTS), *(normal(*shapes.get(part, (gates * UNITS,)), seed=9) for part in parts)]
    args += [normal(BATCH, UNITS, seed=seed) for seed in range(states)]

    def of_layer(x, *rest, lengths=None):
        for part, value in zip(parts, rest, strict=False):
            setattr(layer, part, value)
        state = rest[len(parts) :]
        outputs, last = layer(x, state[0] if states == 1 else state, lengths)
        return [outputs, *([last] if states == 1 else last)]

    return of_layer, reference, [x.astype(np.float64) for x in args]


@pytest.mark.parametrize("lengths", [None, [4, 0, 2]])
@pytest.mark.parametrize("kind", RECURRENT)
def test_a_recurrent_layer_and_its_gradients_equal_a_reference_in_float64(kind, lengths):
    of_layer, reference, args = recurrent_case(kind)
    steps = [TIME] * BATCH if lengths is None else lengths
    tensors = [ps.Tensor(x, requires_grad=True) for x in args]
    found, expected = of_layer(*tensors, lengths=lengths), reference(args[0], steps, *args[1:])
    weights = [normal(*y.shape, seed=3 + number).astype(np.float64) for number, y in enumerate(expected)]
    for y, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(y.value, other, rtol=1e-12, atol=1e-14)

    def weighted(x, *rest):
        return sum(np.sum(y * weight) for y, weight in zip(reference(x, steps, *rest), weights, strict=True))

    gradients = ps.gradients(found, tensors, weights)
    for gradient, other in zip(gradients, differences(weighted, args), strict=True):
        np.testing.assert_allclose(gradient, other, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("output", [0, -1])
@pytest.mark.parametrize("kind", RECURRENT)
def test_gradients_of_recurrent_layers_pass_the_gradient_check(kind, output):
    of_layer, _, args = recurrent_case(kind)
    ps.check_gradients(lambda *tensors: of_layer(*tensors, lengths=np.array([4, 1, 3]))[output], *args)


@pytest.mark.parametrize("kind", RECURRENT)
def test_a_second_backward_pass_with_other_weights_in_the_same_array_is_not_the_first(kind):
    of_layer, _, args = recurrent_case(kind)
    tensors = [ps.Tensor(x, requires_grad=True) for x in args]
    y = of_layer(*tensors)[0]
    weights = np.ones(y.shape)
    expected = ps.gradients(y, tensors, weights, retain_graph=True)
    ps.gradients(y, tensors[2], weights, retain_graph=True)  # the gradient of x is computed, but not given away
    weights *= 2
    for gradient, other in zip(ps.gradients(y, tensors, weights), expected, strict=True):
        np.testing.assert_allclose(gradient, 2 * other, rtol=1e-12)


@pytest.mark.parametrize(("kind", "gates"), [(nn.GRU, 3), (nn.LSTM, 4)])
def test_a_recurrent_layer_returns_its_last_output_all_outputs_or_a_pair_with_the_state(kind, gates):
    x, lengths, seen = normal(2, 5, 3), np.array([5, 2]), []
    for sequences in (False, True):
        for state in (False, True):
            with ps.collection():
                seen.append(kind(3, 4, return_sequences=sequences, return_state=state)(x, lengths=lengths))
    last, (again, state), outputs, (all_again, _) = seen
    h = state if kind is nn.GRU else state[0]
    assert (last.shape, outputs.shape, last.dtype) == ((2, 4), (2, 5, 4), np.float32)
    for other in (again, h, outputs[:, -1]):
        np.testing.assert_array_equal(last.value, other.value)
    np.testing.assert_array_equal(outputs.value, all_again.value)
    np.testing.assert_array_equal(outputs.value[1, 1:], np.broadcast_to(outputs.value[1, 1], (4, 4)))
    layer = kind(3, 4, name="plain", bias=False)
    assert [(one.name, one.shape) for one in layer.variables] == [
        ("plain/kernel", (3, 4 * gates)),
        ("plain/recurrent_kernel", (4, 4 * gates)),
    ]
    assert repr(kind(3, 4)) == f"{kind.__name__}('{kind.__name__.lower()}': 3 -> 4)"
    np.testing.assert_array_equal(layer(normal(2, 0, 3)).value, np.zeros((2, 4)))  # no steps
    with ps.collection():  # zero biases, but for that of the forget gate
        biases = [one.value for one in kind(3, 4).variables[2:]]
    expected = [[0] * 12] * 2 if kind is nn.GRU else [[0] * 4 + [1] * 4 + [0] * 8]
    assert [one.tolist() for one in biases] == expected
    assert not np.any(nn.LSTM(3, 4, unit_forget_bias=False).bias.value)
    half = kind(3, 4, name="half", **dict.fromkeys(HALF, lambda shape, _: np.full(shape, 0.25, np.float16)))
    [gradient] = ps.gradients(ops.sum(half(x)), [half.kernel])
    assert (half(x).dtype, gradient.dtype) == (np.float16, np.float16)


HALF = "kernel_initializer", "recurrent_initializer", "bias_initializer"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((normal(2, 3),), ValueError, r"'\w+': 3 -> 4\): x must have shape \(batch, time, 3\), .* \(2, 3\)"),
        ((normal(2, 5, 2),), ValueError, r"\(batch, time, 3\), .* \(2, 5, 2\)"),
        ((normal(2, 5, 3), None, [5, 6]), ValueError, r"lengths must have shape \(2,\) and be in 0 \.\.\. 5"),
        ((normal(2, 5, 3), None, [5]), ValueError, r"lengths must have shape \(2,\)"),
        ((normal(2, 5, 3), None, [5, 2.0]), TypeError, "lengths must be integers, but they are float64"),
    ],
)
def test_an_invalid_sequence_is_refused_in_the_name_of_the_layer(arguments, error, message):
    for layer in (nn.GRU(3, 4), nn.LSTM(3, 4)):
        with pytest.raises(error, match=message):
            layer(*arguments)
    x, state = normal(2, 5, 3), normal(3, 4)
    for layer, initial in ((nn.GRU(3, 4), state), (nn.LSTM(3, 4), (state, state))):
        with pytest.raises(ValueError, match=r"the initial state must have shape \(2, [48]\), but its shape is \(3, "):
            layer(x, initial)


# --- Attention --------------------------------------------------------------------------------------------------------

HEADS, WIDTH, QUERIES, KEYS, FEATURES = 2, 3, 4, 5, 6
PROJECTIONS = [(part, array) for part in ("query", "key", "value", "output") for array in ("kernel", "bias")]


def attention(query, key, value, allowed, *projections):
    """One head of one query at a time, in float64. Source: Vaswani et al., 2017, equation 1 and section 3.2.2."""
    (w_q, b_q), (w_k, b_k), (w_v, b_v), (w_o, b_o) = zip(projections[::2], projections[1::2], strict=True)
    y = np.broadcast_to(b_o, (*query.shape[:2], len(b_o))).copy()
    for batch, head, number in np.ndindex(*allowed.shape[:3]):
        part = np.s_[head * WIDTH : (head + 1) * WIDTH]
        q = query[batch, number] @ w_q[:, part] + b_q[part]
        keys, values = key[batch] @ w_k[:, part] + b_k[part], value[batch] @ w_v[:, part] + b_v[part]
        chosen, result = allowed[batch, head, number], np.zeros(WIDTH)
        if chosen.any():
            powers = np.exp(keys[chosen] @ q / np.sqrt(WIDTH))
            result = powers / powers.sum() @ values[chosen]
        y[batch, number] += result @ w_o[part]
    return y


def attention_case():
    """A function of the layer, and arguments in float64: query, key, value and the arrays of the projections."""
    layer = nn.MultiHeadAttention(FEATURES, HEADS, WIDTH)
    args = [normal(BATCH, size, FEATURES, seed=size + n) for n, size in enumerate((QUERIES, KEYS, KEYS))]
    args += [normal(*getattr(getattr(layer, part), array).shape, seed=n) for n, (part, array) in enumerate(PROJECTIONS)]

    def of_layer(query, key, value, *projections, **settings):
        for (part, array), tensor in zip(PROJECTIONS, projections, strict=True):
            setattr(getattr(layer, part), array, tensor)
        return layer(query, key, value, **settings)

    return of_layer, [x.astype(np.float64) for x in args]


def some(*shape):
    """Booleans, of which the last row is false."""
    found = np.random.default_rng(4).random(shape) < 0.6
    found[..., -1, :] = False
    return found


SHAPES = [(BATCH, QUERIES, KEYS), None, (QUERIES, KEYS), (BATCH, HEADS, QUERIES, KEYS), (BATCH, 1, KEYS), (1, KEYS)]


@pytest.mark.parametrize(
    ("shape", "causal"), few_fast([(shape, causal) for causal in (True, False) for shape in SHAPES], slow=3)
)
def test_attention_and_its_gradients_equal_a_reference_in_float64(shape, causal):
    of_layer, args = attention_case()
    mask = None if shape is None else some(*shape)
    whole = np.ones((BATCH, HEADS, QUERIES, KEYS), bool)
    if mask is not None:
        whole = whole & (mask[:, np.newaxis] if mask.ndim == 3 else mask)
    if causal:
        whole = whole & (np.arange(KEYS) <= np.arange(QUERIES)[:, np.newaxis])
    tensors = [ps.Tensor(x, requires_grad=True) for x in args]
    y, expected = of_layer(*tensors, mask=mask, causal=causal), attention(*args[:3], whole, *args[3:])
    np.testing.assert_allclose(y.value, expected, rtol=1e-11, atol=1e-13)
    weights = normal(*y.shape, seed=8).astype(np.float64)

    def weighted(query, key, value, *projections):
        return np.sum(attention(query, key, value, whole, *projections) * weights)

    if shape in (None, (BATCH, QUERIES, KEYS)):
        for gradient, other in zip(ps.gradients(y, tensors, weights), differences(weighted, args), strict=True):
            np.testing.assert_allclose(gradient, other, rtol=1e-6, atol=1e-7)


@pytest.mark.slow
def test_gradients_of_attention_pass_the_gradient_check():
    of_layer, args = attention_case()
    mask = some(BATCH, QUERIES, KEYS)
    ps.check_gradients(lambda *tensors: of_layer(*tensors, mask=mask), *args)


def test_attention_takes_the_query_for_the_key_and_the_key_for_the_value():
    layer, x, other = nn.MultiHeadAttention(6, 2, 3), normal(2, 4, 6), normal(2, 5, 6, seed=1)
    np.testing.assert_array_equal(layer(x).value, layer(x, x, x).value)
    np.testing.assert_array_equal(layer(x, other).value, layer(x, other, other).value)
    assert np.any(layer(x).value != layer(x, value=x[:, ::-1]).value)
    changed = x.copy()
    changed[:, 2:] += 1
    np.testing.assert_allclose(layer(x, causal=True).value[:, :2], layer(changed, causal=True).value[:, :2], rtol=1e-6)
    parts = [variable.name.removeprefix("multi_head_attention/") for variable in layer.variables]
    assert parts == [f"{part}/{array}" for part, array in PROJECTIONS]
    assert repr(layer) == "MultiHeadAttention('multi_head_attention': 6, 2 heads of 3)"
    plain = nn.MultiHeadAttention(6, 2, 3, bias=False, name="plain")
    assert [variable.shape for variable in plain.variables] == [(6, 6)] * 4
    half = x.astype(np.float16)
    for variable in (plain.query, plain.key, plain.value, plain.output):
        variable.kernel = ps.Tensor(variable.kernel.value.astype(np.float16))
    y = plain(half, mask=some(4, 4))
    assert (y.dtype, np.any(y.value[:, -1]), np.isfinite(y.value).all()) == (np.float16, False, True)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda layer, x: layer(x[0]), ValueError, r"attention': 6, 2 heads of 3\): query must have .* are \(4, 6\), "),
        (lambda layer, x: layer(x, x[:1]), ValueError, r"their shapes are \(2, 4, 6\), \(1, 4, 6\) and \(1, 4, 6\)"),
        (lambda layer, x: layer(x, x, x[:, :3]), ValueError, r"\(2, 4, 6\) and \(2, 3, 6\)"),
        (lambda layer, x: layer(x, x[:, :0]), ValueError, "at least one key"),
        (lambda layer, x: layer(x[..., :5]), ValueError, r"\(batch, queries, 6\)"),
        (lambda layer, x: layer(x, mask=np.ones((4, 4))), TypeError, "mask must be of booleans, .* not float64"),
        (lambda layer, x: layer(x, mask=np.ones((4, 5), bool)), ValueError, r"here \(2, 2, 4, 4\) .* is \(4, 5\)"),
        (lambda layer, x: layer(x, mask=np.ones(4, bool)), ValueError, r"mask must have shape .* its shape is \(4,\)"),
        (lambda layer, x: nn.MultiHeadAttention(6, 0, 3), ValueError, "^MultiHeadAttention: num_heads must be at lea"),
        (lambda layer, x: nn.MultiHeadAttention(6, 2, 1.5), TypeError, "^MultiHeadAttention: key_dim must be one int"),
    ],
)
def test_invalid_queries_keys_and_masks_are_refused(call, error, message):
    with pytest.raises(error, match=message):
        call(nn.MultiHeadAttention(6, 2, 3), normal(2, 4, 6))
