"""The summary of each method in results.json: perplexity, layers, memory and time.

Arrays are those of `metrics.npz`, `[method, seed, ...]`. Losses are in nats per token, times in seconds.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy import stats

LAST_PART = 10  # the final training loss is the mean over the last tenth of the steps
STORED = ("parameter_bytes", "gradient_bytes", "optimizer_bytes")

Metrics = Mapping[str, np.ndarray]
Sizes = Mapping[str, Mapping[int, Mapping[str, int]]]  # method -> number of distinct layers -> parameters and bytes

SizesOfMethod = Mapping[int, Mapping[str, int]]


def distinct_layers(owner: np.ndarray) -> np.ndarray:
    """Return the number of distinct layers of each owner map `[..., layer]`."""
    return np.asarray((np.diff(np.sort(owner, axis=-1), axis=-1) != 0).sum(-1) + 1)


def perplexity(loss: np.ndarray, tokens: float = 1.0) -> dict[str, Any]:
    """Return the perplexity of losses `[seed]` per `tokens` tokens; with the mean tokens per word, the perplexity per word.

    `mean` and `interval` are exp of the mean over seeds, in nats, and of its 95 % interval (Student's t; None for one seed).
    """
    nats = np.asarray(loss, dtype=float) * tokens
    interval = None
    if len(nats) > 1:
        half = stats.t.ppf(0.975, len(nats) - 1) * nats.std(ddof=1) / np.sqrt(len(nats))
        interval = np.exp([nats.mean() - half, nats.mean() + half]).tolist()
    return {"seeds": np.exp(nats).tolist(), "mean": float(np.exp(nats.mean())), "interval": interval}


def summarise(runs: Metrics, sizes: Sizes, tokens_per_word: Mapping[str, float], equal: Metrics) -> list[dict[str, Any]]:
    """Return the `methods` of results.json, with lists of one value per seed. equal: the output of `at_equal_time`."""
    return [
        {
            "method": str(name),
            **_losses(runs, method, tokens_per_word),
            **_at_equal_time(equal, method),
            "best_step": runs["best_step"][method].tolist(),
            **_layers(runs, method, sizes[str(name)]),
            "seconds_per_step": _seconds_per_step(runs["time_step"][method]),
            "best_owner": runs["best_owner"][method].tolist(),
            "final_owner": runs["final_owner"][method].tolist(),
        }
        for method, name in enumerate(runs["methods"])
    ]


def _losses(runs: Metrics, method: int, tokens_per_word: Mapping[str, float]) -> dict[str, Any]:
    """Return the losses and perplexities of a method.

    train_perplexity is over the last tenth of the steps, with dropout; the others are of the best step.
    """
    last = max(1, runs["train_loss"].shape[-1] // LAST_PART)
    test, validation = runs["test_loss"][method], runs["validation_loss_best"][method]
    return {
        "train_perplexity": perplexity(runs["train_loss"][method][:, -last:].mean(-1, dtype=float)),
        "test_loss": test.tolist(),
        "validation_loss": validation.tolist(),
        "test_perplexity": perplexity(test),
        "test_perplexity_per_word": perplexity(test, tokens_per_word["test"]),
        "validation_perplexity": perplexity(validation),
    }


def _at_equal_time(equal: Metrics, method: int) -> dict[str, Any]:
    loss = equal["loss"][method]
    return {
        "equal_time_step": equal["step"][method].tolist(),
        "equal_time_loss": loss.tolist(),
        "equal_time_perplexity": perplexity(loss),
    }


def _layers(runs: Metrics, method: int, sizes: SizesOfMethod) -> dict[str, Any]:
    """Return the layers and bytes of a method; distinct, replicated, parameters and their bytes are those of the best step."""
    distinct, layers = distinct_layers(runs["best_owner"][method]), runs["best_owner"].shape[-1]
    return {
        "distinct": distinct.tolist(),
        "distinct_in_training": runs["distinct"][method].mean(-1, dtype=float).tolist(),
        "replicated": (1 - distinct / layers).tolist(),
        "parameters": _by_size(sizes, "parameters", distinct).astype(int).tolist(),
        "parameter_bytes": _by_size(sizes, "parameter_bytes", distinct).astype(int).tolist(),
        "bytes": _bytes(sizes, runs["distinct"][method]),
    }


def _bytes(sizes: SizesOfMethod, distinct: np.ndarray) -> dict[str, Any]:
    """Return the bytes of a method by seed, as means and maxima over steps; distinct: `[seed, step]`.

    stored_bytes: parameters, gradients and optimizer state together.
    """
    every = {name: _by_size(sizes, name, distinct) for name in (*STORED, "peak_bytes")}
    every["stored_bytes"] = np.sum([every[name] for name in STORED], axis=0)
    return {
        name: {"seeds": values.mean(-1).tolist(), "largest": values.max(-1).astype(int).tolist()}
        for name, values in every.items()
    }


def _by_size(sizes: SizesOfMethod, name: str, distinct: np.ndarray) -> np.ndarray:
    """Look up `name` in `sizes` for each number of distinct layers; returns an array of the shape of `distinct`."""
    visited, index = np.unique(distinct, return_inverse=True)
    if missing := sorted(set(visited.tolist()) - set(sizes)):
        raise ValueError(f"sizes: no entry for {missing[0]} distinct layers, which occurred in the run")
    return np.array([float(sizes[number][name]) for number in visited.tolist()])[index.reshape(distinct.shape)]


def _seconds_per_step(time_step: np.ndarray) -> dict[str, Any]:
    """Return the seconds per step of a method, medians over steps, and their mean over seeds; time_step: `[seed, step]`."""
    seconds = np.median(time_step, axis=-1).tolist()
    return {"seeds": seconds, "mean": float(np.mean(seconds))}
