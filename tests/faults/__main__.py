"""The fault suite: python tests/faults --kills 100 --damages 100 --inputs 300. Prints a summary of the faults.

Runs of all studies are killed, damaged, started with too little disk space and together with a second process; each must end
with the bits of an uninterrupted run, or with one line.
"""

# ruff: noqa: E402
import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

from faults.damages import damaged_text, damages
from faults.inputs import inputs
from faults.kills import kills
from faults.limits import without_disk_space
from faults.pairs import pairs
from faults.runs import commands, uninterrupted

PARTS = ("inputs", "kills", "damages", "disk", "pairs")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--damages", type=int, default=100)
    parser.add_argument("--inputs", type=int, default=300)
    parser.add_argument("--studies", nargs="+", help="only these studies")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng, began = random.Random(options.seed), time.monotonic()

    def report(line: object) -> None:
        print(f"{time.monotonic() - began:7.0f} s  {line}", flush=True)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if "inputs" in options.parts:
            report(f"inputs: {dict(inputs(folder, options.inputs, rng))}")
        if set(options.parts) == {"inputs"}:
            return
        wanted = {study: argv for study, argv in commands(folder).items() if study in (options.studies or commands(folder))}
        runs = [uninterrupted(folder, study, argv) for study, argv in wanted.items()]
        report("uninterrupted: " + ", ".join(f"{run.study} {run.seconds:.0f} s" for run in runs))
        if "kills" in options.parts:
            report(f"kills: {kills(runs, folder, options.kills, rng)}")
        if "damages" in options.parts:
            report(f"damages: {dict(damages(runs, folder, options.damages, rng))}")
            on_text = [run for run in runs if "--data_dir" in run.argv]
            for run in on_text:
                report(f"damages to prepared text, {run.study}: {dict(damaged_text(run, folder, options.damages // 10, rng))}")
        if "disk" in options.parts:
            report(f"without disk space: {dict(without_disk_space(runs, folder))}")
        if "pairs" in options.parts:
            report(f"two processes: {dict(pairs(runs, folder))}")


if __name__ == "__main__":
    main()
