"""Bayesian low-rank completion of directed pair effects, with side information: who slows whom, never seen together.

An item is a workload on one kind of card. The effect of suspect s on victim v (log slow-down) is

    y_vs = h_vs . g + a_v + b_s + u_v . w_s + noise,

with covariates h of the pair itself (a constant first) and a Bayesian probabilistic matrix factorisation (Salakhutdinov
and Mnih, 2008) whose factors lean on side information as in Macau (Simm et al., 2017): z_j = (a, u, b, w)_j is
Normal(B' x_j, S). Two things differ: what a workload suffers (a, u) and what it does to others (b, w) share one
covariance S, so that one role tells of the other; and the noise is Student's t, as some measurements are simply wrong.
Drawn by Gibbs sampling with a seeded generator: same input, same answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

RANK = 4
_FREEDOM = 5.0  # of Student's t
_EFFECT_VARIANCE = 0.04  # prior of what a workload suffers or does by itself: about 20 % of slow-down
_FACTOR_VARIANCE = 0.06  # prior of a factor: four make interactions of about 12 %
_NOISE_VARIANCE = 0.004  # prior of the noise: about 6 %
_NOISE_WEIGHT = 2.0  # how many measurements that prior is worth
_RIDGE = (2.0, 2.0)  # Gamma prior of how much weaker a group of side information is than the items' own part


@dataclass(frozen=True, slots=True)
class Effects:
    """Directed effects as measured.

    Attributes:
        victim: item of each victim.
        suspect: item of each suspect.
        value: logarithm of the slow-down.
        error: its standard error; 0 where it is exact.
        covariates: (effects, covariates), as for the wanted pairs.
    """

    victim: Ints
    suspect: Ints
    value: Floats
    error: Floats
    covariates: Floats


@dataclass(frozen=True, slots=True)
class Wanted:
    """Directed pairs whose effect is wanted.

    Attributes:
        victim: item of each victim.
        suspect: item of each suspect.
        covariates: (pairs, covariates).
        measured: (pairs, effects), the weight of each measured effect of the very pair, rows summing to 1 or empty.
    """

    victim: Ints
    suspect: Ints
    covariates: Floats
    measured: csr_array


@dataclass(frozen=True, slots=True)
class Prior:
    """What is believed of the covariates' weights before any pair was seen: means and standard deviations."""

    mean: Floats
    deviation: Floats


def complete(
    seen: Effects,
    wanted: Wanted,
    side: Sequence[Floats],
    prior: Prior,
    *,
    sweeps: int = 400,
    burn_in: int = 150,
    seed: int = 0,
    rank: int = RANK,
) -> Floats:
    """Return draws of the log slow-down of each wanted pair: shape (sweeps - burn_in, pairs).

    Of a pair that was measured it is the effect behind the measurement; of others the expected one.

    Args:
        seen: what was measured; may be empty.
        wanted: the pairs asked about.
        side: groups of side information, each (items, columns); a group may have no column.
        prior: of the covariates' weights.
        sweeps: of the sampler in all.
        burn_in: of them thrown away.
        seed: of the generator.
        rank: of the interaction.
    """
    sampler = _Sampler(seen, side, prior, rank, np.random.default_rng(seed))
    draws = np.empty((sweeps - burn_in, wanted.victim.size))
    direct = np.diff(wanted.measured.indptr) > 0
    for sweep in range(sweeps):
        sampler.sweep()
        if sweep >= burn_in:
            expected = wanted.covariates @ sampler.weights + sampler.between(wanted.victim, wanted.suspect)
            draws[sweep - burn_in] = np.where(direct, wanted.measured @ sampler.y, expected)
    return draws


class _Sampler:
    """State of the Gibbs chain: `z` holds (a, u, b, w) of every item."""

    def __init__(
        self, seen: Effects, side: Sequence[Floats], prior: Prior, rank: int, rng: np.random.Generator
    ) -> None:
        self.rng = rng
        self.seen = seen
        self.prior = prior
        self.width = rank + 1
        self.x = np.concatenate(list(side), axis=1)
        self.groups = np.repeat(np.arange(len(side)), [part.shape[1] for part in side])
        self.gram = self.x.T @ self.x
        items, n = self.x.shape[0], seen.value.size
        rows, ones = np.arange(n), np.ones(n)
        self.of_victim = csr_array((ones, (seen.victim, rows)), shape=(items, n))
        self.of_suspect = csr_array((ones, (seen.suspect, rows)), shape=(items, n))
        self.weights = prior.mean.copy()
        self.y = seen.value.copy()
        self.scale = np.ones(n)
        self.noise = 2.0 * _NOISE_VARIANCE
        self.before = np.tile([_EFFECT_VARIANCE, *[_FACTOR_VARIANCE] * rank], 2)
        self.covariance = np.diag(self.before)
        self.weak = np.ones(len(side))
        self.lean = 0.25 * rng.standard_normal((self.x.shape[1], 2 * self.width)) * np.sqrt(self.before)
        # What has the same side information starts alike: two kinds of card must agree on what a factor means.
        own = 0.5 if self.x.shape[1] == 0 else 0.1
        self.z = self.x @ self.lean + own * rng.standard_normal((items, 2 * self.width)) * np.sqrt(self.before)

    def between(self, victim: Ints, suspect: Ints) -> Floats:
        """Return a_v + b_s + u_v . w_s."""
        d = self.width
        left, right = self.z[victim], self.z[suspect]
        result: Floats = left[:, 0] + right[:, d] + np.einsum("ij,ij->i", left[:, 1:d], right[:, d + 1 :])
        return result

    def sweep(self) -> None:
        """Draw everything once, each part given all others."""
        suffers, does = slice(0, self.width), slice(self.width, 2 * self.width)
        self._draw_weights()
        self._draw_noise()  # before the factors: what is far off must not shape them first
        self._draw_role(suffers, does, self.of_victim, self.seen.suspect)
        self._draw_role(does, suffers, self.of_suspect, self.seen.victim)
        self._draw_lean()
        self._draw_covariance()

    def _draw_weights(self) -> None:
        h = self.seen.covariates
        weight = self.scale / self.noise
        precision = (h.T * weight) @ h + np.diag(self.prior.deviation**-2)
        rest = self.y - self.between(self.seen.victim, self.seen.suspect)
        moment = h.T @ (weight * rest) + self.prior.mean * self.prior.deviation**-2
        root = np.linalg.cholesky(precision)
        half = np.linalg.solve(root, moment) + self.rng.standard_normal(moment.size)
        self.weights = np.linalg.solve(root.T, half)

    def _draw_role(self, own: slice, other: slice, mine: csr_array, theirs: Ints) -> None:
        """Draw one role of all items at once, given the other role: each item is a small regression of its own."""
        mean = self.x @ self.lean
        s = self.covariance
        gain = np.linalg.solve(s[other, other], s[other, own])
        prior_mean = mean[:, own] + (self.z[:, other] - mean[:, other]) @ gain
        precision = np.linalg.inv(s[own, own] - s[own, other] @ gain)
        across = self.z[theirs, other]
        design = across.copy()
        design[:, 0] = 1.0
        rest = self.y - self.seen.covariates @ self.weights - across[:, 0]
        weighted = design * (self.scale / self.noise)[:, None]
        items, d = prior_mean.shape
        products = (weighted[:, :, None] * design[:, None, :]).reshape(-1, d * d)
        gram = (mine @ products).reshape(items, d, d)
        right = mine @ (weighted * rest[:, None]) + prior_mean @ precision
        root = np.linalg.cholesky(gram + precision)
        half = np.linalg.solve(root, right[:, :, None]) + self.rng.standard_normal((items, d, 1))
        self.z[:, own] = np.linalg.solve(root.transpose(0, 2, 1), half)[:, :, 0]

    def _draw_noise(self) -> None:
        """Draw the true effects behind inexact ones, each one's part in the tails, and the noise."""
        n = self.seen.value.size
        if n == 0:
            return
        fitted = self.seen.covariates @ self.weights + self.between(self.seen.victim, self.seen.suspect)
        spread = self.noise / self.scale
        share = spread / (spread + self.seen.error**2)
        shaky = np.sqrt(spread * (1.0 - share)) * self.rng.standard_normal(n)
        self.y = fitted + share * (self.seen.value - fitted) + shaky
        squares = (self.y - fitted) ** 2
        self.scale = self.rng.gamma((_FREEDOM + 1.0) / 2.0, 2.0 / (_FREEDOM + squares / self.noise))
        total = float(squares @ self.scale) + _NOISE_WEIGHT * _NOISE_VARIANCE
        self.noise = total / float(self.rng.chisquare(n + _NOISE_WEIGHT))

    def _draw_lean(self) -> None:
        """Draw how factors lean on the side information, and how weakly each group of it tells."""
        p, width = self.lean.shape
        if p == 0:
            return
        root = np.linalg.cholesky(self.gram + np.diag(self.weak[self.groups]))
        half = np.linalg.solve(root, self.x.T @ self.z)
        half += self.rng.standard_normal((p, width)) @ np.linalg.cholesky(self.covariance).T
        self.lean = np.linalg.solve(root.T, half)
        size = np.einsum("ij,ij->i", self.lean @ np.linalg.inv(self.covariance), self.lean)
        counts = np.bincount(self.groups, minlength=self.weak.size)
        sizes = np.bincount(self.groups, size, minlength=self.weak.size)
        self.weak = self.rng.gamma(_RIDGE[0] + 0.5 * width * counts, 1.0 / (_RIDGE[1] + 0.5 * sizes))

    def _draw_covariance(self) -> None:
        """Draw the covariance of both roles (inverse Wishart, by Bartlett's decomposition)."""
        p, width = self.lean.shape
        rest = self.z - self.x @ self.lean
        freedom = width + 4
        scatter = np.diag(self.before * 3.0) + rest.T @ rest
        scatter += self.lean.T @ (self.weak[self.groups][:, None] * self.lean)
        lower = np.tril(self.rng.standard_normal((width, width)), -1)
        total = freedom + self.z.shape[0] + p
        lower[np.diag_indices(width)] = np.sqrt(self.rng.chisquare(total - np.arange(width)))
        half = np.linalg.solve(lower, np.linalg.cholesky(scatter).T)
        self.covariance = half.T @ half
