"""A convolutional network on MNIST in PyTorch, trained on paramserver: the port of examples/pytorch/plain_mnist.py."""

import argparse

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset

import psworker.torch as pst
from psworker import datasets  # reads the four files of MNIST


class Net(nn.Module):
    """Two convolutions and two dense layers."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 5, stride=2, padding=2)
        self.conv2 = nn.Conv2d(16, 32, 5, stride=2, padding=2)
        self.hidden = nn.Linear(32 * 7 * 7, 128)
        self.out = nn.Linear(128, 10)

    def forward(self, x):
        """Logits (n, 10) of images (n, 1, 28, 28)."""
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        x = F.dropout(F.relu(self.hidden(x.flatten(1))), 0.25, self.training)
        return self.out(x)


def tensors(part):
    return TensorDataset(torch.tensor(part.image).reshape(-1, 1, 28, 28), torch.tensor(part.label))


def accuracy(model, data):
    model.eval()
    with torch.no_grad():
        right = sum((model(x).argmax(1) == y).sum().item() for x, y in DataLoader(data, batch_size=1000))
    return right / len(data)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=100)
    parser.add_argument("--lr", type=float, default=1e-3)
    options = parser.parse_args()
    mnist = datasets.mnist()
    train, test = tensors(mnist.train), tensors(mnist.test)
    torch.manual_seed(1)
    model = Net()
    optimizer = pst.distribute(torch.optim.Adam(model.parameters(), lr=options.lr), model)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.5)
    for epoch in range(options.epochs):
        model.train()
        for x, y in pst.loader(train, batch_size=options.batch_size, seed=epoch):
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        scheduler.step()
        print(f"epoch {epoch + 1}: test accuracy {accuracy(model, test):.4f}", flush=True)


if __name__ == "__main__":
    with pst.session():
        main()
