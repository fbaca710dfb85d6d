"""Small runs of every study as commands, and the results that they must have despite faults."""

import contextlib
import dataclasses
import hashlib
import json
import os
import pydoc_data.topics
import shlex
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import coupling_runs
import numpy as np
from processes import EXPERIMENTS, Ended, end, start, wait_until
from safetensors import safe_open

EXOR = shlex.split("--bits 4 --seeds 2 --steps 400 --record_every 20 --exact_every 100 --half_period 100")
UNTYING = shlex.split(
    "--bits 4 --seeds 2 --steps 200 --record_every 20 --exact_every 100 --half_period 50 --policies [copy] --records_on disk"
)
TEXT = shlex.split(
    "--seeds 2 --steps 60 --vocab_size 400 --layers 1 --width 16 --heads 2 --feed_forward 32 --max_length 32 --batch_size 12 "
    "--validation_batches 2 --record_every 10 --validate_every 25 --learning_rate .003"
)
LAYERS = shlex.split(
    "--vocab_size 300 --layers 3 --width 8 --heads 2 --context 12 --batch_size 4 --steps 22 --k 2 --validate_every 8 "
    "--validation_blocks 8 --test_blocks 10 --epsilon_floor .5 --methods [untied,agent]"
)
CAUSAL = shlex.split(
    "--vocab_size 300 --layers 1 --width 8 --heads 2 --context 12 --batch_size 4 --steps 60 --record_every 20 "
    "--validate_every 20 --validation_blocks 8 --untie_at [1/3,2/3] --tied_rate .01 --untied_rate .02 --seeds [3,7] "
    "--wide false --deep false --factorised false --lengths [] --table_factors [1]"
)
# Results that depend on time.
TIMES = ("timing", "time_step", "equal_time", "seconds")


@dataclasses.dataclass(frozen=True)
class Run:
    """A small, uninterrupted run of a study: its command, its directory, and its duration."""

    study: str
    argv: tuple[str, ...]
    out: Path
    seconds: float

    @property
    def half(self) -> Path:
        """The directory of the same run, killed after its first checkpoint."""
        return self.out.with_name(f"{self.study}-half")

    @property
    def script(self) -> Path:
        return EXPERIMENTS / f"{self.study}.py"


def commands(folder: Path) -> dict[str, list[str]]:
    """Return the arguments of a small run of every study, on files that are written into `folder`."""
    coupling_runs.write_files(folder)
    topics = [pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics)]
    (folder / "topics.txt").write_text("\n\n".join(topics[:12]))
    text = ["--corpus", str(folder / "topics.txt"), "--data_dir", str(folder / "prepared")]
    often = ["--checkpoint_every", "0.01"]
    return {
        "exor": [*EXOR, *often],
        "untying": [*UNTYING, *often],
        "text_mlm": [*text, *TEXT, *often],
        "layer_tying": [*text, *LAYERS, *often],
        "causal_untying": [*text, *CAUSAL, *often],
        "embedding_coupling": [*coupling_runs.arguments(folder), *coupling_runs.probes(folder), *often],
    }


def environment(folder: Path) -> dict[str, str]:
    """Return environment variables with which processes share compiled programs and compute the same bits.

    Those that are set, as they are within pytest, stay as they are.
    """
    wanted = {
        "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    }
    return {name: os.environ.get(name, value) for name, value in wanted.items()}


def uninterrupted(folder: Path, study: str, argv: list[str]) -> Run:
    """Run a study twice, so that the duration of the second excludes compilation; return the second.

    A third run is killed after its first checkpoint and left in `Run.half`.
    """
    script, env = EXPERIMENTS / f"{study}.py", environment(folder)
    for name in ("first", "whole"):
        out, began = folder / f"{study}-{name}", time.monotonic()
        ended = end(start(*argv, "--out", out, script=script, env=env), timeout=900)
        assert ended.status == 0, ended.err
    run = Run(study, tuple(argv), out, time.monotonic() - began)
    process = start(*argv, "--out", run.half, script=script, env=env)
    wait_until(lambda: any((run.half / "checkpoints").rglob("commit_success.txt")), process, timeout=600)
    process.kill()
    end(process)
    return run


def go(run: Run, out: Path, *more: object) -> Ended:
    """Run the command of a run in another directory until it ends."""
    env = environment(run.out.parent)
    return end(start(*run.argv, "--out", out, *more, script=run.script, env=env), timeout=900)


def assert_same_result(out: Path, run: Run) -> None:
    """Assert that arrays and weights are equal in every bit, and all results except times."""
    with np.load(out / "metrics.npz") as found, np.load(run.out / "metrics.npz") as wanted:
        assert found.files == wanted.files
        for name in set(wanted.files) - set(TIMES):
            assert found[name].dtype == wanted[name].dtype, name
            assert found[name].tobytes() == wanted[name].tobytes(), (run.study, name)
    ours, wanted = _results(out), _results(run.out)
    assert ours == wanted, [name for name in wanted if ours.get(name) != wanted[name]]
    models = sorted(path.relative_to(run.out) for path in (run.out / "models").rglob("*.safetensors"))
    for model in models:
        assert _weights(out / model) == _weights(run.out / model), model
    assert (out / "report.html").exists()


def _weights(path: Path) -> tuple[dict[str, str], dict[str, bytes]]:
    """Return the metadata of a file of weights, and the bytes of the weights."""
    with safe_open(path, framework="np") as opened:
        return opened.metadata(), {name: opened.get_tensor(name).tobytes() for name in opened.keys()}  # noqa: SIM118


def _results(out: Path) -> Any:
    """Return results.json without times and results that depend on them."""

    def timeless(value: Any) -> Any:
        if isinstance(value, Mapping):
            names = (name for name in value if not any(word in name for word in TIMES) and not name.endswith("_s"))
            return {name: timeless(value[name]) for name in names}
        if isinstance(value, list):  # including claims
            return [timeless(item) for item in value if not (isinstance(item, Mapping) and "time" in str(item.get("id")))]
        return value

    return timeless(json.loads((out / "results.json").read_text()))


@contextlib.contextmanager
def saying(what: str) -> Iterator[None]:
    """Add a description of the fault to assertion errors in the body."""
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{what}: {error}") from error


def assert_one_line(ended: Ended, statuses: tuple[int, ...]) -> None:
    """Assert one of these exit statuses and, unless it is 0, one line on standard error and no traceback."""
    assert ended.status in statuses, ended
    assert "Traceback" not in ended.err + ended.out, ended
    if ended.status != 0:
        assert len(ended.err.splitlines()) == 1, ended.err
        assert ": error: " in ended.err


def assert_nothing_half_written(out: Path) -> None:
    """Assert that every listed file has its digest.

    Files that a resumed finished run writes again are not checked: one may have been replaced just before it was listed.
    """
    if not (out / "config.yaml").exists():
        return
    for name, digest in json.loads((out / "run.json").read_text())["files"].items():
        if name.startswith(("finished/", "models/", "data.json", "tokenizer.json", "metrics.npz")):
            assert hashlib.sha256((out / name).read_bytes()).hexdigest() == digest, name
    for name in ("results.json", "data.json", "environment.json"):
        if (out / name).exists():
            json.loads((out / name).read_text())
