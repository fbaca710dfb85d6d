"""Limits of counts, and checks that a configuration fits into memory and onto the disk.

Each study counts the bytes that a configuration needs, in closed form and before jax is imported. Only arrays that must exist
at the same time are counted: a run that is refused could not have fitted, but one that is accepted may still be too large.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tiejax.lab.settings.command_line import MOST_SEEDS, BadInput
from tiejax.system.memory import address_space, machine_memory, size_words
from tiejax.system.visible import cut

FLOAT = INDEX = 4  # bytes of a float32 and of an int32
ADDRESS_SPACE = 2_250_000_000  # of a small run with jax 0.10 on Linux: it ends with 2.5 GB, and is aborted with 2.0 GB
MOMENTS = 2  # of Adam, for each parameter
WINDOW = 64  # steps whose batches are read ahead
STATE = (1 + MOMENTS) * FLOAT  # bytes of a parameter with its moments

# Step counters are int32, and the search for the next record goes at most this far beyond the last step.
MOST_STEPS = 10**9
MOST_WIDTH = 2**16  # five times that of the widest published transformers
MOST_HIDDEN = 4 * MOST_WIDTH
MOST_PLACES = 2**24  # tokens of one step, padding included
MOST = {
    "seeds": MOST_SEEDS,
    "max_seeds": MOST_SEEDS,
    "rate_seeds": MOST_SEEDS,
    "fine_tuning_seeds": MOST_SEEDS,
    "layers": 256,  # twice the deepest of the large published models
    "width": MOST_WIDTH,
    "embed_in": MOST_WIDTH,
    "embed_out": MOST_WIDTH,
    "hidden": MOST_HIDDEN,
    "feed_forward": MOST_HIDDEN,
    "token_hidden": MOST_HIDDEN,
    "channel_hidden": MOST_HIDDEN,
    "vocab_size": 2**22,  # four times the largest published vocabulary
    "padding": 2**22,
    "batch_size": MOST_PLACES,
    "batch_rows": MOST_PLACES,
    "fine_tuning_batch": MOST_PLACES,
    "untie_at": 1024,
    "mesh": 2**16,
}


def most_of(name: str) -> int:
    """Return the upper limit of a setting that is a count."""
    return MOST.get(name, MOST_STEPS)


def check_most(option: str, value: float, name: str | None = None) -> None:
    """Raise BadInput if a count is too large. name: the key of its limit, by default the option."""
    if value > (most := most_of(name or option)):
        raise BadInput(f"--{option}: expected at most {most:,}, got {cut(value)}")


def check_steps(option: str, value: float, steps: float) -> None:
    """Raise BadInput if the value of an option results in too many steps."""
    if steps > MOST_STEPS:
        raise BadInput(f"--{option}: {cut(value)} results in {cut(f'{steps:,.0f}')} steps, expected at most {MOST_STEPS:,}")


def check_places(option: str, rows: int, length: int) -> None:
    """Raise BadInput if a step of `rows` rows of `length` tokens is too large."""
    if rows * length > MOST_PLACES:
        raise BadInput(
            f"--{option}: {rows} rows of {length} tokens are {rows * length:,} tokens, expected at most {MOST_PLACES:,}"
        )


# The settings that decide each purpose of a `Need`, by its field.
Flags = Mapping[str, Sequence[str]]


class Need(NamedTuple):
    """Bytes that a configuration needs.

    state: parameters and Adam's moments, on the devices and, for checkpoints, on the host. records: measurements in memory; if
    records are stored on disk, the part that is read at once. batches: batches that are read ahead on the host. training:
    gradients, activations and other arrays that exist only on the devices. disk: records on disk and files made from them; not
    part of the memory.
    """

    state: int = 0
    records: int = 0
    batches: int = 0
    training: int = 0
    disk: int = 0

    @property
    def memory(self) -> dict[str, int]:
        """Bytes of memory by purpose, without the disk."""
        return {name: size for name, size in self._asdict().items() if name != "disk"}

    @property
    def total(self) -> int:
        """Bytes of memory in total."""
        return sum(self.memory.values())

    def in_words(self) -> str:
        """Return as text the purposes that take at least 1 % of the memory, the largest first."""
        names = dict(
            zip(self.memory, ("models and optimizers", "records", "batches", "gradients and activations"), strict=True)
        )
        parts = sorted(self.memory.items(), key=lambda part: -part[1])
        return ", ".join(f"{names[name]} {size_words(size)}" for name, size in parts if size * 100 >= self.total)


def records_of(steps: int, every: int) -> int:
    """Return the number of records in `steps` steps: before the first step, after every `every` steps, and after the last."""
    return steps // every + 1 + bool(steps % every)


def bytes_of_records(settings: Any, steps: int, record: int, validation: int) -> int:
    """Return the bytes of all records of one member: `record` bytes at a record, `validation` bytes at a validation."""
    every = settings.validate_every if isinstance(settings.validate_every, int) else steps  # or at the ends of epochs
    return record * records_of(steps, settings.record_every) + validation * records_of(steps, every)


def outgrow_memory(records: int) -> bool:
    """Return whether `records` bytes of records are more than a tenth of this machine's memory.

    At its end a run holds several copies of the records, some of them in float64.
    """
    memory = machine_memory()
    return memory is not None and records > memory // 10


def bytes_of_value(dtype: str) -> int:
    """Return the bytes of a number in float32 or bfloat16."""
    return FLOAT if dtype == "float32" else FLOAT // 2


def bytes_of_token(vocabulary: int) -> int:
    """Return the bytes of a token in prepared text."""
    return 2 if vocabulary <= 2**16 else 4


def bytes_of_rows(rows: int, length: int, vocabulary: int, seeds: int, validation_batches: int) -> int:
    """Return the bytes of token rows with their segments: a window of steps for each seed, and one validation."""
    return (seeds * WINDOW + validation_batches) * rows * length * (bytes_of_token(vocabulary) + 2)


def check_memory(settings: Any, whole: Need, flags: Flags, memory: int | None = None, alone: bool = True) -> None:
    """Raise BadInput if resolved settings need more memory than this machine has.

    With an accelerator, only the need of the host is checked: the memory of the devices is unknown before jax is imported.

    whole: what the settings need. flags: those that decide each purpose. memory: this machine's memory in bytes (default: its
    limit; there is no check if that is unknown). alone: whether this is the only process; of several, each holds the whole
    state, for checkpoints, and all records, but only a part of the rest.
    """
    memory = machine_memory() if memory is None else memory
    need = whole._replace(training=0) if accelerated() else whole
    need = need if alone else need._replace(batches=0, training=0)
    if memory is None or need.total <= memory:
        return
    largest = sorted(need.memory, key=lambda purpose: -need.memory[purpose])
    named = _named(settings, [flag for purpose in largest if 4 * need.memory[purpose] >= need.total for flag in flags[purpose]])
    raise BadInput(
        f"{named}: the run needs at least {size_words(need.total)} ({need.in_words()}), this machine has {size_words(memory)}"
    )


def check_address_space() -> None:
    """Raise BadInput if the address space of this process is too small for jax, whose C++ code would end the process."""
    limit = address_space()
    if limit is not None and limit < ADDRESS_SPACE:
        raise BadInput(
            f"ulimit -v: jax needs an address space of {size_words(ADDRESS_SPACE)}, this process may use {size_words(limit)}; "
            "raise the limit, or limit the memory by a control group"
        )


def check_disk(settings: Any, needed: int, flags: Flags, out: Path, existing: Sequence[Path] = ()) -> None:
    """Raise BadInput if the records of resolved settings do not fit on the disk of the run directory.

    needed: the bytes on the disk. existing: files of records that the run will replace, which count as free.
    """
    if not needed:
        return
    folder = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    free = shutil.disk_usage(folder).free + sum(path.stat().st_size for path in existing)
    if needed > free:
        raise BadInput(
            f"{_named(settings, flags['disk'])}: the records of the run need {size_words(needed)} on the disk of --out {out}, "
            f"which has {size_words(free)} free"
        )


def _named(settings: Any, flags: Sequence[str]) -> str:
    """Return those of the flags that are far from their defaults, with their values; if none is, all of them."""
    default = type(settings)().resolved()
    values = {flag: value for flag in flags if (value := getattr(settings, flag)) is not None}
    named = {flag: value for flag, value in values.items() if _is_far(value, getattr(default, flag))} or values
    return ", ".join(f"--{flag} {value}" if isinstance(value, int) else f"--{flag}" for flag, value in named.items())


def _is_far(value: Any, default: Any) -> bool:
    """Return whether a setting differs from its default, a number by a factor of 4 or more."""
    if isinstance(value, int) and isinstance(default, int):
        return max(value, default) >= 4 * min(value, default)
    return bool(value != default)


def accelerated() -> bool:
    """Return whether jax will find an accelerator: by its environment variable, or else by the devices of this machine."""
    asked = (os.environ.get("JAX_PLATFORMS") or os.environ.get("JAX_PLATFORM_NAME") or "").split(",")[0]
    devices = ("nvidia[0-9]*", "accel*", "vfio/[0-9]*", "kfd", "dxg")
    return asked != "cpu" if asked else any(next(Path("/dev").glob(name), None) for name in devices)
