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

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

MOST_ENUMERATED = 16  # seeds
FLIPS = 100_000  # the identity and 99,999 random flips
WORD = 32  # seeds whose flips are drawn together
ROUNDING = 1e-12  # relative to the largest |difference|


def is_constant(differences: Float[np.ndarray, " seeds"]) -> bool:
    """Return whether differences vary by rounding only."""
    return bool(np.ptp(differences) <= ROUNDING * np.abs(differences).max())


class SubsetMeans(NamedTuple):
    """A claim's differences, averaged over the seeds whose sign a flip changes and over the others.

    changed: the mean over the changed seeds; -inf for the identity, which changes none. low, high: the smaller and the larger
    of both means; -inf and inf for the identity and its opposite, which are as extreme as the data at every mean.
    """

    changed: Float[np.ndarray, " flips"]
    low: Float[np.ndarray, " flips"]
    high: Float[np.ndarray, " flips"]


def subset_means(differences: Sequence[np.ndarray]) -> list[SubsetMeans]:
    """Return the subset means of every claim, computed in float64 on the default device.

    Claims may have different numbers of seeds, at least one. With at most 16 they have 65,536 flips or fewer, which contain
    every flip of their seeds equally often; the others have 100,000, the same for every claim.
    """
    results: dict[int, SubsetMeans] = {}
    few = [place for place, d in enumerate(differences) if len(d) <= MOST_ENUMERATED]
    for places in (few, sorted(set(range(len(differences))) - set(few))):
        if places:
            padded, size = _padded([differences[place] for place in places])
            with jax.enable_x64(True):
                parts = [np.asarray(part) for part in _means(padded, size, *_distinct(size, padded.shape[1]))]
            results |= {place: SubsetMeans(*(part[row] for part in parts)) for row, place in enumerate(places)}
    return [results[place] for place in range(len(differences))]


def _padded(differences: Sequence[np.ndarray]) -> tuple[Float[np.ndarray, "claims seeds"], Int[np.ndarray, " claims"]]:
    """Return the differences with zeros appended, so that few shapes are compiled, and the claims' numbers of seeds."""
    most = max(map(len, differences))
    step = 4 if most <= MOST_ENUMERATED else WORD
    padded = np.zeros((-(-len(differences) // 8) * 8, -(-most // step) * step))
    size = np.ones(len(padded), int)
    for row, d in enumerate(differences):
        padded[row, : len(d)], size[row] = d, len(d)
    return padded, size


def _distinct(
    size: Int[np.ndarray, " claims"], seeds: int
) -> tuple[Float[np.ndarray, "sizes seeds"], Int[np.ndarray, " claims"]]:
    """Return for each distinct size which seeds it counts, as 1 and 0, and for each claim the row of its size."""
    sizes, row = np.unique(size, return_inverse=True)
    counted = np.zeros((-(-len(sizes) // 8) * 8, seeds))
    counted[: len(sizes)] = np.arange(seeds) < sizes[:, None]
    return counted, row


@jax.jit
def _means(
    differences: Float[Array, "claims seeds"],
    size: Int[Array, " claims"],
    counted: Float[Array, "sizes seeds"],
    row: Int[Array, " claims"],
) -> tuple[Float[Array, "claims flips"], Float[Array, "claims flips"], Float[Array, "claims flips"]]:
    """Return the fields of `SubsetMeans` for every claim; counted, row: see `_distinct`."""
    total = differences.sum(1, keepdims=True)

    def of_block(changes: Float[Array, "seeds flips"]) -> tuple[jax.Array, jax.Array, jax.Array]:
        sums = differences @ changes
        number = (counted @ changes)[row]
        changed, kept = sums / number, (total - sums) / (size[:, None] - number)
        none, all_changed = number == 0, number == size[:, None]
        low = jnp.where(none | all_changed, -jnp.inf, jnp.minimum(changed, kept))
        high = jnp.where(none | all_changed, jnp.inf, jnp.maximum(changed, kept))
        return jnp.where(none, -jnp.inf, changed), low, high

    return _over_flips(of_block, differences.shape[1])


@jax.jit
def _sums(differences: Float[Array, "claims seeds"]) -> Float[Array, "claims flips"]:
    """Return for every claim and flip the sum of the differences whose sign changes."""
    return _over_flips(lambda changes: differences @ changes, differences.shape[1])


def _over_flips(function: Callable[[Float[Array, "seeds flips"]], Any], seeds: int) -> Any:
    """Return `function`, whose results are `[claims, flips]`, of blocks of flips: 1 where a sign changes, otherwise 0."""
    if seeds <= MOST_ENUMERATED:
        words, blocks = jnp.arange(2**seeds, dtype=jnp.uint32)[None], 16
    else:
        words, blocks = jax.vmap(_random_word)(jnp.arange(seeds // WORD)), 25

    def of_block(words: jax.Array) -> Any:
        changes = (words[:, None] >> jnp.arange(WORD, dtype=jnp.uint32)[:, None]) & 1
        return function(changes.reshape(-1, words.shape[1])[:seeds].astype(float))

    results = jax.lax.map(of_block, jnp.moveaxis(words.reshape(len(words), blocks, -1), 1, 0))
    return jax.tree.map(lambda part: jnp.moveaxis(part, 0, 1).reshape(part.shape[1], -1), results)


def _random_word(number: jax.Array) -> jax.Array:
    """Return the flips of the seeds from 32 `number` on, as bits; they are the same however many seeds a claim has."""
    return jax.random.bits(jax.random.fold_in(jax.random.key(0), number), (FLIPS,), jnp.uint32).at[0].set(0)  # the identity


class SignFlips:
    """The sign-flip tests of one claim, from its differences and their subset means: p-values at any mean, and intervals."""

    def __init__(self, differences: Float[np.ndarray, " seeds"], means: SubsetMeans) -> None:
        self._means, self._number = means, len(means.changed)
        self._least, self._most, self._seeds = float(differences.min()), float(differences.max()), len(differences)
        self._tolerance = ROUNDING * max(abs(self._least), abs(self._most))

    def two_sided(self, mean: float = 0.0) -> float:
        """Return the p-value of the null hypothesis that the mean equals `mean`."""
        extreme = (self._means.low <= mean + self._tolerance) & (self._means.high >= mean - self._tolerance)
        one_sign = self._is_below(mean) or self._is_above(mean)
        return self._share(extreme, 2 if one_sign else None)

    def above(self, mean: float) -> float:
        """Return the p-value of the null hypothesis that the mean is at most `mean`."""
        return self._share(self._means.changed <= mean + self._tolerance, 1 if self._is_below(mean) else None)

    def below(self, mean: float) -> float:
        """Return the p-value of the null hypothesis that the mean is at least `mean`."""
        return self._share(self._changed_or_inf() >= mean - self._tolerance, 1 if self._is_above(mean) else None)

    def _is_below(self, mean: float) -> bool:
        return bool(mean < self._least - self._tolerance)

    def _is_above(self, mean: float) -> bool:
        return bool(mean > self._most + self._tolerance)

    def _share(self, extreme: np.ndarray, extreme_of_all: int | None) -> float:
        """Return the share of flips that are as extreme as the data; extreme_of_all: their number among all flips, if known.

        If all differences lie on one side of the mean, only the identity (and its opposite) are as extreme as the data. Random
        flips could not show a p below 1e-5 then.
        """
        share = float(np.count_nonzero(extreme)) / self._number
        return share if extreme_of_all is None else min(share, extreme_of_all * 2.0**-self._seeds)

    def _changed_or_inf(self) -> np.ndarray:
        """Return the means over the changed seeds, inf for the identity, which is as extreme as the data at every mean."""
        return np.where(np.isneginf(self._means.changed), np.inf, self._means.changed)

    def interval(self, alpha: float) -> tuple[float, float]:
        """Return the means that the two-sided test at level `alpha` does not reject; an end may be infinite."""
        return self._not_rejected(self._means.low, self._means.high, alpha, sides=2)

    def one_sided_limits(self, alpha: float) -> tuple[float, float]:
        """Return the lower and the upper limit whose one-sided tests, each at level `alpha`, do not reject them."""
        return self._not_rejected(self._means.changed, self._changed_or_inf(), alpha, sides=1)

    def _not_rejected(self, lows: np.ndarray, highs: np.ndarray, alpha: float, sides: int) -> tuple[float, float]:
        """Return the means that are at least `lows`, and at most `highs`, of more than a share `alpha` of the flips."""
        rejected = int(alpha * self._number * (1 + 1e-9))  # a mean is rejected if at most so many flips are as extreme
        if rejected >= self._number:
            return np.inf, -np.inf
        low = float(np.partition(lows, rejected)[rejected])
        high = float(np.partition(highs, self._number - 1 - rejected)[self._number - 1 - rejected])
        if sides * 2.0**-self._seeds <= alpha * (1 + 1e-9):  # means beyond all differences are rejected: see `_share`
            low, high = max(low, self._least), min(high, self._most)
        # Ties within rounding count as extreme in the tests, so they are part of the interval.
        return low - self._tolerance, high + self._tolerance


def simultaneous_band(
    differences: Float[np.ndarray, "points seeds"], alpha: float = 0.05
) -> tuple[Float[np.ndarray, " points"], Float[np.ndarray, " points"], Float[np.ndarray, " points"]]:
    """Return the means of a curve over seeds, and a band that contains all true means with probability 1 - alpha.

    The band is mean -+ c se, where c is the (1 - alpha) quantile of the largest |t| over the points under common sign flips of
    the seeds of the centred curve (P. H. Westfall and S. S. Young, Resampling-Based Multiple Testing, 1993).

    Args:
        differences: a curve per seed.
        alpha: the probability that the band misses a true mean.

    Returns:
        mean, low, high. With so few seeds that flips have no quantile, 2^(1 - seeds) > alpha, low and high are NaN.
    """
    mean, seeds = differences.mean(axis=1), differences.shape[1]
    if 2.0 ** (1 - seeds) > alpha:
        return mean, np.full_like(mean, np.nan), np.full_like(mean, np.nan)
    constant = np.array([is_constant(point) for point in differences])[:, None]
    centred = np.where(constant, 0.0, differences - mean[:, None])  # without the rounding of the mean
    error = centred.std(axis=1, ddof=1) / np.sqrt(seeds)
    with jax.enable_x64(True):
        sums = np.asarray(_sums(_padded(list(centred))[0]))[: len(centred)]
    squares = np.square(centred).sum(axis=1)[:, None]
    flipped = -2 * sums  # the sum of the centred curve is 0
    spread = np.sqrt(np.maximum(squares - np.square(flipped) / seeds, 0) / (seeds - 1) / seeds)
    with np.errstate(invalid="ignore", divide="ignore"):
        t = np.where(flipped == 0, 0, np.abs(flipped) / seeds / spread)
    critical = float(np.quantile(t.max(axis=0), 1 - alpha, method="higher"))
    return mean, mean - critical * error, mean + critical * error
