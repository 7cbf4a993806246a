"""The network of examples/deep_mnist.py in PyTorch: two convolutions, two poolings, dropout, Adam.

python examples/pytorch/deep_mnist.py                                   # in one process
psworker local --workers 2 examples/pytorch/deep_mnist.py               # a server and two workers
psworker local --workers 3 examples/mixed/deep_mnist.py                 # beside workers of numpy and JAX

Its variables have the names and axes of those of the numpy program, so that workers of both train one model. For that
the features of an image are in the order (height, width, channels) too, in which PyTorch does not have them by itself.
"""

import argparse
import math
import time

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import TensorDataset

import psworker.torch as pst
from psworker import datasets

parser = argparse.ArgumentParser(description="A convolutional network on MNIST, in PyTorch.")
parser.add_argument("--steps", type=int, default=20_000, help="pushes over all workers")
parser.add_argument("--batch-size", type=int, default=50)
parser.add_argument("--learning-rate", type=float, default=1e-4)
parser.add_argument("--report", type=int, default=1_000, help="steps between reports of the test accuracy")
parser.add_argument("--test-images", type=int, default=10_000, help="number of test images in a report")
parser.add_argument("--seed", type=int, default=0, help="seed of initial values and order of the examples")
options = parser.parse_args()


class Net(nn.Module):
    """Two convolutions with poolings, and two dense layers."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 5, padding=2), nn.Conv2d(32, 64, 5, padding=2)
        self.fc1, self.fc2 = nn.Linear(7 * 7 * 64, 1024), nn.Linear(1024, 10)
        for layer in (self.conv1, self.conv2, self.fc1):
            nn.init.trunc_normal_(layer.weight, std=0.1, a=-0.2, b=0.2)
            nn.init.constant_(layer.bias, 0.1)

    def forward(self, images):
        """Logits (n, 10) of images (n, 784)."""
        x = images.reshape(-1, 1, 28, 28)
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc1(x.permute(0, 2, 3, 1).flatten(1)))  # height, width, channels
        return self.fc2(F.dropout(x, 0.5, self.training))


def accuracy(batch):
    """The share of right answers in a batch of numpy arrays."""
    return (model(torch.tensor(batch.image)).argmax(1) == torch.tensor(batch.label)).float().mean()


def report(loss):
    minutes = (time.monotonic() - began) / 60
    model.eval()
    with torch.no_grad():
        right = session.evaluate(accuracy, mnist.test[: options.test_images], 100)
    model.train()
    print(f"step {session.global_step:6,d}: loss {loss:.4f}, test accuracy {right:.4f}, {minutes:.1f} min", flush=True)


mnist = datasets.mnist()
torch.manual_seed(options.seed)
model = Net()
train = TensorDataset(torch.tensor(mnist.train.image), torch.tensor(mnist.train.label))

with pst.session() as session:
    adam = torch.optim.Adam(model.parameters(), lr=options.learning_rate)
    optimizer = pst.distribute(adam, model, variables=pst.layer_variables(model))
    began = time.monotonic()
    next_report = session.global_step // options.report * options.report + options.report
    epochs = math.ceil(options.steps * options.batch_size / len(train)) + 1
    torch.manual_seed(options.seed + session.number)  # each worker draws its own masks of dropout
    for images, labels in pst.loader(train, options.batch_size, epochs, seed=options.seed):
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if session.is_chief and session.global_step >= min(next_report, options.steps):
            next_report += options.report
            report(loss.item())
        if session.global_step >= options.steps:
            break
