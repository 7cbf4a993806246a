"""The GAN example itself, for a few steps on real MNIST: the variables and slots that each of its pushes moves."""

import psworker as ps
from psworker.config import WorkerConfig
from psworker.sessions.session import Session
from psworker.transport.embedded import EmbeddedTransport
from tests.shard_state import slots_of

LAYERS = {"discriminator": ("hidden_1", "hidden_2", "logit"), "generator": ("hidden_1", "hidden_2", "image")}
NAMES = [
    [f"{network}/{layer}/{part}" for layer in layers for part in ("kernel", "bias")]
    for network, layers in LAYERS.items()
]


def test_each_networks_step_leaves_every_bit_of_the_other_as_it_was(run_example, tmp_path, monkeypatch):
    transport, push, pushes = EmbeddedTransport(), Session.push, []

    def state(session):
        """Of every variable, version, value and slots on the shard."""
        session.pull()
        slots = {variable.name: slots_of(transport._shard, variable.name) for variable in ps.global_variables()}
        return {
            variable.name: (variable.version, variable.value.tobytes(), *map(bytes, slots[variable.name].values()))
            for variable in ps.global_variables()
        }

    def watched(session, *arguments):
        before = state(session)
        push(session, *arguments)
        after = state(session)
        assert sorted(after) == sorted(before) == sorted(NAMES[0] + NAMES[1]), "nothing is built anew"
        pushes.append([name for name in after if after[name] != before[name]])

    monkeypatch.setattr(Session, "push", watched)
    monkeypatch.setattr(ps, "session", lambda: Session(WorkerConfig(name="w0", timeout=30), transport))
    run_example("gan_mnist", "--output", str(tmp_path / "grids"), "--steps", "5")
    assert pushes == NAMES * 5
