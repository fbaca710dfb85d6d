"""The claims of Bertolotti and Cazzola, ICML 2024, about EXor, as tests over seeds."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tiejax.geometry.distances import area_under_log, log_roughness
from tiejax.geometry.uses import over_training
from tiejax.statistics.arms import ARMS, finite_seeds, select_seeds
from tiejax.statistics.claims import Claim, assess
from tiejax.studies.exor.trajectories import (
    SOLVED_WITHIN,
    TABLES,
    Symbols,
    Trajectories,
    output_gap,
    solved,
    summary,
    trajectories,
)


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
        for arm, name in enumerate(ARMS):
            rows.append(
                Claim(
                    f"output-gap/{name}",
                    f"Solved {name} models keep the {symbols.violating} pair at least {bound:.3f}/|h| apart as outputs.",
                    f"smallest |e1 - e2| |h| over contexts - {bound:.3f}",
                    (gap[arm] - bound)[is_solved[arm]],
                    1,
                )
            )
    return rows


def analyse(
    metrics: Mapping[str, np.ndarray], symbols: Symbols, bayes_cross_entropy: float, cycle: int
) -> tuple[dict[str, Any], Trajectories]:
    """Return what results.json says of a run, and the trajectories of the seeds whose members all stayed finite.

    metrics: the arrays of metrics.npz. bayes_cross_entropy: of the training split. The claims are tested twice, over all seeds
    and over those whose tied and untied members both solved the task.
    """
    splits, seeds = [str(name) for name in metrics["splits"]], metrics["seeds"]
    finite, lasted = finite_seeds(metrics)

    def of(chosen: np.ndarray) -> Trajectories:
        return trajectories(select_seeds(metrics, chosen), symbols, cycle)

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
    own = select_seeds(metrics, finite)
    found["uses"] = over_training(metrics["step"], own["use_ratio"], own["use_cosine"], ARMS)
    found["claims"] = assess(claims(runs, symbols, bayes_cross_entropy, cycle))
    is_solved = solved(runs, bayes_cross_entropy)
    if is_solved is not None:
        both = is_solved.all(0)
        found["solved"] = {name: is_solved[arm].tolist() for arm, name in enumerate(ARMS)}
        found["solved_pairs"] = seeds[finite][both].tolist()
        if both.any():
            chosen = finite.copy()
            chosen[finite] = both
            rows = claims(of(chosen), symbols, bayes_cross_entropy, cycle)
            found["claims_solved_pairs"] = assess([claim for claim in rows if claim.id != "solved"])
    return found, runs
