"""The records of each model in training, their file, and their conversion to the arrays of a run."""

from collections.abc import Mapping, Sequence
from typing import Any

import flax.traverse_util
import numpy as np

from tiejax.lab.runs.arrays import arrays_of, npz
from tiejax.lab.runs.trackers import series_name
from tiejax.lab.studies.layer_tying.settings import Settings

Records = dict[str, dict[str, np.ndarray]]  # group -> name -> rows


class Log:
    """Growing records by group and name.

    Groups: `step` (loss, distinct layers, seconds), `validation` (step, loss), `action` (of an agent), `size` (bytes by size of
    the stack), and `final` (step, map and losses of the best step; the last map).
    """

    def __init__(self, records: Mapping[str, Mapping[str, np.ndarray]] | None = None) -> None:
        self._rows: dict[str, dict[str, list[Any]]] = {
            group: {name: list(values) for name, values in fields.items()} for group, fields in (records or {}).items()
        }

    def add(self, group: str, **fields: Any) -> None:
        """Add a row to a group."""
        rows = self._rows.setdefault(group, {})
        for name, value in fields.items():
            rows.setdefault(name, []).append(value)

    def values(self, group: str, name: str) -> list[Any]:
        """Return the values added so far under a name of a group."""
        return self._rows.get(group, {}).get(name, [])

    def arrays(self) -> Records:
        """Return all rows as arrays `[row, ...]`."""
        return {group: {name: np.array(values) for name, values in fields.items()} for group, fields in self._rows.items()}


def records_file(records: Records) -> bytes:
    """Serialise the records of a model as an .npz file."""
    return npz(flax.traverse_util.flatten_dict(records, sep="/"))


def read_records(content: bytes) -> Records:
    """Parse the records of a model from an .npz file."""
    return flax.traverse_util.unflatten_dict(arrays_of(content), sep="/")


def points_of(records: Records, method: str, seed: int, k: int) -> dict[int, dict[str, float]]:
    """Return the points that a tracker shows of a model: number of trained steps -> series -> value.

    k: steps per action of an agent.
    """
    steps, validation = records["step"], records["validation"]
    trained = 1 + np.arange(len(steps["loss"]))
    rows = {
        "train_loss": (trained, steps["loss"]),
        "distinct_layers": (trained, steps["distinct"]),
        "validation_loss": (validation["step"], validation["loss"]),
    }
    if "action" in records:
        # The last action of a run may be followed by fewer steps.
        rewards = records["action"]["reward"]
        rows["reward"] = np.minimum(k * (1 + np.arange(len(rewards))), len(trained)), rewards
    points: dict[int, dict[str, float]] = {}
    for name, (at_step, values) in rows.items():
        for step, value in zip(at_step.tolist(), values.tolist(), strict=True):
            points.setdefault(step, {})[series_name(name, method, f"seed-{seed}")] = value
    return dict(sorted(points.items()))


def metrics_of(settings: Settings, records: Mapping[tuple[str, int], Records]) -> dict[str, np.ndarray]:
    """Return the records of all models as the arrays of metrics.npz, `[method, seed, ...]`, for agents `[agent, seed, ...]`.

    records: by (method, seed).
    """
    agents = settings.agents

    def stacked(names: Sequence[str], group: str, field: str) -> np.ndarray:
        return np.array([[records[name, seed][group][field] for seed in settings.seed_list] for name in names])

    every, first = settings.names, records[settings.names[0], settings.seed_list[0]]
    arrays = {
        "methods": np.array(every),
        "seeds": np.array(settings.seed_list),
        "train_loss": stacked(every, "step", "loss"),
        "distinct": stacked(every, "step", "distinct"),
        "time_step": stacked(every, "step", "time"),
        "validation_step": first["validation"]["step"],
        "validation_loss": stacked(every, "validation", "loss"),
        "validation_loss_best": stacked(every, "final", "validation")[..., 0],
        "test_loss": stacked(every, "final", "test")[..., 0],
        **{name: stacked(every, "final", name)[:, :, 0] for name in ("best_step", "best_owner", "final_owner")},
    }
    if agents:
        # The order of layers is the same in all models; epsilon is that of the learning agent, if there is one.
        actions = records["agent" if "agent" in agents else agents[0], settings.seed_list[0]]["action"]
        arrays |= {
            "agents": np.array(agents),
            "action_episode": actions["episode"],
            "action_layer": actions["layer"],
            "epsilon": actions["epsilon"],
            **{name: stacked(agents, "action", name) for name in ("action", "reward", "q_loss", "value")},
            "action_owner": stacked(agents, "action", "owner"),
        }
    return arrays


def sizes_of(settings: Settings, records: Mapping[tuple[str, int], Records]) -> dict[str, dict[int, dict[str, int]]]:
    """Return the parameters and bytes of a training step by method and number of distinct layers, for all that occurred."""
    sizes: dict[str, dict[int, dict[str, int]]] = {name: {} for name in settings.names}
    for (method, _), model in records.items():
        size = model["size"]
        by_stack_size = {
            stack_size: {name: int(values[row]) for name, values in size.items() if name != "stack_size"}
            for row, stack_size in enumerate(size["stack_size"].tolist())
        }
        if settings.storage == "full":
            numbers = {*np.unique(model["step"]["distinct"]).tolist(), len(np.unique(model["final"]["best_owner"]))}
            by_stack_size = dict.fromkeys(numbers, by_stack_size[settings.layers])
        sizes[method] |= by_stack_size
    return {method: dict(sorted(by_number.items())) for method, by_number in sizes.items()}
