"""Arrays by episode from the records of the agents' actions."""

from typing import Any

import numpy as np

from tiejax.lab.studies.layer_tying.summary import Metrics, distinct_layers


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


def agents_over_episodes(runs: Metrics) -> dict[str, Any]:
    """Return the `agents` of results.json; runs: includes `episode_arrays`."""
    return {
        str(name): {
            "episode": runs["episode"].tolist(),
            **{value: runs[f"episode_{value}"][agent].tolist() for value in ("distinct", "reward", "q_loss")},
        }
        for agent, name in enumerate(runs["agents"])
    }
