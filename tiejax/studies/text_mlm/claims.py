"""What a run on text says: how twins and unrelated words move, what tying costs, and the claims as tests.

Arrays are those of a run's `metrics.npz`, `[arm, seed, record, ...]` with arms (untied, tied). A twin means the same
as its word. Plot with probability .5 it is also as likely, so that the distributional hypothesis (DH) holds for the two;
with any other probability DH fails for them: conflict twins.
Source of the claims: Bertolotti and Cazzola, ICML 2024; conflict twins, several seeds and validation loss are ours.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tiejax.geometry.uses import over_training
from tiejax.statistics.arms import ARMS, finite_seeds, select_seeds
from tiejax.statistics.claims import Claim, assess

TABLES = {"input": "untied input table", "output": "untied output table", "tied": "tied table"}
RECORDED = {"input": ("distance_input", 0), "output": ("distance_output", 0), "tied": ("distance_input", 1)}
NAMES = {"holding": "the twins for whom DH holds", "unrelated": "unrelated words"}
DH: dict[str, str | None] = {"holding": "holds", "conflict": "fails", "unrelated": None}
REPORTED = ("converge", "unrelated")  # the claims that the paper reports, by the first part of their ids

Metrics = Mapping[str, np.ndarray]


def kind(probability: float) -> str:
    """Return what a set of twins is, drawn with a probability: `holding` (of DH) or `conflict`; `unrelated` words for NaN."""
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
    is_kind = {name: kind_of_pair == name for name in ("holding", "conflict", "unrelated")}
    rows: list[Claim] = []

    def add(claim: str, table: str, of_kind: str, statement: str, sign: int, reference: str | None) -> None:
        if not is_kind[of_kind].any():
            return
        c = change[table]
        own = {"seed": np.median(c[:, is_kind[of_kind]], axis=1), "pair": c[:, is_kind[of_kind]].mean(0)}
        others = None
        if reference is not None and is_kind[reference].any():
            others = {"seed": np.median(c[:, is_kind[reference]], axis=1), "pair": c[:, is_kind[reference]].mean(0)}
        for over, inside in (("seed", "medians of its pairs"), ("pair", "means of its seeds")):
            value, statistic = own[over], "c"
            if reference is None:
                value, statistic = value + decay, f"c + {decay:.3g}, what weight decay takes"
            elif others is not None:
                number = min(len(value), len(others[over]))
                excess = value[:number] - others[over][:number]
                value, statistic = excess, f"c - c' of {NAMES[reference]}"
                if sign < 0:
                    value, statistic = np.maximum(own[over][:number], excess), f"the larger of c and {statistic}"
            described = f"{statistic}, with c = ln(distance at the end / at the start); one a {over}, {inside}"
            rows.append(Claim(f"{claim}/{table}/{over}s", f"{statement} ({TABLES[table]}).", described, value, sign))

    for table in TABLES:
        add(
            "converge",
            table,
            "holding",
            "Twins for whom DH holds come together, more than unrelated words",
            -1,
            "unrelated",
        )
    add("conflict-converge", "input", "conflict", "Conflict twins come together, more than unrelated words", -1, "unrelated")
    for table in ("output", "tied"):
        add(
            "conflict-apart",
            table,
            "conflict",
            "Conflict twins stay farther apart than twins for whom DH holds",
            1,
            "holding",
        )
    for table in TABLES:
        add("unrelated", table, "unrelated", "Unrelated words come together no more than by weight decay", 1, None)

    where = "as it does for the conflict twins" if is_kind["conflict"].any() else "and no planted set violates it"
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
    names, places = [str(name) for name in metrics["set_names"]], metrics["pair_set"]
    buckets = [str(name) for name in metrics["bucket_names"]]
    by_bucket = {
        measure: final_by_bucket(metrics[f"validation_bucket_{measure}"], metrics["validation_bucket_count"])
        for measure in ("loss", "accuracy")
    }
    tables = ("input", "output")
    body: dict[str, Any] = {}
    for arm, arm_name in enumerate(ARMS):

        def by_set(values: np.ndarray, arm: int = arm) -> dict[str, list[float]]:
            return {
                name: np.median(values[arm][:, places == place], axis=1).tolist()
                for place, name in enumerate(names)
                if (places == place).any()
            }

        scalars = ("validation_loss", "validation_accuracy", "train_loss", "train_accuracy")
        body[arm_name] = {
            **{name: final(metrics[name])[arm].tolist() for name in scalars},
            **{
                f"validation_{measure}_by_bucket": {
                    bucket: values[arm, :, place].tolist() for place, bucket in enumerate(buckets)
                }
                for measure, values in by_bucket.items()
            },
            "norm": {table: final(metrics[f"norm_{table}"])[arm].tolist() for table in tables},
            "distance_start": {table: by_set(metrics[f"distance_{table}"][:, :, 0].astype(float)) for table in tables},
            "distance_end": {table: by_set(final(metrics[f"distance_{table}"])) for table in tables},
            "distance_ratio": {table: by_set(distance_ratio(metrics, f"distance_{table}")) for table in tables},
        }
    return body


def analyse(metrics: Metrics, decay: float) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return what results.json says of a run, and the arrays of the seeds whose members all stayed finite.

    metrics: the arrays of metrics.npz. decay: as for `claims`. The body's `distance_ratio_by_pair` has the median over seeds of
    every pair, by table; `overflow` the most masked positions that one recorded batch of an arm left out.
    """
    finite, lasted = finite_seeds(metrics)
    runs = select_seeds(metrics, finite)
    probability = metrics["set_probability"].tolist()
    found: dict[str, Any] = {
        **lasted,
        "sets": [
            {
                "name": str(name),
                "probability": None if np.isnan(p) else p,
                "pairs": int((metrics["pair_set"] == place).sum()),
                "dh": DH[kind(p)],
            }
            for place, (name, p) in enumerate(zip(metrics["set_names"], probability, strict=True))
        ],
        "overflow": {name: int(metrics["overflow"][arm].max()) for arm, name in enumerate(ARMS)},
        "final": summary(runs),
        "uses": [],
        "distance_ratio_by_pair": [],
        "claims": [],
    }
    if finite.any():
        found["uses"] = over_training(runs["step"], runs["use_ratio"], runs["use_cosine"], ARMS)
        found["claims"] = [row | {"reported": row["id"].split("/")[0] in REPORTED} for row in assess(claims(runs, decay))]
        ratio = {table: np.median(distance_ratio(runs, name)[arm], axis=0).tolist() for table, (name, arm) in RECORDED.items()}
        found["distance_ratio_by_pair"] = [
            {
                "pair": str(words),
                "set": str(metrics["set_names"][metrics["pair_set"][place]]),
                **{table: values[place] for table, values in ratio.items()},
            }
            for place, words in enumerate(metrics["pair_words"])
        ]
    return found, runs
