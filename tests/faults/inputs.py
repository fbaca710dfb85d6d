"""Random YAML files and options for every study, in this process: each is accepted, or refused in one line."""

import collections
import contextlib
import io
import random
import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from tiejax.lab.runs import resume
from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.settings.study import Study
from tiejax.lab.studies.causal_untying import settings as causal_untying
from tiejax.lab.studies.embedding_coupling import settings as embedding_coupling
from tiejax.lab.studies.exor import settings as exor
from tiejax.lab.studies.layer_tying import settings as layer_tying
from tiejax.lab.studies.text_mlm import settings as text_mlm
from tiejax.lab.studies.untying import settings as untying
from tiejax.system.visible import visible_line

STUDIES: tuple[Study, ...] = (
    exor.STUDY, untying.STUDY, text_mlm.STUDY, layer_tying.STUDY, embedding_coupling.STUDY, causal_untying.STUDY,
)  # fmt: skip
SECONDS, MOST_KIB = 30.0, 2**20
VALUES: tuple[Any, ...] = (
    *(0, -1, 1, 3, 2**31, 2**63, 10**30, -(10**30), 0.5, -0.5, 1e-300, 1e300, float("nan"), float("inf"), True, False, None),
    *("", " ", "none", "tfds:", "/nowhere/at/all", "a" * 10_000, "\x00", "\x1b[31m", "\u202e", "[", "{", "!!python/none"),
    *([], [None], [[]], [1, 1], ["a", 1], [0.5, 0.5], [-1], {}, {"a": 1}, {1: {2: 3}}, {"a": {"train": None}}),
)
TEXTS: tuple[Callable[[str], str], ...] = (
    lambda name: f"{name}: [" * 50,
    lambda name: f"{name}: " + "[" * 3000 + "]" * 3000,
    lambda name: f"{name}: 1\n{name}: 2\n",
    lambda name: f"{name}: !!set {{1, 2}}\n",
    lambda name: f"{name}: &a [*a]\n",
    lambda name: f"{name}: 2026-13-45\n",
    lambda name: f"{name}: 2026-01-01\n",
    lambda name: f"? [{name}]\n: 1\n",
    lambda name: f"{name}\x00: 1\n",
    lambda name: f"- {name}\n",
)


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise TimeoutError if the body does not end in time."""

    def ring(number: int, frame: object) -> None:
        raise TimeoutError(f"no result within {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def refused(work: Callable[[], object]) -> str | None:
    """Return the line with which input is refused, None if it is accepted; any other error propagates."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            work()
    except BadInput as error:
        line = visible_line(str(error))
        assert line
        assert len(line) < 5_000, f"{len(line)} characters"
        assert line.isprintable(), line
        return line
    except SystemExit as ended:  # of --help and the like
        if ended.code:
            raise
    return None


def one(study: Study, file: Path, rng: random.Random) -> bool:
    """Try one input; return whether it was refused."""
    fields = [name for name in study.settings.__dataclass_fields__ if name != "out"]
    name = rng.choice(fields)
    how = rng.randrange(3)
    if how == 0:
        value = rng.choice(VALUES)
        argv = [f"--{name}={'' if value is None else value}"]
    elif how == 1:
        file.write_text(yaml.safe_dump({rng.choice(fields): rng.choice(VALUES) for _ in range(rng.randrange(1, 4))}))
        argv = ["--config", str(file)]
    else:
        file.write_text(rng.choice(TEXTS)(name))
        argv = ["--config", str(file)]
    out = file.parent / "run"

    try:
        with within(SECONDS):
            return refused(lambda: resume.read(study, [*argv, "--out", str(out)])) is not None
    except Exception as error:
        raise AssertionError(f"{study.name}: {argv} {file.read_text()[:300] if how else ''!r}: {error!r}") from error
    finally:
        assert not out.exists(), argv


def inputs(folder: Path, number: int, rng: random.Random) -> collections.Counter[str]:
    """Try `number` inputs; count how many were refused and accepted. None may take long, nor all together much memory."""
    found = collections.Counter[str]()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for turn in range(number):
        found["refused" if one(STUDIES[turn % len(STUDIES)], folder / "file.yaml", rng) else "accepted"] += 1
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < MOST_KIB, f"{grown:,} KiB more memory"
    return found
