"""Proofs that shard 0 has decided something: which answers have one, for what, and until when."""

from dataclasses import replace

import numpy as np
import pytest

from psserver.rpc.identity import Identity
from pswire import messages as ms
from pswire.errors import InvalidMessage
from pswire.optimizers import GradientDescent
from pswire.specs.consistency import DropStalePushes, Synchronous
from tests.shard_driver import A, B, ShardDriver, declared

W = declared("W", np.zeros(2), GradientDescent(1.0))


class Server:
    """One of two shards, behind the proofs of a job's key."""

    def __init__(self, shard, **options):
        self.driver, self._identity = ShardDriver(workers="", shard=shard, shards=2, **options), Identity(b"key")
        job = ms.Job(shard)  # shard 0 begins job 1, and shard 1 is told its number
        for sender in (A, B):
            self.driver.answer(
                ms.Join(worker=sender.worker, incarnation=sender.incarnation, shard=shard, shards=2, job=job)
            )
        self.answer(ms.Register(sender=A, declarations=(W,), places=(ms.Place("W", 0),)))

    def answer(self, message):
        self.check(message)
        return self._identity.proved(message, self.driver.answer(message), self.driver.shard)

    def check(self, message):
        self._identity.check(message, None, self.driver.shard)

    def refuse(self, message):
        with pytest.raises(InvalidMessage, match="shard 0 has not decided this"):
            self.check(message)


def push(sender=A, sequence=1, **fields):
    return ms.Push(sender=sender, sequence=sequence, gradients=(ms.Gradient("W", 0, np.ones(2)),), **fields)


ANSWERED = {
    "Push": push(B, 1),
    "Pull": ms.Pull(sender=B, names=("W",)),
    "Assign": ms.Assign(sender=B, sequence=1, assignments=(ms.Assignment("W", np.ones(2)),)),
    "Register": ms.Register(sender=B, declarations=(W,), places=(ms.Place("W", 0),)),
}


@pytest.mark.parametrize("kind", ANSWERED)
def test_every_answer_with_changes_that_other_shards_may_not_have_proves_them(kind):
    first, second = [Server(shard, staleness=DropStalePushes(5)) for shard in (0, 1)]
    first.answer(push(shards=(1,)))
    frontier = first.answer(ANSWERED[kind]).frontier
    assert ms.ChangeId(A, 1, (1,)) in frontier.undelivered
    second.check(ms.Pull(sender=B, names=("W",), after=frontier.undelivered, after_proof=frontier.proof))


def test_a_proof_is_for_the_changes_it_was_given_for_and_not_for_others_nor_after_the_shards_went_back():
    first, second = [Server(shard, staleness=DropStalePushes(5)) for shard in (0, 1)]
    first.answer(push(shards=(1,)))
    frontier = first.answer(ms.Pull(sender=B, names=("W",))).frontier
    (change,) = frontier.undelivered
    pull = ms.Pull(sender=B, names=("W",), after=(change,), after_proof=frontier.proof)
    second.check(pull)
    others = [replace(change, shards=()), replace(change, sequence=2), replace(change, sender=B)]
    others.append(replace(change, sender=replace(A, incarnation=2)))
    for after in [*[(one,) for one in others], (change, change)]:
        for message in (pull, push(B), ms.Assign(sender=B, sequence=1, assignments=())):
            second.refuse(replace(message, after=after, after_proof=frontier.proof))
    second.driver.shard.step(0, ms.Restore(2, 0), 0.0)
    second.refuse(pull)


def test_a_proof_of_an_update_is_for_its_number_and_pushes_and_not_after_the_shards_went_back():
    first, second = [Server(shard, consistency=Synchronous(2)) for shard in (0, 1)]
    first.driver.step(push(A, 1, shards=(1,)), 7)
    message = push(B, 1, shards=(1,))
    group = first.answer(message).group
    second.check(replace(message, group=group))
    fewer = tuple([replace(one, shards=()) for one in group.members])
    for other in (replace(group, number=group.number + 1), replace(group, members=fewer)):
        second.refuse(replace(message, group=other))
    second.driver.shard.step(0, ms.Restore(2, 0), 0.0)
    second.refuse(replace(message, group=group))
