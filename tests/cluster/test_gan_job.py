"""The GAN as a job of real processes: two workers train both networks, and the first of them saves the images."""

import re
from pathlib import Path

import pytest
from PIL import Image

pytestmark = pytest.mark.slow

EXAMPLE = str(Path(__file__).resolve().parents[2] / "examples" / "gan_mnist.py")
STEP = re.compile(r"^(worker-\d) +\| step +(\d+): loss of discriminator [\d.]+, generator [\d.]+, (.*\.png)$")


def test_two_workers_train_both_networks_and_one_of_them_saves_grids(commands):
    options = ("--steps", "40", "--every", "20", "--output", "grids")
    code, out, err = commands.run("psworker", "local", "--workers", "2", EXAMPLE, *options)
    assert code == 0, err
    workers, steps, paths = zip(*(STEP.match(line).groups() for line in out), strict=True)
    assert len(set(workers)) == 1
    assert [int(step) >= least for step, least in zip(steps, (20, 40), strict=True)] == [True, True]
    assert sorted((commands.folder / "grids").iterdir()) == [commands.folder / path for path in paths]
    for path in paths:
        with Image.open(commands.folder / path) as image:
            assert (image.format, image.size) == ("PNG", (224, 224))
    pushes = int(re.match(r"^(\d+) steps in .* 2 workers$", err[-1])[1])
    assert pushes % 2 == 0, "each worker pushes to both networks as often"
    assert pushes >= 80
