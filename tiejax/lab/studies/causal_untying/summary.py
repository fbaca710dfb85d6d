"""The content of results.json: final losses, claims, tuned rates and the gate."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tiejax.lab.runs.parts import Looks
from tiejax.lab.runs.rates import Tried
from tiejax.lab.studies.causal_untying import claims, plan
from tiejax.lab.studies.causal_untying.planted_claims import Planted
from tiejax.lab.studies.causal_untying.train import Arrays

TUNED: tuple[plan.Class, ...] = ("tied", "untied")


def join_blocks(blocks: Sequence[tuple[Sequence[int], Arrays]], seeds: Sequence[int]) -> Arrays:
    """Return the arrays of all blocks, joined along the seeds.

    blocks: the seeds of each block, and its arrays. seeds: those of the run; a field that some blocks lack has the first of
    them.
    """
    whole = {}
    for field in dict.fromkeys(field for _, arrays in blocks for field in arrays):
        having = [block for block, arrays in blocks if field in arrays]
        first = [seed for block in having for seed in block]
        assert first == list(seeds[: len(first)]), f"{field}: has the seeds {first}"
        values = [arrays[field] for _, arrays in blocks if field in arrays]
        if field.endswith("step"):
            assert all(np.array_equal(values[0], other) for other in values), field
        whole[field] = values[0] if field.endswith("step") else np.concatenate(values)
    return whole


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


def below_entropy(tried: Tried, entropy: float) -> float:
    """Return how far the best tied models end below the entropy of the token frequencies, in nats."""
    return entropy - float(tried.losses[tried.best].mean())


def summarise(
    arrays: Arrays, seeds: Sequence[int], bucket_names: Sequence[str], looks: Looks, planted: Planted | None = None
) -> dict[str, Any]:
    """Return final losses, claims and diverged models, as in results.json; planted: of planted text, with its excess losses."""
    losses, buckets = final_losses(arrays)
    tested, by_frequency = ({arm: of[arm] for arm in of if not arm.startswith(plan.EXPLORE)} for of in (losses, buckets))
    done = looks.done or [len(seeds)]
    rows = claims.verdicts(tested, by_frequency, bucket_names, done, max(1, len(looks.planned)), planted)
    diverged = [
        {"arm": arm, "seed": seed, "step": _last_finite(arrays, arm, place)}
        for arm, values in losses.items()
        for place, seed in enumerate(seeds[: len(values)])
        if not np.isfinite(values[place])
    ]
    arms = {arm: {"loss": values.tolist(), "by_frequency": buckets[arm].tolist()} for arm, values in losses.items()}
    if planted is not None:
        arms = {arm: {**row, "excess": {kind: values.tolist() for kind, values in planted.excess(arm).items()}}
                for arm, row in arms.items()}  # fmt: skip
    return {
        "seeds": list(seeds),
        "arms": arms,
        "frequency_ranks": list(bucket_names),
        "excluded_seeds": sorted({row["seed"] for row in diverged}),
        "non_finite": diverged,
        "claims": [row for family in rows.values() for row in family],
        "families": {family: [row["id"] for row in of_family] for family, of_family in rows.items()},
    }


def _last_finite(arrays: Arrays, arm: str, place: int) -> int:
    """Return the last step at which a model's training loss was recorded as finite."""
    finite = np.isfinite(arrays[f"{arm}/train_loss"][place])
    steps = arrays[f"{arm}/train_step"][: len(finite)]
    return int(steps[finite][-1]) if finite.any() else 0
