"""The graph of a model, from the tape of a loss: ops with shapes and dtypes, and variables with their shards. Pure.

The tape has what gradients flow through: inputs and other constants are not in it.
"""

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from psworker.autodiff.tensor import Node, Tensor
from psworker.client.partitions import PlacedVariable
from psworker.model.base_variable import BaseVariable

#: Nodes of a graph at most: larger ones are not drawn by any page, and take seconds.
MAX_NODES = 10_000


@dataclass(frozen=True)
class GraphNode:
    """A node of the graph: its name with its scopes, its op, and the names of the nodes that it takes.

    `shard` is that on which a variable, or a partition of one, lies; None for ops, which workers compute.
    """

    name: str
    op: str
    inputs: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    shard: int | None = None


def graph_nodes(
    loss: Tensor, variables: Iterable[BaseVariable], placed: Callable[[str], PlacedVariable]
) -> list[GraphNode]:
    """The nodes on which `loss` depends, inputs before what takes them.

    An op that takes variables is in the scope that these have in common, as `fc1/matmul` for `fc1/kernel`; another one
    in that of the ops that it takes, or in `loss` if no variable follows it. A variable of several partitions has a
    node for each, and one that joins them. `placed` has the partitions of a variable by its name.

    Raises ValueError if there are no ops, or more than `MAX_NODES`.
    """
    if loss._node is None:
        raise ValueError("a graph needs a loss that depends on variables: this one requires no gradient")
    reached = _reached(loss._node)
    if len(reached) > MAX_NODES:
        raise ValueError(f"the graph has {len(reached):,} nodes, and {MAX_NODES:,} at most are written")
    by_node = {one._node: one for one in variables if one._node is not None}
    nodes = [node for variable in by_node.values() if variable._node in reached for node in _of(variable, placed)]
    names: dict[Node, str] = {node: variable.name for node, variable in by_node.items()}
    taken = {scope for node in nodes for scope in _scopes(node.name)} | {node.name for node in nodes}
    last = _last_ops(reached, by_node)
    for node in reached:
        if node in names:
            continue
        inputs = tuple(dict.fromkeys([names[x] for x, _ in node.edges]))
        scope = "loss/" if node in last else _common([names[x] for x, _ in node.edges if x in by_node] or inputs)
        op = node.op or "input"  # a leaf that is no variable
        names[node] = _free(f"{scope}{op}", taken)
        nodes.append(GraphNode(names[node], op, inputs, node.shape, node.dtype.name))
    return nodes


def _reached(root: Node) -> list[Node]:
    """The nodes from which `root` is computed, and itself, oldest first; a graph may be deeper than Python's stack."""
    reached, stack = {root}, [root]
    while stack:
        for x, _ in stack.pop().edges:
            if x not in reached:
                reached.add(x)
                stack.append(x)
    return sorted(reached, key=attrgetter("order"))


def _last_ops(reached: Sequence[Node], variables: Container[Node]) -> set[Node]:
    """The ops that take no variable, and after which no other does."""
    followed: set[Node] = set()
    for node in reversed(reached):
        inputs = [x for x, _ in node.edges]
        if node in followed or any(x in variables for x in inputs):
            followed |= {node, *inputs}
    return {node for node in reached if node not in followed}


def _of(variable: BaseVariable, placed: Callable[[str], PlacedVariable]) -> list[GraphNode]:
    """The nodes of a variable: of its partitions, and of the whole."""
    name, dtype, partitions = variable.name, variable.dtype.name, placed(variable.name).partitions
    if len(partitions) == 1:
        return [GraphNode(name, "variable", (), variable.shape, dtype, partitions[0].shard)]
    parts = [
        GraphNode(f"{name}/part_{number}", "variable", (), one.spec.shape, dtype, one.shard)
        for number, one in enumerate(partitions)
    ]
    return [*parts, GraphNode(name, "concatenate", tuple(part.name for part in parts), variable.shape, dtype)]


def _scopes(name: str) -> list[str]:
    """`a` and `a/b` of `a/b/c`."""
    parts = name.split("/")
    return ["/".join(parts[:end]) for end in range(1, len(parts))]


def _common(names: Sequence[str]) -> str:
    """The innermost scope that all names have in common, with its slash; "" if they have none."""
    scopes = [name.split("/")[:-1] for name in names]
    shared = [parts[0] for parts in zip(*scopes, strict=False) if len(set(parts)) == 1]
    while shared and any(scope[: len(shared)] != shared for scope in scopes):
        shared.pop()
    return "".join([f"{part}/" for part in shared])


def _free(name: str, taken: set[str]) -> str:
    """The first of `name`, `name_1`, ... that is not taken; it is then."""
    found, count = name, 0
    while found in taken:
        count += 1
        found = f"{name}_{count}"
    taken.add(found)
    return found
