"""Vectors as arrays in this process, with the operations as formulas: what the shards must agree with."""

import json

import numpy as np

from pswire.specs import vectors
from psworker.minimize.space import POINT, POINT_GRADIENT


class NumpySpace:
    """A `Space` over a function of an array, which returns its value and gradient."""

    def __init__(self, function, start):
        self.vectors = {vectors.VARIABLES: np.array(start, float)}
        self.evaluations = 0
        self._function = function

    @property
    def point(self):
        return self.vectors[vectors.VARIABLES]

    def evaluate(self):
        self.evaluations += 1
        value, gradient = self._function(self.point)
        self.vectors[vectors.GRADIENT] = np.array(gradient, float)
        return float(value)

    def accept(self, operations):
        return self.run(
            [vectors.Copy(POINT, vectors.VARIABLES), vectors.Copy(POINT_GRADIENT, vectors.GRADIENT), *operations]
        )

    def save(self, data):
        self.saved = json.dumps(data)

    @np.errstate(all="ignore")
    def run(self, operations):
        return [float(found) for one in operations if (found := self._apply(one)) is not None]

    def _apply(self, operation):
        v = self.vectors
        match operation:
            case vectors.Fill(to, value):
                v[to] = np.full_like(self.point, value)
            case vectors.Copy(to, source):
                v[to] = v[source].copy()
            case vectors.Scale(to, factor):
                v[to] = v[to] * factor
            case vectors.Axpy(to, factor, source):
                v[to] = v[to] + factor * v[source]
            case vectors.Dot(one, other):
                return v[one] @ v[other]
            case vectors.Norm1(one):
                return np.abs(v[one]).sum()
            case vectors.MaxAbs(one):
                return np.abs(v[one]).max()
            case vectors.PseudoGradient(to, point, gradient, l1):
                x, g = v[point], v[gradient]
                at_zero = np.where(g + l1 < 0, g + l1, np.where(g - l1 > 0, g - l1, 0.0))
                v[to] = np.where(x == 0, at_zero, g + l1 * np.sign(x))
            case vectors.KeepSigns(to, source, otherwise):
                signs = np.sign(v[source])
                if otherwise:
                    signs = np.where(signs == 0, np.sign(v[otherwise]), signs)
                v[to] = np.where(np.sign(v[to]) == signs, v[to], 0.0)
        return None
