"""Workers that push the same to variables on all shards, over a transport that loses messages, while cuts are taken.

Each push, and each assignment, adds 1 to every element of every variable, so all elements of a cut are equal, unless a
worker was killed in the middle of a push. Every complete cut is kept (`support.shards`). Workers push, are idle,
show numbers as heartbeats do, leave and come back; on request they are killed, and shards lose their state.
"""

import random
from dataclasses import replace
from functools import partial
from unittest import mock

import numpy as np

from pswire import messages as ms
from pswire import placement
from pswire.errors import ParamServerError
from pswire.messages import Outcome
from pswire.optimizers import GradientDescent
from pswire.specs.consistency import Synchronous, parse_consistency, parse_staleness
from pswire.tensors.values import IndexedSlices
from psworker.client.client import Client
from psworker.client.membership import JobChoice
from tests.simulation.unreliable import Link, UnreliableTransport
from tests.support.shards import StoredShard, declared, new_shard, run_step

SHAPE = (4, 2)
NAMES = ("U", "V", "W")
WORKERS = ("w0", "w1", "w2")
ACTIONS = 20  # of each worker


class Killed(BaseException):
    """Ends a worker in the middle of a call."""


class StoredLink(Link):
    """The way to a shard that writes its cuts."""

    def __init__(self, stored, seed, turns):
        super().__init__(stored.shard, seed, turns)
        self.stored = stored

    def lose_state(self):
        """Kills the server, which begins again from its newest checkpoint; open calls end."""
        for reply in self.stored.lose(self._now):
            self._answers[reply.ticket] = reply.answer
        self._shard = self.stored.shard

    def _replies(self, ticket, message):
        replies = self.stored.step(ticket, message, self._now)
        self._shard = self.stored.shard
        return replies


class Run:
    """A run: its shards, and what its workers did.

    `finished` has the workers that make no more changes, `acknowledged` by shard the pushes that it has acknowledged as
    applied, `dropped` counts those that the clients reported as dropped, `shown_while_held` the numbers of cuts that
    they showed while shard 0 held a push.
    """

    def __init__(self, seed, shards, options, *, lease, kill, lose):
        self.random = random.Random(f"{seed}/actions")
        self.new = [partial(new_shard, one, shards, lease, None, *options) for one in range(shards)]
        self.transport = UnreliableTransport(shards, seed, lease, None, *options)
        turns = self.transport.turns
        links = [StoredLink(StoredShard(new), f"{seed}/{one}", turns) for one, new in enumerate(self.new)]
        self.transport.links = links
        self.kill, self.lose = kill, lose
        # a job that all have left begins anew with the first that is back, for whose push there are no others
        self.may_leave = not lose and not isinstance(options[0], Synchronous)
        self.killed = self.losses = self.dropped = self.shown_while_held = 0
        self.finished = set()
        self.acknowledged = [0] * shards
        self.clients = []

    def forget_joins(self, worker):
        """No Join of a process that has ended arrives after that of the next one, which it would replace."""
        for link in self.transport.links:
            link._late = [one for one in link._late if not (isinstance(one, ms.Join) and one.worker == worker)]

    def cuts(self):
        """The numbers of the cuts that all shards have."""
        have = [set(link.stored.checkpoints) for link in self.transport.links]
        return sorted(set.intersection(*have))

    def restored(self, number):
        """New shards from a cut."""
        links = self.transport.links
        return [link.stored.checkpoints[number].restored(new()) for link, new in zip(links, self.new, strict=True)]


def elements(shards):
    """All elements of all variables."""
    return np.concatenate([variable.value.ravel() for shard in shards for variable in shard._store])


def status(shard):
    (reply,) = run_step(shard, 0, ms.Status(), 0.0)
    return reply.answer


def run(seed, shards, *, split=False, consistency="async", staleness="none", lease=1000.0, kill=0.0, lose=0.0):
    """One run. `kill` and `lose`: how probable it is that a call kills its worker, and an action a shard's state."""
    options = parse_consistency(consistency), parse_staleness(staleness)
    result = Run(seed, shards, options, lease=lease, kill=kill, lose=lose)
    with (
        mock.patch.multiple("psworker.client.retry", INITIAL_BACKOFF=0.0, MAX_BACKOFF=0.0),
        mock.patch("psworker.client.heartbeat.Heartbeat.start"),
        mock.patch.object(placement, "SPLIT_BYTES", 0 if split else placement.SPLIT_BYTES),
    ):
        result.transport.turns.run({name: partial(_life, result, name) for name in WORKERS})
    for client in result.clients:
        for shard in range(shards):
            result.acknowledged[shard] += client.membership.steps[shard]
    return result


def _life(result, name):
    """One worker's life, over several incarnations; no state is lost any more when its last ones end."""
    left = ACTIONS
    while left > 0:
        client = Client(_Deadly(result), name, timeout=60, job=JobChoice(resume=True))
        result.clients.append(client)
        try:
            left = _incarnation(result, client, left)
        except Killed:
            result.killed += 1
            left -= 1
            if left <= 0:
                result.finished.add(name)
        result.forget_joins(name)
        if left > 0:
            for _ in range(result.random.randint(0, 5)):
                result.transport.turns.pass_on()


def _incarnation(result, client, left):
    """Acts until it leaves; the number of actions that are left."""
    chance, turns = result.random, result.transport.turns
    client.join()
    variables = [declared(one, np.zeros(SHAPE), GradientDescent(learning_rate=1)) for one in NAMES]
    weights = {whole.name: whole for whole in client.register(variables)}
    client.registration.value_of = lambda name: weights[name].array
    while left > 0:
        left -= 1
        action = chance.random()
        if action < 0.6:
            _push(result, client, weights)
        elif action < 0.65 and not result.kill:  # a half assignment is not counted
            client.assign([ms.Assignment(one, np.ones(SHAPE)) for one in NAMES], add=True)
        elif action < 0.7 and left and result.may_leave:
            client.leave()
            return left
        elif action < 0.8:
            client.report_idle()
            for _ in range(chance.randint(0, 4)):
                turns.pass_on()
                _heartbeat(result, client)
        elif action < 0.95:
            result.transport.links[0]._step(ms.Cut())
        _heartbeat(result, client)
        if chance.random() < result.lose and all(link.stored.checkpoints for link in result.transport.links):
            chance.choice(result.transport.links).lose_state()
            result.losses += 1
    client.report_idle()
    result.finished.add(client.membership.sender.worker)
    while len(result.finished) < len(WORKERS):  # nobody is alone, as in a new job
        turns.pass_on()
        client.pull(NAMES)  # learns of losses
        client.report_idle()
    client.pull(NAMES)
    client.leave()
    return 0


def _push(result, client, weights):
    gradients = []
    for number, (name, whole) in enumerate(weights.items()):
        ones = -np.ones(SHAPE)
        rows = IndexedSlices(ones, np.arange(len(ones)), SHAPE)
        gradients.append(replace(whole, name=name, array=rows if number % 2 else ones))
    pushed = client.push(gradients, 1.0, list(weights))
    while result.random.random() < 0.4:  # others may act while shard 0 holds it
        result.transport.turns.pass_on()
        _heartbeat(result, client)
    pushed = pushed.result()
    result.dropped += pushed.outcome is Outcome.DROPPED
    weights.update({whole.name: whole for whole in pushed.values})


def _heartbeat(result, client):
    """What `psworker.client.heartbeat` does, to some of the shards."""
    member, transport = client.membership, client._calls.transport
    for shard in range(result.transport.shards):
        if result.random.random() < 0.9:
            rejoins, resets = member.rejoins, member.cuts.resets
            try:
                answer = transport.call(shard, member.renewal(shard, 0), 1.0).result()
            except ParamServerError:
                continue
            if rejoins == member.rejoins:
                member.cuts.note(answer.cut)
                if answer.push_held:
                    result.shown_while_held += answer.cut > member.cuts.to_show()
                    member.cuts.note_held_push(answer.cut, resets)


class _Deadly:
    """The transport of a worker, in which a call may kill it."""

    def __init__(self, result):
        self._result, self._transport = result, result.transport
        self.shards = result.transport.shards

    def call(self, shard, message, timeout):
        if self._result.kill and self._result.random.random() < self._result.kill:
            raise Killed
        return self._transport.call(shard, message, timeout)

    def tensor_transport(self, shard):
        return ""

    def close(self):
        """The shards stay."""
