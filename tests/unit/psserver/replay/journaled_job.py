"""Jobs of real servers and workers, in threads, of which the whole journal is kept."""

import math
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace

import numpy as np

from psserver.config import ServerConfig
from psserver.rpc.server import ServerThread
from psserver.storage.folders import available
from pswire.messages import Declaration, Outcome
from pswire.optimizers import Adam, GradientDescent, Momentum
from pswire.specs.checkpoints import EverySteps, JournalSync
from pswire.specs.consistency import parse_consistency, parse_staleness
from pswire.specs.initializers import RowUniform
from pswire.tensors.values import IndexedSlices, TensorSpec
from psworker.client.client import Client
from psworker.client.membership import JobChoice
from psworker.transport.network_transport import NetworkTransport

TIMEOUT = 60  # seconds that no call comes near to
MOST_STEPS = 2000
RATE = 0.125
W = np.linspace(-1, 1, 12).reshape(4, 3)
DECLARED = (
    Declaration(TensorSpec.of("W", W), W, GradientDescent(RATE)),
    Declaration(TensorSpec("V", (30, 4)), np.ones((30, 4), np.float32), Adam(0.01)),
    Declaration(TensorSpec("table", (50, 2)), None, Momentum(0.1, momentum=0.5), RowUniform(-1.0, 1.0, 3)),
)


class Job:
    """A job whose servers keep everything in `folder`.

    `pushes` has by worker and sequence number the gradient of W and the result, as the workers have recorded them.
    """

    def __init__(
        self, folder, consistency="async", staleness="none", shards=1, workers=3, every=12, keep=50, sync="off"
    ):
        self.folder, self.shards, self.workers, self.pushes = folder, shards, [f"w{n}" for n in range(workers)], {}
        self._config = ServerConfig(
            shards=shards,
            lease=60.0,
            consistency=parse_consistency(consistency),
            staleness=parse_staleness(staleness),
            checkpoint_dir=folder,
            checkpoint_every=EverySteps(every),
            keep=keep,
            journal=True,
            keep_journal=True,
            journal_sync=JournalSync(sync),
        )
        self._meeting = threading.Barrier(workers, self._decide)
        self._wanted, self._over = 0, False

    def run(self, steps=20, checkpoints=1):
        """Starts the servers, trains, and stops them in good order; may be called again.

        Each worker makes so many steps, and more until all shards have so many new checkpoints.
        """
        self._wanted, self._over = checkpoints + max(map(len, self._available()), default=0), False
        with ExitStack() as stack:
            servers = [
                stack.enter_context(ServerThread(replace(self._config, shard=shard))) for shard in range(self.shards)
            ]
            addresses = [server.address for server in servers]
            with ThreadPoolExecutor(len(self.workers)) as pool:
                for done in [pool.submit(self._train, addresses, name, steps) for name in self.workers]:
                    done.result(TIMEOUT)
        return self

    def _available(self):
        return [available(self.folder, shard, self.shards) for shard in range(self.shards)]

    def _decide(self):
        """Called while all workers meet."""
        self._over = all(len(there) >= self._wanted for there in self._available())

    def _train(self, addresses, name, steps):
        draws = np.random.default_rng(self.workers.index(name))
        with closing(NetworkTransport(addresses)) as transport:
            client = Client(transport, name, TIMEOUT, job=JobChoice(resume=True))
            incarnation = client.join().incarnation
            client.register(DECLARED)
            values, number = client.pull(["W", "V"]), 0
            while number < steps or not self._over:
                if number % 5 == 0:  # between these meetings they are as asynchronous as the policy allows
                    if "backup" in str(self._config.consistency):
                        client.report_idle()  # the others are fewer than an update needs
                    self._meeting.wait(TIMEOUT)
                number += 1
                assert number < MOST_STEPS
                rows = draws.integers(0, 49, 3)  # the last row is never touched
                rows[2] = rows[0]
                table = replace(
                    client.choose("table", np.unique(rows)),
                    array=IndexedSlices(np.ones((3, 2), np.float32), rows, (50, 2)),
                )
                gradients = [
                    replace(one, array=draws.normal(size=one.array.shape).astype(one.array.dtype)) for one in values
                ]
                loss = math.nan if number == 2 else float(number)
                result = client.push([*gradients, table], loss, ["W", "V"]).result()
                assert result.outcome in (Outcome.APPLIED, Outcome.DROPPED)
                self.pushes[name, incarnation, client.membership.sequence] = gradients[0].array, result
                values = result.values
            client.leave()
            client.close()
