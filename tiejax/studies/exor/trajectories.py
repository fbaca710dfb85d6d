"""What a run of EXor recorded: distances over training by table and pair, exact risks, final values by seed."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tiejax.geometry.distances import group_pairs, mean_distance
from tiejax.outside.scratch import scratch_array
from tiejax.studies.exor.symbols import Symbols

TABLES = ("input", "output")
BLOCK = 2**27  # bytes of distances that are read at a time
SOLVED_WITHIN = 0.1  # nats of the Bayes cross-entropy


@dataclasses.dataclass(frozen=True)
class Trajectories:
    """Distances by table and pair over training, each `[arm, seed, record]`, and exact risks.

    relative: distance over the mean distance between spellings of 0 and spellings of 1 that occur, in the same table.
    window: first step of the last whole learning-rate cycle; final values are means over the records after it.
    exact: by name, `[arm, seed, exact record, ...]` at `exact_steps`; empty where no exact risk was computed.
    """

    steps: np.ndarray
    window: int
    distance: Mapping[str, Mapping[str, np.ndarray]]
    relative: Mapping[str, Mapping[str, np.ndarray]]
    exact_steps: np.ndarray
    exact: Mapping[str, np.ndarray]

    def final(self, values: np.ndarray, exact: bool = False, last: bool = False) -> np.ndarray:
        """Return the mean over the window of `[arm, seed, record, ...]`, or the last record's value."""
        if last:
            return values[:, :, -1]
        steps = self.exact_steps if exact else self.steps
        inside = steps > self.window
        return values[:, :, inside if inside.any() else [-1]].mean(2)


def trajectories(
    metrics: Mapping[str, np.ndarray],
    symbols: Symbols,
    cycle: int,
    chosen: np.ndarray | None = None,
    scratch: Path | None = None,
) -> Trajectories:
    """Read the trajectories of a run; `cycle` is the length of a learning-rate cycle in steps.

    chosen: which places of the seed axis (default: all). scratch: a folder for what is made of them (default: memory). They are
    read some seeds at a time, since they may be in files.
    """
    places = np.arange(len(metrics["seeds"])) if chosen is None else np.flatnonzero(chosen)
    parts = np.array_split(np.arange(len(places)), max(1, -(-metrics["distance_input"].nbytes // BLOCK)))
    blocks = [slice(part[0], part[-1] + 1) for part in parts if part.size]

    def room(values: np.ndarray) -> np.ndarray:
        """Return room for so much of each of the chosen seeds as there is of others in `[arm, seed, ...]`."""
        return scratch_array((len(values), len(places), *values.shape[2:]), scratch)

    between = group_pairs(symbols.used["zero"], symbols.used["one"])
    groups = {
        "zero": group_pairs(symbols.used["zero"]),
        "one": group_pairs(symbols.used["one"]),
        "even_odd": [(symbols.even, symbols.odd)],
    }
    distance: dict[str, dict[str, np.ndarray]] = {}
    relative: dict[str, dict[str, np.ndarray]] = {}
    for table in TABLES:
        recorded = metrics[f"distance_{table}"]
        distance[table] = {name: room(recorded[..., 0]) for name, pairs in groups.items() if pairs}
        relative[table] = {name: room(recorded[..., 0]) for name in distance[table]}
        for block in blocks:
            of_block = recorded[:, places[block]].astype(float)
            scale = mean_distance(of_block, symbols.vocabulary, between)
            for name, values in distance[table].items():
                values[:, block] = mean_distance(of_block, symbols.vocabulary, groups[name])
                relative[table][name][:, block] = values[:, block] / scale
    steps = metrics["step"]
    recorded_risks = {name.removeprefix("exact_"): metrics[name] for name in metrics if name.startswith("exact_")}
    exact_steps = recorded_risks.pop("step", np.zeros(0)).astype(float)
    exact = {name: room(values) for name, values in recorded_risks.items()}
    for name, values in recorded_risks.items():
        for block in blocks:
            exact[name][:, block] = values[:, places[block]]
    return Trajectories(steps, max(int(steps[-1]) - cycle, 0), distance, relative, exact_steps, exact)


def solved(runs: Trajectories, bayes_cross_entropy: float) -> np.ndarray | None:
    """Say `[arm, seed]` whether the final exact cross-entropy on the training split is within .1 nat of Bayes."""
    if "cross_entropy" not in runs.exact:
        return None
    final = runs.final(runs.exact["cross_entropy"], exact=True)[..., 0]
    return final < bayes_cross_entropy + SOLVED_WITHIN


def output_gap(runs: Trajectories, symbols: Symbols) -> tuple[float, np.ndarray]:
    r"""Return the bound |ln(p1 / p2)| and, `[arm, seed]`, the final value of the smallest |e1 - e2| |h| over contexts.

    An optimal model has h . (e1 - e2) = ln(p1 / p2) in every context that asks for the pair's bit, hence
    |e1 - e2| |h| >= |ln(p1 / p2)|. Of more than two spellings, the likeliest and the least likely are compared.
    """
    bit = symbols.violating
    if bit is None:
        raise ValueError("no pair violates the distributional hypothesis")
    return symbols.imbalance(bit), runs.final(runs.exact[f"gap_{bit}"], exact=True)
