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
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Integer
from scipy.special import entr, rel_entr

from tiejax.geometry.distances import Pair
from tiejax.geometry.optimality import condition_number, optimality_residual

Predict = Callable[[np.ndarray, np.ndarray], Any]
Case = Literal["holds: same", "holds: different", "fails: same meaning", "fails: same use", "unknown"]

# In nats: about the conditional distance of two symbols with probabilities .4 and .6 in every context that asks for them.
THRESHOLD = 0.02
# A pair is asked for if its mean probability is at least this fraction of its probability under a uniform prediction.
SMALLEST_SHARE = 0.01
BLOCK = 256


def jensen_shannon(
    log_p: Float[np.ndarray, "*rows vocabulary"], log_q: Float[np.ndarray, "*rows vocabulary"]
) -> Float[np.ndarray, "*rows"]:
    """Return the Jensen-Shannon divergence [KL(p | m) + KL(q | m)] / 2 of each row, m = (p + q) / 2, in nats (0 to ln 2)."""
    p, q = np.exp(np.asarray(log_p, float)), np.exp(np.asarray(log_q, float))
    middle = (p + q) / 2
    return np.maximum(0, (rel_entr(p, middle) + rel_entr(q, middle)).sum(-1) / 2)


def in_blocks(function: Callable[..., Any], *columns: np.ndarray) -> np.ndarray:
    """Apply a function to blocks of rows of a constant size, so that it compiles once."""
    parts = []
    for start in range(0, len(columns[0]), BLOCK):
        rows = np.minimum(np.arange(start, start + BLOCK), len(columns[0]) - 1)
        parts.append(np.asarray(function(*(column[rows] for column in columns)))[: len(columns[0]) - start])
    return np.concatenate(parts)


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


def semantic_distance(
    predict: Predict,
    tokens: Integer[np.ndarray, "contexts length"],
    position: Integer[np.ndarray, " contexts"],
    pair: Pair,
    weight: Float[np.ndarray, " contexts"],
    predicted: Float[np.ndarray, "contexts vocabulary"],
) -> tuple[float, bool]:
    r"""Return how much swapping one symbol for the other in the input changes the prediction, and whether both occur.

        D_s = sum_c w_c (1 / n_c) sum_{i: c_i in {s1, s2}} JS[p(. | c), p(. | c with c_i swapped)] / sum_c w_c

    summed over the contexts c that contain s1 or s2 at n_c > 0 positions i other than the asked one; NaN if there are none. In
    nats, 0 to ln 2. predict: (tokens [rows, length], position [rows]) -> log probabilities [rows, vocabulary] at the asked
    position. weight: w, the probability of each context. predicted: predictions of the contexts.
    """
    row, swapped = swaps(tokens, position, pair)
    elsewhere = np.arange(tokens.shape[1]) != position[:, None]
    both = all(np.any(((tokens == symbol) & elsewhere)[weight > 0]) for symbol in pair)
    share = weight[row] / np.bincount(row, minlength=len(tokens))[row]
    if not share.sum() > 0:
        return math.nan, both
    total = 0.0
    for start in range(0, len(row), BLOCK):
        part = slice(start, start + BLOCK)
        changed = in_blocks(predict, swapped[part], position[row[part]])
        total += float(share[part] @ jensen_shannon(predicted[row[part]], changed))
    return total / float(share.sum()), both


def conditional_distance(
    log_probabilities: Float[np.ndarray, "contexts vocabulary"], pair: Pair, weight: Float[np.ndarray, " contexts"]
) -> tuple[float, float]:
    r"""Return how far two symbols are from being equally likely, in the contexts that ask for one of them.

        D_c = sum_c w_c m_c [ln 2 - H(p(s1 | c) / m_c)] / sum_c w_c m_c,    m_c = p(s1 | c) + p(s2 | c),

    where H(r) = -r ln r - (1 - r) ln(1 - r). The bracket is the Jensen-Shannon divergence between the model's distribution
    within the pair and the same distribution with the symbols swapped: 0 if they are equally likely, ln 2 if one is impossible,
    and lambda^2 / 8 for a small log ratio lambda. The second value, the mean of lambda = ln[p(s1 | c) / p(s2 | c)], uses the
    same weights w_c m_c, because a context in which neither is expected (another bit of EXor, another word of a text) does not
    inform their ratio. weight: w, with a sum of 1.

    The symbols of a pair that is never asked for (mean m below `SMALLEST_SHARE` of 2 / vocabulary) count as equally
    likely: D_c = 0, and the mean is NaN, as it is if the ratio is infinite with both signs.
    """
    chosen = np.asarray(log_probabilities[:, list(pair)], float)
    mass = np.exp(chosen).sum(1)
    asked = float(weight @ mass)
    if asked < SMALLEST_SHARE * 2 / log_probabilities.shape[1] or asked == 0:
        return 0.0, math.nan
    used = weight * mass > 0
    chosen, mass, share = chosen[used], mass[used], (weight * mass / asked)[used]
    distance = float(share @ (math.log(2) - entr(np.exp(chosen) / mass[:, None]).sum(1)))
    with np.errstate(invalid="ignore"):  # infinite ratios of both signs have no mean
        return max(0.0, distance), float(share @ (chosen[:, 0] - chosen[:, 1]))


def violation(semantic: float, conditional: float) -> tuple[Case, float]:
    r"""Classify a pair by whether each distance (in nats) exceeds the threshold t, and score the violation of DH.

        score = ln[(D_c + t) / (D_s + t)]

    "holds: same", "holds: different": the symbols are equivalent in both ways, or in neither. "fails: same meaning": they mean
    the same but are not equally likely (score > 0). "fails: same use": they mean different things but are equally likely
    (score < 0). "unknown", with a score of NaN: a distance is not finite.
    """
    if not (math.isfinite(semantic) and math.isfinite(conditional)):
        return "unknown", math.nan
    cases: Mapping[tuple[bool, bool], Case] = {
        (False, False): "holds: same",
        (True, True): "holds: different",
        (False, True): "fails: same meaning",
        (True, False): "fails: same use",
    }
    score = math.log((conditional + THRESHOLD) / (semantic + THRESHOLD))
    return cases[semantic > THRESHOLD, conditional > THRESHOLD], score


def equivalence(
    predict: Predict,
    tokens: Integer[np.ndarray, "contexts length"],
    position: Integer[np.ndarray, " contexts"],
    pairs: Sequence[Pair],
    weight: Float[np.ndarray, " contexts"],
    states: Float[np.ndarray, "contexts width"],
    table: Float[np.ndarray, "vocabulary width"],
    log_ratios: Mapping[Pair, np.ndarray],
) -> list[dict[str, Any]]:
    """Return the measures of each pair; NaN where one is not defined.

    states, table: the state h of each context, and the output table E_out, for the condition number of the states that ask for
    a pair (weights w_c m_c, see `conditional_distance`) and, for pairs with a true log ratio in `log_ratios`, the optimality
    residual under the same weights. A pair has a case only if the contexts contain both symbols. Predictions of all contexts
    are held in memory.
    """
    weight, predicted, rows = weight / weight.sum(), in_blocks(predict, tokens, position), []
    for pair in pairs:
        semantic, both = semantic_distance(predict, tokens, position, pair, weight, predicted)
        conditional, log_ratio_mean = conditional_distance(predicted, pair, weight)
        case, score = violation(semantic if both else math.nan, conditional)
        asking = weight * np.exp(np.asarray(predicted[:, list(pair)], float)).sum(1)
        rows.append(
            {
                "semantic_distance": semantic,
                "conditional_distance": conditional,
                "log_ratio_mean": log_ratio_mean,
                "case": case,
                "score": score,
                "residual_rms": optimality_residual(states, table, pair, log_ratios.get(pair, math.nan), asking),
                "condition_number": condition_number(states, asking) if asking.sum() > 0 else math.nan,
            }
        )
    return rows
