"""What a run of EXor recorded: distances over training by table and pair, exact risks, final values by seed."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tiejax.geometry.distances import group_pairs, mean_distance
from tiejax.statistics.arms import ARMS
from tiejax.studies.exor.task import EXor

TABLES = ("input", "output")


SOLVED_WITHIN = 0.1


@dataclasses.dataclass(frozen=True)
class Symbols:
    """The symbols of a task, and how likely each spelling of a bit is.

    used: by bit (`zero`, `one`), the spellings with a probability above 0. probability: by spelling.
    """

    vocabulary: int
    even: int
    odd: int
    used: Mapping[str, Sequence[int]]
    probability: Sequence[float]

    @classmethod
    def of(cls, task: EXor) -> "Symbols":
        """Return the symbols of a task."""
        return cls(task.vocabulary, task.even, task.odd, task.used, task.probability)

    def imbalance(self, bit: str) -> float:
        """Return the largest |ln(p_i / p_j)| between two used spellings of a bit: 0 where DH holds, NaN if there is one."""
        p = [self.probability[symbol] for symbol in self.used[bit]]
        return math.log(max(p) / min(p)) if len(p) > 1 else math.nan

    @property
    def holding(self) -> str | None:
        """The bit whose spellings are equally likely, so that DH holds for them; the only one, or `one` of two."""
        return next((bit for bit in ("one", "zero") if self.imbalance(bit) < 1e-9), None)

    @property
    def violating(self) -> str | None:
        """The bit whose spellings are least equally likely, so that DH fails for them."""
        bits = [bit for bit in ("zero", "one") if self.imbalance(bit) >= 1e-9]
        return max(bits, key=self.imbalance) if bits else None


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


def trajectories(metrics: Mapping[str, np.ndarray], symbols: Symbols, cycle: int) -> Trajectories:
    """Read the trajectories of a run; `cycle` is the length of a learning-rate cycle in steps."""
    between = group_pairs(symbols.used["zero"], symbols.used["one"])
    groups = {
        "zero": group_pairs(symbols.used["zero"]),
        "one": group_pairs(symbols.used["one"]),
        "even_odd": [(symbols.even, symbols.odd)],
    }
    distance: dict[str, dict[str, np.ndarray]] = {}
    relative: dict[str, dict[str, np.ndarray]] = {}
    for table in TABLES:
        recorded = metrics[f"distance_{table}"].astype(float)
        scale = mean_distance(recorded, symbols.vocabulary, between)
        distance[table] = {name: mean_distance(recorded, symbols.vocabulary, pairs) for name, pairs in groups.items() if pairs}
        relative[table] = {name: values / scale for name, values in distance[table].items()}
    steps = metrics["step"]
    exact = {name.removeprefix("exact_"): metrics[name].astype(float) for name in metrics if name.startswith("exact_")}
    exact_steps = exact.pop("step", np.zeros(0))
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


def summary(runs: Trajectories, splits: Sequence[str], last: bool = False) -> dict[str, Any]:
    """Return final values by arm, each with one value per seed: the body of `final` in results.json.

    `output_side` is what the theory says of an optimal output table, per pair as `exact_risk` measures it: the gap
    |e1 - e2| |h|, the mean log ratio h . (e1 - e2), and its root mean square distance from the true one.
    """
    body: dict[str, Any] = {}
    for arm, name in enumerate(ARMS):
        entry: dict[str, Any] = {}
        for measure in ("cross_entropy", "accuracy"):
            if measure in runs.exact:
                values = runs.final(runs.exact[measure], exact=True, last=last)[arm]
                entry[f"exact_{measure}"] = {split: values[:, k].tolist() for k, split in enumerate(splits)}
            else:
                entry[f"exact_{measure}"] = None
        entry["output_side"] = {
            name: runs.final(values, exact=True, last=last)[arm].tolist()
            for name, values in runs.exact.items()
            if name.startswith(("gap_", "log_ratio_"))
        }
        for measure, tables in (("distance", runs.distance), ("relative_distance", runs.relative)):
            entry[measure] = {
                table: {pair: runs.final(values, last=last)[arm].tolist() for pair, values in pairs.items()}
                for table, pairs in tables.items()
            }
        body[name] = entry
    return body
