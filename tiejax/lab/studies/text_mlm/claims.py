"""The claims and final values of a text run: distances of twins and unrelated words, and the cost of tying.

Arrays are those of `metrics.npz`, `[arm, seed, record, ...]`, with arms (untied, tied), and with `equal_tables_arm` a third:
untied models that start from equal tables. A twin means the same as its word. With probability .5 it is also equally likely, so
that the distributional hypothesis (DH) holds for the pair; with any other probability DH fails, and the two are conflict twins.
Source of the claims: Bertolotti and Cazzola, ICML 2024; conflict twins, several seeds and validation loss are ours.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from tiejax.geometry.uses import over_training
from tiejax.lab.runs.gate import Gate, finite_means, untested
from tiejax.statistics.arms import ARMS, diverged_members, finite_seeds, replace_diverged, select_seeds, undefined_replaced
from tiejax.statistics.claims import Claim, Family, Goal, assess

TABLE_NAMES = {"input": "untied input", "output": "untied output", "tied": "tied"}
TABLES = ("input", "output")  # as recorded; of a tied model both are the same table
RECORDED = {"input": ("distance_input", 0), "output": ("distance_output", 0), "tied": ("distance_input", 1)}
KIND_NAMES = {"holding": "twins for whom DH holds", "conflict": "conflict twins", "unrelated": "unrelated words"}
DH_OF_KIND: dict[str, str | None] = {"holding": "holds", "conflict": "fails", "unrelated": None}
DISTANCE_MARGIN = 0.05  # of the distance at the start
LOSS_MARGIN = 0.01  # nats

Metrics = Mapping[str, np.ndarray]
Distances = Mapping[str, Mapping[str, np.ndarray]]  # table -> kind of pairs -> [seed]


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


def by_group(values: np.ndarray, group_of_pair: np.ndarray) -> dict[str, np.ndarray]:
    """Return the means of values `[..., pair]` over the pairs of each group, in the order of the pairs."""
    return {group: values[..., group_of_pair == group].mean(axis=-1) for group in dict.fromkeys(group_of_pair.tolist())}


def set_of_pair(metrics: Metrics) -> np.ndarray:
    """Return the name of the set of every pair, `[pair]`."""
    return np.asarray(metrics["set_names"])[metrics["pair_set"]]


def final_distances(metrics: Metrics) -> dict[str, np.ndarray]:
    """Return d_end / d_start by "set, table": means over the pairs of the set, `[arm, seed]`."""
    ratio = {table: by_group(distance_ratio(metrics, f"distance_{table}"), set_of_pair(metrics)) for table in TABLES}
    return {f"{name}, {table}": ratio[table][name] for name in ratio["input"] for table in TABLES}


class DistanceClaim(NamedTuple):
    """A claim about the relative distance, d_end / d_start, of the pairs of one kind in one table.

    reference: what it is compared with: that of another kind of pairs, the distance at the `start`, or what weight `decay`
    alone would leave. sign: sign of the difference if the claim is true.
    """

    name: str
    table: str
    kind: str
    reference: str
    sign: int
    goal: Goal = "difference"
    family: Family = "registered"


DISTANCE_CLAIMS = (
    *(DistanceClaim("converge", table, "holding", "unrelated", -1) for table in TABLE_NAMES),
    # The paper: unrelated words do not come together, that is, their relative distance is not below 1 by the margin or more.
    *(DistanceClaim("unrelated", table, "unrelated", "start", 1, "non-inferiority") for table in TABLE_NAMES),
    DistanceClaim("conflict-converge", "input", "conflict", "unrelated", -1),
    *(DistanceClaim("conflict-apart", table, "conflict", "holding", 1) for table in ("output", "tied")),
    *(DistanceClaim("decay", table, "unrelated", "decay", 1, family="exploratory") for table in TABLE_NAMES),
)
STATEMENTS = {
    "converge": "Twins for whom DH holds come together more than unrelated words do",
    "unrelated": f"Unrelated words do not come together: their distance falls by less than {100 * DISTANCE_MARGIN:g} %",
    "conflict-converge": "Conflict twins come together more than unrelated words do",
    "conflict-apart": "Conflict twins stay farther apart than twins for whom DH holds",
    "decay": "Unrelated words end farther apart than weight decay alone would leave them",
}
REPORTED = ("converge", "unrelated")  # the claims that the paper makes


def claims(metrics: Metrics, decay: float) -> list[Claim]:
    """Return the claims that apply to the planted sets and to the arms of a run, with one difference per seed.

    Distances are averaged over the pairs of a kind within a seed, so that pairs, which share words and models, are not counted
    as independent. A member that became non-finite counts as the worst of all arms: it has the highest loss, and a difference
    of distances least favourable to the claim. decay: -ln(d_end / d_start) of a pair under weight decay alone.
    """
    diverged, _ = diverged_members(metrics)
    loss = replace_diverged(final(metrics["validation_loss"]), diverged, "high")
    accuracy = replace_diverged(final(metrics["validation_accuracy"]), diverged, "low")
    distances = relative_distances(metrics)
    of_pair, of_any = (np.asarray(some.any(axis=0)) for some in (diverged[: len(ARMS)], diverged))
    return [
        *_distance_claims(distances, diverged, float(np.exp(-decay))),
        *_cost_of_tying(loss, accuracy, of_pair, has_conflict="conflict" in distances["tied"]),
        *(_equal_tables(loss, of_any) if len(loss) > len(ARMS) else []),
    ]


def relative_distances(metrics: Metrics) -> dict[str, dict[str, np.ndarray]]:
    """Return d_end / d_start by table and kind of pairs, the mean over the pairs of that kind, `[seed]`."""
    kind_of_pair = np.array([kind(p) for p in metrics["set_probability"]])[metrics["pair_set"]]
    return {table: by_group(distance_ratio(metrics, name)[arm], kind_of_pair) for table, (name, arm) in RECORDED.items()}


def _distance_claims(distances: Distances, diverged: np.ndarray, alone: float) -> list[Claim]:
    """Return the claims about distances whose kinds of pairs occur.

    diverged: `[arm, seed]`. alone: d_end / d_start of a pair under weight decay alone.
    """
    words, rows = KIND_NAMES | {"start": "1", "decay": f"that under weight decay alone, {alone:.3g}"}, []
    for name, table, pairs, reference, sign, goal, family in DISTANCE_CLAIMS:
        of: dict[str, Any] = {"start": 1.0, "decay": alone, **distances[table]}
        if pairs not in of or reference not in of:
            continue
        where, differences = f"{TABLE_NAMES[table]} table", of[pairs] - of[reference]
        differences = np.where(diverged[RECORDED[table][1]], np.nan, differences)
        about: dict[str, Any] = {"margin": DISTANCE_MARGIN, "one_arm": True, "goal": goal, "family": family}
        about |= undefined_replaced(differences, sign)
        estimand = f"the relative distance in the {where}, {words[pairs]} - {words[reference]}"
        rows.append(Claim(f"{name}/{table}", f"{STATEMENTS[name]} ({where}).", estimand, sign=sign, **about))
    return rows


def _about_loss(
    id: str,
    statement: str,
    estimand: str,
    differences: np.ndarray,
    replaced: np.ndarray,
    sign: int,
    goal: Goal = "difference",
) -> Claim:
    about: dict[str, Any] = {"unit": "nats", "margin": LOSS_MARGIN, "replaced": replaced}
    return Claim(id, statement, estimand, differences, sign, goal=goal, **about)


def _cost_of_tying(loss: np.ndarray, accuracy: np.ndarray, diverged: np.ndarray, has_conflict: bool) -> list[Claim]:
    """Return the claims about the cost of tying on the validation split; loss, accuracy: `[arm, seed]`; diverged: `[seed]`.

    The theory predicts a cost where DH fails, as it does for conflict twins. Where no planted set violates DH, the claim is
    that there is no cost, up to the margin.
    """
    about = "the validation loss per masked token, tied - untied", loss[1] - loss[0], diverged
    if has_conflict:
        statement = "Tying costs validation loss in a run with conflict twins."
        cost = _about_loss("tying/validation-loss", statement, *about, 1)
    else:
        statement = f"Tying costs less than {LOSS_MARGIN:g} nats of validation loss where no planted set violates DH."
        cost = _about_loss("tying/no-cost", statement, *about, -1, "non-inferiority")
    fall, estimand = accuracy[1] - accuracy[0], "the validation accuracy, tied - untied"
    more: dict[str, Any] = {"family": "exploratory", "unit": "share of masked tokens"}
    return [cost, Claim("tying/validation-accuracy", "Tying costs validation accuracy.", estimand, fall, -1, **more)]


def _equal_tables(loss: np.ndarray, diverged: np.ndarray) -> list[Claim]:
    """Return the claims that tell the effect of the tie apart from that of its starting point; loss: `[arm, seed]`.

    Tied models start from equal tables, untied ones usually do not. The signs are those of an exploratory run of three seeds,
    in which both effects lowered the loss.
    """
    untied, tied, equal = loss
    return [
        _about_loss(
            "equal-tables/start",
            "Untied models that start from equal tables end with a lower validation loss than from independent ones.",
            "the validation loss per masked token, untied from equal tables - untied from independent tables",
            equal - untied,
            diverged,
            -1,
        ),
        _about_loss(
            "equal-tables/tie",
            "Tied models end with a lower validation loss than untied models that start from equal tables.",
            "the validation loss per masked token, tied - untied from equal tables",
            tied - equal,
            diverged,
            -1,
        ),
        _about_loss(
            "equal-tables/most",
            "Equal starting tables account for more than half of the difference between untied and tied models.",
            "the fall of the validation loss per masked token (equal starting tables - the tie)",
            (untied - equal) - (equal - tied),
            diverged,
            1,
        ),
    ]


def summary(metrics: Metrics) -> dict[str, Any]:
    """Return the final values of each arm, one per seed: `final` in results.json.

    Losses are in nats per masked token, ratios of Euclidean distances means over the pairs of a set. In tied models, `input`
    and `output` are the same table.
    """
    ratios = {table: distance_ratio(metrics, f"distance_{table}") for table in TABLES}
    scalars = ("validation_loss", "validation_accuracy", "train_loss", "train_accuracy")
    return {
        name: {
            **{scalar: final(metrics[scalar])[arm].tolist() for scalar in scalars},
            **_by_bucket(metrics, arm),
            "distance_ratio": {table: _by_set(metrics, values[arm]) for table, values in ratios.items()},
        }
        for arm, name in enumerate(metrics["arms"].tolist())
    }


def _by_bucket(metrics: Metrics, arm: int) -> dict[str, dict[str, list[float]]]:
    """Return the final validation loss and accuracy of an arm by bucket, one value per seed."""
    names, counts = metrics["bucket_names"].tolist(), metrics["validation_bucket_count"]
    finals = {of: final_by_bucket(metrics[f"validation_bucket_{of}"], counts)[arm] for of in ("loss", "accuracy")}
    return {f"validation_{of}_by_bucket": dict(zip(names, values.T.tolist(), strict=True)) for of, values in finals.items()}


def _by_set(metrics: Metrics, values: np.ndarray) -> dict[str, list[float]]:
    """Return the mean over pairs of each non-empty set, one per seed; values: `[seed, pair]`."""
    return {name: means.tolist() for name, means in by_group(values, set_of_pair(metrics)).items()}


def analyse(metrics: Metrics, decay: float, gate: Gate) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Analyse a run: return its part of results.json, and the arrays of the seeds with finite members only.

    decay: as for `claims`. gate: claims are not tested unless untied and tied models pass it. Claims are about all seeds,
    everything else about those with finite members. In the results, `distance_ratio_by_pair` has the mean over seeds of every
    pair, by table; `overflow` is the largest number of masked tokens without a slot in a recorded batch.
    """
    finite, seeds = finite_seeds(metrics)
    runs = select_seeds(metrics, finite)
    loss = final(metrics["validation_loss"])
    of_gate = gate.facts(finite_means(dict(zip(ARMS, loss, strict=False))))
    all_claims = claims(metrics, decay)
    rows = assess(untested(all_claims) if of_gate["gate"]["failed"] else all_claims)
    body: dict[str, Any] = {
        **seeds,
        **of_gate,
        "sets": _sets(metrics),
        "overflow": {name: int(metrics["overflow"][arm].max()) for arm, name in enumerate(metrics["arms"].tolist())},
        "final": summary(runs),
        "uses": [],
        "distance_ratio_by_pair": [],
        "claims": [row | {"reported": row["id"].split("/")[0] in REPORTED} for row in rows],
    }
    if finite.any():
        pair = untied_and_tied(runs)
        body["uses"] = over_training(pair["step"], pair["use_ratio"], pair["use_cosine"], ARMS)
        body["distance_ratio_by_pair"] = _ratio_by_pair(runs)
    return body, runs


def untied_and_tied(metrics: Metrics) -> dict[str, np.ndarray]:
    """Return the arrays of the arms untied and tied, without that of equal tables."""
    of_arms = {name: values[: len(ARMS)] for name, values in metrics.items() if values.ndim >= 3}
    return dict(metrics) | of_arms | {"arms": metrics["arms"][: len(ARMS)]}


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
    """Return the mean over seeds of d_end / d_start of every pair, by table."""
    ratio = {table: distance_ratio(metrics, name)[arm].mean(axis=0).tolist() for table, (name, arm) in RECORDED.items()}
    return [
        {
            "pair": str(words),
            "set": name,
            **{table: values[index] for table, values in ratio.items()},
        }
        for index, (words, name) in enumerate(zip(metrics["pair_words"], set_of_pair(metrics).tolist(), strict=True))
    ]
