"""Pushes over the network as a journal has them: the bytes that came, from which the server begins again."""

from contextlib import closing

import numpy as np

from psserver.config import ServerConfig
from psserver.core.shard import Shard
from psserver.rpc.server import ServerThread
from psserver.storage import records
from psserver.storage.find_start import find_start
from pswire.messages import Declaration, Gradient, Join, Pull, Push, Register, Sender
from pswire.optimizers import Adam
from pswire.tensors.compression import to_16_bits
from pswire.tensors.values import IndexedSlices, TensorSpec
from psworker.transport.network_transport import NetworkTransport
from tests.support.commands import BOUND
from tests.support.files import copy_of_one_moment

RANDOM = np.random.default_rng(3)
ZEROS = {"W": np.zeros((40, 300), np.float32), "b": np.zeros((), np.float32), "half": np.zeros(7, np.float16)}


def gradients(number):
    """Plain arrays, rows and packed ones, small and of many bytes."""
    W = RANDOM.normal(size=(40, 300)).astype(np.float32)
    if number % 3 == 1:
        W = IndexedSlices(W[:5], np.array([0, 3, 4, 20, 39]), W.shape)
    elif number % 3 == 2:
        W = to_16_bits(W, "float16")
    arrays = {"W": W, "b": np.float32(RANDOM.normal()), "half": RANDOM.normal(size=7).astype(np.float16)}
    return tuple([Gradient(name, number, np.asarray(one) if name == "b" else one) for name, one in arrays.items()])


def values(transport, sender):
    pulled = transport.call(0, Pull(sender=sender, names=tuple(ZEROS)), BOUND).result()
    return {one.name: one.array for one in pulled.values}


def test_a_server_begins_again_from_the_bytes_of_pushes_that_came_over_the_network(tmp_path, monkeypatch):
    encoded, encode = [], records.encode
    monkeypatch.setattr(records, "encode", lambda message: encoded.append(type(message)) or encode(message))
    config = ServerConfig("127.0.0.1:0", checkpoint_dir=tmp_path / "one", journal=True, shared_memory=False)
    with ServerThread(config) as server, closing(NetworkTransport([server.address])) as transport:
        joined = transport.call(0, Join(worker="w0", name_key=b"key" * 8), BOUND).result()
        sender = Sender("w0", joined.incarnation)
        declared = [Declaration(TensorSpec.of(name, one), one, Adam(0.1)) for name, one in ZEROS.items()]
        transport.call(0, Register(sender=sender, declarations=tuple(declared)), BOUND).result()
        for number in range(9):
            push = Push(sender=sender, sequence=number + 1, gradients=gradients(number), loss=float(number))
            assert transport.call(0, push, BOUND).result().global_step == number + 1
        before = values(transport, sender)
        copy = copy_of_one_moment(tmp_path / "one", tmp_path / "two")  # as after a kill
    assert Push not in encoded, "the bytes that came were written"
    shard = Shard()
    find_start(copy, 0, 1).restore(shard, 0.0)
    assert shard.global_step == 9
    for name, value in before.items():
        np.testing.assert_array_equal(shard.variables[name].value, value)
        assert np.any(value), name
