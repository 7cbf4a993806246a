"""The coordinator's space over several shards, of which some know more than shard 0: its predecessor was killed."""

import numpy as np
import pytest

from pswire import messages as ms
from pswire.errors import InvalidMessage
from pswire.optimizers import GradientDescent
from pswire.tensors.values import TensorSpec
from psworker.minimize.shard_space import ShardSpace
from tests.support.shards import ShardsInProcess

DECLARATIONS = [
    ms.Declaration(TensorSpec(name, (2,), "float64"), np.zeros(2), GradientDescent(1.0)) for name in ("a", "b")
]


def test_a_coordinator_goes_on_above_the_terms_and_evaluations_of_all_shards():
    transport = ShardsInProcess(2)
    client, _ = transport.client("w0", *DECLARATIONS)
    transport.call(1, ms.Compute(sender=client.membership.sender, sequence=1, minimization="fit", term=5), 1.0).result()
    begun = ms.Evaluate(
        sender=client.membership.sender, name="fit", evaluation=ms.Evaluation(7, 4, 2), wait=False, term=5
    )
    transport.call(1, begun, 1.0).result()
    client.membership.sequence = 1
    space = ShardSpace(client, ["a", "b"], "fit", 4, 2)
    assert [machine.state().minimizations[0].term for machine in transport.machines] == [6, 6]
    transport.refuse = lambda shard, message: not shard and isinstance(message, ms.Evaluate)
    transport.sent.clear()
    with pytest.raises(InvalidMessage, match="not this one"):
        space.evaluate()
    begun = transport.messages(ms.Evaluate)
    assert [(shard, message.evaluation.number) for shard, message in begun] == [(1, 8), (0, 8)]
