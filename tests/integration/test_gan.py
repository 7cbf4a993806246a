"""The GAN example itself, for a few steps on real MNIST: what each of its pushes moves, and what its images show."""

import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

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


def test_grids_of_the_same_codes_are_saved_every_so_many_steps_and_at_the_end(run, tmp_path, capsys):
    gan = run("--steps", "5", "--every", "2")
    lines = capsys.readouterr().out.splitlines()
    form = re.compile(r"step +(\d+): loss of discriminator ([\d.]+), generator ([\d.]+), (.*)")
    steps, *losses, paths = zip(*(form.fullmatch(line).groups() for line in lines), strict=True)
    assert steps == ("2", "4", "5")
    assert all(0 < float(loss) < 10 for loss in losses[0] + losses[1])
    assert [Path(path) for path in paths] == sorted((tmp_path / "grids").iterdir())
    assert Path(paths[0]).name == "samples-000002.png"

    with Image.open(paths[-1]) as image:
        assert (image.format, image.mode, image.size) == ("PNG", "L", (8 * 28, 8 * 28))
        grid = np.asarray(image)
    with ps.no_grad():
        drawn = gan.generate(64, np.random.default_rng(0)).value
    for number in (0, 7, 10, 63):
        row, column = divmod(number, 8)
        tile = grid[28 * row : 28 * row + 28, 28 * column : 28 * column + 28]
        np.testing.assert_allclose(tile.ravel(), (drawn[number] + 1) / 2 * 255, atol=0.51)
