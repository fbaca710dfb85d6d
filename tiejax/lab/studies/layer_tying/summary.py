"""What results.json says of every method: perplexity, layers, memory and time.

Arrays are those of a run's `metrics.npz`, `[method, seed, ...]`. Losses in nats a token, times in seconds.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy import stats

LAST_PART = 10  # the training loss at the end is that of the last tenth of the steps
STORED = ("parameter_bytes", "gradient_bytes", "optimizer_bytes")

Metrics = Mapping[str, np.ndarray]
Sizes = Mapping[int, Mapping[str, int]]  # number of distinct layers -> what a step takes


def distinct_layers(owner: np.ndarray) -> np.ndarray:
    """Return how many distinct layers each map of `[..., layer]` has."""
    return np.asarray((np.diff(np.sort(owner, axis=-1), axis=-1) != 0).sum(-1) + 1)


def perplexity(loss: np.ndarray, tokens: float = 1.0) -> dict[str, Any]:
    """Return the perplexity of losses `[seed]`, taken per `tokens` tokens (those of a word: perplexity per word).

    mean, interval: exp of the mean over seeds and of its 95 % interval (Student's t), in nats; no interval for one seed.
    """
    nats = np.asarray(loss, dtype=float) * tokens
    interval = None
    if len(nats) > 1:
        half = stats.t.ppf(0.975, len(nats) - 1) * nats.std(ddof=1) / np.sqrt(len(nats))
        interval = np.exp([nats.mean() - half, nats.mean() + half]).tolist()
    return {"seeds": np.exp(nats).tolist(), "mean": float(np.exp(nats.mean())), "interval": interval}


def summarise(runs: Metrics, sizes: Sizes, tokens_per_word: Mapping[str, float], equal: Metrics) -> list[dict[str, Any]]:
    """Return what results.json says of every method, lists with one value a seed. equal: as `at_equal_time` gives it."""
    return [
        {
            "method": str(name),
            **_losses(runs, method, tokens_per_word),
            **_at_equal_time(equal, method),
            "best_step": runs["best_step"][method].tolist(),
            **_layers(runs, method, sizes),
            "seconds_per_step": _seconds_per_step(runs["time_step"][method]),
            "best_owner": runs["best_owner"][method].tolist(),
            "final_owner": runs["final_owner"][method].tolist(),
        }
        for method, name in enumerate(runs["methods"])
    ]


def _losses(runs: Metrics, method: int, tokens_per_word: Mapping[str, float]) -> dict[str, Any]:
    """Return losses and perplexities of a method.

    train_perplexity: over the last tenth of the steps, with dropout where there is some. Others: of the best step.
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


def _layers(runs: Metrics, method: int, sizes: Sizes) -> dict[str, Any]:
    """Return the layers of a method and the bytes that it took; distinct, replicated, parameters: at the best step."""
    distinct, layers = distinct_layers(runs["best_owner"][method]), runs["best_owner"].shape[-1]
    return {
        "distinct": distinct.tolist(),
        "distinct_in_training": runs["distinct"][method].mean(-1, dtype=float).tolist(),
        "replicated": (1 - distinct / layers).tolist(),
        "parameters": _by_size(sizes, "parameters", distinct).astype(int).tolist(),
        "bytes": _bytes(sizes, runs["distinct"][method]),
    }


def _bytes(sizes: Sizes, distinct: np.ndarray) -> dict[str, Any]:
    """Return bytes of one method, `distinct[seed, step]`: by seed, means over steps and the most of any step.

    stored_bytes: parameters, gradients and optimizer state together.
    """
    every = {name: _by_size(sizes, name, distinct) for name in (*STORED, "peak_bytes")}
    every["stored_bytes"] = np.sum([every[name] for name in STORED], axis=0)
    return {
        name: {"seeds": values.mean(-1).tolist(), "largest": values.max(-1).astype(int).tolist()}
        for name, values in every.items()
    }


def _by_size(sizes: Sizes, name: str, distinct: np.ndarray) -> np.ndarray:
    """Return what `sizes` calls `name` for every number of distinct layers, in their shape."""
    visited, place = np.unique(distinct, return_inverse=True)
    if missing := sorted(set(visited.tolist()) - set(sizes)):
        raise ValueError(f"sizes: nothing is said of {missing[0]} distinct layers, which the run visited")
    return np.array([float(sizes[number][name]) for number in visited.tolist()])[place.reshape(distinct.shape)]


def _seconds_per_step(time_step: np.ndarray) -> dict[str, Any]:
    """Return the seconds of a step of one method, `[seed, step]`: medians over steps, and their mean over seeds."""
    seconds = np.median(time_step, axis=-1).tolist()
    return {"seeds": seconds, "mean": float(np.mean(seconds))}
