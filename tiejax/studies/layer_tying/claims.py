"""What a run of dynamic layer tying says: perplexity, memory and time of every method, and the claims as tests.

Arrays are those of a run's `metrics.npz`, `[method, seed, ...]` and `[agent, seed, ...]`; all methods of a seed see the same
batches, so differences are paired. Losses in nats a token, times in seconds.
Source of the claims: Hay and Wolf, ICLR 2024; equal time, random ties, fixed maps and several seeds are ours.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy import stats

from tiejax.statistics.claims import Claim, assess

NOT_STATIC = ("untied", "agent", "random-agent", "random-map", "found-map")  # every other method is a fixed map
REPORTED = ("perplexity", "replicated", "memory")  # the claims that the paper reports, by the first part of their ids
LAST_PART = 10  # the training loss at the end is that of the last tenth of the steps
REPLICATED = 0.75  # the share of layers that the paper reports to be copies, at least
STORED = ("parameter_bytes", "gradient_bytes", "optimizer_bytes")

Metrics = Mapping[str, np.ndarray]
Sizes = Mapping[int, Mapping[str, int]]


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


def seconds_of(time_step: np.ndarray, distinct: np.ndarray) -> np.ndarray:
    """Return the seconds that `[method, seed, step]` take in training up to 0, 1, ... steps, `[method, seed, step + 1]`.

    A step counts for the median of all steps of its method, over all seeds, that had as many distinct layers: what else the
    machine did while one of them was made, or that no other model was left to share it, is no merit of a method.
    """
    taken = np.zeros((*time_step.shape[:2], time_step.shape[2] + 1))
    for times, numbers, seconds in zip(time_step, distinct, taken, strict=True):
        for number in np.unique(numbers):
            seconds[:, 1:][numbers == number] = np.median(times[numbers == number])
    return np.asarray(np.cumsum(taken, axis=-1))


def at_equal_time(seconds: np.ndarray, validation_step: np.ndarray, validation_loss: np.ndarray) -> dict[str, np.ndarray]:
    """Return each method's validation loss in the time that the fastest method of the seed took for all its steps.

    The loss is interpolated linearly in time between validations. seconds: `[method, seed, step + 1]`. budget: `[seed]`;
    step, loss: `[method, seed]`, step being how many had been done.
    """
    budget = seconds[..., -1].min(axis=0)
    step, loss = np.zeros(seconds.shape[:2], int), np.zeros(seconds.shape[:2])
    for place in np.ndindex(seconds.shape[:2]):
        step[place] = np.searchsorted(seconds[place], budget[place[1]], side="right") - 1
        loss[place] = np.interp(budget[place[1]], seconds[place][validation_step], validation_loss[place])
    return {"budget": budget, "step": step, "loss": loss}


def by_episode(values: np.ndarray, episode: np.ndarray) -> np.ndarray:
    """Return means over the actions of each episode, `[..., action]` to `[..., episode]`; NaN are not counted."""
    _, place = np.unique(episode, return_inverse=True)
    member = np.eye(place.max() + 1)[place]
    known = np.isfinite(values)
    number = known @ member
    summed = np.where(known, values, 0) @ member
    return np.asarray(np.divide(summed, number, out=np.full(number.shape, np.nan), where=number > 0))


def finite_seeds(metrics: Metrics) -> tuple[np.ndarray, dict[str, Any]]:
    """Return which places of the seed axis stayed finite in every method, and what results.json says of the others."""
    seeds, steps = metrics["seeds"], metrics["validation_step"]
    lasting = np.isfinite(metrics["train_loss"]).all(-1) & np.isfinite(metrics["validation_loss"]).all(-1)
    left = []
    for method, seed in np.argwhere(~lasting).tolist():
        trained = np.flatnonzero(~np.isfinite(metrics["train_loss"][method, seed]))
        validated = steps[~np.isfinite(metrics["validation_loss"][method, seed])]
        step = min([*trained[:1].tolist(), *validated[:1].tolist()])
        left.append({"arm": str(metrics["methods"][method]), "seed": int(seeds[seed]), "step": step})
    finite = np.asarray(lasting.all(axis=0))
    return finite, {"seeds": seeds[finite].tolist(), "excluded_seeds": seeds[~finite].tolist(), "non_finite": left}


def select_seeds(metrics: Metrics, chosen: np.ndarray) -> dict[str, np.ndarray]:
    """Return the arrays of metrics.npz for the chosen places of the seed axis, which is the second where there are two."""
    kept = {name: values[:, chosen] if values.ndim > 1 else values for name, values in metrics.items()}
    return kept | {"seeds": metrics["seeds"][chosen]}


def _by_size(sizes: Sizes, name: str, distinct: np.ndarray) -> np.ndarray:
    """Return what `sizes` calls `name` for every number of distinct layers, in their shape."""
    visited, place = np.unique(distinct, return_inverse=True)
    if missing := sorted(set(visited.tolist()) - set(sizes)):
        raise ValueError(f"sizes: nothing is said of {missing[0]} distinct layers, which the run visited")
    return np.array([float(sizes[number][name]) for number in visited.tolist()])[place.reshape(distinct.shape)]


def _bytes(sizes: Sizes, distinct: np.ndarray) -> dict[str, Any]:
    """Return bytes of one method, `distinct[seed, step]`: by seed, means over steps and the most of any step."""
    every = {name: _by_size(sizes, name, distinct) for name in (*STORED, "peak_bytes")}
    every["stored_bytes"] = np.sum([every[name] for name in STORED], axis=0)
    return {
        name: {"seeds": values.mean(-1).tolist(), "largest": values.max(-1).astype(int).tolist()}
        for name, values in every.items()
    }


def summary(runs: Metrics, sizes: Sizes, tokens_per_word: Mapping[str, float], equal: Metrics) -> list[dict[str, Any]]:
    """Return what results.json says of every method, lists with one value a seed. equal: as `at_equal_time` gives it.

    train_perplexity: over the last tenth of the steps, with dropout where there is some.
    stored_bytes: parameters, gradients and optimizer state together. distinct, replicated, parameters: at the best step.
    """
    layers, rows = runs["best_owner"].shape[-1], []
    for method, name in enumerate(runs["methods"]):
        distinct = distinct_layers(runs["best_owner"][method])
        seconds = np.median(runs["time_step"][method], axis=-1).tolist()
        test = runs["test_loss"][method]
        last = runs["train_loss"].shape[-1] // LAST_PART
        rows.append(
            {
                "method": str(name),
                "train_perplexity": perplexity(runs["train_loss"][method][:, -max(1, last) :].mean(-1, dtype=float)),
                "test_loss": test.tolist(),
                "validation_loss": runs["validation_loss_best"][method].tolist(),
                "test_perplexity": perplexity(test),
                "test_perplexity_per_word": perplexity(test, tokens_per_word["test"]),
                "validation_perplexity": perplexity(runs["validation_loss_best"][method]),
                "equal_time_step": equal["step"][method].tolist(),
                "equal_time_loss": equal["loss"][method].tolist(),
                "equal_time_perplexity": perplexity(equal["loss"][method]),
                "best_step": runs["best_step"][method].tolist(),
                "distinct": distinct.tolist(),
                "distinct_in_training": runs["distinct"][method].mean(-1, dtype=float).tolist(),
                "replicated": (1 - distinct / layers).tolist(),
                "parameters": _by_size(sizes, "parameters", distinct).astype(int).tolist(),
                "bytes": _bytes(sizes, runs["distinct"][method]),
                "seconds_per_step": {"seeds": seconds, "mean": float(np.mean(seconds))},
                "best_owner": runs["best_owner"][method].tolist(),
                "final_owner": runs["final_owner"][method].tolist(),
            }
        )
    return rows


def claims(rows: list[dict[str, Any]]) -> list[Claim]:
    """Return the claims that the methods allow; rows: as `summary` gives them."""
    of = {row["method"]: row for row in rows}
    found: list[Claim] = []

    def less(claim: str, first: str, second: str, statement: str, value: str = "test_loss", where: str = "test loss") -> None:
        if first in of and second in of:
            difference = np.array(of[first][value]) - np.array(of[second][value])
            found.append(Claim(claim, statement, f"{where} (nats a token), {first} - {second}; one a seed", difference, -1))

    untied = "the agent's perplexity is not worse than the untied model's (supported: it is better; contradicted: it is worse)."
    less("perplexity/agent", "agent", "untied", f"On the same number of steps {untied}")
    where = "validation loss at equal time"
    less("perplexity-equal-time/agent", "agent", "untied", f"In the same time {untied}", "equal_time_loss", where)
    if "agent" in of:
        found.append(
            Claim(
                "replicated/agent",
                f"Under the agent at least {100 * REPLICATED:g} % of the layers are copies.",
                f"share of the layers that are copies, at the best step, - {REPLICATED:g}; one a seed",
                np.array(of["agent"]["replicated"]) - REPLICATED,
                1,
            )
        )
    if "agent" in of and "untied" in of:
        for part, words, kind in (("mean", "averaged over the steps", "seeds"), ("most", "the most of any step", "largest")):
            agent, base = (np.array(of[name]["bytes"]["stored_bytes"][kind], float) for name in ("agent", "untied"))
            found.append(
                Claim(
                    f"memory/{part}",
                    f"With the agent's ties parameters, gradients and optimizer take less memory, {words}.",
                    f"ln(bytes, {words}, agent / untied); one a seed. "
                    f"Median: {np.median(agent / base):.1%} of the untied model's bytes",
                    np.log(agent / base),
                    -1,
                )
            )
    sizes = {name: np.mean(of[name]["distinct_in_training"]) for name in ("agent", "random-agent") if name in of}
    scratch = "The agent's map is better than a random one of its size, both trained from scratch."
    less("learns/found-map", "found-map", "random-map", scratch)
    less("learns/random-map", "agent", "random-map", "The agent's run is better than a random map of its size.")
    less(
        "learns/random-agent",
        "agent",
        "random-agent",
        "The agent is better than one that ties at random all along, whatever their sizes "
        f"({' and '.join(f'{size:.1f}' for size in sizes.values())} distinct layers on average).",
    )
    less(
        "retrained/found-map", "found-map", "agent", "Retrained from scratch the found map is better than the agent's own run."
    )
    for name in of:
        if name not in NOT_STATIC:
            less(f"static/{name}", "agent", name, f"The agent is better than the fixed map {name}.")
    return found


def analyse(
    metrics: Metrics, sizes: Sizes, tokens_per_word: Mapping[str, float]
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return what results.json says of a run, and the arrays of the seeds whose models all stayed finite.

    metrics: the arrays of metrics.npz. sizes: by number of distinct layers, for all in `distinct` and `best_owner`.
    To the arrays are added validation_seconds `[method, seed, validation]` and, by episode, `episode`, `episode_epsilon`, and
    episode_reward, episode_q_loss, episode_distinct `[agent, seed, episode]` (means over its actions) and episode_owner
    `[agent, seed, episode, layer]` (the map at its end).
    """
    finite, lasted = finite_seeds(metrics)
    runs = select_seeds(metrics, finite)
    found: dict[str, Any] = {**lasted, "methods": [], "equal_time_s": [], "agents": {}, "claims": []}
    if not finite.any():
        return found, runs
    seconds = seconds_of(runs["time_step"], runs["distinct"])
    runs["validation_seconds"] = seconds[..., runs["validation_step"]]
    equal = at_equal_time(seconds, runs["validation_step"], runs["validation_loss"])
    found["methods"] = summary(runs, sizes, tokens_per_word, equal)
    found["equal_time_s"] = equal["budget"].tolist()
    found["claims"] = [row | {"reported": row["id"].split("/")[0] in REPORTED} for row in assess(claims(found["methods"]))]
    if len(runs.get("action_episode", ())):
        episode = runs["action_episode"]
        ends = np.flatnonzero(np.append(np.diff(episode) != 0, True))
        runs |= {
            "episode": episode[ends],
            "episode_owner": runs["action_owner"][:, :, ends],
            "episode_distinct": by_episode(distinct_layers(runs["action_owner"]), episode),
            "episode_reward": by_episode(runs["reward"], episode),
            "episode_q_loss": by_episode(runs["q_loss"], episode),
            "episode_epsilon": runs["epsilon"][ends],
        }
        found["agents"] = {
            str(name): {
                "episode": runs["episode"].tolist(),
                **{value: runs[f"episode_{value}"][agent].tolist() for value in ("distinct", "reward", "q_loss")},
            }
            for agent, name in enumerate(runs["agents"])
        }
    return found, runs
