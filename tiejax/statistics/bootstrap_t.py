r"""Bootstrap-t tests of a mean, with the intervals that invert them, for differences whose distribution is skewed.

The seeds are drawn with replacement; a resample with mean m* and standard deviation s* has t* = (m* - m) / s*, where m and s
are those of the data. The distribution of t* stands for that of (m - theta) / s, so that

    mean above theta:  p = share of t* >= (m - theta) / s
    mean below theta:  p = share of t* <= (m - theta) / s

and the limits of an interval are m - s t*, at quantiles of t* (B. Efron, The Jackknife, the Bootstrap and Other Resampling
Plans, 1982, section 10.10; P. Hall, Ann. Stat. 16 (1988) 927-953). No symmetry is assumed: t* is skewed as the data are.
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt8

RESAMPLES, BLOCK = 100_000, 4000
ROUNDING = 1e-9  # relative, of t


def statistics(differences: Sequence[np.ndarray]) -> list[Float[np.ndarray, " resamples"]]:
    """Return t* of all resamples of every claim in ascending order, computed in float64 on the default device.

    The differences of a claim are not all equal. Claims with as many seeds have the same resamples. A resample without spread
    has an infinite t*, or 0 if its mean is that of the data.
    """
    results: dict[int, np.ndarray] = {}
    for seeds in sorted({len(d) for d in differences}):
        places = [place for place, d in enumerate(differences) if len(d) == seeds]
        centred = np.zeros((seeds, -(-len(places) // 8) * 8))  # so that few shapes are compiled
        centred[:, : len(places)] = np.stack([differences[place] - differences[place].mean() for place in places], axis=1)
        with jax.enable_x64(True):
            found = np.sort(np.asarray(_studentised(_drawn(seeds), centred)).reshape(RESAMPLES, -1), axis=0)
        results |= {place: found[:, column] for column, place in enumerate(places)}
    return [results[place] for place in range(len(differences))]


@functools.lru_cache(maxsize=2)
def _drawn(seeds: int) -> UInt8[np.ndarray, "blocks block seeds"]:
    """Return how often every resample has drawn each seed; no seed is drawn more than 255 times."""
    rng, counts = np.random.default_rng(seeds), np.empty((RESAMPLES // BLOCK, BLOCK, seeds), np.uint8)
    row = seeds * np.arange(BLOCK)[:, None]
    for block in counts:
        block[:] = np.bincount((row + rng.integers(seeds, size=block.shape)).ravel(), minlength=block.size).reshape(block.shape)
    return counts


@jax.jit
def _studentised(
    drawn: UInt8[Array, "blocks block seeds"], centred: Float[Array, "seeds claims"]
) -> Float[Array, "blocks block claims"]:
    """Return t* of all resamples; centred: the differences less their mean."""
    seeds = len(centred)
    terms = jnp.concatenate([centred, jnp.square(centred)], axis=1)
    least = ROUNDING * jnp.sqrt(jnp.square(centred).mean(axis=0))

    def of_block(counts: jax.Array) -> jax.Array:
        mean, square = jnp.split(counts.astype(float) @ terms / seeds, 2, axis=1)
        variance = square - jnp.square(mean)
        flat = jnp.sqrt(jnp.maximum(variance, 0)) <= 1e2 * least  # the difference of two squares is exact to half the digits
        infinite = jnp.where(jnp.abs(mean) <= least, 0.0, jnp.copysign(jnp.inf, mean))
        return jnp.where(flat, infinite, mean / jnp.sqrt(jnp.where(flat, 1.0, variance)))

    return jax.lax.map(of_block, drawn)


class BootstrapT:
    """The bootstrap-t tests of one claim, from its differences, not all equal, and t* of their resamples, ascending.

    There are p-values at any hypothetical mean, and intervals (see `sign_flips.SignFlips`).
    """

    def __init__(self, differences: Float[np.ndarray, " seeds"], statistics: Float[np.ndarray, " resamples"]) -> None:
        self._statistics, self._number = statistics, len(statistics) + 1  # the data count as a resample as extreme as they are
        self._mean, self._spread = float(differences.mean()), float(differences.std())

    def above(self, mean: float) -> float:
        """Return the p-value of the null hypothesis that the mean is at most `mean`."""
        return (self._number - int(np.searchsorted(self._statistics, self._t(mean) - ROUNDING, side="left"))) / self._number

    def below(self, mean: float) -> float:
        """Return the p-value of the null hypothesis that the mean is at least `mean`."""
        return (1 + int(np.searchsorted(self._statistics, self._t(mean) + ROUNDING, side="right"))) / self._number

    def two_sided(self, mean: float = 0.0) -> float:
        """Return the p-value of the null hypothesis that the mean equals `mean`: twice that of the side of the estimate."""
        return min(1.0, 2 * (self.above(mean) if self._mean > mean else self.below(mean)))

    def _t(self, mean: float) -> float:
        return (self._mean - mean) / self._spread

    def interval(self, alpha: float) -> tuple[float, float]:
        """Return the means that the two-sided test at level `alpha` does not reject; an end may be infinite."""
        return self.one_sided_limits(alpha / 2)

    def one_sided_limits(self, alpha: float) -> tuple[float, float]:
        """Return the lower and the upper limit whose one-sided tests, each at level `alpha`, do not reject them."""
        rejected = int(alpha * self._number * (1 + 1e-9))  # a mean is rejected if at most so many resamples are as extreme
        if not rejected:
            return -np.inf, np.inf
        highest, lowest = float(self._statistics[-rejected]), float(self._statistics[rejected - 1])
        return self._mean - self._spread * (highest + ROUNDING), self._mean - self._spread * (lowest - ROUNDING)
