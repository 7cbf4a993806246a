"""The graph of a loss: ops, scopes, shapes and shards."""

import numpy as np
import pytest

import psworker as ps
from pswire.placement import place
from psworker import nn, ops
from psworker.client.partitions import PlacedVariable
from psworker.summaries import graph
from psworker.summaries.graph import GraphNode, graph_nodes


@pytest.fixture(autouse=True)
def own_variables():
    with ps.collection():
        yield


def placed(shards):
    """Variables as they are placed on this number of shards."""
    specs = {one.name: one.spec for one in ps.global_variables()}
    found = place(specs.values(), shards)
    return lambda name: PlacedVariable(specs[name], found[name])


def nodes_of(loss, shards=1):
    return {node.name: node for node in graph_nodes(loss, ps.global_variables(), placed(shards))}


def test_ops_are_in_the_scopes_of_their_layers_and_variables_on_their_shards():
    fc1, fc2 = nn.Dense(784, 100, activation=ops.relu, name="fc1"), nn.Dense(100, 10, name="fc2")
    x, label = np.ones((5, 784), "f"), np.arange(5)
    loss = ops.softmax_cross_entropy(fc2(ops.dropout(fc1(x), 0.5, True)), label)
    f = "float32"
    # the largest variable first, each on the shard with the fewest bytes
    expected = [
        GraphNode("fc1/kernel", "variable", (), (784, 100), f, 0),
        GraphNode("fc1/bias", "variable", (), (100,), f, 1),
        GraphNode("fc2/kernel", "variable", (), (100, 10), f, 1),
        GraphNode("fc2/bias", "variable", (), (10,), f, 1),
        GraphNode("fc1/matmul", "matmul", ("fc1/kernel",), (5, 100), f),
        GraphNode("fc1/add", "add", ("fc1/matmul", "fc1/bias"), (5, 100), f),
        GraphNode("fc1/relu", "relu", ("fc1/add",), (5, 100), f),
        GraphNode("fc1/dropout", "dropout", ("fc1/relu",), (5, 100), f),
        GraphNode("fc2/matmul", "matmul", ("fc1/dropout", "fc2/kernel"), (5, 10), f),
        GraphNode("fc2/add", "add", ("fc2/matmul", "fc2/bias"), (5, 10), f),
        GraphNode("loss/softmax_cross_entropy", "softmax_cross_entropy", ("fc2/add",), (), f),
    ]
    assert graph_nodes(loss, ps.global_variables(), placed(2)) == expected


def test_the_graph_is_the_same_after_the_backward_pass_has_freed_it():
    W = ps.Variable(np.ones((3, 2)), name="W")
    loss = ops.sum(ops.square(ops.matmul(np.ones((4, 3)), W)))
    before = nodes_of(loss)
    ps.gradients(loss, [W])
    assert nodes_of(loss) == before
    assert [*before] == ["W", "matmul", "loss/square", "loss/sum"]


def test_a_variable_on_several_shards_has_a_node_for_each_partition():
    W = ps.Variable(np.zeros((1_100_001, 1), np.float32), name="big/W")  # above 4 MiB
    found = nodes_of(ops.sum(W), 2)
    parts = [found[f"big/W/part_{number}"] for number in (0, 1)]
    assert [(part.op, part.shard) for part in parts] == [("variable", 0), ("variable", 1)]
    assert [part.shape for part in parts] == [(550_001, 1), (550_000, 1)]
    assert found["big/W"] == GraphNode(
        "big/W", "concatenate", ("big/W/part_0", "big/W/part_1"), (1_100_001, 1), "float32"
    )
    assert found["big/sum"].inputs == ("big/W",)


def test_names_are_unique_beside_scopes_variables_and_each_other():
    with ps.variable_scope("a"):
        v = ps.Variable(np.ones(2), name="add")
        w = ps.Variable(np.ones(2), name="b/w")
    y = v + 1.0
    z = (y + v) + w
    found = nodes_of(ops.sum(ops.tanh(z) + ops.tanh(y)))
    of_ops = ["a/add_1", "a/add_2", "a/b/add", "loss/tanh", "loss/tanh_1", "loss/add", "loss/sum"]
    assert [*found] == ["a/add", "a/b/w", *of_ops]
    assert found["a/add_2"].inputs == ("a/add_1", "a/add")
    assert found["loss/tanh"].inputs == ("a/b/add",)


def test_a_tensor_that_is_no_variable_is_an_input():
    x = ps.Tensor(np.ones(3), requires_grad=True)
    found = [(node.name, node.op) for node in nodes_of(ops.sum(x)).values()]
    assert found == [("loss/input", "input"), ("loss/sum", "sum")]


def test_a_loss_without_a_gradient_and_a_graph_of_too_many_nodes_are_refused(monkeypatch):
    with pytest.raises(ValueError, match="requires no gradient"):
        nodes_of(ops.sum(np.ones(3)))
    y = ps.Variable(np.ones(3), name="W")
    for _ in range(10):
        y = y + 1.0
    monkeypatch.setattr(graph, "MAX_NODES", 11)
    assert len(nodes_of(y)) == 11
    with pytest.raises(ValueError, match="the graph has 12 nodes, and 11 at most are written"):
        nodes_of(ops.sum(y))
