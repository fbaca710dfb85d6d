"""Helpers for small runs of the study of embedding shapes: input files, command lines, metrics."""

import pydoc_data.topics
import shlex
from pathlib import Path

import numpy as np

SHAPES = (
    "{coupled: {embed_in: 8, embed_out: 8, width: 8, layers: 2, heads: 2, coupled: true}, "
    "out-4: {embed_in: 4, embed_out: 4, width: 8, layers: 2, heads: 2}, "
    "out-16: {embed_in: 4, embed_out: 16, width: 8, layers: 2, heads: 2}}"
)
SMALL = shlex.split("""
  --vocab_size 300 --max_length 24 --batch_rows 4 --steps 12 --warm_up 3 --record_every 4 --validate_every 6
  --validation_batches 1 --fine_tuning_epochs 1 --fine_tuning_batch 8 --fine_tuning_rates [.003,.01] --examples 16
""")


def write_files(folder: Path) -> Path:
    """Write a corpus, a tagged file, a file per class, two parallel files and word pairs."""
    topics = [pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics)]
    (folder / "corpus.txt").write_text("\n\n".join(topics[:60]))
    words = {"NOUN": ("value", "name", "class", "object"), "VERB": ("is", "may", "must", "can"), "DET": ("the", "a")}
    rng = np.random.default_rng(0)
    for split, number in (("train", 40), ("dev", 12), ("test", 12)):
        lines = []
        for _ in range(number):
            for index, tag in enumerate(("DET", "NOUN", "VERB", "DET", "NOUN"), 1):
                lines.append(f"{index}\t{rng.choice(words[tag])}\t_\t{tag}\t_\t_\t_\t_\t_\t_")
            lines.append("")
        (folder / f"{split}.conllu").write_text("\n".join(lines) + "\n")
    for name, verb in (("is.txt", "is"), ("may.txt", "may")):
        (folder / name).write_text(
            "".join(f"the {rng.choice(words['NOUN'])} {verb} a {rng.choice(words['NOUN'])} {i}\n" for i in range(40))
        )
    for side in ("first.txt", "second.txt"):
        (folder / side).write_text("".join(f"the {rng.choice(words['NOUN'])} number {i}\n" for i in range(20)))
    (folder / "pairs.txt").write_text("the a 5\nof to 4\nis and 3\nthe of 2\nto is 1\n")
    return folder


def arguments(folder: Path, *more: object, tasks: tuple[str, ...] = ("tags", "verbs")) -> list[str]:
    """Return the arguments of a small run on the files in `folder`."""
    known = {
        "tags": f"{{train: {folder}/train.conllu, development: {folder}/dev.conllu, test: {folder}/test.conllu}}",
        "verbs": f"{{train: [{folder}/is.txt, {folder}/may.txt]}}",
    }
    named = ", ".join(f"{name}: {known[name]}" for name in tasks)
    files = ["--corpus", str(folder / "corpus.txt"), "--data_dir", str(folder / "prepared")]
    return [*files, *SMALL, "--shapes", SHAPES, "--gate", "-9", "--tasks", f"{{{named}}}", *map(str, more)]


def probes(folder: Path) -> list[str]:
    """Return the options of all probes."""
    parallel = f"[{folder}/first.txt,{folder}/second.txt]"
    return ["--parallel", parallel, "--similarity", str(folder / "pairs.txt")]


def metrics(out: Path) -> dict[str, np.ndarray]:
    with np.load(out / "metrics.npz") as arrays:
        return dict(arrays)
