"""Two models in PyTorch with random data, for one thread, and the counter of a worker's steps: for `frameworks.py`."""

import sys

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812


class DeepMnist(nn.Module):
    """The convolutional network of examples/deep_mnist.py: 3,274,634 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 5, padding=2)
        self.conv2 = nn.Conv2d(32, 64, 5, padding=2)
        self.fc1 = nn.Linear(64 * 7 * 7, 1024)
        self.fc2 = nn.Linear(1024, 10)

    def forward(self, x):
        """Logits of images."""
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc2(F.dropout(F.relu(self.fc1(x.flatten(1))), 0.5, self.training))

    @staticmethod
    def batch():
        """Random images and labels."""
        return torch.rand(50, 1, 28, 28), torch.randint(0, 10, (50,))

    def loss(self, x, y):
        """The mean loss."""
        return F.cross_entropy(self(x), y)


class Transformer(nn.Module):
    """A language model of bytes: 3 layers of width 192 with 6 heads, a context of 64; 1,410,304 parameters."""

    WIDTH, LAYERS, HEADS, CONTEXT = 192, 3, 6, 64

    def __init__(self) -> None:
        super().__init__()
        self.bytes = nn.Embedding(256, self.WIDTH)
        self.places = nn.Embedding(self.CONTEXT, self.WIDTH)
        layer = nn.TransformerEncoderLayer(
            self.WIDTH, self.HEADS, 4 * self.WIDTH, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, self.LAYERS, enable_nested_tensor=False)
        self.out = nn.Linear(self.WIDTH, 256, bias=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(self.CONTEXT), persistent=False)

    def forward(self, x):
        """Logits of the next bytes."""
        x = self.bytes(x) + self.places.weight
        return self.out(self.layers(x, self.mask, is_causal=True))

    @classmethod
    def batch(cls):
        """Random texts, and the same one byte on."""
        text = torch.randint(0, 256, (8, cls.CONTEXT + 1))
        return text[:, :-1], text[:, 1:]

    def loss(self, x, y):
        """The mean loss."""
        return F.cross_entropy(self(x).flatten(0, 1), y.flatten())


MODELS = {"deep-mnist": DeepMnist, "transformer": Transformer}


def model_of(name):
    """The model, with the same values in every process, which then differ in their random numbers."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return MODELS[name]()


def counter(path, worker):
    """A function that counts one step of this worker in the file that the benchmark reads."""
    counts = np.memmap(path, np.int64, "r+")
    torch.manual_seed(worker + 1)

    def count() -> None:
        counts[worker] += 1

    return count


def forever(model, optimizer, worker, path, loss_of=None):
    """Trains until the process is ended."""
    count, loss_of = counter(path, worker), loss_of or model.loss
    while True:
        loss_of(*model.batch()).backward()
        optimizer.step()
        optimizer.zero_grad()
        count()


def arguments():
    """System, model, worker, file of counts and address, as `frameworks.py` gives them."""
    system, model, worker, path, address = sys.argv[1:]
    return system, model_of(model), int(worker), path, address
