"""The claims and final values of a text run: distances of twins and unrelated words, and the cost of tying.

Arrays are those of `metrics.npz`, `[arm, seed, record, ...]`, with arms (untied, tied). A twin means the same as its word.
With probability .5 it is also equally likely, so that the distributional hypothesis (DH) holds for the pair; with any other
probability DH fails, and the two are conflict twins.
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
    """Return the kind of a set of pairs by its twins' probability: `holding` (DH holds), `conflict`, or `unrelated` for NaN."""
    if np.isnan(probability):
        return "unrelated"
    return "holding" if abs(probability - 0.5) < 1e-9 else "conflict"


def final(values: np.ndarray) -> np.ndarray:
    """Average `[arm, seed, record, ...]` over the last tenth of the records, at least one."""
    return np.asarray(values[:, :, -_late(values.shape[2]) :].mean(2, dtype=float))


def _late(records: int) -> int:
    return max(1, records // 10)


def final_by_bucket(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Average over all targets in the last tenth of the records; `[arm, seed, bucket]`, NaN for buckets without targets.

    values: means over the targets, `[arm, seed, record, bucket]`. counts: numbers of targets, same shape.
    """
    late = slice(-_late(values.shape[2]), None)
    weights = counts[:, :, late].astype(float)
    total = weights.sum(2)
    summed = np.where(weights > 0, values[:, :, late] * weights, 0).sum(2)
    return np.divide(summed, total, out=np.full_like(total, np.nan), where=total > 0)


def distance_ratio(metrics: Metrics, name: str) -> np.ndarray:
    """Return d_end / d_start `[arm, seed, pair]` of `distance_input` or `distance_output`.

    d_start is the distance at the first record, d_end the mean over the last tenth of the records.
    """
    return np.asarray(final(metrics[name]) / metrics[name][:, :, 0])


def final_distances(metrics: Metrics) -> dict[str, np.ndarray]:
    """Return d_end / d_start by "set, table": medians over the pairs of the set, `[arm, seed]`."""
    ratio = {table: distance_ratio(metrics, f"distance_{table}") for table in ("input", "output")}
    return {
        f"{name}, {table}": np.median(values[..., metrics["pair_set"] == number], axis=-1)
        for number, name in enumerate(metrics["set_names"])
        for table, values in ratio.items()
        if (metrics["pair_set"] == number).any()
    }


class PairClaim(NamedTuple):
    """A claim about the pairs of one kind in one table.

    sign: sign of the statistic if the claim is true. reference: the kind of pairs to compare with; None to compare with the
    effect of weight decay alone.
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
REPORTED = ("converge", "unrelated")  # the claims that the paper makes


def claims(metrics: Metrics, decay: float) -> list[Claim]:
    """Return the claims that apply to the planted sets; those about distances are tested twice, over seeds and over pairs.

    Let c = ln(d_end / d_start) of a pair in one table of one seed, and c' the same of a pair of the reference kind. The
    statistic is max(c, c - c') for pairs that should come together, so that it is negative only if they approach each
    other, and more than the reference does; c - c' for pairs that should stay apart; c + decay for unrelated words.
    `.../seeds` has one difference per seed, with c and c' medians over pairs. `.../pairs` has one per pair, with c and c' means
    over seeds; the k-th pair is compared with the k-th of the reference, so that the variation of both sets counts.
    decay: -ln(d_end / d_start) of a pair under weight decay alone.
    """
    change = {table: np.log(distance_ratio(metrics, name)[arm]) for table, (name, arm) in RECORDED.items()}
    kind_of_pair = np.array([kind(p) for p in metrics["set_probability"]])[metrics["pair_set"]]
    kinds = set(kind_of_pair.tolist())

    def change_of(pairs: str | None, table: str) -> dict[str, np.ndarray] | None:
        """Return c of the pairs of a kind, by seed and by pair; None if there are no such pairs."""
        if pairs not in kinds:
            return None
        chosen = change[table][:, kind_of_pair == pairs]  # [seed, pair]
        return {"seed": np.median(chosen, axis=1), "pair": chosen.mean(0)}

    rows: list[Claim] = []
    for claim in PAIR_CLAIMS:
        values, others = change_of(claim.kind, claim.table), change_of(claim.reference, claim.table)
        if values is None:
            continue
        for unit, average in (("seed", "medians over pairs"), ("pair", "means over seeds")):
            differences, statistic = _statistic(claim, values[unit], None if others is None else others[unit], decay)
            described = f"{statistic}, with c = ln(distance at the end / at the start); one per {unit}, {average}"
            statement = f"{STATEMENTS[claim.name]} ({TABLE_NAMES[claim.table]} table)."
            rows.append(Claim(f"{claim.name}/{claim.table}/{unit}s", statement, described, differences, claim.sign))
    return rows + _costs(metrics, has_conflict="conflict" in kinds)


def _statistic(claim: PairClaim, c: np.ndarray, others: np.ndarray | None, decay: float) -> tuple[np.ndarray, str]:
    """Return the differences of a claim and their description; others: c', None without a reference."""
    if claim.reference is None:
        return c + decay, f"c + {decay:.3g}, the effect of weight decay"
    if others is None:
        return c, "c"
    number = min(len(c), len(others))
    excess, words = c[:number] - others[:number], f"c - c' of {KIND_NAMES[claim.reference]}"
    if claim.sign > 0:
        return excess, words
    return np.maximum(c[:number], excess), f"the larger of c and {words}"


def _costs(metrics: Metrics, has_conflict: bool) -> list[Claim]:
    """Return the claims about the cost of tying on the validation split."""
    where = "as it does for the conflict twins" if has_conflict else "and no planted set violates it"
    rows = []
    for measure, unit, sign in (("loss", "nats per masked token", 1), ("accuracy", "fraction of masked tokens", -1)):
        untied, tied = final(metrics[f"validation_{measure}"])
        rows.append(
            Claim(
                f"tying/validation-{measure}",
                f"Tying costs validation {measure} (the theory predicts a cost only where DH fails, {where}).",
                f"validation {measure} ({unit}), tied - untied; one per seed",
                tied - untied,
                sign,
            )
        )
    return rows


def summary(metrics: Metrics) -> dict[str, Any]:
    """Return the final values of each arm, one per seed: `final` in results.json.

    Losses are in nats per masked token, distances and norms Euclidean; distances and their ratios are medians over the pairs of
    a set. In tied models, `input` and `output` are the same table.
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
    """Return the final validation loss and accuracy of an arm by bucket, one value per seed."""
    by_measure = {}
    for measure in ("loss", "accuracy"):
        values = final_by_bucket(metrics[f"validation_bucket_{measure}"], metrics["validation_bucket_count"])[arm]
        by_measure[f"validation_{measure}_by_bucket"] = {
            str(bucket): values[:, index].tolist() for index, bucket in enumerate(metrics["bucket_names"])
        }
    return by_measure


def _by_set(metrics: Metrics, values: np.ndarray) -> dict[str, list[float]]:
    """Return the median over pairs of each non-empty set, one per seed; values: `[seed, pair]`."""
    set_of_pair = metrics["pair_set"]
    return {
        str(name): np.median(values[:, set_of_pair == index], axis=1).tolist()
        for index, name in enumerate(metrics["set_names"])
        if (set_of_pair == index).any()
    }


def analyse(metrics: Metrics, decay: float) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Analyse a run: return its part of results.json, and the arrays of the seeds with finite members only.

    metrics: the arrays of metrics.npz. decay: as for `claims`. In the results, `distance_ratio_by_pair` has the median over
    seeds of every pair, by table; `overflow` is the largest number of masked tokens without a slot in a recorded batch.
    """
    finite, seeds = finite_seeds(metrics)
    runs = select_seeds(metrics, finite)
    body: dict[str, Any] = {
        **seeds,
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
    """Return the sets of pairs as results.json lists them."""
    probability = metrics["set_probability"].tolist()
    return [
        {
            "name": str(name),
            "probability": None if np.isnan(p) else p,
            "pairs": int((metrics["pair_set"] == index).sum()),
            "dh": DH_OF_KIND[kind(p)],
        }
        for index, (name, p) in enumerate(zip(metrics["set_names"], probability, strict=True))
    ]


def _ratio_by_pair(metrics: Metrics) -> list[dict[str, Any]]:
    """Return the median over seeds of d_end / d_start of every pair, by table."""
    ratio = {table: np.median(distance_ratio(metrics, name)[arm], axis=0).tolist() for table, (name, arm) in RECORDED.items()}
    return [
        {
            "pair": str(words),
            "set": str(metrics["set_names"][metrics["pair_set"][index]]),
            **{table: values[index] for table, values in ratio.items()},
        }
        for index, words in enumerate(metrics["pair_words"])
    ]
