"""Atomization energies of molecules, each with its own number of atoms, by a network for each element.

The energy of a molecule is the sum of energies of its atoms (J. Behler, M. Parrinello, "Generalized Neural-Network
Representation of High-Dimensional Potential-Energy Surfaces", PRL 98, 146401, 2007). A network for each element takes
symmetry functions of an atom's neighbours, which do not change when the molecule turns or its atoms are numbered in
another order. The atoms of all molecules of a batch are rows of one array; `ops.segment_sum` adds up those of each.

python examples/molecules.py                                            # in one process
psworker local --workers 2 --shards 1 examples/molecules.py             # a server and two workers
psworker run --servers host:port examples/molecules.py                  # one worker of a cluster

Geometries and measured energies are those of the G2 set (L. A. Curtiss et al., JCP 106, 1063, 1997) in the package ase.
Molecules with elements that too few of the others have are left out: Li, Be, B, Na, Al, Si and P.
"""

import argparse
import sys

import numpy as np

import psworker as ps
from psworker import ops

try:
    from ase.data import g2
    from ase.symbols import string2symbols
    from ase.units import kcal, mol
except ImportError:
    sys.exit("this example needs ase: pip install ase")

parser = argparse.ArgumentParser(description="Atomization energies of molecules by a network for each element.")
parser.add_argument("--iterations", type=int, default=150, help="line searches of L-BFGS at most")
parser.add_argument("--units", type=int, default=4, help="hidden units of a network")
parser.add_argument("--decay", type=float, default=1.0, help="factor of the weights' squares, beside those of errors")
parser.add_argument("--seed", type=int, default=0, help="seed of the split and the initial weights")
options = parser.parse_args()

ELEMENTS = "H", "C", "N", "O", "F", "S", "Cl"  # each in 15 molecules or more
CUTOFF = 3.0  # in angstrom: neighbours farther away are not seen
DISTANCES = np.array([0.9, 1.3, 1.7, 2.1])  # of neighbours that a radial function sees best, in angstrom
RADIAL, ANGULAR = 8.0, 0.1  # eta of both kinds of functions, in 1 / angstrom^2
LEAST_DEVIATION = 0.3  # of a feature: one that hardly varies in the training part is not made large


def atomization_energy(molecule):
    """In eV, without vibrations: measured heats of formation, and calculated energies of vibration and heating."""
    atoms = [g2.data[symbol] for symbol in string2symbols(molecule["symbols"])]
    of_atoms = sum(atom["enthalpy"] - atom["thermal correction"] for atom in atoms)
    return (of_atoms - molecule["enthalpy"] + molecule["ZPE"] + molecule["thermal correction"]) * kcal / mol


def symmetry_functions(positions, is_hydrogen):
    """Of each atom, (atoms, 14): 4 radial functions of neighbours of 2 kinds, 2 angular ones of 3 kinds of pairs."""
    count = len(positions)
    kinds = np.stack([is_hydrogen, ~is_hydrogen], axis=1).astype(float)
    vectors = positions[np.newaxis] - positions[:, np.newaxis]
    distances = np.linalg.norm(vectors, axis=2)
    near = np.where(distances < CUTOFF, (np.cos(np.pi * distances / CUTOFF) + 1) / 2, 0) * ~np.eye(count, dtype=bool)
    bells = np.exp(-RADIAL * (distances[..., np.newaxis] - DISTANCES) ** 2)
    radial = np.einsum("ijd,ij,jk->ikd", bells, near, kinds)

    directions = vectors / (distances + np.eye(count))[..., np.newaxis]
    cosines = np.einsum("ijx,ikx->ijk", directions, directions)
    squares = distances[:, :, np.newaxis] ** 2 + distances[:, np.newaxis] ** 2 + distances**2
    weights = np.exp(-ANGULAR * squares) * near[:, :, np.newaxis] * near[:, np.newaxis] * near
    pairs = np.einsum("sijk,ja,kb->iabs", np.stack([1 + cosines, 1 - cosines]) * weights, kinds, kinds)
    angular = pairs[:, [0, 0, 1], [0, 1, 1]]  # two hydrogens; one and another atom; two other atoms
    return np.concatenate([radial.reshape(count, -1), angular.reshape(count, -1)], axis=1)


def read():
    """A dataset of the molecules: ragged columns of the features and elements of their atoms, and energy in eV."""
    columns = {"atoms": [], "element": [], "energy": []}
    for molecule in map(g2.data.get, g2.molecule_names):
        symbols = string2symbols(molecule["symbols"])
        if set(symbols) <= set(ELEMENTS):
            numbers = np.array([ELEMENTS.index(symbol) for symbol in symbols])
            columns["atoms"].append(symmetry_functions(np.array(molecule["positions"]), numbers == 0))
            columns["element"].append(numbers)
            columns["energy"].append(atomization_energy(molecule))
    return ps.Dataset(columns, name="G2")


def scaled(part, train):
    """The dataset with features that have mean 0 and a deviation of about 1 over the atoms of an element in `train`."""
    values = np.empty_like(part.atoms.values)
    for element in range(len(ELEMENTS)):
        known = train.atoms.values[train.element.values == element]
        rows = part.element.values == element
        values[rows] = (part.atoms.values[rows] - known.mean(axis=0)) / np.hypot(known.std(axis=0), LEAST_DEVIATION)
    atoms = ps.Ragged.from_splits(values, part.atoms.row_splits)
    return ps.Dataset({"atoms": atoms, "element": part.element, "energy": part.energy}, name=part.name)


def formulas(part):
    """How many atoms of each element a molecule has: (molecules, elements)."""
    return np.array([np.bincount(row, minlength=len(ELEMENTS)) for row in part.element])


molecules = read()
train, test = (scaled(part, molecules.split(0.8, options.seed)[0]) for part in molecules.split(0.8, options.seed))
constants = np.linalg.lstsq(formulas(train), train.energy)[0]  # energies of atoms, the same in every molecule
random = np.random.default_rng(options.seed)
networks = []
for element, constant in zip(ELEMENTS, constants, strict=True):
    with ps.variable_scope(element):
        hidden = ps.Variable(random.normal(size=(14, options.units)) / 14**0.5, name="hidden")
        bias = ps.Variable(np.zeros(options.units), name="bias")
        output = ps.Variable(random.normal(size=options.units) / 10, name="output")
        networks.append((hidden, bias, output, ps.Variable(constant, name="constant")))


def predict(batch):
    """The energies of the molecules, (molecules,): sums over their atoms, which are grouped by element."""
    energies, owners = [], []
    for element, (hidden, bias, output, constant) in enumerate(networks):
        rows = np.flatnonzero(batch.element.values == element)
        energies.append(ops.matmul(ops.tanh(ops.matmul(batch.atoms.values[rows], hidden) + bias), output) + constant)
        owners.append(batch.atoms.segment_ids[rows])
    return ops.segment_sum(ops.concatenate(energies), np.concatenate(owners), len(batch))


def loss(batch):
    """The mean over the molecules of the squared error, and what does not depend on them: the weight decay."""
    weights = sum(ops.sum(ops.square(variable)) for network in networks for variable in network[:-1])
    return ops.mean(ops.square(predict(batch) - batch.energy)) + options.decay / len(train) * weights


def absolute_error(batch):
    return ops.mean(ops.abs(predict(batch) - batch.energy))


def report(point):
    if point.iterations % 50 == 0:
        print(f"iteration {point.iterations:3}: loss {point.loss:.4f}, gradient {point.gradient:.1e}", flush=True)


with ps.session() as session:
    method = ps.LBFGS(iterations=options.iterations, gradient=1e-4, decrease=1e-6)
    found = session.minimize(loss, train, method, portion=33, on_iteration=report)
    if session.is_chief:
        of_mean = np.abs(test.energy - train.energy.mean()).mean()
        of_formula = np.abs(test.energy - formulas(test) @ constants).mean()
        print(f"{found.iterations} iterations, {found.evaluations} evaluations: {found.reason}")
        print(f"{len(molecules)} of {len(g2.molecule_names)} molecules, {len(train)} of them for training")
        print(f"mean absolute error over {len(test)} others: {session.evaluate(absolute_error, test):.2f} eV")
        print(
            f"of the mean energy {of_mean:.2f} eV, of the formula alone (least squares) {of_formula:.2f} eV", flush=True
        )
