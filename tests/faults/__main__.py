"""The fault suite, at any size: python tests/faults --kills 100 --damages 100 --inputs 300. Prints what was tried.

Runs of all studies are killed, damaged, left without room and met by a second process; each must end in the bits of an
uninterrupted run, or in one line.
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
from faults.limits import without_room
from faults.pairs import pairs
from faults.runs import commands, uninterrupted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--damages", type=int, default=100)
    parser.add_argument("--inputs", type=int, default=300)
    parser.add_argument("--studies", nargs="+", help="of these alone")
    parser.add_argument("--parts", nargs="+", default=["inputs", "kills", "damages", "room", "pairs"])
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    rng, began = random.Random(asked.seed), time.monotonic()

    def tell(line: object) -> None:
        print(f"{time.monotonic() - began:7.0f} s  {line}", flush=True)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if "inputs" in asked.parts:
            tell(f"inputs: {dict(inputs(folder, asked.inputs, rng))}")
        if set(asked.parts) == {"inputs"}:
            return
        wanted = {study: argv for study, argv in commands(folder).items() if study in (asked.studies or commands(folder))}
        runs = [uninterrupted(folder, study, argv) for study, argv in wanted.items()]
        tell("uninterrupted: " + ", ".join(f"{run.study} {run.seconds:.0f} s" for run in runs))
        if "kills" in asked.parts:
            tell(f"kills: {kills(runs, folder, asked.kills, rng)}")
        if "damages" in asked.parts:
            tell(f"damages: {dict(damages(runs, folder, asked.damages, rng))}")
            on_text = [run for run in runs if "--data_dir" in run.argv]
            for run in on_text:
                tell(f"damages to prepared text, {run.study}: {dict(damaged_text(run, folder, asked.damages // 10, rng))}")
        if "room" in asked.parts:
            tell(f"without room: {dict(without_room(runs, folder))}")
        if "pairs" in asked.parts:
            tell(f"two processes: {dict(pairs(runs, folder))}")


if __name__ == "__main__":
    main()
