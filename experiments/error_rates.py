"""How often is a verdict wrong? Simulate studies without an effect and count those with a false verdict.

python experiments/error_rates.py                   # every simulated setting, into docs/results/error_rates.json
python experiments/error_rates.py --records FILE    # add a row: the results.json of a run, arms exchanged in random seeds

Then `python docs/results/publish.py` renders docs/results/README.md.
"""

import argparse
import json
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # neither docs nor experiments are part of the installed package

from docs.results.published import dumps
from experiments import simulated_studies
from tiejax.lab.reporting.words import number, share

ROOT = Path(__file__).resolve().parents[1]
TITLE, OUTSIDE = "Studies without an effect", "Outside the assumptions"
COLUMNS = ["differences", "seeds", "claims", "studies", "with a false verdict", "share", "upper 95 % bound"]


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
        settings = list(simulated_studies.settings())
    else:
        try:
            settings = [of_run(given.records)]
        except (OSError, ValueError) as error:
            parser.error(f"--records: {error}")
        if given.out.exists():
            rows = json.loads(given.out.read_text())["rows"]
    for place, setting in enumerate(settings):
        found = simulated_studies.row(setting, given.studies, seed=place) | {"commit": commit()}
        print(" | ".join(cells(found)), flush=True)
        rows = [row for row in rows if (row["name"], row["seeds"]) != (found["name"], found["seeds"])] + [found]
        given.out.write_text(dumps(entry(rows, given.studies)) + "\n")


def of_run(file: Path) -> simulated_studies.Setting:
    """Return the setting that exchanges the arms of a run's registered claims. Raises ValueError without any."""
    results = json.loads(file.read_text())
    claims = [claim for claim in results["claims"] if claim.get("family") == "registered" and claim.get("differences")]
    draw, claims_kept, seeds = simulated_studies.flipped_records([claim["differences"] for claim in claims])
    if not claims_kept:
        raise ValueError(f"{file}: expected registered claims with differences")
    name = file.stem if "study" in results else file.parent.name
    return simulated_studies.Setting(f"records of {name}, arms exchanged in random seeds", draw, (seeds,), claims_kept)


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
    return [row["name"], looks, *counts, share(row["share"], 1), share(row["upper_bound"], 1)]


if __name__ == "__main__":
    main()
