"""The content of results.json: final losses, claims, tuned rates and the gate."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tiejax.lab.comparison.arms import Class
from tiejax.lab.comparison.training import Arrays, diverged
from tiejax.lab.runs.gate import Gate, finite_means
from tiejax.lab.runs.parts import Looks
from tiejax.lab.studies.causal_untying import claims, plan
from tiejax.lab.studies.causal_untying.planted_claims import Planted

TUNED: tuple[Class, ...] = ("tied", "untied")


def final_losses(arrays: Arrays) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return the final validation loss of every arm, `[seed]`, and by bucket, `[seed, bucket]`, in nats a token."""
    arms = sorted(
        (field.removesuffix("/nats") for field in arrays if field.endswith("/nats")), key=lambda arm: arm != plan.TIED
    )
    nats, count = ({arm: arrays[f"{arm}/{field}"].astype(float) for arm in arms} for field in ("nats", "count"))
    with np.errstate(invalid="ignore", divide="ignore"):
        return (
            {arm: nats[arm].sum(-1) / count[arm].sum(-1) for arm in arms},
            {arm: nats[arm] / count[arm] for arm in arms},
        )


def summarise(
    arrays: Arrays,
    seeds: Sequence[int],
    bucket_names: Sequence[str],
    looks: Looks,
    gate: Gate,
    planted: Planted | None = None,
) -> dict[str, Any]:
    """Return final losses, claims and diverged models, as in results.json; planted: of planted text, with its excess losses.

    Claims are not tested if the models of either class, those of whole runs, do not pass the gate.
    """
    losses, buckets = final_losses(arrays)
    of_gate = gate.facts(finite_means({arm: losses[arm] for arm in (plan.TIED, plan.NEVER_INDEPENDENT)}))
    tested, by_frequency = ({arm: of[arm] for arm in of if not arm.startswith(plan.EXPLORE)} for of in (losses, buckets))
    done = looks.done or [len(seeds)]
    rows = claims.verdicts(
        tested, by_frequency, bucket_names, done, max(1, len(looks.planned)), planted, not of_gate["gate"]["failed"]
    )
    non_finite = diverged(arrays, losses, seeds)
    arms = {arm: {"loss": values.tolist(), "by_frequency": buckets[arm].tolist()} for arm, values in losses.items()}
    if planted is not None:
        arms = {arm: {**row, "excess": {kind: values.tolist() for kind, values in planted.excess(arm).items()}}
                for arm, row in arms.items()}  # fmt: skip
    return {
        **of_gate,
        "seeds": list(seeds),
        "arms": arms,
        "frequency_ranks": list(bucket_names),
        "excluded_seeds": sorted({row["seed"] for row in non_finite}),
        "non_finite": non_finite,
        "claims": [row for family in rows.values() for row in family],
        "families": {family: [row["id"] for row in of_family] for family, of_family in rows.items()},
    }
