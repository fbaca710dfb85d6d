"""Compare two checkouts: small runs of every study, with their arrays and results compared bit for bit.

    git worktree add ../before COMMIT
    python tests/same_runs.py run ../before /tmp/before --text NOVEL.txt --data_dir /tmp/text
    python tests/same_runs.py run . /tmp/after --text NOVEL.txt --data_dir /tmp/text
    python tests/same_runs.py compare /tmp/before /tmp/after

Run both sides on the same machine, with the same interpreter and the same prepared text. The comparison skips timings and
descriptions of the environment (`LEFT_OUT`), reads old names as the current ones (`RENAMED`), and lets the sentences in
`SENTENCES` be reworded. It compares every other value exactly, and the numbers inside those sentences too.
"""

import argparse
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

EXOR = "--record_every 100 --exact_every 100"
TEXT = "--corpus {text} --vocab_size 600 --layers 2 --width 32 --feed_forward 64 --batch_size 8 --record_every 5"
TEXT += " --validate_every 10 --validation_batches 2 --steps 30 --max_length 64"
LAYERS = "--corpus {text} --vocab_size 500 --context 32 --layers 4 --width 32 --heads 2 --steps 48 --k 2 --batch_size 4"
LAYERS += " --validate_every 12 --validation_blocks 16 --test_blocks 32"

# name -> script, arguments, environment variables. `exor_killed` is killed (SIGKILL) after its first checkpoint, then resumed.
RUNS: dict[str, tuple[str, str, dict[str, str]]] = {
    "exor_fast": ("exor", f"--seeds 3 --steps 600 {EXOR}", {}),
    "exor_plain": ("exor", f"--engine plain --seeds 2 --steps 200 --max_norm 1.0 --variant dh {EXOR}", {}),
    "exor_lstm": ("exor", "--model lstm --seeds 2 --steps 60 --record_every 20 --exact_every 60", {}),
    "exor_mixer": ("exor", "--model mixer --seeds 2 --steps 100 --record_every 50 --variant no-dh", {}),
    "exor_doses": ("exor", f"--doses [.5,.9] --seeds 2 --steps 400 {EXOR}", {}),
    "exor_one_device": ("exor", f"--seeds 3 --steps 200 --dropout .1 {EXOR}", {"JAX_NUM_CPU_DEVICES": "1"}),
    "exor_killed": ("exor", "--seeds 2 --steps 60000 --checkpoint_every 1 --record_every 5000 --zero [.3,.7]", {}),
    "untying": ("untying", "--seeds 2 --steps 300 --record_every 100 --exact_every 100 --untie_at [100,.5]", {}),
    "text_packed": ("text_mlm", f"{TEXT} --seeds 2", {}),
    "text_padded": ("text_mlm", f"{TEXT} --seeds 1 --packing padded --positions learned --layer_norm pre --dropout .1", {}),
    "text_two_devices": ("text_mlm", f"{TEXT} --seeds 1 --mesh 2 --compute_dtype bfloat16 --rematerialise true", {}),
    "text_untie": ("text_mlm", f"{TEXT} --seeds 2 --untie_at [.5] --untie_policy zero", {}),
    "layers_resolved": ("layer_tying", f"{LAYERS} --seeds 2 --storage compact --maps '{{mine: [0, 0, 2, 2]}}'", {}),
    "layers_published": (
        "layer_tying",
        f"{LAYERS} --methods [agent,untied,random-agent] --ties published --gradient owner --start frozen-random "
        "--reward clipped-ppl --storage full --dropout .1",
        {},
    ),
    "layers_masked": (
        "layer_tying",
        f"{LAYERS} --methods [agent,cycle,found-map] --architecture bert --objective masked --moments zero --dtype bfloat16",
        {},
    ),
}
DIAGNOSED = ("exor_fast", "untying", "text_packed")

# Old -> current names of keys in results.json and of arrays in metrics.npz.
RENAMED = {"variants": "arms", "variant": "arm", "pieces": "tokens"}
# Old -> current words inside the strings of results.json.
REWORDED = {"pieces": "tokens", "piece": "token"}
# Keys of results.json that hold a sentence for the reader. Their wording may differ between the two checkouts, as long as both
# values are strings that contain the same numbers. What a sentence is about is compared elsewhere, exactly: a claim by its `id`
# and its numbers, a baseline of an untie curve by the key of `ends` that it stands under.
SENTENCES = {
    "statement": "a claim in words (`statistics.claims`)",
    "estimand": "the estimated quantity of a claim, in words (`statistics.claims`)",
    "note": "a remark on a claim, in words (`statistics.claims`)",
    "words": "a baseline of an untie curve, in words (`ends` in `statistics.untie_curve`)",
}
NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?|\.\d+")
LEFT_OUT = (
    # Depends on the format version of the prepared text.
    "fingerprint",
    "timing",
    "seconds",
    "time_step",
    "time",
    "format",
    "study",
    "experiment",
    "checkpoint",
    "out",
    "kind",
    # Derived from timings: layer tying also compares its methods at equal time.
    "seconds_per_step",
    "equal_time_s",
    "equal_time_step",
    "equal_time_loss",
    "equal_time_perplexity",
)


def command(checkout: Path, name: str, out: Path, options: argparse.Namespace) -> tuple[list[str], dict[str, str]]:
    """Return the command line and the environment of a run."""
    script, given, environment = RUNS[name]
    words = [word.replace("{text}", str(Path(options.text).resolve())) for word in shlex.split(given)]
    words += ["--out", str(out / name), "--quiet"]
    if script in ("text_mlm", "layer_tying"):
        words += ["--data_dir", str(Path(options.data_dir).resolve())]
    return [sys.executable, str(checkout / "experiments" / f"{script}.py"), *words], os.environ | environment


def run(checkout: Path, out: Path, options: argparse.Namespace) -> int:
    """Run a checkout's studies, except those with results already; return the number of failed runs."""
    out.mkdir(parents=True, exist_ok=True)
    out, failed = out.resolve(), 0
    for name in options.only or RUNS:
        if (out / name / "results.json").exists():
            continue
        words, environment = command(checkout.resolve(), name, out, options)
        environment["PYTHONPATH"] = str(checkout.resolve())
        began = time.monotonic()
        if name == "exor_killed":
            kill(words, environment, out / name)
            words.append("--resume")
        ended = subprocess.run(words, env=environment, cwd=out, capture_output=True, text=True)
        print(f"{name}: status {ended.returncode}, {time.monotonic() - began:.0f} s", flush=True)
        if ended.returncode:
            print(ended.stderr[-3000:], flush=True)
            failed += 1
    for name in DIAGNOSED:
        target = out / f"diagnosed_{name}"
        if options.only or (target / "results.json").exists():
            continue
        script = checkout.resolve() / "experiments" / "diagnose.py"
        words = [sys.executable, str(script), str(out / name), "--out", str(target), "--quiet"]
        ended = subprocess.run(words, env=os.environ | {"PYTHONPATH": str(checkout.resolve())}, capture_output=True, text=True)
        print(f"diagnosed_{name}: status {ended.returncode}", ended.stderr[-3000:], flush=True)
        failed += ended.returncode != 0
    return failed


def kill(words: list[str], environment: dict[str, str], out: Path) -> None:
    """Start a run and kill it after its first checkpoint."""
    process = subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and len(list(out.glob("checkpoints/[1-9]*"))) < 1:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()


def renamed(value: Any, within: str = "") -> Any:
    """Return a value of results.json under current names, without the keys in `LEFT_OUT`; within: the key of the value."""
    if isinstance(value, dict):
        # The size of a prepared text includes its manifest.
        left_out = (*LEFT_OUT, "bytes") if within == "data" else LEFT_OUT
        return {RENAMED.get(key, key): renamed(item, key) for key, item in value.items() if key not in left_out}
    if isinstance(value, str):
        for old, new in REWORDED.items():
            value = re.sub(rf"\b{old}\b", new, value)
    if isinstance(value, list):
        return [renamed(item) for item in value if not (isinstance(item, dict) and "equal-time" in str(item.get("id")))]
    return value


def compare(before: Path, after: Path, only: list[str] | None = None) -> list[str]:
    """Return one line per difference between two folders of runs."""
    found = []
    for name in only or [*RUNS, *(f"diagnosed_{name}" for name in DIAGNOSED)]:
        folder, other = before / name, after / name
        if missing := [side for side in (folder, other) if not (side / "results.json").exists()]:
            found += [f"{name}: no results in {side.parent}" for side in missing]
            continue
        results = [json.loads((each / "results.json").read_text()) for each in (folder, other)]
        if len({each.get("format", 1) for each in results}) > 1:
            # Claims of different formats are tested by different rules, on the same arrays.
            results = [{key: value for key, value in each.items() if key != "claims"} for each in results]
        found += [f"{name}: results {line}" for line in differing(*map(renamed, results))]
        if (folder / "metrics.npz").exists() != (other / "metrics.npz").exists():
            found.append(f"{name}: only one has metrics.npz")
        elif (folder / "metrics.npz").exists():
            with np.load(folder / "metrics.npz") as old, np.load(other / "metrics.npz") as new:
                arrays = {RENAMED.get(key, key): value for key, value in old.items() if key not in LEFT_OUT}
                others = {RENAMED.get(key, key): value for key, value in new.items() if key not in LEFT_OUT}
            found += [f"{name}: only one has array {key}" for key in sorted(set(arrays) ^ set(others))]
            for key in sorted(set(arrays) & set(others)):
                if arrays[key].dtype != others[key].dtype or arrays[key].tobytes() != others[key].tobytes():
                    found.append(f"{name}: array {key} differs")
    return found


def differing(one: Any, other: Any, path: str = "") -> list[str]:
    """Return one line per difference between two values of results.json; path: where they stand in it."""
    if isinstance(one, dict) and isinstance(other, dict):
        found = [f"only one has {path}/{key}" for key in sorted(set(one) ^ set(other))]
        return found + [line for key in one if key in other for line in differing(one[key], other[key], f"{path}/{key}")]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [
            line for place, pair in enumerate(zip(one, other, strict=True)) for line in differing(*pair, f"{path}[{place}]")
        ]
    if path.rpartition("/")[2] in SENTENCES and isinstance(one, str) and isinstance(other, str):
        return [] if numbers(one) == numbers(other) else [f"{path}: other numbers in {one!r} and {other!r}"]
    return [] if one == other else [f"{path}: {str(one)[:80]} and {str(other)[:80]}"]


def numbers(sentence: str) -> list[float]:
    """Return the numbers in a sentence, sorted."""
    return sorted(float(number.replace(",", "")) for number in NUMBER.findall(sentence))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("run", "compare"))
    parser.add_argument("first", type=Path, help="run: a checkout; compare: the runs of one checkout")
    parser.add_argument("second", type=Path, help="run: the folder for its runs; compare: the runs of the other checkout")
    parser.add_argument("--text", help="a text file of 100 kB or more")
    parser.add_argument("--data_dir", help="folder of the prepared text, the same for both checkouts")
    parser.add_argument("--only", nargs="*", help="names of the runs (default: all)")
    options = parser.parse_args()
    if options.action == "run":
        return 1 if run(options.first, options.second, options) else 0
    lines = compare(options.first, options.second, options.only)
    print("\n".join(lines) or "no difference")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
