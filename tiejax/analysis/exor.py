"""What a run of EXor says: final values by seed, and the paper's claims.

Arrays are those of a run's `metrics.npz`, `[variant, seed, record, ...]` with variants (untied, tied).
Source of the claims: Bertolotti and Cazzola, ICML 2024.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tiejax.analysis.claims import Claim, assess
from tiejax.analysis.geometry import area_under_log, group_pairs, log_roughness, mean_distance
from tiejax.analysis.uses import over_training

VARIANTS = ("untied", "tied")
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
    """Distances by table and pair over training, each `[variant, seed, record]`, and exact risks.

    relative: distance over the mean distance between spellings of 0 and spellings of 1 that occur, in the same table.
    window: first step of the last whole learning-rate cycle; final values are means over the records after it.
    exact: by name, `[variant, seed, exact record, ...]` at `exact_steps`; empty where no exact risk was computed.
    """

    steps: np.ndarray
    window: int
    distance: Mapping[str, Mapping[str, np.ndarray]]
    relative: Mapping[str, Mapping[str, np.ndarray]]
    exact_steps: np.ndarray
    exact: Mapping[str, np.ndarray]

    def final(self, values: np.ndarray, exact: bool = False, last: bool = False) -> np.ndarray:
        """Return the mean over the window of `[variant, seed, record, ...]`, or the last record's value."""
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
    """Say `[variant, seed]` whether the final exact cross-entropy on the training split is within .1 nat of Bayes."""
    if "cross_entropy" not in runs.exact:
        return None
    final = runs.final(runs.exact["cross_entropy"], exact=True)[..., 0]
    return final < bayes_cross_entropy + SOLVED_WITHIN


def claims(runs: Trajectories, symbols: Symbols, bayes_cross_entropy: float, cycle: int) -> list[Claim]:
    """Return the paper's claims that apply to the task, with their paired differences over seeds.

    Distances are relative, final values means over the last whole cycle, risks exact on the training split.
    """
    rows: list[Claim] = []
    untied, tied = 0, 1
    final = {table: {name: runs.final(v) for name, v in pairs.items()} for table, pairs in runs.relative.items()}
    holding, violating = symbols.holding, symbols.violating

    for bit in ("zero", "one"):
        if bit in final["input"]:
            rows.append(
                Claim(
                    f"input-semantic/{bit}",
                    f"Untied input table: the {bit} pair is nearer than symbols of different meaning.",
                    "relative distance - 1",
                    final["input"][bit][untied] - 1,
                    -1,
                )
            )
    if holding and violating:
        rows.append(
            Claim(
                "output-conditional",
                f"Untied output table: the {violating} pair is farther apart than the {holding} pair.",
                f"relative distance, {violating} pair - {holding} pair",
                final["output"][violating][untied] - final["output"][holding][untied],
                1,
            )
        )
        rows.append(
            Claim(
                f"tied-conflict/{holding}-pair",
                f"Tied: the {violating} pair is farther apart than the {holding} pair.",
                f"relative distance, {violating} pair - {holding} pair",
                final["input"][violating][tied] - final["input"][holding][tied],
                1,
            )
        )
    if violating:
        rows.append(
            Claim(
                "tied-conflict/untied-input",
                f"The {violating} pair is farther apart tied than in the untied input table.",
                "relative distance, tied - untied input",
                final["input"][violating][tied] - final["input"][violating][untied],
                1,
            )
        )
    if holding:
        area = {table: area_under_log(runs.relative[table][holding], runs.steps) for table in TABLES}
        for table in TABLES:
            rows.append(
                Claim(
                    f"tied-faster/{table}",
                    f"The {holding} pair converges sooner tied than in the untied {table} table.",
                    "mean ln relative distance over training, tied - untied",
                    area["input"][tied] - area[table][untied],
                    -1,
                )
            )
    if violating:
        late = runs.steps >= max(int(runs.steps[-1]) - 2 * cycle, 0)
        moves = {table: log_roughness(runs.distance[table][violating][..., late]) for table in TABLES}
        for table in TABLES:
            rows.append(
                Claim(
                    f"tied-unstable/{table}",
                    f"The {violating} pair's distance moves more from record to record tied than in the untied {table} table.",
                    "mean |change of ln distance| over the last two cycles, tied - untied",
                    moves["input"][tied] - moves[table][untied],
                    1,
                )
            )
    rows += [
        Claim(
            "output-reverse/output",
            "Untied output table: even and odd are nearer than symbols of different meaning.",
            "relative distance - 1",
            final["output"]["even_odd"][untied] - 1,
            -1,
        ),
        Claim(
            "output-reverse/input",
            "Untied input table: even and odd are not nearer than symbols of different meaning.",
            "relative distance - 1",
            final["input"]["even_odd"][untied] - 1,
            1,
        ),
        Claim(
            "output-reverse/tied",
            "Even and odd are held farther apart tied than in the untied output table.",
            "relative distance, tied - untied output",
            final["input"]["even_odd"][tied] - final["output"]["even_odd"][untied],
            1,
        ),
    ]
    rows += _risk_claims(runs, symbols, bayes_cross_entropy)
    return rows


def _risk_claims(runs: Trajectories, symbols: Symbols, bayes_cross_entropy: float) -> list[Claim]:
    is_solved = solved(runs, bayes_cross_entropy)
    if is_solved is None:
        return []
    cross_entropy = runs.final(runs.exact["cross_entropy"], exact=True)[..., 0]
    rows = []
    if symbols.violating:
        rows.append(
            Claim(
                "tying-costs",
                "Where DH fails, tying costs cross-entropy.",
                "exact cross-entropy (nats), tied - untied",
                cross_entropy[1] - cross_entropy[0],
                1,
            )
        )
    rows.append(
        Claim(
            "solved",
            f"Fewer tied than untied models come within {SOLVED_WITHIN} nat of the Bayes cross-entropy.",
            "fraction solved, tied - untied (McNemar)",
            is_solved[1].astype(float) - is_solved[0].astype(float),
            -1,
            binary=True,
        )
    )
    if symbols.violating:
        bound, gap = output_gap(runs, symbols)
        for variant, name in enumerate(VARIANTS):
            rows.append(
                Claim(
                    f"output-gap/{name}",
                    f"Solved {name} models keep the {symbols.violating} pair at least {bound:.3f}/|h| apart as outputs.",
                    f"smallest |e1 - e2| |h| over contexts - {bound:.3f}",
                    (gap[variant] - bound)[is_solved[variant]],
                    1,
                )
            )
    return rows


def output_gap(runs: Trajectories, symbols: Symbols) -> tuple[float, np.ndarray]:
    r"""Return the bound |ln(p1 / p2)| and, `[variant, seed]`, the final value of the smallest |e1 - e2| |h| over contexts.

    An optimal model has h . (e1 - e2) = ln(p1 / p2) in every context that asks for the pair's bit, hence
    |e1 - e2| |h| >= |ln(p1 / p2)|. Of more than two spellings, the likeliest and the least likely are compared.
    """
    bit = symbols.violating
    if bit is None:
        raise ValueError("no pair violates the distributional hypothesis")
    return symbols.imbalance(bit), runs.final(runs.exact[f"gap_{bit}"], exact=True)


def summary(runs: Trajectories, splits: Sequence[str], last: bool = False) -> dict[str, Any]:
    """Return final values by variant, each with one value per seed: the body of `final` in results.json.

    `output_side` is what the theory says of an optimal output table, per pair as `exact_risk` measures it: the gap
    |e1 - e2| |h|, the mean log ratio h . (e1 - e2), and its root mean square distance from the true one.
    """
    body: dict[str, Any] = {}
    for variant, name in enumerate(VARIANTS):
        entry: dict[str, Any] = {}
        for measure in ("cross_entropy", "accuracy"):
            if measure in runs.exact:
                values = runs.final(runs.exact[measure], exact=True, last=last)[variant]
                entry[f"exact_{measure}"] = {split: values[:, k].tolist() for k, split in enumerate(splits)}
            else:
                entry[f"exact_{measure}"] = None
        entry["output_side"] = {
            name: runs.final(values, exact=True, last=last)[variant].tolist()
            for name, values in runs.exact.items()
            if name.startswith(("gap_", "log_ratio_"))
        }
        for measure, tables in (("distance", runs.distance), ("relative_distance", runs.relative)):
            entry[measure] = {
                table: {pair: runs.final(values, last=last)[variant].tolist() for pair, values in pairs.items()}
                for table, pairs in tables.items()
            }
        body[name] = entry
    return body


def of_seeds(metrics: Mapping[str, np.ndarray], chosen: np.ndarray) -> dict[str, np.ndarray]:
    """Return the arrays of metrics.npz for the chosen places of its seed axis."""
    kept = {name: values[:, chosen] if values.ndim > 2 else values for name, values in metrics.items()}
    return kept | {"seeds": metrics["seeds"][chosen]}


def who_lasted(metrics: Mapping[str, np.ndarray]) -> tuple[np.ndarray, dict[str, Any]]:
    """Return which places of the seed axis stayed finite in every variant, and what results.json says of the others."""
    seeds, lasting = metrics["seeds"], np.asarray(metrics["finite"])  # lasting: [variant, seed, record]
    finite = np.asarray(lasting.all(axis=(0, 2)))
    left = [
        {
            "variant": str(metrics["variants"][variant]),
            "seed": int(seeds[seed]),
            "step": int(metrics["step"][np.argmin(lasting[variant, seed])]),
        }
        for variant, seed in np.argwhere(~lasting.all(axis=2)).tolist()
    ]
    return finite, {"seeds": seeds[finite].tolist(), "excluded_seeds": seeds[~finite].tolist(), "non_finite": left}


def analyse(
    metrics: Mapping[str, np.ndarray], symbols: Symbols, bayes_cross_entropy: float, cycle: int
) -> tuple[dict[str, Any], Trajectories]:
    """Return what results.json says of a run, and the trajectories of the seeds whose members all stayed finite.

    metrics: the arrays of metrics.npz. bayes_cross_entropy: of the training split. The claims are tested twice, over all seeds
    and over those whose tied and untied members both solved the task.
    """
    splits, seeds = [str(name) for name in metrics["splits"]], metrics["seeds"]
    finite, lasted = who_lasted(metrics)

    def of(chosen: np.ndarray) -> Trajectories:
        return trajectories(of_seeds(metrics, chosen), symbols, cycle)

    runs = of(finite)
    found: dict[str, Any] = {
        **lasted,
        "final": summary(runs, splits),
        "final_last": summary(runs, splits, last=True),
        "solved": None,
        "uses": [],
        "claims": [],
        "solved_pairs": [],
        "claims_solved_pairs": [],
    }
    if not finite.any():
        return found, runs
    own = of_seeds(metrics, finite)
    found["uses"] = over_training(metrics["step"], own["use_ratio"], own["use_cosine"], VARIANTS)
    found["claims"] = assess(claims(runs, symbols, bayes_cross_entropy, cycle))
    is_solved = solved(runs, bayes_cross_entropy)
    if is_solved is not None:
        both = is_solved.all(0)
        found["solved"] = {name: is_solved[variant].tolist() for variant, name in enumerate(VARIANTS)}
        found["solved_pairs"] = seeds[finite][both].tolist()
        if both.any():
            chosen = finite.copy()
            chosen[finite] = both
            rows = claims(of(chosen), symbols, bayes_cross_entropy, cycle)
            found["claims_solved_pairs"] = assess([claim for claim in rows if claim.id != "solved"])
    return found, runs
