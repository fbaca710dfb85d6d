r"""Which symbols are equivalent for a model: in meaning (as inputs), in use (as outputs), and where the two part.

Two symbols are semantically equivalent if p(y | rho, s1) = p(y | rho, s2) for all contexts rho and labels y, and conditionally
equivalent if p(s1 | rho) = p(s2 | rho) for all rho. The distributional hypothesis (DH) says that the two coincide.
Both are measured here as what a swap of the symbols does to the model's predictions, in the input or in the output, as mean
Jensen-Shannon divergences between 0 and ln 2 nats, so that one threshold serves both.
Source of the definitions: Bertolotti and Cazzola, ICML 2024 (PMLR 235:3584-3610); the measures are tiejax's own.
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

# Nats. As a conditional distance: two symbols used 40 to 60 in every context that asks for either.
THRESHOLD = 0.02
# A pair is asked for if its mean probability is at least this share of what a uniform prediction would give it.
SMALLEST_SHARE = 0.01
BLOCK = 256


class Semantic(NamedTuple):
    """What a swap in the input does. distance: nats, NaN without swaps. contexts: how many hold each symbol elsewhere."""

    distance: float
    contexts: tuple[int, int]


class Conditional(NamedTuple):
    """How unlike two symbols are as predictions, in the contexts that ask for them.

    distance: nats. log_ratio_mean, log_ratio_rms: of ln[p(s1 | rho) / p(s2 | rho)]; NaN if no context asks for the pair, the
    mean also if the ratio is infinite with both signs.
    asked: the mean of p(s1 | rho) + p(s2 | rho).
    """

    distance: float
    log_ratio_mean: float
    log_ratio_rms: float
    asked: float


class Violation(NamedTuple):
    """Whether DH holds for a pair, and by how much it fails: see `violation`."""

    case: Case
    score: float


def jensen_shannon(
    log_p: Float[np.ndarray, "*rows vocabulary"], log_q: Float[np.ndarray, "*rows vocabulary"]
) -> Float[np.ndarray, "*rows"]:
    """Return the Jensen-Shannon divergence [KL(p | m) + KL(q | m)] / 2, m = (p + q) / 2, of each row, in nats (0 to ln 2)."""
    p, q = np.exp(np.asarray(log_p, float)), np.exp(np.asarray(log_q, float))
    middle = (p + q) / 2
    return np.maximum(0, (rel_entr(p, middle) + rel_entr(q, middle)).sum(-1) / 2)


def swaps(
    tokens: Integer[np.ndarray, "contexts length"], position: Integer[np.ndarray, "contexts"], pair: Pair
) -> tuple[Integer[np.ndarray, "swaps"], Integer[np.ndarray, "swaps length"]]:
    """Return every context with one occurrence of a symbol of the pair replaced by the other, and which context it was.

    Each occurrence is swapped alone, since a definition by p(y | rho, s) compares two symbols in one place: the others belong
    to rho. Swapping all of them would let effects cancel (a parity does not see two bits flipped). The asked `position` is
    left as it is.
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
    position: Integer[np.ndarray, "contexts"],
    block: int = BLOCK,
) -> Float[np.ndarray, "contexts vocabulary"]:
    """Return predict(tokens, position) for all contexts, asked `block` at a time: always one shape, so that it compiles once.

    predict: (tokens [block, length], position [block]) -> log probabilities [block, vocabulary] at the asked position.
    Raises ValueError if these do not sum to one, as logits would not.
    """
    parts = []
    for start in range(0, len(tokens), block):
        rows = np.minimum(np.arange(start, start + block), len(tokens) - 1)
        part = np.asarray(predict(tokens[rows], position[rows]))
        if part.ndim != 2 or len(part) != block:
            raise ValueError(f"predict: must return [{block}, vocabulary] for {block} contexts, returned {list(part.shape)}")
        total = logsumexp(part, axis=1)
        worst = total[np.argmax(np.abs(total))]
        if not abs(worst) < 1e-3:
            raise ValueError(f"predict: must return log probabilities, but ln of the sum of a row is {worst:.3g}, not 0")
        parts.append(part[: len(tokens) - start])
    return np.concatenate(parts)


def semantic_distance(
    predict: Predict,
    tokens: Integer[np.ndarray, "contexts length"],
    position: Integer[np.ndarray, "contexts"],
    pair: Pair,
    weight: Float[np.ndarray, "contexts"] | None = None,
    predicted: Float[np.ndarray, "contexts vocabulary"] | None = None,
    block: int = BLOCK,
) -> Semantic:
    r"""Measure how much swapping one symbol for the other in the input changes the predictions elsewhere.

        D_s = sum_c w_c (1 / n_c) sum_{i: c_i in {s1, s2}} JS[p(. | c), p(. | c with c_i swapped)] / sum_c w_c

    over the contexts c that hold s1 or s2 at n_c > 0 places i, the asked one excluded. weight: w, the probability of each
    context (default: equal). predicted: predictions of the contexts, if the caller has them. Nats, 0 to ln 2.
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
    weight: Float[np.ndarray, "contexts"] | None = None,
    smallest_share: float = SMALLEST_SHARE,
) -> Conditional:
    r"""Measure how far two symbols are from being equally likely, in the contexts that ask for one of them.

        D_c = sum_c w_c m_c [ln 2 - H(p(s1 | c) / m_c)] / sum_c w_c m_c,    m_c = p(s1 | c) + p(s2 | c),

    H(r) = -r ln r - (1 - r) ln(1 - r). The bracket is the Jensen-Shannon divergence between the model's choice within the pair
    and the same with the symbols swapped: 0 where they are equally likely, ln 2 where one is impossible, and lambda^2 / 8 for
    a small log ratio lambda. Mean and root mean square of lambda = ln[p(s1 | c) / p(s2 | c)] have the same weights w_c m_c:
    a context in which neither is to be expected (another bit of EXor, another word of a text) says nothing of their ratio.

    A pair that is never asked for (mean m below `smallest_share` of 2 / vocabulary) is equally likely, never: D_c = 0.
    """
    check_pair(pair, log_probabilities.shape[1])
    chosen = np.asarray(log_probabilities[:, list(pair)], float)
    mass = np.exp(chosen).sum(1)
    weight = normalised(weight, len(chosen))
    asked = float(weight @ mass)
    if asked < smallest_share * 2 / log_probabilities.shape[1] or asked == 0:
        return Conditional(0.0, math.nan, math.nan, asked)
    share, asks = weight * mass / asked, weight * mass > 0
    chosen, mass, share = chosen[asks], mass[asks], share[asks]
    ratio = np.exp(chosen) / mass[:, None]
    distance = float(share @ (math.log(2) - entr(ratio).sum(1)))
    log_ratio = chosen[:, 0] - chosen[:, 1]
    with np.errstate(invalid="ignore"):  # infinite ratios of both signs have no mean
        mean = float(share @ log_ratio)
    return Conditional(max(0.0, distance), mean, math.sqrt(share @ np.square(log_ratio)), asked)


def violation(semantic: float, conditional: float, threshold: float = THRESHOLD) -> Violation:
    r"""Say which of four cases a pair is, by whether each distance (nats) exceeds the threshold t, and score the violation.

        score = ln[(D_c + t) / (D_s + t)]

    "holds: same" or "holds: different": equivalent in both ways or in neither. "fails: same meaning": the symbols mean the same
    but are not equally likely (score > 0). "fails: same use": they mean different things and are equally likely (score < 0).
    "unknown" and NaN if a distance is not finite.
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
    position: Integer[np.ndarray, "contexts"],
    pairs: Sequence[Pair],
    *,
    weight: Float[np.ndarray, "contexts"] | None = None,
    states: Float[np.ndarray, "contexts width"] | None = None,
    table: Float[np.ndarray, "vocabulary width"] | None = None,
    log_ratios: Mapping[Pair, float | np.ndarray] | None = None,
    threshold: float = THRESHOLD,
    block: int = BLOCK,
) -> list[dict[str, Any]]:
    """Return a row of plain numbers for each pair: all measures of this file; None where one is not defined.

    states, table: h of the contexts and E_out, for the conditioning of the states that ask for a pair (weight w_c m_c, see
    `conditional_distance`) and, with the true `log_ratios` of some pairs, their optimality residual under the same weights.
    A case is told only of pairs of which the contexts hold both symbols. Predictions of all contexts are kept in memory.
    """
    if states is None and log_ratios:
        raise ValueError("log_ratios: the optimality residual needs states and table as well")
    if (states is None) != (table is None):
        raise ValueError("states, table: give both or neither")
    weight = normalised(weight, len(tokens))
    predicted = predictions(predict, tokens, position, block)
    for pair in pairs:
        check_pair(pair, predicted.shape[1])
    rows = []
    for pair in pairs:
        semantic = semantic_distance(predict, tokens, position, pair, weight, predicted, block)
        conditional = conditional_distance(predicted, pair, weight)
        row = _distances(pair, semantic, conditional, threshold)
        if states is not None and table is not None:
            asking = weight * np.exp(np.asarray(predicted[:, list(pair)], float)).sum(1)
            row |= _output_side(states, table, pair, (log_ratios or {}).get(pair, math.nan), asking)
        rows.append({name: _plain(value) for name, value in row.items()})
    return rows


def _distances(pair: Pair, semantic: Semantic, conditional: Conditional, threshold: float) -> dict[str, Any]:
    """Return both distances of a pair, and which case it is, by name."""
    seen = semantic.distance if min(semantic.contexts) > 0 else math.nan
    return {
        "first": pair[0],
        "second": pair[1],
        "contexts_first": semantic.contexts[0],
        "contexts_second": semantic.contexts[1],
        "semantic_distance": semantic.distance,
        "conditional_distance": conditional.distance,
        **{name: getattr(conditional, name) for name in ("log_ratio_mean", "log_ratio_rms", "asked")},
        **violation(seen, conditional.distance, threshold)._asdict(),
    }


def _output_side(
    states: np.ndarray, table: np.ndarray, pair: Pair, log_ratio: float | np.ndarray, asking: np.ndarray
) -> dict[str, float]:
    """Return residual and conditioning under the weights of the contexts that ask for a pair; NaN where none does."""
    if asking.sum() > 0:
        residual = optimality_residual(states, table, pair, log_ratio, asking)
        spanned = conditioning(states, asking)
    else:
        residual, spanned = Residual(math.nan, math.nan, math.nan), Conditioning(math.nan, math.nan)
    return {f"residual_{name}": value for name, value in residual._asdict().items()} | spanned._asdict()


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value
