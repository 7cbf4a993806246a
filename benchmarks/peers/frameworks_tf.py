"""A process of TensorFlow's ParameterServerStrategy: `frameworks_tf.py JOB MODEL WORKER COUNTS ADDRESSES`.

`JOB` is chief, worker or ps; `ADDRESSES` those of the chief, the parameter server and the workers. The chief counts the
steps that the workers have made, all in the first place of the file.
"""

import json
import os
import sys
import time

job, model, worker, path, addresses = sys.argv[1:]
chief, server, *workers = addresses.split(",")
CLUSTER = {"chief": [chief], "ps": [server], "worker": workers}
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["TF_NUM_INTRAOP_THREADS"] = "1"
os.environ["TF_CONFIG"] = json.dumps({"cluster": CLUSTER, "task": {"type": job, "index": max(0, int(worker))}})

import numpy as np  # noqa: E402 - after the environment of TensorFlow
import tensorflow as tf  # noqa: E402

WIDTH, LAYERS, HEADS, CONTEXT = 192, 3, 6, 64

DEEP_MNIST = {
    "conv1": (5, 5, 1, 32),
    "conv1_bias": (32,),
    "conv2": (5, 5, 32, 64),
    "conv2_bias": (64,),
    "fc1": (3136, 1024),
    "fc1_bias": (1024,),
    "fc2": (1024, 10),
    "fc2_bias": (10,),
}
LAYER = {
    "norm1": (2, WIDTH),
    "qkv": (WIDTH, 3 * WIDTH),
    "qkv_bias": (3 * WIDTH,),
    "projection": (WIDTH, WIDTH),
    "projection_bias": (WIDTH,),
    "norm2": (2, WIDTH),
    "wide": (WIDTH, 4 * WIDTH),
    "wide_bias": (4 * WIDTH,),
    "narrow": (4 * WIDTH, WIDTH),
    "narrow_bias": (WIDTH,),
}
TRANSFORMER = {"bytes": (256, WIDTH), "places": (CONTEXT, WIDTH), "out": (WIDTH, 256)} | {
    f"{name}_{layer}": shape for layer in range(LAYERS) for name, shape in LAYER.items()
}


def deep_mnist(w):
    """The loss of a batch of random images."""
    x, y = tf.random.uniform((50, 28, 28, 1)), tf.random.uniform((50,), 0, 10, tf.int32)
    x = tf.nn.max_pool2d(tf.nn.relu(tf.nn.conv2d(x, w["conv1"], 1, "SAME") + w["conv1_bias"]), 2, 2, "SAME")
    x = tf.nn.max_pool2d(tf.nn.relu(tf.nn.conv2d(x, w["conv2"], 1, "SAME") + w["conv2_bias"]), 2, 2, "SAME")
    x = tf.nn.dropout(tf.nn.relu(tf.reshape(x, (-1, 3136)) @ w["fc1"] + w["fc1_bias"]), 0.5)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, x @ w["fc2"] + w["fc2_bias"]))


def normalized(x, scale):
    mean, variance = tf.nn.moments(x, [-1], keepdims=True)
    return (x - mean) * tf.math.rsqrt(variance + 1e-5) * (1 + scale[0]) + scale[1]


def transformer(w):
    """The loss of a batch of random bytes."""
    text = tf.random.uniform((8, CONTEXT + 1), 0, 256, tf.int32)
    x = tf.gather(w["bytes"], text[:, :-1]) + w["places"]
    mask = (tf.linalg.band_part(tf.ones((CONTEXT, CONTEXT)), -1, 0) - 1) * 1e9
    for layer in range(LAYERS):
        part = {name: w[f"{name}_{layer}"] for name in LAYER}
        heads = tf.reshape(
            normalized(x, part["norm1"]) @ part["qkv"] + part["qkv_bias"], (8, CONTEXT, 3, HEADS, WIDTH // HEADS)
        )
        q, k, v = tf.unstack(tf.transpose(heads, (2, 0, 3, 1, 4)))
        attention = tf.nn.softmax(tf.matmul(q, k, transpose_b=True) / (WIDTH / HEADS) ** 0.5 + mask) @ v
        mixed = tf.reshape(tf.transpose(attention, (0, 2, 1, 3)), (8, CONTEXT, WIDTH))
        x += mixed @ part["projection"] + part["projection_bias"]
        hidden = tf.nn.gelu(normalized(x, part["norm2"]) @ part["wide"] + part["wide_bias"])
        x += hidden @ part["narrow"] + part["narrow_bias"]
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(text[:, 1:], x @ w["out"]))


SHAPES, LOSS = (DEEP_MNIST, deep_mnist) if model == "deep-mnist" else (TRANSFORMER, transformer)


def train():
    """The chief: it schedules steps, which workers take as they come, until the process is ended."""
    strategy = tf.distribute.ParameterServerStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver())
    with strategy.scope():
        variables = {name: tf.Variable(tf.random.normal(shape, stddev=0.02)) for name, shape in SHAPES.items()}
        slots = [[tf.Variable(tf.zeros(shape)) for shape in SHAPES.values()] for _ in range(2)]
        done = tf.Variable(0, dtype=tf.int64)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

    @tf.function
    def step():
        def one():
            with tf.GradientTape() as tape:
                weights = {name: variable.read_value() for name, variable in variables.items()}
                tape.watch(weights)
                loss = LOSS(weights)
            gradients = tape.gradient(loss, weights)
            for (name, variable), m, v in zip(variables.items(), *slots, strict=True):
                with tf.device(variable.device):
                    tf.raw_ops.ResourceApplyAdam(
                        var=variable.handle,
                        m=m.handle,
                        v=v.handle,
                        beta1_power=0.9,
                        beta2_power=0.99,
                        lr=1e-4,
                        beta1=0.9,
                        beta2=0.999,
                        epsilon=1e-8,
                        grad=tf.convert_to_tensor(gradients[name]),
                        use_locking=False,
                    )
            done.assign_add(1)

        strategy.run(one)

    counts = np.memmap(path, np.int64, "r+")
    scheduled = 0
    while True:
        while scheduled < counts[0] + 8:
            coordinator.schedule(step)
            scheduled += 1
        time.sleep(0.02)
        counts[0] = done.numpy()


if job == "chief":
    train()
else:
    tf.distribute.Server(CLUSTER, job_name=job, task_index=max(0, int(worker)), protocol="grpc").join()
