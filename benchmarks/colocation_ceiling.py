"""How well the slow-downs of one kind of card can be told from another kind's at all: a model that saw the answers.

A Gaussian process over directed pairs: what a job does and suffers (by job, family, solo rate, the gain of rate from
one kind to the other and batch size; each alike on both kinds and apart on each), and interactions of both jobs. Its
variances are fitted by maximum likelihood to all pairs of both kinds, the ones to be told included. Nobody has these
in the field: a bar above what it reaches asks for more than such a model can draw from the few pairs, however tuned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize

from analyzer.colocation import MeasuredPair, Solo

Floats = npt.NDArray[np.float64]
_MEAN = 0.6  # of the log slow-down; a constant with a variance of its own is among the parts
_JITTER = 1e-6
_START = 0.003  # of every variance


class Ceiling:
    """The process, fitted to all pairs of both kinds."""

    def __init__(self, pairs: Sequence[MeasuredPair], solos: Sequence[Solo]) -> None:
        self._items = {(s.workload, s.card): i for i, s in enumerate(solos)}
        self._kernels = _kernels(solos)
        self._kind = _alike([s.card for s in solos])
        y = _logs(pairs)
        flat = np.empty((3 + 4 * len(self._kernels), y.size**2), dtype=np.float32)  # by far the largest of all here
        for row, part in zip(flat, self._parts(pairs), strict=True):
            row[:] = part.ravel()

        def loss(logs: Floats) -> tuple[float, Floats]:
            variances = np.exp(logs)
            factor = cho_factor((variances @ flat).reshape(y.size, y.size) + _JITTER * np.eye(y.size), lower=True)
            told = cho_solve(factor, y - _MEAN)
            value = 0.5 * (y - _MEAN) @ told + np.log(np.diag(factor[0])).sum()
            slope = cho_solve(factor, np.eye(y.size)) - np.outer(told, told)
            return float(value), 0.5 * variances * (flat @ slope.ravel())

        start = np.full(len(flat), np.log(_START))
        limits = [(-16.0, 2.0)] * len(flat)
        found = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=limits, options={"maxiter": 80})
        self._variances = np.exp(found.x)

    def told(self, known: Sequence[MeasuredPair], unknown: Sequence[MeasuredPair]) -> Floats:
        """Return the expected log slow-downs of the unknown pairs."""
        n = len(known)
        parts = self._parts([*known, *unknown])
        covariance = np.zeros((n + len(unknown), n + len(unknown)))
        for variance, part in zip(self._variances, parts, strict=True):
            covariance += variance * part
        factor = cho_factor(covariance[:n, :n] + _JITTER * np.eye(n), lower=True)
        # The noise stands on the diagonal alone, so that it is not in the rows of the unknown.
        result: Floats = _MEAN + covariance[n:, :n] @ cho_solve(factor, _logs(known) - _MEAN)
        return result

    def _parts(self, pairs: Sequence[MeasuredPair]) -> Iterator[Floats]:
        """Yield each part of the covariance of pairs, for a variance of 1; the noise last."""
        victim = np.array([self._items[p.victim, p.card] for p in pairs])
        suspect = np.array([self._items[p.suspect, p.card] for p in pairs])
        yield np.ones((len(pairs), len(pairs)))
        yield self._kind[np.ix_(victim, victim)]
        for kernel in self._kernels:
            vv, ss = kernel[np.ix_(victim, victim)], kernel[np.ix_(suspect, suspect)]
            vs, sv = kernel[np.ix_(victim, suspect)], kernel[np.ix_(suspect, victim)]
            # What one direction gains the other loses, or both suffer alike; then the same of both jobs together.
            yield from (vv + ss - vs - sv, vv + ss + vs + sv, vv * ss - vs * sv, vv * ss + vs * sv)
        yield np.eye(len(pairs))


def _kernels(solos: Sequence[Solo]) -> list[Floats]:
    rates = {(s.workload, s.card): s.features["log rate"] for s in solos}
    own = np.array([rates[s.workload, s.card] for s in solos])
    mean = np.array([np.mean([r for (name, _), r in rates.items() if name == s.workload]) for s in solos])
    first = min(s.card for s in solos)
    gain = np.where([s.card == first for s in solos], mean - own, own - mean)
    size = np.array([s.features.get("log size", 0.0) for s in solos])
    kind, family = _alike([s.card for s in solos]), _alike([s.family for s in solos])
    rate = _within(own, kind)
    alike = (
        _alike([s.workload for s in solos]),
        family,
        np.outer(rate, rate),
        _near(rate, 0.6),
        _near(_within(gain, kind), 0.6),
        _near(rate, 1.0) * _near(_within(gain, kind), 1.0),
        family * _near(size, 1.4),
    )
    return [kernel * where for kernel, where in product(alike, (np.ones_like(kind), kind))]


def _alike(labels: Sequence[str]) -> Floats:
    return np.array([[float(one == other) for other in labels] for one in labels])


def _near(values: Floats, length: float) -> Floats:
    return np.asarray(np.exp(-0.5 * ((values[:, None] - values) / length) ** 2))


def _within(values: Floats, kind: Floats) -> Floats:
    """Return values in standard deviations from the mean of their kind."""
    mean = kind @ values / kind.sum(axis=1)
    return np.asarray((values - mean) / np.sqrt(kind @ (values - mean) ** 2 / kind.sum(axis=1)))


def _logs(pairs: Sequence[MeasuredPair]) -> Floats:
    return np.log(np.array([p.slowdown for p in pairs], dtype=np.float64))
