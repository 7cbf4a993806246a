"""A transport to shards in the test's process, which records messages and answers, and refuses or loses some."""

import itertools
import math
import threading
from functools import partial

from pswire.errors import InvalidMessage, ParamServerError, TimedOut
from pswire.messages import Cut, Status
from pswire.specs.consistency import Asynchronous, IgnoreStaleness
from psworker.client.client import Client
from psworker.client.membership import JobChoice
from psworker.transport import Future
from tests.support.new_shard import new_shard
from tests.support.shard_state import run_step
from tests.support.stored_shard import StoredShard

PATIENCE = 10.0  # seconds to wait for an answer that depends on another thread


class ShardsInProcess:
    """A transport to shards in this process; thread-safe, so that pushes can wait for each other.

    `sent` and `answers` have (shard, message), in order, `ended` the shards whose calls have ended. `refuse` and `lose`
    are called for each message: whether it is refused, or its answer lost. `now` are seconds on the shards' clock. With
    `stored`, shards write each cut, and go back to one.
    """

    def __init__(
        self,
        shards=3,
        consistency=Asynchronous(),  # noqa: B008
        staleness=IgnoreStaleness(),  # noqa: B008
        lease=math.inf,
        *,
        stored=False,
    ):
        self.shards = shards
        self._new = partial(new_shard, shards=shards, lease=lease, consistency=consistency, staleness=staleness)
        self.machines = [self._new(shard) for shard in range(shards)]
        self.stored = [StoredShard(partial(self._new, shard)) for shard in range(shards)] if stored else []
        self.sent, self.answers, self.ended, self._answers = [], [], [], {}
        self.refuse = self.lose = lambda shard, message: False
        self.now = 0.0
        self._changed = threading.Condition()  # guards all
        self._tickets, self._identities = itertools.count(1), itertools.count(1)

    def restart(self, *shards):
        """Starts shards without state, each with an identity different from any before."""
        for shard in shards:
            self.machines[shard] = self._new(shard, identity=next(self._identities))

    def lose_state(self, *shards):
        """Kills stored shards, which begin again from their newest checkpoints."""
        with self._changed:
            for shard in shards:
                for reply in self.stored[shard].lose(self.now):
                    self._answers.setdefault(reply.ticket, reply.answer)
                self.machines[shard] = self.stored[shard].shard
            self._changed.notify_all()

    def show_cuts(self, *clients, begin=False):
        """What the heartbeats of these clients do: they learn of the last cut and show it to all shards."""
        number = self.call(0, Cut(), 1.0).result().number if begin else self.machines[0].cuts.number
        for client in clients:
            client.membership.cuts.note(number)
            for shard in range(self.shards):
                self.call(shard, client.membership.renewal(shard, 0), 1.0).result()
        return number

    def call(self, shard, message, timeout):
        with self._changed:
            self.sent.append((shard, message))
            ticket = next(self._tickets)
            try:
                if self.refuse(shard, message):
                    raise InvalidMessage("not this one")
                self._step(shard, ticket, message)
                if self.lose(shard, message):
                    raise TimedOut("no answer")
            except ParamServerError as error:
                self._answers[ticket] = error
        return Future(lambda: self._result(shard, ticket, min(timeout, PATIENCE)))

    def _result(self, shard, ticket, timeout):
        with self._changed:
            self._changed.wait_for(lambda: ticket in self._answers, timeout)
            answer = self._answers.pop(ticket, TimedOut("no answer"))
            self.ended.append(shard)
        if isinstance(answer, ParamServerError):
            raise answer
        self.answers.append((shard, answer))
        return answer

    def _step(self, shard, ticket, message):
        if self.stored:
            replies = self.stored[shard].step(ticket, message, self.now)
            self.machines[shard] = self.stored[shard].shard
        else:
            replies = run_step(self.machines[shard], ticket, message, self.now)
        for reply in replies:
            self._answers.setdefault(reply.ticket, reply.answer)
        self._changed.notify_all()

    def tensor_transport(self, shard):
        return f"transport {shard}"

    def client(self, worker="w0", *declarations, encoder=None, job=JobChoice(resume=True)):  # noqa: B008 - frozen
        """A client that has joined, and by name what it has registered."""
        client = Client(self, worker, 60, encoder, job)
        client.join()
        return client, {whole.name: whole for whole in (client.register(declarations) if declarations else ())}

    def close(self):
        """The shards stay: other clients use them."""

    def sleep(self, seconds):
        """Lets time pass on the shards' clock."""
        with self._changed:
            self.now += seconds
            for shard in range(self.shards):
                self._step(shard, 0, self.machines[shard].due(self.now))

    def messages(self, kind):
        """(shard, message) of all messages of this kind."""
        return [(shard, message) for shard, message in self.sent if isinstance(message, kind)]

    def status(self, shard):
        (reply,) = run_step(self.machines[shard], 0, Status(), self.now)
        return reply.answer
