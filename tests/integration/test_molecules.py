"""The example of molecules: its energies and features against plain formulas, and its error against simple models."""

import math
import re

import numpy as np
import pytest

import psworker as ps
from tests.support.combinations import few_fast

g2 = pytest.importorskip("ase.data.g2", reason="needs ase: pip install ase")
KCAL = 0.0433641  # eV, of a kcal / mol


@pytest.fixture
def example(run_example):
    return run_example("molecules", "--iterations", "2")


def functions_by_loops(example, molecule):
    """The symmetry functions of each atom, an atom, a neighbour and a pair at a time."""

    def near(i, j):
        r = math.dist(positions[i], positions[j])
        return 0.5 * (math.cos(math.pi * r / 3.0) + 1) if r < 3.0 and i != j else 0.0

    def bell(i, j, distance):
        return math.exp(-8 * (math.dist(positions[i], positions[j]) - distance) ** 2) * near(i, j)

    positions = molecule["positions"]
    symbols = re.findall("[A-Z][a-z]?", molecule["symbols"])
    atoms, rows = range(len(symbols)), []
    kinds = [[j for j in atoms if (symbols[j] == "H") == is_hydrogen] for is_hydrogen in (True, False)]
    for i in atoms:
        row = []
        for kind in kinds:
            row += [sum(bell(i, j, distance) for j in kind) for distance in example.DISTANCES]
        for first, second in ((0, 0), (0, 1), (1, 1)):
            for sign in (1, -1):
                total = 0.0
                for j in kinds[first]:
                    for k in kinds[second]:
                        if i in (j, k) or j == k:
                            continue
                        a, b, c = (math.dist(positions[m], positions[n]) for m, n in ((i, j), (i, k), (j, k)))
                        cosine = (a * a + b * b - c * c) / (2 * a * b)  # the law of cosines
                        weight = math.exp(-0.1 * (a * a + b * b + c * c)) * near(i, j) * near(i, k) * near(j, k)
                        total += (1 + sign * cosine) * weight
                row.append(total)
        rows.append(row)
    return rows


@pytest.mark.slow
def test_energies_are_those_of_the_thermochemical_tables_in_ev(example):
    """Of ase's own function, which knows 55 of the molecules; and well-known ones of the others."""
    for name in g2.molecule_names_g2_1:
        known = g2.get_atomization_energy(name) * KCAL
        assert example.atomization_energy(g2.data[name]) == pytest.approx(known, rel=1e-5), name
    assert example.atomization_energy(g2.data["C6H6"]) == pytest.approx(1367.8 * KCAL, abs=0.05)


@pytest.mark.parametrize("name", few_fast(["H2O", "H2", "CH4", "N2O", "CH3CH2SH", "C6H6", "CF3CN"], 3))
def test_symmetry_functions_are_those_of_loops_over_neighbours_and_pairs(example, name):
    molecule = g2.data[name]
    is_hydrogen = np.array([symbol == "H" for symbol in re.findall("[A-Z][a-z]?", molecule["symbols"])])
    positions = np.array(molecule["positions"])
    found = example.symmetry_functions(positions, is_hydrogen)
    np.testing.assert_allclose(found, functions_by_loops(example, molecule), atol=1e-12)
    random = np.random.default_rng(5)
    turned = positions @ np.linalg.qr(random.normal(size=(3, 3)))[0] + random.normal(size=3)
    order = random.permutation(len(positions))
    again = example.symmetry_functions(turned[order], is_hydrogen[order])
    np.testing.assert_allclose(again, found[order], atol=1e-10)


def test_the_energy_of_a_molecule_does_not_depend_on_the_others_of_its_batch(example):
    random = np.random.default_rng(1)
    for network in example.networks:
        for variable in network:
            variable.assign(random.normal(size=variable.shape))
    batch = example.test.take([7, 2, 11])
    apart = [float(example.predict(example.test.take([row])).value[0]) for row in (7, 2, 11)]
    np.testing.assert_allclose(example.predict(batch).value, apart, rtol=1e-12)
    elements = batch.element[0]
    energies = [
        np.tanh(x @ hidden.value + bias.value) @ output.value + constant.value
        for x, (hidden, bias, output, constant) in zip(
            batch.atoms[0], [example.networks[element] for element in elements], strict=True
        )
    ]
    assert sum(energies) == pytest.approx(apart[0], rel=1e-12)


def test_the_loss_is_the_mean_over_the_molecules_and_a_part_of_each_weights_square(example):
    rows, weights = np.arange(len(example.train)), [v.value for network in example.networks for v in network[:3]]
    errors = example.predict(example.train.take(rows)).value - example.train.energy
    penalty = sum(float((value**2).sum()) for value in weights) / 99
    for part in (rows, rows[40:70], rows[:1]):
        expected = np.mean(errors[part] ** 2) + penalty
        assert float(example.loss(example.train.take(part)).value) == pytest.approx(expected, rel=1e-9)


@pytest.mark.slow
def test_gradients_for_all_networks_are_those_of_finite_differences(example):
    """Along a random direction."""
    variables = [variable for network in example.networks for variable in network]
    random, batch, values = np.random.default_rng(2), example.train.take(np.arange(60)), [v.value for v in variables]
    direction = [random.normal(size=variable.shape) for variable in variables]
    slope = sum(np.sum(g * d) for g, d in zip(ps.gradients(example.loss(batch), variables), direction, strict=True))

    def at(step):
        for variable, value, d in zip(variables, values, direction, strict=True):
            variable.assign(value + step * d)
        return float(example.loss(batch).value)

    assert slope == pytest.approx((at(1e-5) - at(-1e-5)) / 2e-5, rel=1e-6)


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [0, 2])
def test_the_error_for_other_molecules_is_far_below_that_of_the_formula_alone(run_example, capsys, seed):
    example = run_example("molecules", "--seed", str(seed))
    *iterations, first, second, third = capsys.readouterr().out.splitlines()
    assert float(iterations[0].split()[3].rstrip(",")) > 2 * float(iterations[-2].split()[3].rstrip(","))
    assert first == "124 of 148 molecules, 99 of them for training"
    error = float(re.fullmatch(r"mean absolute error over 25 others: ([\d.]+) eV", second)[1])
    of_mean, of_formula = map(
        float, re.fullmatch(r"of the mean energy ([\d.]+) eV, of the formula alone .* ([\d.]+) eV", third).groups()
    )
    counts, test = (
        np.array([[np.sum(row == element) for element in range(7)] for row in part.element], float)
        for part in (example.train, example.test)
    )
    energies = np.linalg.pinv(counts) @ example.train.energy
    assert of_formula == pytest.approx(np.mean(np.abs(test @ energies - example.test.energy)), abs=0.01)
    assert of_mean == pytest.approx(np.mean(np.abs(example.train.energy.mean() - example.test.energy)), abs=0.01)
    assert error < 0.6 * of_formula < 0.1 * of_mean
    predicted = example.predict(example.test.take(np.arange(25))).value
    assert error == pytest.approx(np.mean(np.abs(predicted - example.test.energy)), abs=0.01)
