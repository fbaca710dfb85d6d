"""Natural pairs: where the distributional hypothesis (DH) holds among frequent words of the text.

DH says that symbols that are equally likely in all contexts have equal effects, and the reverse. For pairs of words with
similar neighbours, two distances are measured in models that are never tied, on held-out text:

    semantic      the Jensen-Shannon divergence (nats) of the predictions before and after one word is replaced by the other,
                  over the replaced word and the 7 tokens after it
    conditional   the mean of |l - median l| (nats), where l = ln p(first | past) - ln p(second | past): what a bias of the
                  logits leaves of the log-ratio of their probabilities

Pairs in the lowest or highest fifth of both distances are in one of four lists. The distances, from which the lists follow,
are stored before any reported model is trained.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import spearmanr

from tiejax.lab.comparison.training import STATE, Arrays, Members, Trainer, tuning_segment
from tiejax.lab.runs.rates import Pair
from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.studies.causal_untying.model import Objective, tuning_arm
from tiejax.lab.studies.causal_untying.settings import NATURAL_SEEDS, Settings
from tiejax.lab.studies.causal_untying.text import Text
from tiejax.text import planted_pairs
from tiejax.text.blocks import spread
from tiejax.text.similar_words import most_similar
from tiejax.training.checkpoint import from_arrays
from tiejax.training.placement import member_map

PyTree = Any
WORDS = 200  # the most frequent whole words
AHEAD = 8  # predictions that are compared
OCCURRENCES = 16  # of each word of a pair in the held-out text, at most
STAGE = "natural-pairs"
LISTS = ("both distances low", "low semantic distance only", "low conditional distance only", "both distances high")
OTHER = "other"


class Contexts(NamedTuple):
    """Held-out places at which a word of a pair occurs.

    tokens: blocks, `[pairs, places, context]`. swapped: the same with the other word at `place`. place: of the word, `[pairs,
    places]`. weight: 0 for places that only fill up, `[pairs, places]`.
    """

    tokens: Any
    swapped: Any
    place: Any
    weight: Any


def contexts_of(blocks: np.ndarray, pairs: np.ndarray) -> Contexts:
    """Return equally many places of both words of each pair, spread over the blocks, none near the ends of its block."""
    inside = blocks[:, AHEAD : blocks.shape[1] - AHEAD]
    rows, places = np.nonzero(np.isin(inside, pairs))
    words = inside[rows, places]
    of_word = {word: np.flatnonzero(words == word) for word in np.unique(pairs)}
    shape = len(pairs), 2 * OCCURRENCES
    tokens = np.zeros((*shape, blocks.shape[1]), np.int32)
    place, weight = np.ones(shape, np.int32), np.zeros(shape, np.float32)
    swapped = tokens.copy()
    for number, pair in enumerate(pairs):
        most = min(OCCURRENCES, *(len(of_word[word]) for word in pair))
        for side, word in enumerate(pair):
            chosen = of_word[word][spread(len(of_word[word]), most)]
            to = slice(side * OCCURRENCES, side * OCCURRENCES + most)
            tokens[number, to] = swapped[number, to] = blocks[rows[chosen]]
            place[number, to], weight[number, to] = places[chosen] + AHEAD, 1
            swapped[number, np.arange(to.start, to.stop), place[number, to]] = pair[1 - side]
    return Contexts(tokens, swapped, place, weight)


def distances(objective: Objective, params: PyTree, pairs: Any, contexts: Contexts) -> dict[str, jax.Array]:
    """Return the semantic and the conditional distance of every pair in one model, `[pairs]`; NaN without a context."""

    def of_pair(given: tuple[jax.Array, Contexts]) -> dict[str, jax.Array]:
        pair, here = given
        before, after = (objective.states(params, tokens) for tokens in (here.tokens, here.swapped))
        table, bias = params["head"]["embedding"], params["head"].get("bias", 0.0)

        def predictions(states: jax.Array) -> jax.Array:
            ahead = jax.vmap(lambda rows, place: jax.lax.dynamic_slice_in_dim(rows, place, AHEAD))(states, here.place)
            return jax.nn.log_softmax(ahead @ table.T + bias)

        divergence = jnp.mean(jensen_shannon(predictions(before), predictions(after)), axis=1)
        past = before[jnp.arange(len(here.place)), here.place - 1]
        ratio = past @ (table[pair[0]] - table[pair[1]])  # a bias of the logits would not matter
        median = jnp.nanmedian(jnp.where(here.weight > 0, ratio, jnp.nan))
        number = jnp.sum(here.weight)
        semantic = jnp.sum(here.weight * divergence) / number
        conditional = jnp.sum(jnp.where(here.weight > 0, jnp.abs(ratio - median), 0)) / number
        return {"semantic": semantic, "conditional": conditional}

    found: dict[str, jax.Array] = jax.lax.map(of_pair, (jnp.asarray(pairs), jax.tree.map(jnp.asarray, contexts)))
    return found


def jensen_shannon(first: jax.Array, second: jax.Array) -> jax.Array:
    """Return the Jensen-Shannon divergence of two distributions in nats, from their log-probabilities `[..., outcomes]`."""
    middle = jnp.logaddexp(first, second) - jnp.log(2.0)
    return jnp.sum(jnp.exp(first) * (first - middle) + jnp.exp(second) * (second - middle), axis=-1) / 2


def measure(trainer: Trainer, rate: Pair, number: int) -> Arrays:
    """Train models that are never tied, and return `pairs` `[pairs, 2]` and their distances in each model, `[seed, pairs]`."""
    text = trainer.recipe.text
    pairs = candidates(text, number)
    segment = tuning_segment(tuning_arm("untied"))
    members = Members(list(NATURAL_SEEDS), [rate] * len(NATURAL_SEEDS))
    objective = trainer.recipe.objective(segment.arm)
    arrays = trainer.segment(STAGE, segment, members, None, True)
    like = jax.eval_shape(lambda: trainer.first_state(segment.arm, members))
    params = from_arrays(arrays, like, STATE).params
    contexts = contexts_of(text.validation, pairs)
    found = member_map(lambda params, shared: distances(objective, params, *shared))(params, (pairs, contexts))
    return {"pairs": pairs, **{name: values[:, 0] for name, values in found.items()}}


def candidates(text: Text, number: int) -> np.ndarray:
    """Return the pairs of frequent whole words whose neighbours in the training text are most similar."""
    ids = text.streams.split("train")
    is_word, _ = planted_pairs.words_of(text.streams.token_texts(), ids)
    count = np.bincount(ids, minlength=text.streams.vocabulary)
    frequent = np.argsort(np.where(is_word, -count, 0), kind="stable")[:WORDS]
    frequent = frequent[is_word[frequent] & (count[frequent] > 0)]
    if len(frequent) < 2:
        raise BadInput("--natural_pairs: the vocabulary has no two whole words, tokens of a space and letters; use 0")
    return most_similar(ids, frequent, text.streams.vocabulary, number)


def lists_of(measured: Arrays) -> dict[str, np.ndarray]:
    """Return the numbers of the pairs of each list in `LISTS`, by fifths of the mean distances over models."""
    semantic, conditional = (measured[name].mean(axis=0) for name in ("semantic", "conditional"))

    def fifths(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        low, high = np.nanquantile(values, [0.2, 0.8])
        return values <= low, values >= high

    (near_effect, far_effect), (near_likely, far_likely) = fifths(semantic), fifths(conditional)
    masks = near_effect & near_likely, near_effect & far_likely, far_effect & near_likely, far_effect & far_likely
    return {name: np.flatnonzero(mask) for name, mask in zip(LISTS, masks, strict=True)}


def pairs_by_list(measured: Arrays) -> dict[str, np.ndarray]:
    """Return the pairs of each list that has any, and those of no list as `OTHER`, `[pairs, 2]`."""
    of_list = lists_of(measured)
    others = np.setdiff1d(np.arange(len(measured["pairs"])), np.concatenate([*of_list.values()]))
    return {name: measured["pairs"][numbers] for name, numbers in {**of_list, OTHER: others}.items() if len(numbers)}


def facts(text: Text, measured: Arrays, arrays: Arrays, settings: Settings) -> dict[str, Any]:
    """Return what results.json says: all pairs with their distances and lists, in the tables of all arms as well.

    measured: the output of `measure`. arrays: of the run, as `ARM/FIELD`.
    """
    texts, of_list = text.streams.token_texts(), lists_of(measured)
    named = {int(number): name for name, numbers in of_list.items() for number in numbers}
    semantic, conditional = (measured[name].mean(axis=0) for name in ("semantic", "conditional"))
    return {
        "seeds": list(NATURAL_SEEDS),
        "pairs": [
            {
                "words": [texts[token].strip() for token in pair],
                "semantic": float(semantic[number]),
                "conditional": float(conditional[number]),
                "list": named.get(number),
            }
            for number, pair in enumerate(measured["pairs"])
        ],
        "agreement": {name: _correlation(*measured[name]) for name in ("semantic", "conditional")},
        "correlation": _correlation(semantic, conditional),
        "tables": relative_distances(arrays, text.of_pairs[0], [arm.name for arm in settings.arms]),
    }


def _correlation(first: np.ndarray, second: np.ndarray) -> float:
    """Return Spearman's correlation over the pairs that have both values."""
    both = np.isfinite(first) & np.isfinite(second)
    return float(spearmanr(first[both], second[both]).statistic) if both.sum() > 2 else np.nan


def relative_distances(arrays: Arrays, kinds: Sequence[str], arms: Sequence[str]) -> dict[str, dict[str, dict[str, float]]]:
    """Return by arm, table and list the mean distance of the pairs of the list at the end over that of all pairs.

    Both are means within a model; the ratio is averaged over seeds. kinds: the list of every pair, in the order of recorded
    distances.
    """
    names, lists = np.array(kinds), [name for name in LISTS if name in kinds]

    def ratios(distance: np.ndarray) -> dict[str, float]:
        return {name: float(np.nanmean(distance[:, names == name].mean(axis=1) / distance.mean(axis=1))) for name in lists}

    return {arm: {table: ratios(arrays[f"{arm}/train_pair_{table}"][:, -1]) for table in ("input", "output")} for arm in arms}
