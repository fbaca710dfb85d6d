"""Seconds and memory of the commands on checkpoints: many small folders, and tables as large as those of a large model.

Every command is a process of its own, as a user starts it. Tables are drawn at random, the output table partly the input table;
the folder that they lie in is removed at the end.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from experiments.bench.settings import CheckpointsBench
from experiments.bench.timing import spread, write_results
from tiejax.checkpoints.hub.checkpoint import CONFIG, WEIGHTS
from tiejax.checkpoints.hub.tables import BYTES, DTYPES
from tiejax.checkpoints.rewrite.stored import LENGTH_BYTES
from tiejax.lab.runs.console import Console

INPUT, OUTPUT = "model.embed_tokens.weight", "lm_head.weight"
SHARED = 0.7  # of the output table, the part that is the input table
BLOCK_ROWS = 4096
# Starts a command from a process that is small itself: Linux counts what a process held before it became another program as
# that program's memory, and so the whole of this one. Its own output is what the command took.
STARTER = """
import json, os, subprocess, sys, time
began = time.perf_counter()
process = subprocess.Popen(sys.argv[1:], stdout=sys.stderr)
_, status, used = os.wait4(process.pid, 0)
print(json.dumps([time.perf_counter() - began, used.ru_utime + used.ru_stime, used.ru_maxrss]))
sys.stdout.flush()
os._exit(min(abs(os.waitstatus_to_exitcode(status)), 255))
"""
SMALL = 64  # rows and columns of the tables of a small folder


class Job(NamedTuple):
    """What is measured. make: writes into a folder what the command reads. argv: of the command, in that folder."""

    name: str
    make: Callable[[Path], None]
    argv: Sequence[str]


class Took(NamedTuple):
    """What a process took: seconds from start to end, seconds of all cores together, and its largest memory in bytes."""

    seconds: float
    cpu_s: float
    memory: int


def run(settings: CheckpointsBench, console: Console) -> None:
    """Measure every command, print what it took, write results.json."""
    found = {}
    Path(settings.out).mkdir(parents=True, exist_ok=True)
    for job in jobs(settings):
        with tempfile.TemporaryDirectory(dir=settings.out, prefix="checkpoints") as folder:
            job.make(Path(folder))
            took = [of_process(job.argv, Path(folder)) for _ in range(settings.repeats)]
        found[job.name] = {field: spread([getattr(one, field) for one in took]) for field in Took._fields}
        seconds, cpu, memory = (found[job.name][field] for field in Took._fields)
        console.say(
            f"{job.name}: {seconds['median']:.1f} s ({seconds['min']:.1f} to {seconds['max']:.1f}), {cpu['median']:.1f} s of "
            f"all cores, at most {memory['max'] / 2**20:,.0f} MiB"
        )
    console.result(f"results: {write_results('checkpoints', settings, {'commands': found})}")


def jobs(settings: CheckpointsBench) -> list[Job]:
    """Return what is measured of the commands that are asked for."""
    rows, width, dtype = settings.rows, settings.width, settings.dtype
    large = f"{rows:,} x {width:,} in {DTYPES[dtype]}"
    tall, narrow = settings.factorised
    folders = [str(number) for number in range(settings.folders)]

    def two_tables(at: Path) -> None:
        write_tables(at / "model", rows, width, dtype)

    every = {
        "check": [
            Job("check, 1 folder", lambda at: _folders(at, ["0"]), ["check", "0"]),
            Job(f"check, {len(folders):,} folders", lambda at: _folders(at, folders), ["check", *folders]),
        ],
        "factorise": [
            Job(
                f"factorise, the curve of {tall:,} x {narrow:,} in float32",
                lambda at: write_tables(at / "model", tall, narrow, "F32", tied=True),
                ["factorise", "model", "--report", "report"],
            )
        ],
        "tie": [Job(f"tie, {large}", two_tables, ["tie", "model"])],
        "diagnose": [Job(f"diagnose, {large}", two_tables, ["diagnose", "model", "--out", "diagnosis", "--overwrite"])],
    }
    return [job for command in settings.commands for job in every[command]]


def _folders(place: Path, names: Sequence[str]) -> None:
    """Write small checkpoints, tied and untied in turn."""
    for index, name in enumerate(names):
        write_tables(place / name, SMALL, SMALL, "F32", tied=index % 2 == 0)


def write_tables(folder: Path, rows: int, width: int, dtype: str, tied: bool = False) -> None:
    """Write a checkpoint of tables alone, block by block: N(0, 1), and untied .7 of the input table plus N(0, 1)."""
    folder.mkdir(parents=True)
    (folder / CONFIG).write_text(json.dumps({"model_type": "llama", "tie_word_embeddings": tied, "vocab_size": rows}))
    size = rows * width * BYTES[dtype]
    names = [INPUT] if tied else [INPUT, OUTPUT]
    header = {
        name: {"dtype": dtype, "shape": [rows, width], "data_offsets": [index * size, (index + 1) * size]}
        for index, name in enumerate(names)
    }
    content = json.dumps(header).encode()
    content += b" " * (-len(content) % 8)
    with (folder / WEIGHTS).open("wb") as file:
        file.write(len(content).to_bytes(LENGTH_BYTES, "little") + content)
        for name in names:
            for start in range(0, rows, BLOCK_ROWS):
                number = min(BLOCK_ROWS, rows - start)
                block = _drawn(0, start, number, width)
                if name == OUTPUT:
                    block = SHARED * block + _drawn(1, start, number, width)
                file.write(block.astype(DTYPES[dtype]).tobytes())


def _drawn(seed: int, start: int, rows: int, width: int) -> np.ndarray:
    return np.random.default_rng((seed, start)).standard_normal((rows, width), np.float32)


def of_process(argv: Sequence[str], folder: Path) -> Took:
    """Return what a command of ours takes that is started in a folder; raises CalledProcessError, as `of_command` does."""
    return of_command([sys.executable, "-m", "tiejax", *argv], folder)


def of_command(argv: Sequence[str], folder: Path) -> Took:
    """Return what a command takes that is started in a folder; raises CalledProcessError, with what it said, if it fails."""
    with tempfile.TemporaryFile() as said:
        starter = [sys.executable, "-I", "-S", "-c", STARTER, *argv]
        started = subprocess.run(starter, cwd=folder, stdout=subprocess.PIPE, stderr=said, check=False)
        said.seek(0)
        if started.returncode:
            raise subprocess.CalledProcessError(started.returncode, argv, said.read().decode(errors="replace"))
    seconds, cpu_s, memory = json.loads(started.stdout)
    unit = 1 if sys.platform == "darwin" else 2**10
    return Took(seconds, cpu_s, memory * unit)
