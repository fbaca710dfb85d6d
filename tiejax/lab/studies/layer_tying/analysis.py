"""The analysis of a layer-tying run: finite seeds, a summary of each method, claims, and agents over episodes.

Arrays are those of `metrics.npz`, `[method, seed, ...]`. Losses are in nats per token, times in seconds.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import special

from tiejax.lab.runs.gate import untested
from tiejax.lab.runs.parts import Looks
from tiejax.lab.studies.layer_tying.claims import LEARNS, REPORTED, claims
from tiejax.lab.studies.layer_tying.q_learning import DISCOUNT, returns_of
from tiejax.lab.studies.layer_tying.variants import Variant
from tiejax.statistics.arms import finite_seeds, replace_diverged, select_seeds
from tiejax.statistics.claims import Claim, assess, assess_in_looks

HORIZON = math.ceil(math.log(0.01) / math.log(DISCOUNT))  # actions after which the rest of a return is a hundredth
VALUES_TRAINED = 0.2  # largest error of an agent's values with which claims that it learns are tested
LAST_PART = 10  # the final training loss is the mean over the last tenth of the steps
STORED = ("parameter_bytes", "gradient_bytes", "optimizer_bytes")

Metrics = Mapping[str, np.ndarray]
Sizes = Mapping[str, Mapping[int, Mapping[str, int]]]  # method -> number of distinct layers -> parameters and bytes

SizesOfMethod = Mapping[int, Mapping[str, int]]


def analyse(
    metrics: Metrics,
    sizes: Sizes,
    tokens_per_word: Mapping[str, float],
    variants: Mapping[str, Variant] | None = None,
    looks: Looks | None = None,
    tested: bool = True,
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Analyse a run: return its part of results.json, and the arrays of the seeds with finite models only.

    sizes: for all numbers of distinct layers in `distinct` and `best_owner`. tokens_per_word: of each held-out split; {} for
    masked models, whose loss is not that of a text, which has no perplexity per word. tested: whether claims are tested, or all
    exploratory.

    Claims are about all seeds, with the losses of diverged models replaced by the worst ones; everything else is about the
    seeds whose models all stayed finite. Claims that an agent learns are tested only if its values predict its returns.
    Added to the arrays: validation_seconds `[method, seed, validation]` and, for runs with agents, `episode_arrays`.
    """
    by_step = losses_by_step(metrics)
    finite, seeds = finite_seeds(by_step)
    diverged = np.asarray(~by_step["finite"].all(axis=2))

    def summary(runs: Metrics) -> tuple[list[dict[str, Any]], np.ndarray, np.ndarray]:
        """Return the rows of `summarise`, the seconds up to each step, and those of equal time."""
        seconds = seconds_of(runs["time_step"], runs["distinct"])
        equal = at_equal_time(seconds, runs["validation_step"], runs["validation_loss"])
        return summarise(runs, sizes, tokens_per_word, equal), seconds, equal["budget"]

    def claims_of(number: int) -> list[Claim]:
        """Return the claims on the first seeds, which do not depend on later ones."""
        some = select_seeds(metrics, np.arange(len(metrics["seeds"])) < number, least_axes=2)
        rows = summary(with_diverged_replaced(some, diverged[:, :number]))[0]
        of_methods = zip(rows, diverged[:, :number], strict=True)
        found = claims([row | {"diverged": of_method} for row, of_method in of_methods], variants or {})
        if not tested:
            return untested(found)
        trained = values_are_trained(select_seeds(some, finite[:number], least_axes=2))
        return [claim if trained or not claim.id.startswith(LEARNS) else untested([claim])[0] for claim in found]

    findings: dict[str, Any] = {**seeds, "methods": [], "equal_time_s": [], "agents": {}, "claims": []}
    if not diverged.all():
        if looks is not None and looks.planned:
            rows = assess_in_looks(claims_of, looks.done, len(looks.planned))
        else:
            rows = assess(claims_of(len(metrics["seeds"])))
        findings["claims"] = [row | {"reported": row["id"].split("/")[0] in REPORTED} for row in rows]
    runs = select_seeds(metrics, finite, least_axes=2)
    if not finite.any():
        return findings, runs
    findings["methods"], seconds, budget = summary(runs)
    findings["equal_time_s"] = budget.tolist()
    runs["validation_seconds"] = seconds[..., runs["validation_step"]]
    if len(runs.get("action_episode", ())):
        runs |= episode_arrays(runs)
        findings["agents"] = agents_over_episodes(runs)
    return findings, runs


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
        half = special.stdtrit(len(nats) - 1, 0.975) * nats.std(ddof=1) / np.sqrt(len(nats))
        interval = np.exp([nats.mean() - half, nats.mean() + half]).tolist()
    return {"seeds": np.exp(nats).tolist(), "mean": float(np.exp(nats.mean())), "interval": interval}


def summarise(runs: Metrics, sizes: Sizes, tokens_per_word: Mapping[str, float], equal: Metrics) -> list[dict[str, Any]]:
    """Return the `methods` of results.json, with lists of one value per seed. equal: the output of `at_equal_time`.

    train_perplexity is over the last tenth of the steps, with dropout; the other losses are of the best step, except those at
    equal time. seconds_per_step are medians over steps, and their mean over seeds.
    """
    rows, last = [], max(1, runs["train_loss"].shape[-1] // LAST_PART)
    for method, name in enumerate(runs["methods"]):
        test, validation, at_time = runs["test_loss"][method], runs["validation_loss_best"][method], equal["loss"][method]
        seconds = np.median(runs["time_step"][method], axis=-1).tolist()
        rows.append(
            {
                "method": str(name),
                "train_perplexity": perplexity(runs["train_loss"][method][:, -last:].mean(-1, dtype=float)),
                "test_loss": test.tolist(),
                "validation_loss": validation.tolist(),
                "test_perplexity": perplexity(test),
                **({"test_perplexity_per_word": perplexity(test, tokens_per_word["test"])} if tokens_per_word else {}),
                "validation_perplexity": perplexity(validation),
                "equal_time_step": equal["step"][method].tolist(),
                "equal_time_loss": at_time.tolist(),
                "equal_time_perplexity": perplexity(at_time),
                "best_step": runs["best_step"][method].tolist(),
                **_layers(runs, method, sizes[str(name)]),
                "seconds_per_step": {"seeds": seconds, "mean": float(np.mean(seconds))},
                "best_owner": runs["best_owner"][method].tolist(),
                "final_owner": runs["final_owner"][method].tolist(),
            }
        )
    return rows


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
    return np.array([float(sizes[number][name]) for number in visited.tolist()])[index.reshape(distinct.shape)]


def seconds_of(time_step: np.ndarray, distinct: np.ndarray) -> np.ndarray:
    """Return the training time of the first 0, 1, ... steps in seconds, `[method, seed, step + 1]`.

    time_step, distinct: seconds and number of distinct layers of each step, `[method, seed, step]`. The time of a
    step is replaced by the median over all steps of its method with the same number of distinct layers, in all seeds, so that
    the load of the machine during a single step (from other programs or other models of the run) does not favour a method.
    """
    taken = np.zeros((*time_step.shape[:2], time_step.shape[2] + 1))
    for times, numbers, seconds in zip(time_step, distinct, taken, strict=True):
        for number in np.unique(numbers):
            seconds[:, 1:][numbers == number] = np.median(times[numbers == number])
    return np.asarray(np.cumsum(taken, axis=-1))


def at_equal_time(seconds: np.ndarray, validation_step: np.ndarray, validation_loss: np.ndarray) -> dict[str, np.ndarray]:
    """Return the validation loss of each method at the time when the fastest method of the seed finished its steps.

    The loss is interpolated linearly in time between validations. seconds: `[method, seed, step + 1]`. Returns `budget`, the
    seconds `[seed]`; `step`, the steps completed by then, and `loss`, both `[method, seed]`.
    """
    budget = seconds[..., -1].min(axis=0)
    step, loss = np.zeros(seconds.shape[:2], int), np.zeros(seconds.shape[:2])
    for method, seed in np.ndindex(seconds.shape[:2]):
        elapsed = seconds[method, seed]
        step[method, seed] = np.searchsorted(elapsed, budget[seed], side="right") - 1
        loss[method, seed] = np.interp(budget[seed], elapsed[validation_step], validation_loss[method, seed])
    return {"budget": budget, "step": step, "loss": loss}


def by_episode(values: np.ndarray, episode: np.ndarray) -> np.ndarray:
    """Average over the actions of each episode, `[..., action]` to `[..., episode]`, ignoring NaN."""
    _, index = np.unique(episode, return_inverse=True)
    in_episode = np.eye(index.max() + 1)[index]
    counts = np.isfinite(values)
    number = counts @ in_episode
    summed = np.where(counts, values, 0) @ in_episode
    return np.asarray(np.divide(summed, number, out=np.full(number.shape, np.nan), where=number > 0))


def episode_arrays(runs: Metrics) -> dict[str, np.ndarray]:
    """Return the arrays of a run by episode.

    episode, episode_epsilon: `[episode]`. episode_reward, episode_q_loss, episode_distinct: `[agent, seed, episode]`, means
    over actions. episode_owner: `[agent, seed, episode, layer]`, the owner map at the end of the episode.
    """
    episode = runs["action_episode"]
    ends = np.flatnonzero(np.append(np.diff(episode) != 0, True))
    return {
        "episode": episode[ends],
        "episode_owner": runs["action_owner"][:, :, ends],
        "episode_distinct": by_episode(distinct_layers(runs["action_owner"]), episode),
        "episode_reward": by_episode(runs["reward"], episode),
        "episode_q_loss": by_episode(runs["q_loss"], episode),
        "episode_epsilon": runs["epsilon"][ends],
    }


def value_errors(value: np.ndarray, reward: np.ndarray, episode: np.ndarray) -> list[float | None]:
    """Return how far an agent's values are from the returns that followed, |Q - return| / |return|, a number per seed.

    Both are means over the last quarter of the episodes whose returns are known up to a hundredth: those that end at least
    `HORIZON` actions before the last one. None if there is no such episode, and for an agent without values.

    value, reward: Q(s, a) of each action when it was taken, and its reward, `[seed, action]`. episode: of each action.
    """
    complete = np.unique(episode)[np.unique(episode) < episode[max(0, len(episode) - HORIZON)]]
    judged = np.isin(episode, complete[-max(1, len(complete) // 4) :])
    if not judged.any():
        return [None] * len(value)
    returns = returns_of(reward)[:, judged]
    errors = np.abs(value[:, judged] - returns).mean(axis=1) / np.abs(returns.mean(axis=1))
    return [float(error) if np.isfinite(error) else None for error in errors]


def values_are_trained(runs: Metrics) -> bool:
    """Return whether the values of the agent, if there is one, predict its returns, by the mean error over seeds."""
    names = [str(name) for name in runs.get("agents", ())]
    if "agent" not in names:
        return True
    agent = names.index("agent")
    error = mean_error(value_errors(runs["value"][agent], runs["reward"][agent], runs["action_episode"]))
    return error is not None and error < VALUES_TRAINED


def mean_error(errors: Sequence[float | None]) -> float | None:
    """Return the mean over seeds of `value_errors`, None if one is not known."""
    known = [error for error in errors if error is not None]
    return float(np.mean(known)) if known and len(known) == len(errors) else None


def agents_over_episodes(runs: Metrics) -> dict[str, Any]:
    """Return the `agents` of results.json; runs: includes `episode_arrays`."""
    return {
        str(name): {
            "episode": runs["episode"].tolist(),
            **{value: runs[f"episode_{value}"][agent].tolist() for value in ("distinct", "reward", "q_loss")},
            "value_error": value_errors(runs["value"][agent], runs["reward"][agent], runs["action_episode"]),
        }
        for agent, name in enumerate(runs["agents"])
    }
