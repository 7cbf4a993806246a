"""Job-wide invariants as one shard checks them: servers, places, and the states of all shards."""

import pytest

from psserver.core.members.job_invariants import JobInvariants
from psserver.core.shard import Shard
from pswire.errors import AlreadyRegistered, WrongShard
from pswire.messages import Declaration, Join, Place, Register, Sender
from pswire.tensors.values import TensorSpec
from tests.shard_state import run_step

ME = Sender("w0", 1)
A, B, C = 11, 12, 13  # states of the three shards
ANEW = 99
LOST = "shard {} was started anew and has lost its state; start the whole job again"


def told(shard, *states):
    """The agreement of a shard of three to which the first worker has named these states."""
    agreement = JobInvariants(shard, 3, states[shard])
    agreement.keep(Register(ME, (), states=states))
    return agreement


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize("shard", range(3))
@pytest.mark.parametrize("anew", range(3))
def test_another_state_of_any_shard_is_refused_with_the_name_of_the_shard(shard, anew, dry_run):
    agreement = told(shard, A, B, C)
    states = [A, B, C]
    agreement.check_register(Register(ME, (), dry_run=dry_run, states=tuple(states)))
    states[anew] = ANEW
    with pytest.raises(WrongShard, match=LOST.format(anew)):
        agreement.check_register(Register(ME, (), dry_run=dry_run, states=tuple(states)))
    with pytest.raises(WrongShard, match=LOST.format(anew)):
        agreement.check_join(Join("w0", 1, shard, 3, states=tuple(states)))


def test_a_new_shard_knows_its_own_state():
    agreement = JobInvariants(1, 3, ANEW)
    agreement.check_register(Register(ME, (), states=(A, ANEW, C)))
    with pytest.raises(WrongShard, match=LOST.format(1)):
        agreement.check_register(Register(ME, (), states=(A, B, C)))
    with pytest.raises(WrongShard, match=LOST.format(1)):
        agreement.check_join(Join("w0", 1, 1, 3, states=(A, B, C)))
    agreement.check_join(Join("w0", 1, 1, 3))


def test_the_first_state_counts_and_an_unknown_one_is_not_compared():
    agreement = JobInvariants(0, 3, A)
    agreement.keep(Register(ME, ()))
    agreement.keep(Register(ME, (), states=(A, 0, C)))
    agreement.check_register(Register(ME, (), states=(A, B, 0)))
    agreement.keep(Register(ME, (), states=(A, B, 0)))
    agreement.check_register(Register(ME, (), states=(A, B, C)))
    for states, lost in (((A, B, ANEW), 2), ((A, ANEW, C), 1)):
        with pytest.raises(WrongShard, match=LOST.format(lost)):
            agreement.check_register(Register(ME, (), states=states))


def test_later_states_do_not_change_the_first():
    agreement = told(0, A, B, C)
    agreement.keep(Register(ME, (), states=(A, ANEW, 0)))
    agreement.check_register(Register(ME, (), states=(A, B, C)))


@pytest.mark.parametrize(("shard", "shards"), [(0, 3), (1, 2), (2, 3)])
def test_a_worker_with_another_list_of_servers_is_refused(shard, shards):
    agreement = JobInvariants(1, 3, B)
    agreement.check_join(Join("w0", 0, 1, 3))
    with pytest.raises(WrongShard, match=f"takes this server for shard {shard} of {shards}, it is shard 1 of 3"):
        agreement.check_join(Join("w0", 0, shard, shards))


def test_a_variable_placed_on_another_shard_is_refused():
    agreement = JobInvariants(0, 3, A)
    agreement.keep(Register(ME, (), (Place("W", 1),)))
    agreement.check_register(Register(ME, (), (Place("W", 1), Place("b", 2))))
    with pytest.raises(AlreadyRegistered, match="variable 'W' is on shard 1, worker 'w0' places it on shard 2"):
        agreement.check_register(Register(ME, (), (Place("b", 2), Place("W", 2))))


def test_a_dry_run_or_a_refused_registration_keeps_nothing():
    shard = Shard(0, 2, identity=A)
    joined = run_step(shard, 1, Join("w0", 0, 0, 2), 0.0)[0].answer
    assert joined.state == A
    unknown = (Declaration(TensorSpec("W", (2,)), None),)
    run_step(shard, 2, Register(ME, (), dry_run=True, states=(A, ANEW)), 0.0)
    with pytest.raises(WrongShard):
        run_step(shard, 3, Register(ME, unknown, states=(ANEW, B)), 0.0)
    with pytest.raises(Exception, match="variable 'W' is not registered yet"):
        run_step(shard, 4, Register(ME, unknown, states=(A, ANEW)), 0.0)
    run_step(shard, 5, Register(ME, (), states=(A, B)), 0.0)
    with pytest.raises(WrongShard, match=LOST.format(1)):
        run_step(shard, 6, Register(ME, (), states=(A, ANEW)), 0.0)
