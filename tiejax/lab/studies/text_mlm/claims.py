"""What a run on text says: how twins and unrelated words move, what tying costs, and the claims as tests.

Arrays are those of a run's `metrics.npz`, `[arm, seed, record, ...]` with arms (untied, tied). A twin means the same as its
word. Written with probability .5 it is also as likely, so that the distributional hypothesis (DH) holds for the two; with any
other probability DH fails for them: conflict twins.
Source of the claims: Bertolotti and Cazzola, ICML 2024; conflict twins, several seeds and validation loss are ours.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from tiejax.geometry.uses import over_training
from tiejax.statistics.arms import ARMS, finite_seeds, select_seeds
from tiejax.statistics.claims import Claim, assess

TABLE_NAMES = {"input": "untied input", "output": "untied output", "tied": "tied"}
RECORDED = {"input": ("distance_input", 0), "output": ("distance_output", 0), "tied": ("distance_input", 1)}
KIND_NAMES = {"holding": "the twins for whom DH holds", "unrelated": "unrelated words"}
DH_OF_KIND: dict[str, str | None] = {"holding": "holds", "conflict": "fails", "unrelated": None}

Metrics = Mapping[str, np.ndarray]


def kind(probability: float) -> str:
    """Return what a set of twins is, written with a probability: `holding` (of DH) or `conflict`; `unrelated` words for NaN."""
    if np.isnan(probability):
        return "unrelated"
    return "holding" if abs(probability - 0.5) < 1e-9 else "conflict"


def final(values: np.ndarray) -> np.ndarray:
    """Return the mean over the last tenth of the records, at least the last, of `[arm, seed, record, ...]`."""
    return np.asarray(values[:, :, -_late(values.shape[2]) :].mean(2, dtype=float))


def _late(records: int) -> int:
    return max(1, records // 10)


def final_by_bucket(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the mean over all targets of the last tenth of the records, `[arm, seed, bucket]`; NaN where there is none.

    values: `[arm, seed, record, bucket]`, means over the counted targets, ignored where counts are 0.
    """
    late = slice(-_late(values.shape[2]), None)
    weights = counts[:, :, late].astype(float)
    total = weights.sum(2)
    summed = np.where(weights > 0, values[:, :, late] * weights, 0).sum(2)
    return np.divide(summed, total, out=np.full_like(total, np.nan), where=total > 0)


def distance_ratio(metrics: Metrics, name: str) -> np.ndarray:
    """Return d_end / d_start `[arm, seed, pair]` of `distance_input` or `distance_output`.

    d_start: at the first record. d_end: the mean over the last tenth of the records.
    """
    return np.asarray(final(metrics[name]) / metrics[name][:, :, 0])


def final_distances(metrics: Metrics) -> dict[str, np.ndarray]:
    """Return d_end / d_start `[arm, seed]`, medians over the pairs of a set, by "set, table"."""
    ratio = {table: distance_ratio(metrics, f"distance_{table}") for table in ("input", "output")}
    return {
        f"{name}, {table}": np.median(values[..., metrics["pair_set"] == number], axis=-1)
        for number, name in enumerate(metrics["set_names"])
        for table, values in ratio.items()
        if (metrics["pair_set"] == number).any()
    }


class PairClaim(NamedTuple):
    """A claim about the pairs of one kind in one table.

    sign: of the statistic that speaks for it. reference: the kind of pairs that they are compared with; None for what weight
    decay does to any pair.
    """

    name: str
    table: str
    kind: str
    sign: int
    reference: str | None


PAIR_CLAIMS = (
    *(PairClaim("converge", table, "holding", -1, "unrelated") for table in TABLE_NAMES),
    PairClaim("conflict-converge", "input", "conflict", -1, "unrelated"),
    *(PairClaim("conflict-apart", table, "conflict", 1, "holding") for table in ("output", "tied")),
    *(PairClaim("unrelated", table, "unrelated", 1, None) for table in TABLE_NAMES),
)
STATEMENTS = {
    "converge": "Twins for whom DH holds come together, more than unrelated words",
    "conflict-converge": "Conflict twins come together, more than unrelated words",
    "conflict-apart": "Conflict twins stay farther apart than twins for whom DH holds",
    "unrelated": "Unrelated words come together no more than by weight decay",
}
REPORTED = ("converge", "unrelated")  # those that the paper reports


def claims(metrics: Metrics, decay: float) -> list[Claim]:
    """Return the claims that apply to the planted sets, about distances twice: over seeds and over pairs.

    With c = ln(d_end / d_start) of a pair in one table of one seed, and c' that of the pairs it is compared with, the statistic
    is max(c, c - c') for pairs that come together, so that they must do so in themselves and more than the others; c - c' for
    pairs that are held apart; c + decay for unrelated ones.
    `.../seeds` has one difference a seed, c and c' being medians over pairs. `.../pairs` has one a pair, c and c' means over
    seeds of the first pair, the second and so on of the two sets: single pairs, so that those of both sets vary.
    decay: how far weight decay alone draws any pair together, -ln(d_end / d_start).
    """
    change = {table: np.log(distance_ratio(metrics, name)[arm]) for table, (name, arm) in RECORDED.items()}
    kind_of_pair = np.array([kind(p) for p in metrics["set_probability"]])[metrics["pair_set"]]
    kinds = set(kind_of_pair.tolist())

    def change_of(pairs: str | None, table: str) -> dict[str, np.ndarray] | None:
        """Return c by seed and by pair, of the pairs of a kind; None if there are none."""
        if pairs not in kinds:
            return None
        chosen = change[table][:, kind_of_pair == pairs]  # [seed, pair]
        return {"seed": np.median(chosen, axis=1), "pair": chosen.mean(0)}

    rows: list[Claim] = []
    for claim in PAIR_CLAIMS:
        values, others = change_of(claim.kind, claim.table), change_of(claim.reference, claim.table)
        if values is None:
            continue
        for unit, inside in (("seed", "medians of its pairs"), ("pair", "means of its seeds")):
            differences, statistic = _statistic(claim, values[unit], None if others is None else others[unit], decay)
            described = f"{statistic}, with c = ln(distance at the end / at the start); one a {unit}, {inside}"
            statement = f"{STATEMENTS[claim.name]} ({TABLE_NAMES[claim.table]} table)."
            rows.append(Claim(f"{claim.name}/{claim.table}/{unit}s", statement, described, differences, claim.sign))
    return rows + _costs(metrics, has_conflict="conflict" in kinds)


def _statistic(claim: PairClaim, c: np.ndarray, others: np.ndarray | None, decay: float) -> tuple[np.ndarray, str]:
    """Return a claim's differences, and what they are in words; others: c', None where there are no such pairs."""
    if claim.reference is None:
        return c + decay, f"c + {decay:.3g}, what weight decay takes"
    if others is None:
        return c, "c"
    number = min(len(c), len(others))
    excess, words = c[:number] - others[:number], f"c - c' of {KIND_NAMES[claim.reference]}"
    if claim.sign > 0:
        return excess, words
    return np.maximum(c[:number], excess), f"the larger of c and {words}"


def _costs(metrics: Metrics, has_conflict: bool) -> list[Claim]:
    """Return the claims about what tying costs on the validation split."""
    where = "as it does for the conflict twins" if has_conflict else "and no planted set violates it"
    rows = []
    for measure, unit, sign in (("loss", "nats a masked token", 1), ("accuracy", "fraction of masked tokens", -1)):
        untied, tied = final(metrics[f"validation_{measure}"])
        rows.append(
            Claim(
                f"tying/validation-{measure}",
                f"Tying costs validation {measure} (the theory predicts a cost only where DH fails, {where}).",
                f"validation {measure} ({unit}), tied - untied; one a seed",
                tied - untied,
                sign,
            )
        )
    return rows


def summary(metrics: Metrics) -> dict[str, Any]:
    """Return final values by arm, each with one value a seed: the body of `final` in results.json.

    Losses in nats a masked token, distances and norms Euclidean; distances and their ratios are medians over the pairs of a
    set. Of tied models, `input` and `output` are the same table.
    """
    tables = ("input", "output")
    start = {table: metrics[f"distance_{table}"][:, :, 0].astype(float) for table in tables}
    end = {table: final(metrics[f"distance_{table}"]) for table in tables}
    ratio = {table: distance_ratio(metrics, f"distance_{table}") for table in tables}
    body: dict[str, Any] = {}
    for arm, name in enumerate(ARMS):
        scalars = ("validation_loss", "validation_accuracy", "train_loss", "train_accuracy")
        body[name] = {
            **{scalar: final(metrics[scalar])[arm].tolist() for scalar in scalars},
            **_by_bucket(metrics, arm),
            "norm": {table: final(metrics[f"norm_{table}"])[arm].tolist() for table in tables},
            "distance_start": {table: _by_set(metrics, start[table][arm]) for table in tables},
            "distance_end": {table: _by_set(metrics, end[table][arm]) for table in tables},
            "distance_ratio": {table: _by_set(metrics, ratio[table][arm]) for table in tables},
        }
    return body


def _by_bucket(metrics: Metrics, arm: int) -> dict[str, dict[str, list[float]]]:
    """Return an arm's final validation loss and accuracy by bucket, one value a seed."""
    by_measure = {}
    for measure in ("loss", "accuracy"):
        values = final_by_bucket(metrics[f"validation_bucket_{measure}"], metrics["validation_bucket_count"])[arm]
        by_measure[f"validation_{measure}_by_bucket"] = {
            str(bucket): values[:, place].tolist() for place, bucket in enumerate(metrics["bucket_names"])
        }
    return by_measure


def _by_set(metrics: Metrics, values: np.ndarray) -> dict[str, list[float]]:
    """Return medians over the pairs of each set that has any, one a seed; values: `[seed, pair]`."""
    places = metrics["pair_set"]
    return {
        str(name): np.median(values[:, places == place], axis=1).tolist()
        for place, name in enumerate(metrics["set_names"])
        if (places == place).any()
    }


def analyse(metrics: Metrics, decay: float) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return what results.json says of a run, and the arrays of the seeds whose members all stayed finite.

    metrics: the arrays of metrics.npz. decay: as for `claims`. The body's `distance_ratio_by_pair` has the median over seeds of
    every pair, by table; `overflow` the most masked positions that one recorded batch of an arm left out.
    """
    finite, lasted = finite_seeds(metrics)
    runs = select_seeds(metrics, finite)
    body: dict[str, Any] = {
        **lasted,
        "sets": _sets(metrics),
        "overflow": {name: int(metrics["overflow"][arm].max()) for arm, name in enumerate(ARMS)},
        "final": summary(runs),
        "uses": [],
        "distance_ratio_by_pair": [],
        "claims": [],
    }
    if finite.any():
        body["uses"] = over_training(runs["step"], runs["use_ratio"], runs["use_cosine"], ARMS)
        body["claims"] = [row | {"reported": row["id"].split("/")[0] in REPORTED} for row in assess(claims(runs, decay))]
        body["distance_ratio_by_pair"] = _ratio_by_pair(runs)
    return body, runs


def _sets(metrics: Metrics) -> list[dict[str, Any]]:
    """Return what results.json says of the sets of pairs."""
    probability = metrics["set_probability"].tolist()
    return [
        {
            "name": str(name),
            "probability": None if np.isnan(p) else p,
            "pairs": int((metrics["pair_set"] == place).sum()),
            "dh": DH_OF_KIND[kind(p)],
        }
        for place, (name, p) in enumerate(zip(metrics["set_names"], probability, strict=True))
    ]


def _ratio_by_pair(metrics: Metrics) -> list[dict[str, Any]]:
    """Return d_end / d_start of every pair, the median over seeds, by table."""
    ratio = {table: np.median(distance_ratio(metrics, name)[arm], axis=0).tolist() for table, (name, arm) in RECORDED.items()}
    return [
        {
            "pair": str(words),
            "set": str(metrics["set_names"][metrics["pair_set"][place]]),
            **{table: values[place] for table, values in ratio.items()},
        }
        for place, words in enumerate(metrics["pair_words"])
    ]
