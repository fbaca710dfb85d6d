"""Similarity of the input and output tables of an untied checkpoint, overall and by token."""

from typing import Any

import numpy as np

from tiejax.checkpoints.diagnose.options import Options
from tiejax.checkpoints.diagnose.tables import Progress, Ranked, Tables, counted
from tiejax.checkpoints.hub.reading import check_memory
from tiejax.checkpoints.hub.tables import HubTable
from tiejax.checkpoints.hub.tokens import Tokens, text_of
from tiejax.geometry import alignment
from tiejax.geometry.cross_products import cross_products
from tiejax.geometry.linear_maps import Maps, correlations_of, maps_between, whitening
from tiejax.geometry.neighbours import Overlap, neighbour_overlap, query_blocks

SCORED = 65_536  # sampled tokens on which alignments are scored; the maps are fitted to all tokens
FREQUENT = 10_000  # the most frequent tokens, among which the extreme ones are listed
MAP_BYTES = 80  # of the matrices between columns of the two tables, for each pair of columns, by measurement
SHOWN = 20  # tokens in each list
MAPS = "maps between the tables"  # a phase of progress; takes most of a minute for the widest tables

Arrays = dict[str, np.ndarray]  # by their names in metrics.npz
# OLMo-1B: similarity of the untied model's output and input tables to the tied model's table (A. Lopardo et al. 2026,
# arXiv:2603.26663).
OLMO_1B = {"least_squares": {"output": 0.719, "input": 0.525}, "neighbour_overlap": {"output": 0.733, "input": 0.496}}


def relate(tables: Tables, as_is: np.ndarray | None, options: Options, progress: Progress) -> tuple[dict[str, Any], Arrays]:
    """Compare the two tables of an untied checkpoint.

    Returns entries for results.json, and the cosines by token and the canonical correlations for metrics.npz. as_is: for each
    token, the cosine of its two rows without a map; None if the widths differ.
    """
    assert tables.output is not None
    first, second, rows = tables.input.as_stored(), tables.output.as_stored(), tables.input.shape[0]
    widths = first.shape[1], second.shape[1]
    check_memory(f"{first.file}: maps between tables of {max(widths):,} columns", MAP_BYTES * max(widths) ** 2)
    arrays = _mapped(first, second, options.seed, progress)
    least_squares = {name: alignment.mean_cosine(arrays[f"cosine_{name}"]) for name in ("from_input", "from_output")}
    chance = {name: alignment.least_squares_chance(rows, width) for name, width in zip(least_squares, widths, strict=True)}
    overlap = _overlap(first, second, options, progress)
    if as_is is not None:
        arrays["cosine_as_is"] = as_is
    correlations = arrays["canonical"]
    lowest = min((score for score in least_squares.values() if score is not None), default=None)
    return {
        "alignment": {
            "identity": alignment.mean_cosine(as_is),
            "procrustes": alignment.mean_cosine(arrays["cosine_procrustes"]),
            "least_squares": least_squares,
            "chance": chance,
            "scored": len(arrays["scored"]),
        },
        "neighbours": overlap._asdict(),
        "canonical": {
            "mean": float(correlations.mean()),
            "number": len(correlations),
        },
        "published": OLMO_1B,
        "standing": standing(lowest, overlap.estimate, max(chance.values()), overlap.chance),
    }, arrays


def standing(least_squares: float | None, overlap: float, chance: float, chance_overlap: float) -> str:
    """Classify the similarity of two tables by the published values: `near`, `between`, `apart` or `unclear`.

    near: both scores reach the upper value (of a tied table and the output table of its untied counterpart). apart: both are
    below the lower value (of the input table). between: anything else. A score whose chance level reaches the lower value is
    ignored, since any two tables would pass it; unclear: no score is left.
    """
    scores = {}
    if chance_overlap < OLMO_1B["neighbour_overlap"]["input"]:
        scores["neighbour_overlap"] = overlap
    if least_squares is not None and chance < OLMO_1B["least_squares"]["input"]:
        scores["least_squares"] = least_squares
    if not scores:
        return "unclear"
    if all(score >= OLMO_1B[name]["output"] for name, score in scores.items()):
        return "near"
    return "apart" if all(score < OLMO_1B[name]["input"] for name, score in scores.items()) else "between"


def _mapped(first: HubTable, second: HubTable, seed: int, progress: Progress) -> Arrays:
    """Return the cosines of the scored tokens under every map, and the canonical correlations."""
    rows = first.shape[0]
    scored = np.arange(rows)
    if rows > SCORED:
        scored = np.sort(np.random.default_rng(seed).choice(rows, SCORED, replace=False))
    correlations, maps, means = _fitted(first, second, progress)
    cosines = alignment.mapped_cosines(first, second, scored, means, maps)
    progress(MAPS, 3, 3)
    return {
        "cosine_from_input": cosines.from_source,
        "cosine_from_output": cosines.from_target,
        "cosine_procrustes": cosines.procrustes,
        "scored": scored,
        "canonical": correlations,
    }


def _fitted(first: HubTable, second: HubTable, progress: Progress) -> tuple[np.ndarray, Maps, alignment.Means]:
    """Return the canonical correlations, the maps in float32 and the means of two tables."""
    x, y = counted(progress, "products of the tables", 2 * first.shape[0], first, second)
    products = cross_products(x, y)
    bases = whitening(products.source_gram), whitening(products.target_gram)
    correlations = correlations_of(products, bases)
    progress(MAPS, 1, 3)
    maps = Maps(*map(alignment.map_in_float32, maps_between(products, bases)))
    progress(MAPS, 2, 3)
    return correlations, maps, (products.source_mean, products.target_mean)


def _overlap(first: HubTable, second: HubTable, options: Options, progress: Progress) -> Overlap:
    """Return the mean share of nearest neighbours that tokens have in common in the two tables."""
    rows = first.shape[0]
    # Of more than a third of the other rows as neighbours, unrelated tables share many.
    k, queries = min(options.neighbours, max(1, (rows - 1) // 3)), min(options.sample, rows)
    reading = 2 * (queries + rows * len(list(query_blocks(queries, first, second))))
    x, y = counted(progress, "neighbours", reading, first, second)
    return neighbour_overlap(x, y, k, options.sample, options.seed)


def extreme_tokens(arrays: Arrays, ranked: Ranked, tokens: Tokens | None) -> dict[str, list[dict[str, Any]]]:
    """Return the frequent tokens whose rows in the two tables are least ("apart") and most ("near") similar.

    Similarity: the mean of the two least-squares cosines, over the scored tokens.
    """
    scored, as_is = arrays["scored"], arrays.get("cosine_as_is")
    cosines = (arrays["cosine_from_input"] + arrays["cosine_from_output"]) / 2
    candidates = (ranked.ranks[scored] <= FREQUENT) & ranked.counted[scored] & ~np.isnan(cosines)
    order = np.flatnonzero(candidates)[np.argsort(cosines[candidates], kind="stable")].tolist()
    shown = min(SHOWN, len(order) // 2)

    def row(place: int) -> dict[str, Any]:
        token = int(scored[place])
        return {
            "id": token,
            "text": text_of(tokens, token) if tokens else "",
            "rank": int(ranked.ranks[token]),
            "count": int(ranked.counts[token]) if ranked.counts is not None else None,
            "norm_input": float(arrays["norm_input"][token]),
            "norm_output": float(arrays["norm_output"][token]),
            "cosine": float(cosines[place]),
            "cosine_as_is": float(as_is[token]) if as_is is not None else None,
        }

    return {"apart": [row(place) for place in order[:shown]], "near": [row(place) for place in order[::-1][:shown]]}
