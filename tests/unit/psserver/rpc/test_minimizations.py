"""An evaluation over gRPC: calls that wait are answered, and each caller has the role and the token for it."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from psserver.config import ServerConfig
from psserver.rpc.server import ServerThread
from pswire import errors
from pswire import messages as ms
from pswire.codec import encode
from pswire.specs.vectors import GRADIENT, Dot
from pswire.tensors.transport import InlineSender
from tests.support.servers import Client


def test_an_evaluation_over_grpc_waits_for_its_last_portion_and_has_the_sum_of_all():
    with ServerThread(ServerConfig(lease=60.0)) as server, ThreadPoolExecutor(2) as threads:
        clients = chief, other = Client(server.address), Client(server.address)
        a, b = chief.join("a"), other.join("b")
        chief.register(a, W=np.zeros(3))
        evaluation = ms.Evaluation(1, 5, 2)
        waiting = threads.submit(chief.unary, ms.Evaluate(sender=a, name="fit", evaluation=evaluation, term=1))
        losses, sequence = {0: 0.25, 1: 0.5, 2: np.inf}, {a: 0, b: 0}
        for sender, client in ((a, chief), (b, other), (a, chief)):
            while (portion := client.unary(ms.TakePortion(sender=sender, name="fit", evaluation=1)).portion) is None:
                pass  # until it has begun: each call waits
            claim = ms.ClaimPortion(
                sender=sender, name="fit", evaluation=1, portion=portion.number, loss=losses[portion.number]
            )
            assert client.unary(claim).counted
            sequence[sender] += 1
            gradient = ms.Assignment("W", np.full(3, 2.0**portion.number))
            counted = ms.CountedPortions("fit", 1, (portion.number,))
            pushed = client.unary(
                ms.Assign(sender=sender, sequence=sequence[sender], assignments=(gradient,), add=True, portions=counted)
            )
            assert pushed.outcome is ms.Outcome.APPLIED
        assert waiting.result(30) == ms.Evaluated(number=1, counted=3, loss=np.inf)
        computed = chief.unary(ms.Compute(sender=a, sequence=9, names=("W",), operations=(Dot(GRADIENT, GRADIENT),)))
        assert sum(computed.results) == 3 * (1 + 2 + 4) ** 2
        (status,) = other.status().minimizations
        assert (status.counted, status.portions, status.out, status.claimed) == (3, 3, 0, 0)
        waiting = threads.submit(other.unary, ms.TakePortion(sender=b, name="fit", evaluation=1))
        assert (
            chief.unary(ms.Evaluate(sender=a, name="fit", end='{"reason": "done"}', term=1)).end == '{"reason": "done"}'
        )
        assert waiting.result(30).end == '{"reason": "done"}'
        for message in (
            ms.TakePortion(sender=a, name="fit"),
            ms.ClaimPortion(sender=a, name="fit", evaluation=1, portion=0, loss=0.0),
            ms.Evaluate(sender=a, name="fit"),
        ):
            with pytest.raises(errors.ParamServerError, match="with the token of"):
                other.send(type(message).__name__, encode(message, InlineSender()), other.token(b))
        for client in clients:
            client.channel.close()
