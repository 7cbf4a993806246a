"""Digits recognized by a trained model, without a session or a server.

python examples/softmax_mnist.py --save softmax.safetensors             # trains it
python examples/predict_mnist.py softmax.safetensors
python examples/predict_mnist.py runs/a/best.safetensors                # of --checkpoint-dir runs/a
"""

import argparse

import psworker as ps
from psworker import datasets, ops

parser = argparse.ArgumentParser(description="Recognize the test images of MNIST by a saved softmax regression.")
parser.add_argument("model", help="the safetensors file of examples/softmax_mnist.py")
parser.add_argument("--show", type=int, default=5, help="number of images whose probabilities are printed")
options = parser.parse_args()

mnist = datasets.mnist()
W = ps.Variable(ops.zeros((784, 10)), name="W")
b = ps.Variable(ops.zeros((10,)), name="b")
ps.load(options.model)

with ps.no_grad():
    logits = ops.matmul(mnist.test.image, W) + b
    probabilities = ops.softmax(logits[: options.show]).value
    accuracy = ops.accuracy(logits, mnist.test.label)
for row, label in zip(probabilities, mnist.test.label, strict=False):
    print(f"a {label}: recognized as {row.argmax()} with probability {row.max():.2f}")
print(f"test accuracy: {accuracy:.4f} on {len(mnist.test):,} images")
