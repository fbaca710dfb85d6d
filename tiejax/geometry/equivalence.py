r"""Equivalence of symbols for a model: in meaning (as inputs), in use (as outputs), and where the two disagree.

Two symbols are semantically equivalent if p(y | rho, s1) = p(y | rho, s2) for all contexts rho and labels y, and conditionally
equivalent if p(s1 | rho) = p(s2 | rho) for all rho. The distributional hypothesis (DH) says that the two coincide. Both are
measured as the effect on the model's predictions of swapping the symbols, in the input or in the output: a mean Jensen-Shannon
divergence between 0 and ln 2 nats, so one threshold serves both.

The asked position of a context is the one whose symbol is predicted; a context asks for the symbols that can occur there.

Source of the definitions: Bertolotti and Cazzola, ICML 2024 (PMLR 235:3584-3610); the measures are specific to tiejax.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Integer
from scipy.special import entr, logsumexp, rel_entr

from tiejax.geometry.distances import Pair
from tiejax.geometry.optimality import Conditioning, Residual, check_pair, conditioning, normalised, optimality_residual

Predict = Callable[[np.ndarray, np.ndarray], Any]
Case = Literal["holds: same", "holds: different", "fails: same meaning", "fails: same use", "unknown"]

# In nats: about the conditional distance of two symbols with probabilities .4 and .6 in every context that asks for them.
THRESHOLD = 0.02
# A pair is asked for if its mean probability is at least this fraction of its probability under a uniform prediction.
SMALLEST_SHARE = 0.01
BLOCK = 256


class Semantic(NamedTuple):
    """Effect of swapping two symbols in the input.

    distance: in nats; NaN if there is nothing to swap. contexts: number of contexts that contain each symbol outside the asked
    position.
    """

    distance: float
    contexts: tuple[int, int]


class Conditional(NamedTuple):
    """Difference between two symbols as predictions, in the contexts that ask for them.

    distance: in nats. log_ratio_mean, log_ratio_rms: mean and root mean square of ln[p(s1 | rho) / p(s2 | rho)]; NaN if no
    context asks for the pair; the mean is also NaN if the ratio is infinite with both signs. asked: the mean of
    p(s1 | rho) + p(s2 | rho).
    """

    distance: float
    log_ratio_mean: float
    log_ratio_rms: float
    asked: float


class Violation(NamedTuple):
    """Whether DH holds for a pair, and how strongly it fails: see `violation`."""

    case: Case
    score: float


def jensen_shannon(
    log_p: Float[np.ndarray, "*rows vocabulary"], log_q: Float[np.ndarray, "*rows vocabulary"]
) -> Float[np.ndarray, "*rows"]:
    """Return the Jensen-Shannon divergence [KL(p | m) + KL(q | m)] / 2 of each row, m = (p + q) / 2, in nats (0 to ln 2)."""
    p, q = np.exp(np.asarray(log_p, float)), np.exp(np.asarray(log_q, float))
    middle = (p + q) / 2
    return np.maximum(0, (rel_entr(p, middle) + rel_entr(q, middle)).sum(-1) / 2)


def swaps(
    tokens: Integer[np.ndarray, "contexts length"], position: Integer[np.ndarray, " contexts"], pair: Pair
) -> tuple[Integer[np.ndarray, "swaps"], Integer[np.ndarray, "swaps length"]]:
    """Return all contexts with one occurrence of a symbol swapped for the other, preceded by the index of each original.

    Occurrences are swapped one at a time: the definition by p(y | rho, s) compares two symbols in one place, and the other
    occurrences belong to rho. Swapping all at once would let effects cancel (a parity does not change when two bits flip). The
    asked `position` is not swapped.
    """
    first, second = pair
    occurs = (tokens == first) | (tokens == second)
    occurs[np.arange(len(tokens)), position] = False
    row, place = np.nonzero(occurs)
    swapped = tokens[row]
    swap = np.arange(len(row))
    swapped[swap, place] = np.where(swapped[swap, place] == first, second, first)
    return row, swapped


def predictions(
    predict: Predict,
    tokens: Integer[np.ndarray, "contexts length"],
    position: Integer[np.ndarray, " contexts"],
    block: int = BLOCK,
) -> Float[np.ndarray, "contexts vocabulary"]:
    """Return predict(tokens, position) for all contexts, in blocks of one shape, so that it compiles once.

    predict: (tokens [block, length], position [block]) -> log probabilities [block, vocabulary] at the asked position.
    Raises ValueError if the probabilities of a row do not sum to one, as with logits.
    """
    parts = []
    for start in range(0, len(tokens), block):
        rows = np.minimum(np.arange(start, start + block), len(tokens) - 1)
        part = np.asarray(predict(tokens[rows], position[rows]))
        if part.ndim != 2 or len(part) != block:
            raise ValueError(f"predict: expected [{block}, vocabulary] for {block} contexts, got {list(part.shape)}")
        total = logsumexp(part, axis=1)
        worst = total[np.argmax(np.abs(total))]
        if not abs(worst) < 1e-3:
            raise ValueError(f"predict: expected log probabilities, with a logsumexp of 0, got {worst:.3g}; apply log_softmax")
        parts.append(part[: len(tokens) - start])
    return np.concatenate(parts)


def semantic_distance(
    predict: Predict,
    tokens: Integer[np.ndarray, "contexts length"],
    position: Integer[np.ndarray, " contexts"],
    pair: Pair,
    weight: Float[np.ndarray, " contexts"] | None = None,
    predicted: Float[np.ndarray, "contexts vocabulary"] | None = None,
    block: int = BLOCK,
) -> Semantic:
    r"""Return how much swapping one symbol for the other in the input changes the prediction.

        D_s = sum_c w_c (1 / n_c) sum_{i: c_i in {s1, s2}} JS[p(. | c), p(. | c with c_i swapped)] / sum_c w_c

    summed over the contexts c that contain s1 or s2 at n_c > 0 positions i other than the asked one. In nats, 0 to ln 2.
    weight: w, the probability of each context (default: equal). predicted: predictions of the contexts, if already computed.
    """
    check_pair(pair)
    weight = normalised(weight, len(tokens))
    row, swapped = swaps(tokens, position, pair)
    occurrences = np.bincount(row, minlength=len(tokens))
    elsewhere = np.arange(tokens.shape[1]) != position[:, None]
    contexts = tuple(int((np.any((tokens == symbol) & elsewhere, axis=1) & (weight > 0)).sum()) for symbol in pair)
    share = weight[row] / occurrences[row]
    if not share.sum() > 0:
        return Semantic(math.nan, (contexts[0], contexts[1]))
    predicted = predictions(predict, tokens, position, block) if predicted is None else predicted
    total = 0.0
    for start in range(0, len(row), block):
        part = slice(start, start + block)
        changed = predictions(predict, swapped[part], position[row[part]], block)
        total += float(share[part] @ jensen_shannon(predicted[row[part]], changed))
    return Semantic(total / float(share.sum()), (contexts[0], contexts[1]))


def conditional_distance(
    log_probabilities: Float[np.ndarray, "contexts vocabulary"],
    pair: Pair,
    weight: Float[np.ndarray, " contexts"] | None = None,
) -> Conditional:
    r"""Return how far two symbols are from being equally likely, in the contexts that ask for one of them.

        D_c = sum_c w_c m_c [ln 2 - H(p(s1 | c) / m_c)] / sum_c w_c m_c,    m_c = p(s1 | c) + p(s2 | c),

    where H(r) = -r ln r - (1 - r) ln(1 - r). The bracket is the Jensen-Shannon divergence between the model's distribution
    within the pair and the same distribution with the symbols swapped: 0 if they are equally likely, ln 2 if one is impossible,
    and lambda^2 / 8 for a small log ratio lambda. Mean and root mean square of lambda = ln[p(s1 | c) / p(s2 | c)] use the same
    weights w_c m_c, because a context in which neither is expected (another bit of EXor, another word of a text) does not
    inform their ratio.

    The symbols of a pair that is never asked for (mean m below `SMALLEST_SHARE` of 2 / vocabulary) count as equally
    likely: D_c = 0.
    """
    check_pair(pair, log_probabilities.shape[1])
    chosen = np.asarray(log_probabilities[:, list(pair)], float)
    mass = np.exp(chosen).sum(1)
    weight = normalised(weight, len(chosen))
    asked = float(weight @ mass)
    if asked < SMALLEST_SHARE * 2 / log_probabilities.shape[1] or asked == 0:
        return Conditional(0.0, math.nan, math.nan, asked)
    share, used = weight * mass / asked, weight * mass > 0
    chosen, mass, share = chosen[used], mass[used], share[used]
    ratio = np.exp(chosen) / mass[:, None]
    distance = float(share @ (math.log(2) - entr(ratio).sum(1)))
    log_ratio = chosen[:, 0] - chosen[:, 1]
    with np.errstate(invalid="ignore"):  # infinite ratios of both signs have no mean
        mean = float(share @ log_ratio)
    return Conditional(max(0.0, distance), mean, math.sqrt(share @ np.square(log_ratio)), asked)


def violation(semantic: float, conditional: float, threshold: float = THRESHOLD) -> Violation:
    r"""Classify a pair by whether each distance (in nats) exceeds the threshold t, and score the violation of DH.

        score = ln[(D_c + t) / (D_s + t)]

    "holds: same", "holds: different": the symbols are equivalent in both ways, or in neither. "fails: same meaning": they mean
    the same but are not equally likely (score > 0). "fails: same use": they mean different things but are equally likely
    (score < 0). "unknown", with a score of NaN: a distance is not finite.
    """
    if not (math.isfinite(semantic) and math.isfinite(conditional)):
        return Violation("unknown", math.nan)
    cases: Mapping[tuple[bool, bool], Case] = {
        (False, False): "holds: same",
        (True, True): "holds: different",
        (False, True): "fails: same meaning",
        (True, False): "fails: same use",
    }
    score = math.log((conditional + threshold) / (semantic + threshold))
    return Violation(cases[semantic > threshold, conditional > threshold], score)


def equivalence(
    predict: Predict,
    tokens: Integer[np.ndarray, "contexts length"],
    position: Integer[np.ndarray, " contexts"],
    pairs: Sequence[Pair],
    *,
    weight: Float[np.ndarray, " contexts"] | None = None,
    states: Float[np.ndarray, "contexts width"] | None = None,
    table: Float[np.ndarray, "vocabulary width"] | None = None,
    log_ratios: Mapping[Pair, float | np.ndarray] | None = None,
) -> list[dict[str, Any]]:
    """Return all measures of this module for each pair, as plain numbers; None where a measure is not defined.

    states, table: the state h of each context, and the output table E_out. They add the conditioning of the states that ask for
    a pair (weights w_c m_c, see `conditional_distance`) and, for pairs with a true log ratio in `log_ratios`, the optimality
    residual under the same weights. A pair has a case only if the contexts contain both symbols. Predictions of all contexts
    are held in memory.
    """
    if states is None and log_ratios:
        raise ValueError("log_ratios: the optimality residual also needs states and table")
    if (states is None) != (table is None):
        raise ValueError("states, table: give both or neither")
    weight = normalised(weight, len(tokens))
    predicted = predictions(predict, tokens, position)
    for pair in pairs:
        check_pair(pair, predicted.shape[1])
    rows = []
    for pair in pairs:
        semantic = semantic_distance(predict, tokens, position, pair, weight, predicted)
        conditional = conditional_distance(predicted, pair, weight)
        row = _distances(pair, semantic, conditional)
        if states is not None and table is not None:
            asking = weight * np.exp(np.asarray(predicted[:, list(pair)], float)).sum(1)
            row |= _output_side(states, table, pair, (log_ratios or {}).get(pair, math.nan), asking)
        rows.append({name: _plain(value) for name, value in row.items()})
    return rows


def _distances(pair: Pair, semantic: Semantic, conditional: Conditional) -> dict[str, Any]:
    """Return both distances of a pair and its case, by name."""
    distance = semantic.distance if min(semantic.contexts) > 0 else math.nan
    return {
        "first": pair[0],
        "second": pair[1],
        "contexts_first": semantic.contexts[0],
        "contexts_second": semantic.contexts[1],
        "semantic_distance": semantic.distance,
        "conditional_distance": conditional.distance,
        **{name: getattr(conditional, name) for name in ("log_ratio_mean", "log_ratio_rms", "asked")},
        **violation(distance, conditional.distance)._asdict(),
    }


def _output_side(
    states: np.ndarray, table: np.ndarray, pair: Pair, log_ratio: float | np.ndarray, asking: np.ndarray
) -> dict[str, float]:
    """Return residual and conditioning, weighted by how much each context asks for the pair; NaN if none does."""
    if asking.sum() > 0:
        residual = optimality_residual(states, table, pair, log_ratio, asking)
        spanned = conditioning(states, asking)
    else:
        residual, spanned = Residual(math.nan, math.nan, math.nan), Conditioning(math.nan, math.nan)
    return {f"residual_{name}": value for name, value in residual._asdict().items()} | spanned._asdict()


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value
