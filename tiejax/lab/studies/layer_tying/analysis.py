"""The analysis of a layer-tying run: finite seeds, methods, claims, and agents over episodes."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tiejax.lab.runs.parts import Looks
from tiejax.lab.studies.layer_tying.claims import REPORTED, claims
from tiejax.lab.studies.layer_tying.summary import (
    Metrics,
    Sizes,
    agents_over_episodes,
    at_equal_time,
    episode_arrays,
    seconds_of,
    summarise,
)
from tiejax.lab.studies.layer_tying.variants import Variant
from tiejax.statistics.arms import finite_seeds, replace_diverged, select_seeds
from tiejax.statistics.claims import Claim, assess, assess_in_looks


def analyse(
    metrics: Metrics,
    sizes: Sizes,
    tokens_per_word: Mapping[str, float],
    variants: Mapping[str, Variant] | None = None,
    looks: Looks | None = None,
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Analyse a run: return its part of results.json, and the arrays of the seeds with finite models only.

    metrics: the arrays of metrics.npz. sizes: by method and number of distinct layers, for all in `distinct` and
    `best_owner`. variants: those of the settings, by name. looks: the looks of the run.
    Claims are about all seeds, with the losses of diverged models replaced by the worst ones; everything else is about the
    seeds whose models all stayed finite.
    Added to the arrays: validation_seconds `[method, seed, validation]` and, for runs with agents, `episode_arrays`.
    """
    finite, seeds = finite_seeds(losses_by_step(metrics))
    runs = select_seeds(metrics, finite, least_axes=2)
    findings: dict[str, Any] = {**seeds, "methods": [], "equal_time_s": [], "agents": {}, "claims": []}
    diverged = np.asarray(~losses_by_step(metrics)["finite"].all(axis=2))
    if not diverged.all():
        findings["claims"] = assessed(metrics, diverged, sizes, tokens_per_word, variants or {}, looks)
    if not finite.any():
        return findings, runs
    seconds = seconds_of(runs["time_step"], runs["distinct"])
    runs["validation_seconds"] = seconds[..., runs["validation_step"]]
    equal = at_equal_time(seconds, runs["validation_step"], runs["validation_loss"])
    findings["methods"] = summarise(runs, sizes, tokens_per_word, equal)
    findings["equal_time_s"] = equal["budget"].tolist()
    if len(runs.get("action_episode", ())):
        runs |= episode_arrays(runs)
        findings["agents"] = agents_over_episodes(runs)
    return findings, runs


def assessed(
    metrics: Metrics,
    diverged: np.ndarray,
    sizes: Sizes,
    tokens_per_word: Mapping[str, float],
    variants: Mapping[str, Variant],
    looks: Looks | None,
) -> list[dict[str, Any]]:
    """Return the rows of all claims, tested at every look; arguments as in `analyse` and `with_diverged_replaced`."""

    def claims_of(number: int) -> list[Claim]:
        """Return the claims on the first seeds, which do not depend on later ones."""
        some = select_seeds(metrics, np.arange(len(metrics["seeds"])) < number, least_axes=2)
        some = with_diverged_replaced(some, diverged[:, :number])
        times = seconds_of(some["time_step"], some["distinct"])
        at_time = at_equal_time(times, some["validation_step"], some["validation_loss"])
        return claims(summarise(some, sizes, tokens_per_word, at_time), variants)

    if looks is not None and looks.planned:
        rows = assess_in_looks(claims_of, looks.done, len(looks.planned))
    else:
        rows = assess(claims_of(len(metrics["seeds"])))
    return [row | {"reported": row["id"].split("/")[0] in REPORTED} for row in rows]


def with_diverged_replaced(metrics: Metrics, diverged: np.ndarray) -> dict[str, np.ndarray]:
    """Return the arrays of metrics.npz with the worst loss of any other model in place of those of diverged models.

    diverged: `[method, seed]`.
    """
    validation = metrics["validation_loss"].copy()
    for record in range(validation.shape[-1]):
        validation[..., record] = replace_diverged(validation[..., record], diverged, "high")
    replaced = {name: replace_diverged(metrics[name], diverged, "high") for name in ("test_loss", "validation_loss_best")}
    return {**metrics, **replaced, "validation_loss": validation}


def losses_by_step(metrics: Metrics) -> dict[str, np.ndarray]:
    """Return the input of `finite_seeds`: whether training and validation losses were finite, in the order of their steps."""
    step = np.concatenate([np.arange(metrics["train_loss"].shape[-1]), metrics["validation_step"]])
    finite = np.isfinite(np.concatenate([metrics["train_loss"], metrics["validation_loss"]], axis=-1))
    order = np.argsort(step, kind="stable")
    return {"arms": metrics["methods"], "seeds": metrics["seeds"], "step": step[order], "finite": finite[..., order]}
