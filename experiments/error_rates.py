"""How often is a verdict wrong? Simulate studies without an effect and count those with a false verdict.

python experiments/error_rates.py                   # every simulated setting, into docs/results/error_rates.json
python experiments/error_rates.py --records FILE    # add a row: the results.json of a run, its seeds drawn at random

Then `python docs/results/publish.py` renders docs/results/error_rates.md.

The claims of a study are drawn from a `Setting`: differences of mean 0, two arms with the same distribution, or a mean that
lies on the margin. The studies go through `claims.verdicts`, the decision that `assess` makes.
"""

import argparse
import dataclasses
import json
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # neither docs nor experiments are part of the installed package

from docs.results.markers import FEWEST, is_covered
from docs.results.published import dumps
from tiejax.lab.reporting.words import number, share
from tiejax.statistics.claims import DECIDED, Claim, verdicts

ROOT = Path(__file__).resolve().parents[1]
TITLE, OUTSIDE = "Studies without an effect", "Outside the assumptions"
COLUMNS = ["differences", "seeds", "claims", "studies", "with a false verdict", "share", "95 % interval"]
CLAIMS_AT_ONCE = 40  # tested together, so that their flips stay small in memory
MARGIN = 0.5
PLATEAUS = np.array([0.0, 0.35, 1.0])  # levels at which training ends in EXor, in nats

Generator = np.random.Generator
# Differences or outcomes of independent seeds: generator, number of seeds -> `[seed]`.
DRAWN: dict[str, Callable[[Generator, int], np.ndarray]] = {
    "normal": lambda rng, seeds: rng.normal(size=seeds),
    "skewed": lambda rng, seeds: rng.lognormal(sigma=1.5, size=seeds),
    "trimodal": lambda rng, seeds: rng.choice(PLATEAUS, seeds, p=[0.5, 0.3, 0.2]) + 0.01 * rng.normal(size=seeds),
    "discrete": lambda rng, seeds: rng.choice([-0.2, -0.1, 0.0, 0.1, 0.2], seeds, p=[0.05, 0.2, 0.5, 0.2, 0.05]),
    "exponential": lambda rng, seeds: rng.exponential(size=seeds) - 1,
    "lognormal": lambda rng, seeds: rng.lognormal(size=seeds) - np.exp(0.5),
}
Draw = Callable[[Generator, int, int], list[Claim]]  # generator, number of claims, number of seeds -> claims


@dataclasses.dataclass(frozen=True)
class Setting:
    """Studies without an effect.

    Attributes:
        name: The distribution, in words.
        draw: Draws the claims of a study.
        seeds: The number of seeds; several are looks, of which each contains the seeds of the one before.
        claims: The number of claims in the family.
        false: The verdicts that are false. On a margin only `supported` is, as the mean is not inside it.
        with_effect: The number of claims, the first ones, that are true; of their verdicts only `contradicted` is false.
        assumed: Whether the assumptions of the test hold. If not, a row shows how far it is off.
    """

    name: str
    draw: Draw
    seeds: tuple[int, ...]
    claims: int = 5
    false: tuple[str, ...] = DECIDED
    with_effect: int = 0
    assumed: bool = True


def false_verdicts(setting: Setting, studies: int, seed: int) -> int:
    """Return in how many of the simulated studies at least one verdict is false.

    A claim is counted at the look that decides it, as a verdict once reached stays; the levels are those of `assess_in_looks`.
    """
    rng = np.random.default_rng(seed)
    at_once = max(1, CLAIMS_AT_ONCE // setting.claims)
    count = 0
    for first in range(0, studies, at_once):
        drawn = [setting.draw(rng, setting.claims, setting.seeds[-1]) for _ in range(min(at_once, studies - first))]
        count += sum(_any_false(setting, found) for found in _verdicts(drawn, setting.seeds))
    return count


def _any_false(setting: Setting, found: Sequence[str]) -> bool:
    effect, none = found[: setting.with_effect], found[setting.with_effect :]
    return "contradicted" in effect or any(verdict in setting.false for verdict in none)


def _verdicts(studies: Sequence[Sequence[Claim]], looks: Sequence[int]) -> list[list[str]]:
    """Return the verdicts of every study after its last look."""
    kept = [["undecided"] * len(study) for study in studies]
    for seeds in looks:
        found = verdicts([[first_seeds(claim, seeds) for claim in study] for study in studies], len(looks))
        kept = [
            [old if old in DECIDED else new for old, new in zip(*pair, strict=True)] for pair in zip(kept, found, strict=True)
        ]
    return kept


def first_seeds(claim: Claim, seeds: int) -> Claim:
    """Return the claim on its first `seeds` seeds."""
    outcomes = claim.outcomes and (claim.outcomes[0][:seeds], claim.outcomes[1][:seeds])
    return dataclasses.replace(claim, differences=claim.differences[:seeds], outcomes=outcomes)


def row(setting: Setting, studies: int, seed: int) -> dict[str, Any]:
    """Return a row of the table: the setting, the studies, those with a false verdict, their share and its 95 % interval."""
    count = false_verdicts(setting, studies, seed)
    interval = stats.binomtest(count, studies).proportion_ci(0.95, "exact")  # C. J. Clopper and E. S. Pearson (1934)
    return {
        "name": setting.name,
        "seeds": list(setting.seeds),
        "claims": setting.claims,
        "assumed": setting.assumed,
        "studies": studies,
        "false": count,
        "share": count / studies,
        "interval": [float(interval.low), float(interval.high)],
    }


def settings() -> Iterator[Setting]:
    """Yield the settings of the published table."""
    skewed, trimodal = means(_same_arms(DRAWN["skewed"])), means(_same_arms(DRAWN["trimodal"]))
    for seeds, claims in ((8, 5), (16, 10), (32, 5), (256, 5)):
        yield Setting("normal", means(DRAWN["normal"]), (seeds,), claims)
    yield Setting("normal, half of the claims with an effect", _half_with_an_effect, (32,), claims=10, with_effect=5)
    yield Setting("normal, with a factor common to all claims", _common_factor, (32,))
    for seeds in (8, 32):
        yield Setting("skewed: both arms log-normal", skewed, (seeds,))
    for seeds in (16, 32):
        yield Setting("trimodal: both arms on three plateaus", trimodal, (seeds,))
    for seeds in (16, 32):
        yield Setting("discrete, half of them ties", means(DRAWN["discrete"]), (seeds,))
    yield Setting("constant: all differences 0", means(lambda rng, seeds: np.zeros(seeds)), (32,))
    for seeds in (32, 256):
        yield Setting("proportions of 70 %", _proportions, (seeds,))
    for seeds in (8, 32):
        yield Setting("equivalence, mean on the margin", _on_the_margin("equivalence"), (seeds,), false=("supported",))
        yield Setting("non-inferiority, mean on the margin", _on_the_margin("non-inferiority"), (seeds,), false=("supported",))
    yield Setting("means and proportions of these kinds in one family", _mixed, (32,))
    yield Setting("normal, with looks", means(DRAWN["normal"]), (64, 128, 256), claims=3)
    yield Setting("trimodal, with looks", trimodal, (64, 128, 256), claims=3)
    for seeds in (16, 32, 256):
        yield Setting("not symmetric: exponential - 1", means(DRAWN["exponential"]), (seeds,), assumed=seeds >= FEWEST)
    yield Setting("not symmetric: exponential - 1, of one arm", _of_one_arm(DRAWN["exponential"]), (32,))
    for seeds in (32, 256):
        yield Setting("not symmetric: log-normal less its mean", means(DRAWN["lognormal"]), (seeds,), assumed=False)
    for seeds in (10, 64):
        name = "equivalence, one seed of 20 far away"
        yield Setting(name, _rare_on_the_margin, (seeds,), false=("supported",), assumed=False)


def means(differences: Callable[[Generator, int], np.ndarray]) -> Draw:
    """Return a draw of claims that a mean differs from 0, whose differences are drawn independently."""

    def draw(rng: Generator, claims: int, seeds: int) -> list[Claim]:
        return [_claim(number, differences(rng, seeds)) for number in range(claims)]

    return draw


def drawn_records(rows: Sequence[Mapping[str, Any]]) -> tuple[Draw, int, int]:
    """Return a draw of claims from the records of a finished run: its seeds, drawn with replacement, without the effects.

    The mean of every claim is subtracted from its differences. This leaves no effect, but keeps the distributions of the run,
    with their skewness, and the dependence between its claims.

    Args:
        rows: the claims of the run as in its results.json. Claims about some of the seeds only are left out, as are those with
            numbers that are not finite. All are tested as differences of means.

    Returns:
        The draw, its number of claims and its number of seeds.
    """
    arrays = [(np.asarray(row["differences"], float), bool(row.get("one_arm"))) for row in rows]
    most = max((len(d) for d, _ in arrays), default=0)
    kept = [(d - d.mean(), one_arm) for d, one_arm in arrays if len(d) == most and np.isfinite(d).all()]

    def draw(rng: Generator, claims: int, seeds: int) -> list[Claim]:
        drawn = rng.integers(most, size=seeds)
        return [_claim(number, d[drawn], one_arm=one_arm) for number, (d, one_arm) in enumerate(kept[:claims])]

    return draw, len(kept), most


def _claim(place: int, differences: np.ndarray, **fields: Any) -> Claim:
    fields = {"sign": 1} | fields
    return Claim(str(place), "There is an effect.", "the mean difference", differences, **fields)


def _of_one_arm(differences: Callable[[Generator, int], np.ndarray]) -> Draw:
    draw = means(differences)
    return lambda rng, claims, seeds: [dataclasses.replace(claim, one_arm=True) for claim in draw(rng, claims, seeds)]


def _same_arms(outcome: Callable[[Generator, int], np.ndarray]) -> Callable[[Generator, int], np.ndarray]:
    return lambda rng, seeds: outcome(rng, seeds) - outcome(rng, seeds)


def _half_with_an_effect(rng: Generator, claims: int, seeds: int) -> list[Claim]:
    effects = np.arange(claims) < claims // 2
    return [_claim(place, rng.normal(size=seeds) + effect) for place, effect in enumerate(effects)]


def _common_factor(rng: Generator, claims: int, seeds: int) -> list[Claim]:
    common = rng.normal(size=seeds)
    return [_claim(place, common + 0.5 * rng.normal(size=seeds)) for place in range(claims)]


def _proportions(rng: Generator, claims: int, seeds: int) -> list[Claim]:
    """Draw solved seeds; the two arms of a seed are correlated, since both depend on how hard it is."""
    found = []
    for place in range(claims):
        hard = rng.random(seeds) < 0.5
        first, second = rng.random((2, seeds)) < np.where(hard, 0.5, 0.9)
        found.append(Claim.proportion(str(place), "There is an effect.", "the share of solved seeds", first, second, 1))
    return found


def _on_the_margin(goal: Any) -> Draw:
    """Draw means that are on the margin, alternately on its upper and on its lower end."""

    def draw(rng: Generator, claims: int, seeds: int) -> list[Claim]:
        found = []
        for place in range(claims):
            side = 1 if place % 2 else -1
            d = 0.5 * rng.normal(size=seeds) + side * MARGIN
            found.append(_claim(place, d, sign=0 if goal == "equivalence" else -side, goal=goal, margin=MARGIN))
        return found

    return draw


def _rare_on_the_margin(rng: Generator, claims: int, seeds: int) -> list[Claim]:
    """Draw differences of which one in 20 is far away, so that their mean is on the margin."""
    drawn = [np.where(rng.random(seeds) < 0.05, 20 * MARGIN, 0.0) + 0.01 * rng.normal(size=seeds) for _ in range(claims)]
    return [_claim(place, d, sign=0, goal="equivalence", margin=MARGIN) for place, d in enumerate(drawn)]


def _mixed(rng: Generator, claims: int, seeds: int) -> list[Claim]:
    normal, skewed, trimodal = (means(d) for d in (DRAWN["normal"], _same_arms(DRAWN["skewed"]), _same_arms(DRAWN["trimodal"])))
    draws = [normal, skewed, trimodal, means(DRAWN["discrete"]), _proportions]
    drawn = [draws[place % len(draws)](rng, 1, seeds)[0] for place in range(claims)]
    return [dataclasses.replace(claim, id=str(place)) for place, claim in enumerate(drawn)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=2000, help="number of studies per setting (default: 2,000)")
    parser.add_argument("--records", type=Path, help="results.json or a published run; only its row is computed")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/results/error_rates.json", help="the file to write")
    given = parser.parse_args()
    if given.studies < 1:
        parser.error(f"--studies: expected a number >= 1, got {given.studies}")
    rows: list[dict[str, Any]] = []
    if given.records is None:
        chosen = list(settings())
    else:
        try:
            chosen = [of_run(given.records)]
        except (OSError, ValueError) as error:
            parser.error(f"--records: {error}")
        if given.out.exists():
            rows = json.loads(given.out.read_text())["rows"]
    for place, setting in enumerate(chosen):
        found = row(setting, given.studies, seed=place) | {"commit": commit()}
        print(" | ".join(cells(found)), flush=True)
        rows = [row for row in rows if (row["name"], row["seeds"]) != (found["name"], found["seeds"])] + [found]
        given.out.write_text(dumps(entry(rows, given.studies)) + "\n")


def of_run(file: Path) -> Setting:
    """Return the setting that draws the seeds of a run's registered claims. Raises ValueError without any."""
    results = json.loads(file.read_text())
    claims = [claim for claim in results["claims"] if claim.get("family") == "registered" and claim.get("differences")]
    draw, claims_kept, seeds = drawn_records(claims)
    if not claims_kept:
        raise ValueError(f"{file}: expected registered claims with differences")
    name = file.stem if "study" in results else file.parent.name
    name = f"records of {name} without their means, seeds drawn with replacement"
    return Setting(name, draw, (seeds,), claims_kept, assumed=all(map(is_covered, claims)))


def commit() -> str:
    """Return the commit of this checkout."""
    return subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def entry(rows: list[dict[str, Any]], studies: int) -> dict[str, Any]:
    """Return the content of the published file."""
    tables = {
        title: {"columns": COLUMNS, "rows": [cells(row) for row in rows if row["assumed"] == assumed]}
        for title, assumed in ((TITLE, True), (OUTSIDE, False))
    }
    return {
        "command": f"python experiments/error_rates.py --studies {studies}",
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("jax", "numpy", "scipy")},
        "rows": rows,
        "tables": tables,
    }


def cells(row: dict[str, Any]) -> list[str]:
    """Return a row of the table."""
    looks = ", ".join(map(str, row["seeds"]))
    counts = [number(row[name]) for name in ("claims", "studies", "false")]
    return [row["name"], looks, *counts, share(row["share"], 1), " to ".join(share(end, 1) for end in row["interval"])]


if __name__ == "__main__":
    main()
