r"""Sign-flip tests of a mean, with the intervals that invert them.

Under the null hypothesis that paired differences are symmetric around theta, flipping the signs of d_i - theta does not change
their joint distribution. Flips leave the sum of squares unchanged, so that the studentised mean is a monotone function of the
mean: both give the same test. A flip that changes the signs of the seeds in M and keeps those in P is as extreme as the data if

    two-sided:                       |sum_P (d_i - theta) - sum_M (d_i - theta)| >= |sum (d_i - theta)|
                              <=>    theta lies between mean_M d and mean_P d
    one-sided, mean above theta:     theta >= mean_M d
    one-sided, mean below theta:     theta <= mean_M d

The p-value at any theta is thus a count over means of subsets, and the limits of an interval are order statistics of these
means (J. A. Hartigan, J. Am. Stat. Assoc. 64 (1969) 1303-1317): no search is needed. Up to 16 seeds all flips are enumerated;
beyond, 99,999 random ones and the identity are used.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

MOST_ENUMERATED = 16  # seeds
FLIPS = 100_000  # the identity and 99,999 random flips
BLOCK = 4_000  # flips multiplied at a time
ROUNDING = 1e-12  # relative to the largest |difference|


class SubsetMeans(NamedTuple):
    """Means of a claim's differences with a changed and with a kept sign, by flip; NaN for an empty subset."""

    changed: Float[np.ndarray, "flips"]
    kept: Float[np.ndarray, "flips"]


def subset_means(differences: Sequence[np.ndarray]) -> list[SubsetMeans]:
    """Return the subset means of every claim, computed in float64 on the default device.

    Args:
        differences: for each claim, a difference per seed; claims may have different numbers of seeds, at least one.

    Returns:
        The subset means in the order of the claims. Claims with at most 16 seeds have 65,536 flips, which contain every flip of
        their seeds equally often; the others have 100,000.
    """
    results: dict[int, SubsetMeans] = {}
    few = [place for place, d in enumerate(differences) if len(d) <= MOST_ENUMERATED]
    for places in (few, sorted(set(range(len(differences))) - set(few))):
        if not places:
            continue
        # Padded shapes, so that different sets of claims share compiled programs.
        most = max(len(differences[place]) for place in places)
        seeds = MOST_ENUMERATED if places is few else _next_multiple(most, 128)
        padded = np.zeros((seeds, _next_multiple(len(places), 16)))
        counted = np.zeros_like(padded)
        for column, place in enumerate(places):
            d = differences[place]
            padded[: len(d), column], counted[: len(d), column] = d, 1
        with jax.enable_x64(True):
            changed, number = (np.asarray(part) for part in _changed(padded, counted, places is few))
        total = padded.sum(0)[:, None]
        size = counted.sum(0)[:, None]
        with np.errstate(invalid="ignore", divide="ignore"):
            means = changed / number, (total - changed) / (size - number)
        for column, place in enumerate(places):
            results[place] = SubsetMeans(means[0][column], means[1][column])
    return [results[place] for place in range(len(differences))]


def _next_multiple(number: int, step: int) -> int:
    return -(-number // step) * step


@functools.partial(jax.jit, static_argnums=2)
def _changed(
    differences: Float[Array, "seeds claims"], counted: Float[Array, "seeds claims"], enumerate_all: bool
) -> tuple[Float[Array, "claims flips"], Float[Array, "claims flips"]]:
    """Return for each claim and flip the sum and the number of the differences whose sign changes."""
    both = jnp.concatenate([differences, counted], axis=1)
    if enumerate_all:
        blocks = jnp.arange(2**MOST_ENUMERATED, dtype=jnp.uint32)[None, :, None]
    else:
        words = jax.random.bits(jax.random.key(0), (FLIPS // BLOCK, BLOCK, len(both) // 32), jnp.uint32)
        blocks = words.at[0, 0].set(0)  # the identity

    def multiply(block: jax.Array) -> jax.Array:
        signs = (block[..., None] >> jnp.arange(32, dtype=jnp.uint32)) & 1
        return signs.reshape(len(block), -1)[:, : len(both)].astype(both.dtype) @ both

    sums = jax.lax.map(multiply, blocks).reshape(-1, both.shape[1]).T
    return sums[: differences.shape[1]], sums[differences.shape[1] :]


class SignFlips:
    """The sign-flip tests of one claim: p-values at any hypothetical mean, and intervals.

    Args:
        differences: a finite difference per seed.
        means: the subset means of these differences.
    """

    def __init__(self, differences: Float[np.ndarray, "seeds"], means: SubsetMeans) -> None:
        self.differences = differences
        self._tolerance = ROUNDING * float(np.abs(differences).max())
        changed, kept = means
        no_change = np.isnan(changed)
        self._number = len(changed)
        empty = no_change | np.isnan(kept)  # the identity and its opposite: as extreme as the data at every mean
        self._low = np.where(empty, -np.inf, np.fmin(changed, kept))
        self._high = np.where(empty, np.inf, np.fmax(changed, kept))
        self._above = np.where(no_change, -np.inf, changed)
        self._below = np.where(no_change, np.inf, changed)

    def two_sided(self, mean: float = 0.0) -> float:
        """Return the p-value of the null hypothesis that the mean equals `mean`."""
        inside = (self._low <= mean + self._tolerance) & (self._high >= mean - self._tolerance)
        return min(float(inside.sum()) / self._number, self._of_one_sign(mean, sides=2))

    def above(self, mean: float) -> float:
        """Return the p-value of the null hypothesis that the mean is at most `mean`."""
        p = float((self._above <= mean + self._tolerance).sum()) / self._number
        return min(p, self._of_one_sign(mean, 1)) if self.differences.mean() > mean else p

    def below(self, mean: float) -> float:
        """Return the p-value of the null hypothesis that the mean is at least `mean`."""
        p = float((self._below >= mean - self._tolerance).sum()) / self._number
        return min(p, self._of_one_sign(mean, 1)) if self.differences.mean() < mean else p

    def _of_one_sign(self, mean: float, sides: int) -> float:
        """Return the exact p-value if no two differences lie on different sides of `mean`; else 1.

        Only flips of differences that equal `mean` are then as extreme as the data. Random flips cannot show such a p below
        1e-5.
        """
        d = self.differences - mean
        moved = np.abs(d) > self._tolerance
        if not moved.any() or (d[moved].min() < 0 < d[moved].max()):
            return 1.0
        return float(sides * 2.0 ** -moved.sum())

    def interval(self, alpha: float) -> tuple[float, float]:
        """Return the means that the two-sided test at level `alpha` does not reject; an end may be infinite."""
        low, high = self._order_statistics(alpha, self._low, self._high)
        return self._within_data(low, high, alpha, sides=2)

    def one_sided_limits(self, alpha: float) -> tuple[float, float]:
        """Return the lower and the upper limit whose one-sided tests, each at level `alpha`, do not reject them."""
        low, high = self._order_statistics(alpha, self._above, self._below)
        return self._within_data(low, high, alpha, sides=1)

    def _order_statistics(self, alpha: float, lows: np.ndarray, highs: np.ndarray) -> tuple[float, float]:
        rejected = int(alpha * self._number * (1 + 1e-9))  # a mean is rejected if at most so many flips are as extreme
        if rejected >= self._number:
            return float(np.inf), float(-np.inf)
        return (
            float(np.partition(lows, rejected)[rejected]),
            float(np.partition(highs, self._number - 1 - rejected)[self._number - 1 - rejected]),
        )

    def _within_data(self, low: float, high: float, alpha: float, sides: int) -> tuple[float, float]:
        """Return the interval cut at the extreme differences if a mean beyond them is rejected (see `_of_one_sign`)."""
        if sides * 2.0 ** -len(self.differences) > alpha * (1 + 1e-9):
            return low, high
        return max(low, float(self.differences.min())), min(high, float(self.differences.max()))


def simultaneous_band(
    differences: Float[np.ndarray, "points seeds"], alpha: float = 0.05
) -> tuple[Float[np.ndarray, "points"], Float[np.ndarray, "points"], Float[np.ndarray, "points"]]:
    """Return the means of a curve over seeds, and a band that contains all true means with probability 1 - alpha.

    The band is mean -+ c se, where c is the (1 - alpha) quantile of the largest |t| over the points under common sign flips of
    the seeds of the centred curve (P. H. Westfall and S. S. Young, Resampling-Based Multiple Testing, 1993).

    Args:
        differences: a curve per seed.
        alpha: the probability that the band misses a true mean.

    Returns:
        mean, low, high. With fewer than two seeds, low and high are NaN.
    """
    mean, seeds = differences.mean(axis=1), differences.shape[1]
    if seeds < 2:
        return mean, np.full_like(mean, np.nan), np.full_like(mean, np.nan)
    centred = differences - mean[:, None]
    error = centred.std(axis=1, ddof=1) / np.sqrt(seeds)
    rows = subset_sums(centred)
    squares = np.square(centred).sum(axis=1)[:, None]
    flipped = -2 * rows  # the sum of the centred curve is 0
    spread = np.sqrt(np.maximum(squares - np.square(flipped) / seeds, 0) / (seeds - 1) / seeds)
    with np.errstate(invalid="ignore", divide="ignore"):
        t = np.where(flipped == 0, 0, np.abs(flipped) / seeds / spread)
    critical = float(np.quantile(t.max(axis=0), 1 - alpha, method="higher"))
    return mean, mean - critical * error, mean + critical * error


def subset_sums(differences: Float[np.ndarray, "claims seeds"]) -> Float[np.ndarray, "claims flips"]:
    """Return for every flip the sum of the differences whose sign changes; the flips are those of `subset_means`."""
    claims, seeds = differences.shape
    few = seeds <= MOST_ENUMERATED
    padded = np.zeros((MOST_ENUMERATED if few else _next_multiple(seeds, 128), _next_multiple(claims, 16)))
    padded[:seeds, :claims] = differences.T
    with jax.enable_x64(True):
        return np.asarray(_changed(padded, np.zeros_like(padded), few)[0])[:claims]
