"""Damage to every kind of file of a run or of prepared text: reported in one line, or repaired to the same bits."""

import collections
import random
import shutil
from collections.abc import Callable
from pathlib import Path

from processes import end, start

from faults.runs import Run, assert_one_line, assert_same_result, environment, go, saying


def _flipped(content: bytes, rng: random.Random) -> bytes:
    if not content:
        return b"\0"
    bit = rng.randrange(8 * len(content))
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


DAMAGES: dict[str, Callable[[bytes, random.Random], bytes | None]] = {
    "deleted": lambda content, rng: None,
    "emptied": lambda content, rng: b"",
    "truncated": lambda content, rng: content[: rng.randrange(max(1, len(content)))],
    "flipped": _flipped,
    "zeroed": lambda content, rng: bytes(len(content)),
    "a list": lambda content, rng: b"[]",
    "junk": lambda content, rng: rng.randbytes(100),
}
# Files that do not affect results.
HARMLESS = (".lock",)


def damage(path: Path, rng: random.Random) -> str:
    """Damage a file in a random way; return which."""
    kind = rng.choice(sorted(DAMAGES))
    content = DAMAGES[kind](path.read_bytes(), rng)
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    return kind


# Files that the user has to deal with if they are damaged, and if they are missing. All others are written again.
REPORTED_DAMAGED = ("config.yaml", "run.json", "data.json", "tokenizer.json", "finished", "states")
REPORTED_MISSING = ("config.yaml", "run.json", "states")


def statuses(run: Run, finished: bool, part: str, how: str) -> tuple[int, ...]:
    """Return the exit statuses that docs/promises.md allows after this damage."""
    if part == "environment.json":  # not read in a finished run
        return (0,) if finished or how == "deleted" else (2,)
    if part == "models":
        return (2,) if run.study == "layer_tying" else (0,)
    if part == "tokenizer.json" and how == "deleted":  # a unigram vocabulary that is trained again may differ
        return (0, 2)
    return (2,) if part in (REPORTED_MISSING if how == "deleted" else REPORTED_DAMAGED) else (0,)


def after(run: Run, out: Path, what: str, allowed: tuple[int, ...]) -> str:
    """Resume a damaged run; return whether it was repaired, to the same bits, or the damage reported, in one line."""
    ended = go(run, out, "--resume")
    with saying(f"{run.study}: {what}"):
        assert_one_line(ended, allowed)
        if ended.status == 0:
            assert_same_result(out, run)
    return "repaired" if ended.status == 0 else "reported"


def damages(runs: list[Run], folder: Path, number: int, rng: random.Random) -> collections.Counter[str]:
    """Damage `number` files of finished and of interrupted runs; count the outcomes."""
    found = collections.Counter[str]()
    for turn in range(number):
        run = runs[turn % len(runs)]
        source = rng.choice([run.out, run.half])
        out = shutil.copytree(source, folder / f"damaged-{turn}")
        files = sorted(path for path in out.rglob("*") if path.is_file() and path.name not in HARMLESS)
        # The kind is chosen first: most files are figures or parts of checkpoints.
        kinds = sorted({path.relative_to(out).parts[0] for path in files})
        chosen = rng.choice(kinds)
        path = rng.choice([path for path in files if path.relative_to(out).parts[0] == chosen])
        how = damage(path, rng)
        what = f"{path.relative_to(out)} of a {'finished' if source == run.out else 'interrupted'} run {how}"
        found[after(run, out, what, statuses(run, source == run.out, chosen, how))] += 1
        shutil.rmtree(out)
    return found


def damaged_text(run: Run, folder: Path, number: int, rng: random.Random) -> collections.Counter[str]:
    """Damage prepared text `number` times before a new run: the damage is reported, or affects nothing."""
    found = collections.Counter[str]()
    argv = list(run.argv)
    place = argv.index("--data_dir") + 1
    prepared = Path(argv[place])
    for turn in range(number):
        argv[place] = str(shutil.copytree(prepared, folder / f"text-{turn}"))
        files = sorted(path for path in Path(argv[place]).rglob("*") if path.is_file() and path.name not in HARMLESS)
        path = rng.choice(files)
        what = f"{path.relative_to(argv[place])} {damage(path, rng)}"
        out = folder / f"on-text-{turn}"
        ended = end(start(*argv, "--out", out, script=run.script, env=environment(run.out.parent)), timeout=600)
        with saying(f"{run.study}: prepared text: {what}"):
            assert_one_line(ended, (0, 2))
            if ended.status == 0:
                assert_same_result(out, run)
            else:
                assert not out.exists(), "a run directory was left"
        found["repaired" if ended.status == 0 else "reported"] += 1
        shutil.rmtree(out, ignore_errors=True)
        shutil.rmtree(argv[place])
    return found
