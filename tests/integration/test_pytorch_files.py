"""PyTorch and this library read each other's files: equal tensors, and equal outputs of the same network.

Skipped without PyTorch, which is no dependency: `pip install torch`, by hand, runs them.
"""

import numpy as np
import pytest

import psworker as ps
from pswire.tensors.values import DTYPES
from psworker import nn, ops

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
files = pytest.importorskip("safetensors.torch")

IMAGES = np.random.default_rng(2).normal(size=(4, 8, 8, 3)).astype(np.float32)


def ours():
    """A convolution and two dense layers, as a function of images."""
    conv = nn.Conv2D(3, 5, 3, activation=ops.relu, name="conv")
    hidden, out = nn.Dense(320, 320, activation=ops.relu, name="hidden"), nn.Dense(320, 10, name="out")
    return lambda images: out(hidden(ops.reshape(conv(images), (-1, 320)))).value


class Theirs(torch.nn.Module):
    """The same network; a dense layer is square, so that no shape tells a transposed weight."""

    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 5, 3, padding=1)
        self.hidden, self.out = torch.nn.Linear(320, 320), torch.nn.Linear(320, 10)

    def forward(self, images):
        """Images are (batch, channels, height, width); features are flattened in our order."""
        x = torch.relu(self.conv(images)).permute(0, 2, 3, 1).reshape(-1, 320)
        return self.out(torch.relu(self.hidden(x)))

    def of(self, images):
        with torch.no_grad():
            return self(torch.from_numpy(images).permute(0, 3, 1, 2)).numpy()


def to_theirs(name, tensor):
    """A tensor of our file under PyTorch's name, with PyTorch's order of axes."""
    axes = {2: (1, 0), 4: (3, 2, 0, 1)}.get(tensor.ndim)
    return name.replace("/kernel", ".weight").replace("/bias", ".bias"), tensor if axes is None else tensor.permute(
        axes
    )


def to_ours(name, tensor):
    axes = {2: (1, 0), 4: (2, 3, 1, 0)}.get(tensor.ndim)
    return name, (tensor if axes is None else tensor.permute(axes)).contiguous()


def test_a_network_that_is_saved_here_has_the_same_outputs_in_pytorch(tmp_path):
    ps.set_random_seed(1)
    network, theirs = ours(), Theirs()
    for variable in ps.global_variables():
        variable.assign(variable.value + np.float32(0.01))  # biases are 0 at first
    ps.save(tmp_path / "model.safetensors")
    tensors = files.load_file(tmp_path / "model.safetensors")
    theirs.load_state_dict(dict(to_theirs(*item) for item in tensors.items()))
    np.testing.assert_allclose(theirs.of(IMAGES), network(IMAGES), rtol=1e-4, atol=1e-5)


def test_a_network_that_pytorch_saves_has_the_same_outputs_here(tmp_path):
    torch.manual_seed(1)
    network, theirs = ours(), Theirs()
    files.save_file(dict(to_ours(*item) for item in theirs.state_dict().items()), tmp_path / "model.safetensors")
    assert not np.allclose(theirs.of(IMAGES), network(IMAGES), atol=1e-2)
    ours_of = lambda name: name.replace(".weight", "/kernel").replace(".bias", "/bias")
    ps.load(tmp_path / "model.safetensors", mapping=ours_of)
    np.testing.assert_allclose(network(IMAGES), theirs.of(IMAGES), rtol=1e-4, atol=1e-5)


def test_tensors_of_every_dtype_are_equal_in_both_directions(tmp_path):
    values = {dtype: np.array([[0, 1], [1, 0], [100, 27]]).astype(dtype) for dtype in DTYPES}
    made = [ps.Variable(value, name=name) for name, value in values.items()]
    ps.save(tmp_path / "ours")
    tensors = files.load_file(tmp_path / "ours")
    for name, value in values.items():
        assert tensors[name].dtype == getattr(torch, name)
        np.testing.assert_array_equal(tensors[name].numpy(), value, strict=True)
    files.save_file({name: torch.from_numpy(1 - value if name != "bool" else ~value) for name, value in values.items()},
                    tmp_path / "theirs")  # fmt: skip
    ps.load(tmp_path / "theirs")
    for variable in made:
        expected = 1 - values[variable.name] if variable.name != "bool" else ~values["bool"]
        np.testing.assert_array_equal(variable.value, expected, strict=True)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_pytorchs_tensors_of_16_bits_become_float32_exactly(tmp_path, dtype):
    tensor = torch.randn((7, 3), generator=torch.Generator().manual_seed(3)).to(getattr(torch, dtype))
    files.save_file({"W": tensor}, tmp_path / "file")
    W = ps.Variable(np.zeros((7, 3), np.float32), name="W")
    ps.load(tmp_path / "file")
    np.testing.assert_array_equal(W.value, tensor.float().numpy(), strict=True)
