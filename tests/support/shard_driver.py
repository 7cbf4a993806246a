"""A shard driven by hand: joined workers, declared variables, and one call for each message."""

import numpy as np
import pytest

from pswire.messages import Declaration, Gradient, Join, Push, Register, Sender
from pswire.tensors.values import IndexedSlices, TensorSpec
from tests.support.new_shard import new_shard
from tests.support.shard_state import run_step, state_of

A, B = Sender("a", 1), Sender("b", 1)


def declared(name, value, optimizer=None):
    """A variable with its value."""
    value = np.asarray(value)
    return Declaration(TensorSpec.of(name, value), value, optimizer)


class ShardDriver:
    """A shard, its clock, and the workers that have joined it; the first one declares the variables."""

    def __init__(self, *declarations, workers="ab", **options):
        self.shard, self.now, self.sequences = new_shard(**options), 0.0, {}
        for worker in workers:
            self.answer(Join(worker=worker, incarnation=0, shard=self.shard.shard, shards=self.shard.shards))
        if declarations:
            self.answer(Register(sender=A, declarations=declarations))

    def step(self, message, ticket=0, **options):
        """The answers by ticket, when the tasks are done."""
        return {reply.ticket: reply.answer for reply in run_step(self.shard, ticket, message, self.now, **options)}

    def answer(self, message, ticket=0, **options):
        """The answer to this message; None if it is pending."""
        return self.step(message, ticket, **options).get(ticket)

    def push(self, worker="a", ticket=0, loss=None, pull=(), version=0, sequence=None, **gradients):
        """The answers by ticket to a push with the worker's next sequence number."""
        self.sequences[worker] = sequence or self.sequences.get(worker, 0) + 1
        arrays = {name: one if isinstance(one, IndexedSlices) else np.asarray(one) for name, one in gradients.items()}
        chosen = tuple(Gradient(name, version, array) for name, array in arrays.items())
        return self.step(
            Push(sender=Sender(worker, 1), sequence=self.sequences[worker], gradients=chosen, loss=loss, pull=pull),
            ticket,
        )

    def refuse(self, message, error, match):
        """The message must be refused with this error, and change nothing."""
        before = state_of(self.shard)
        with pytest.raises(error, match=match) as refusal:
            self.shard.step(0, message, self.now)
        assert type(refusal.value) is error
        assert state_of(self.shard) == before
