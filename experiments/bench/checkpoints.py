"""Time and memory of the commands on checkpoints: many small folders, and tables as large as those of a large model.

Every command runs in a separate process, as a user starts it. Tables are random, the output table being correlated with the
input table. Their folder is removed at the end.
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
from tiejax.checkpoints.hub.stored import LENGTH_BYTES
from tiejax.checkpoints.hub.tables import BYTES, DTYPES
from tiejax.lab.runs.console import Console

INPUT, OUTPUT = "model.embed_tokens.weight", "lm_head.weight"
SHARED = 0.7  # weight of the input table in the output table
BLOCK_ROWS = 4096
# Starts a command from a small process. On Linux the peak memory of a process includes what it held between fork and exec, so a
# command started from this process would be charged for all of this process's memory. Prints the times and the peak memory.
STARTER = """
import json, os, subprocess, sys, time
began = time.perf_counter()
process = subprocess.Popen(sys.argv[1:], stdout=sys.stderr)
_, status, used = os.wait4(process.pid, 0)
print(json.dumps([time.perf_counter() - began, used.ru_utime + used.ru_stime, used.ru_maxrss]))
sys.stdout.flush()
os._exit(min(abs(os.waitstatus_to_exitcode(status)), 255))
"""
LARGE = "BF16"  # data type of large tables
SMALL = 64  # rows and columns of the tables in a small folder


class Job(NamedTuple):
    """A measurement. make: writes the command's input into a folder. argv: arguments of `tiejax`, run in that folder."""

    name: str
    make: Callable[[Path], None]
    argv: Sequence[str]


class Usage(NamedTuple):
    """Resources of a process: seconds from start to end, CPU seconds over all cores, and peak memory in bytes."""

    seconds: float
    cpu_s: float
    memory: int


def run(settings: CheckpointsBench, console: Console) -> None:
    """Measure every command, print a line for each, write results.json."""
    commands = {}
    Path(settings.out).mkdir(parents=True, exist_ok=True)
    for job in jobs(settings):
        with tempfile.TemporaryDirectory(dir=settings.out, prefix="checkpoints") as folder:
            job.make(Path(folder))
            usages = [measure_command(job.argv, Path(folder)) for _ in range(settings.repeats)]
        commands[job.name] = {field: spread([getattr(usage, field) for usage in usages]) for field in Usage._fields}
        seconds, cpu, memory = (commands[job.name][field] for field in Usage._fields)
        console.say(
            f"{job.name}: {seconds['median']:.1f} s ({seconds['min']:.1f} to {seconds['max']:.1f}), {cpu['median']:.1f} CPU "
            f"seconds, peak memory {memory['max'] / 2**20:,.0f} MiB"
        )
    console.result(f"results: {write_results('checkpoints', settings, {'commands': commands})}")


def jobs(settings: CheckpointsBench) -> list[Job]:
    """Return the measurements of the selected commands."""
    rows, width = settings.rows, settings.width
    large = f"{rows:,} x {width:,} in {DTYPES[LARGE]}"
    tall, narrow = settings.factorised
    folders = [str(number) for number in range(settings.folders)]

    def two_tables(folder: Path) -> None:
        write_tables(folder / "model", rows, width, LARGE)

    every = {
        "check": [
            Job("check, 1 folder", lambda folder: _write_folders(folder, ["0"]), ["check", "0"]),
            Job(f"check, {len(folders):,} folders", lambda folder: _write_folders(folder, folders), ["check", *folders]),
        ],
        "factorise": [
            Job(
                f"factorise, the curve of {tall:,} x {narrow:,} in float32",
                lambda folder: write_tables(folder / "model", tall, narrow, "F32", tied=True),
                ["factorise", "model", "--report", "report"],
            )
        ],
        "tie": [Job(f"tie, {large}", two_tables, ["tie", "model"])],
        "diagnose": [Job(f"diagnose, {large}", two_tables, ["diagnose", "model", "--out", "diagnosis", "--overwrite"])],
    }
    return [job for command in settings.commands for job in every[command]]


def _write_folders(parent: Path, names: Sequence[str]) -> None:
    """Write small checkpoints, alternately tied and untied."""
    for index, name in enumerate(names):
        write_tables(parent / name, SMALL, SMALL, "F32", tied=index % 2 == 0)


def write_tables(folder: Path, rows: int, width: int, dtype: str, tied: bool = False) -> None:
    """Write a checkpoint with nothing but tables, block by block.

    The input table is N(0, 1); the output table, if untied, is .7 of the input table plus N(0, 1).
    """
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
                block = _normal(0, start, number, width)
                if name == OUTPUT:
                    block = SHARED * block + _normal(1, start, number, width)
                file.write(block.astype(DTYPES[dtype]).tobytes())


def _normal(seed: int, start: int, rows: int, width: int) -> np.ndarray:
    return np.random.default_rng((seed, start)).standard_normal((rows, width), np.float32)


def measure_command(argv: Sequence[str], folder: Path) -> Usage:
    """Run `tiejax` with these arguments in a folder; return its usage. Raises CalledProcessError, as `measure_process` does."""
    return measure_process([sys.executable, "-m", "tiejax", *argv], folder)


def measure_process(argv: Sequence[str], folder: Path) -> Usage:
    """Run a program in a folder; return its usage. Raises CalledProcessError, with its output, if it fails."""
    with tempfile.TemporaryFile() as output:
        starter = [sys.executable, "-I", "-S", "-c", STARTER, *argv]
        started = subprocess.run(starter, cwd=folder, stdout=subprocess.PIPE, stderr=output, check=False)
        output.seek(0)
        if started.returncode:
            raise subprocess.CalledProcessError(started.returncode, argv, output.read().decode(errors="replace"))
    seconds, cpu_s, memory = json.loads(started.stdout)
    unit = 1 if sys.platform == "darwin" else 2**10
    return Usage(seconds, cpu_s, memory * unit)
