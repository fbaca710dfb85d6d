"""How the input and output tables of an untied checkpoint relate, and which tokens' two roles part most."""

from typing import Any

import numpy as np

from tiejax.checkpoints.hub.families import Tables
from tiejax.checkpoints.hub.tables import HubTable
from tiejax.checkpoints.hub.tokens import Tokens, text_of
from tiejax.geometry import alignment, published
from tiejax.geometry.canonical_correlations import correlations_of, largest_chance
from tiejax.geometry.cross_products import cross_products
from tiejax.geometry.linear_maps import Maps, maps_between, whitening
from tiejax.geometry.neighbours import Overlap, neighbour_overlap, query_blocks
from tiejax.lab.studies.diagnosis.settings import Settings
from tiejax.lab.studies.diagnosis.token_ranks import Ranked
from tiejax.lab.studies.diagnosis.watched import Tell, watch

SCORED = 65_536  # tokens on which alignments are scored; the maps are fitted to all
FREQUENT = 10_000  # among so many of the first ranks the tokens are looked for whose roles differ most
SHOWN = 20
MAPS = "maps between the tables"  # the phase on which the widest tables spend most of a minute

Arrays = dict[str, np.ndarray]  # of metrics.npz, by name


def relate(tables: Tables, as_is: np.ndarray | None, settings: Settings, tell: Tell) -> tuple[dict[str, Any], Arrays]:
    """Return how the two tables relate, as results.json has it, and cosines by token and canonical correlations.

    as_is: the cosines of the tokens' rows as they are, None where the widths differ.
    """
    assert tables.output is not None
    first, second, rows = tables.input.as_stored(), tables.output.as_stored(), tables.input.shape[0]
    widths = first.shape[1], second.shape[1]
    arrays = _mapped(first, second, settings.seed, tell)
    least_squares = {name: _mean(arrays[f"cosine_{name}"]) for name in ("from_input", "from_output")}
    chance = {name: alignment.least_squares_chance(rows, width) for name, width in zip(least_squares, widths, strict=True)}
    overlap = _overlap(first, second, settings, tell)
    if as_is is not None:
        arrays["cosine_as_is"] = as_is
    correlations, marks = arrays["canonical"], published.OLMO_1B
    lowest = min((score for score in least_squares.values() if score is not None), default=None)
    return {
        "alignment": {
            "identity": _mean(as_is) if as_is is not None else None,
            "procrustes": _mean(arrays["cosine_procrustes"]),
            "least_squares": least_squares,
            "chance": chance,
            "scored": len(arrays["scored"]),
        },
        "neighbours": overlap._asdict(),
        "canonical": {
            "mean": float(correlations.mean()),
            "number": len(correlations),
            "largest_by_chance": largest_chance(rows, *widths),
        },
        "published": marks,
        "standing": published.standing(
            lowest, overlap.estimate, marks["least_squares"], marks["neighbour_overlap"], max(chance.values())
        ),
    }, arrays


def _mapped(first: HubTable, second: HubTable, seed: int, tell: Tell) -> Arrays:
    """Return cosines of the scored tokens under every map, and the canonical correlations, by their names in metrics.npz."""
    rows = first.shape[0]
    scored = np.arange(rows)
    if rows > SCORED:
        scored = np.sort(np.random.default_rng(seed).choice(rows, SCORED, replace=False))
    correlations, maps, means = _fitted(first, second, tell)
    cosines = alignment.mapped_cosines(first, second, scored, means, maps)
    tell(MAPS, 3, 3)
    return {
        "cosine_from_input": cosines.from_source,
        "cosine_from_output": cosines.from_target,
        "cosine_procrustes": cosines.procrustes,
        "scored": scored,
        "canonical": correlations,
    }


def _fitted(first: HubTable, second: HubTable, tell: Tell) -> tuple[np.ndarray, Maps, alignment.Means]:
    """Return the canonical correlations, the maps in float32 and the means of two tables; what they are made of is let go."""
    x, y = watch(tell, "products of the tables", 2 * first.shape[0], first, second)
    products = cross_products(x, y)
    bases = whitening(products.source_gram), whitening(products.target_gram)
    correlations = correlations_of(products, bases)
    tell(MAPS, 1, 3)
    maps = Maps(*(each.astype(np.float32) for each in maps_between(products, bases)))
    tell(MAPS, 2, 3)
    return correlations, maps, (products.source_mean, products.target_mean)


def _overlap(first: HubTable, second: HubTable, settings: Settings, tell: Tell) -> Overlap:
    """Return how many nearest neighbours tokens have in common in the two tables."""
    rows = first.shape[0]
    k, queries = min(settings.neighbours, rows - 1), min(settings.sample, rows)
    reading = 2 * (queries + rows * len(list(query_blocks(queries, first, second))))
    x, y = watch(tell, "neighbours", reading, first, second)
    return neighbour_overlap(x, y, k, settings.sample, settings.seed)


def _mean(values: np.ndarray) -> float | None:
    return float(np.nanmean(values, dtype=np.float64)) if not np.isnan(values).all() else None


def parting_tokens(arrays: Arrays, ranked: Ranked, tokens: Tokens | None) -> dict[str, list[dict[str, Any]]]:
    """Return, of the frequent tokens that were scored, those whose two roles are farthest apart and nearest.

    By the mean of the two least-squares cosines.
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
