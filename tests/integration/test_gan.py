"""The GAN example itself, for a few steps on real MNIST: what each of its pushes moves, and what its images show."""

from functools import partial

import pytest

import psworker as ps
from psworker.config import WorkerConfig
from psworker.sessions.session import Session
from psworker.transport.embedded import EmbeddedTransport
from tests.shard_state import slots_of

LAYERS = {"generator": ("hidden_1", "hidden_2", "image"), "discriminator": ("hidden_1", "hidden_2", "logit")}
NAMES = {
    network: [f"{network}/{layer}/{part}" for layer in layers for part in ("kernel", "bias")]
    for network, layers in LAYERS.items()
}


@pytest.fixture
def run(run_example, tmp_path):
    """A function that runs the example with these arguments and gives its module."""
    return partial(run_example, "gan_mnist", "--output", str(tmp_path / "grids"))


@pytest.fixture
def pushes(monkeypatch):
    """Fills up with the names of what each push has moved: of every variable, value, version or slots on the shard."""
    transport, push, found = EmbeddedTransport(), Session.push, []

    def state(session):
        session.pull()
        return {
            variable.name: (
                variable.version,
                variable.value.tobytes(),
                {slot: array.tobytes() for slot, array in slots_of(transport._shard, variable.name).items()},
            )
            for variable in ps.global_variables()
        }

    def watched(session, *arguments):
        before = state(session)
        push(session, *arguments)
        after = state(session)
        assert list(after) == list(before) == NAMES["generator"] + NAMES["discriminator"], "nothing is built anew"
        found.append([name for name in after if after[name] != before[name]])

    monkeypatch.setattr(Session, "push", watched)
    monkeypatch.setattr(ps, "session", lambda: Session(WorkerConfig(name="w0", timeout=30), transport))
    return found


def test_each_networks_step_leaves_every_bit_of_the_other_as_it_was(run, pushes):
    run("--steps", "5")
    assert pushes == [NAMES["discriminator"], NAMES["generator"]] * 5
