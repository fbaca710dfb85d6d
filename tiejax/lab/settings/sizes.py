"""Sizes that cannot be: the most of each count, and whether the memory that a configuration needs is there.

What a configuration needs is counted by its study, in closed form and before jax is imported. Only what must be there at the
same time is counted, so that a run that is refused could not have been; one that is not refused may still be too large.
"""

import dataclasses
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tiejax.lab.settings.command_line import BadInput
from tiejax.system.memory import machine_memory

UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
FLOAT = INDEX = 4  # bytes of a float32, and of an int32
MOMENTS = 2  # that Adam keeps of each parameter
WINDOW = 64  # steps whose batches are read ahead
STATE = (1 + MOMENTS) * FLOAT  # bytes of a parameter with its moments

# Counters of steps are int32, and the next record is looked for at most this much after the last step.
MOST_STEPS = 10**9
MOST_SEEDS = 10**6
MOST_WIDTH = 2**16  # five times that of the widest published transformers
MOST_HIDDEN = 4 * MOST_WIDTH
MOST_PLACES = 2**24  # tokens and padding of one step
MOST = {
    "seeds": MOST_SEEDS,
    "rate_seeds": MOST_SEEDS,
    "fine_tuning_seeds": MOST_SEEDS,
    "layers": 256,  # twice the deepest of the large published ones
    "width": MOST_WIDTH,
    "embed_in": MOST_WIDTH,
    "embed_out": MOST_WIDTH,
    "hidden": MOST_HIDDEN,
    "feed_forward": MOST_HIDDEN,
    "token_hidden": MOST_HIDDEN,
    "channel_hidden": MOST_HIDDEN,
    "vocab_size": 2**22,  # four times the largest published one
    "padding": 2**22,
    "batch_size": MOST_PLACES,
    "batch_rows": MOST_PLACES,
    "fine_tuning_batch": MOST_PLACES,
    "untie_at": 1024,
    "mesh": 2**16,
    "plan": 2**16,
}


def most_of(name: str) -> int:
    """Return the most that a count may be: every one fits the counters of a run."""
    return MOST.get(name, MOST_STEPS)


def check_most(option: str, value: float, name: str | None = None) -> None:
    """Raise BadInput if a count is above the most that it may be. name: of the count, where the option has another."""
    if value > (most := most_of(name or option)):
        raise BadInput(f"--{option}: must be at most {most:,}, got {value}")


def check_steps(option: str, value: float, steps: float) -> None:
    """Raise BadInput if an option makes more steps than a run may have."""
    if steps > MOST_STEPS:
        raise BadInput(f"--{option}: {value} make {steps:,.0f} steps, must be at most {MOST_STEPS:,}")


def check_places(option: str, rows: int, length: int) -> None:
    """Raise BadInput if so many rows of one step hold more tokens than it may have."""
    if rows * length > MOST_PLACES:
        raise BadInput(
            f"--{option}: {rows} rows of {length} tokens are {rows * length:,} places, must be at most {MOST_PLACES:,}"
        )


class Need(NamedTuple):
    """Bytes that a configuration needs.

    state: parameters and Adam's moments, which the devices hold, and for checkpoints the host. records: what is measured, or,
    of records on the disk, what is read of them at a time. batches: what the host has read ahead. training: gradients and
    activations, and copies that the devices alone hold. disk: what records take on the disk, and what is made from
    them there: no memory.
    """

    state: int = 0
    records: int = 0
    batches: int = 0
    training: int = 0
    disk: int = 0

    @property
    def memory(self) -> dict[str, int]:
        """The parts that are memory."""
        return {name: size for name, size in self._asdict().items() if name != "disk"}

    @property
    def total(self) -> int:
        """The sum of the parts that are memory."""
        return sum(self.memory.values())

    def in_words(self) -> str:
        """Write the parts that are at least a hundredth of all, the largest first."""
        names = dict(
            zip(self.memory, ("models and optimizers", "records", "batches", "gradients and activations"), strict=True)
        )
        parts = sorted(self.memory.items(), key=lambda part: -part[1])
        return ", ".join(f"{names[name]} {in_units(size)}" for name, size in parts if size * 100 >= self.total)


def records_of(steps: int, every: int) -> int:
    """Return how many records there are of so many steps: of the first, of every `every`-th, and after the last."""
    return steps // every + 1 + bool(steps % every)


def outgrow(records: int) -> bool:
    """Say whether so many bytes of records are more than a tenth of this machine's memory.

    The end of a run holds several copies of them, in numpy's float64 among others.
    """
    memory = machine_memory()
    return memory is not None and records > memory // 10


def bytes_of_value(dtype: str) -> int:
    """Return the bytes of a number in float32 or bfloat16."""
    return FLOAT if dtype == "float32" else FLOAT // 2


def bytes_of_token(vocabulary: int) -> int:
    """Return the bytes of a token as prepared text has it."""
    return 2 if vocabulary <= 2**16 else 4


def bytes_of_rows(rows: int, length: int, vocabulary: int, seeds: int, validation_batches: int) -> int:
    """Return the bytes of rows of tokens with their segments: of a window of steps for each seed, and of one validation."""
    return (seeds * WINDOW + validation_batches) * rows * length * (bytes_of_token(vocabulary) + 2)


def check_memory(
    settings: Any, need_of: Callable[[Any], Need], options: Sequence[str], memory: int | None = None, alone: bool = True
) -> None:
    """Raise BadInput, with both numbers, if resolved settings need more memory than there is.

    need_of: settings -> what they need. options: those that decide it; the line names the ones that weigh most.
    memory: bytes of this machine (default: as it says itself; where it does not, nothing is refused). Where there is an
    accelerator, the needs of the host alone are compared: how much memory the devices have is not known before jax is there.
    alone: one process trains all members. Of several each holds all of the state, for checkpoints, and all records.
    """
    memory = machine_memory() if memory is None else memory
    on_devices_elsewhere = accelerated()

    def counted(settings: Any) -> Need:
        need = need_of(settings)
        need = need._replace(training=0) if on_devices_elsewhere else need
        return need if alone else need._replace(batches=0, training=0)

    need = counted(settings)
    if memory is None or need.total <= memory:
        return
    named = _that_weigh_most(settings, lambda settings: counted(settings).total, options)
    raise BadInput(
        f"{named}: the run needs at least {in_units(need.total)} ({need.in_words()}), this machine has {in_units(memory)}"
    )


def check_disk(
    settings: Any, need_of: Callable[[Any], Need], options: Sequence[str], out: Path, there: Sequence[Path] = ()
) -> None:
    """Raise BadInput if the disk of a run directory has not the room for the records of resolved settings.

    need_of, options: as of `check_memory`. there: files that the run has of them already, which count as room.
    """
    needed = need_of(settings).disk
    if not needed:
        return
    folder = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    free = shutil.disk_usage(folder).free + sum(path.stat().st_size for path in there)
    if needed > free:
        named = _that_weigh_most(settings, lambda settings: need_of(settings).disk, options)
        raise BadInput(
            f"{named}: the records of the run need {in_units(needed)} of the disk of --out {out}, which has "
            f"{in_units(free)} left"
        )


def _that_weigh_most(settings: Any, total_of: Callable[[Any], int], options: Sequence[str]) -> str:
    """Write the options, with their values, whose usual value would save at least a quarter; else the one to halve."""
    values = {name: value for name in options if (value := getattr(settings, name)) is not None}
    usual, total = type(settings)().resolved(), total_of(settings)

    def saved(name: str, instead: Any) -> float:
        return 1 - total_of(dataclasses.replace(settings, **{name: instead})) / total

    by_usual = {name: saved(name, getattr(usual, name) or 1) for name in values}
    heavy = sorted((name for name in values if by_usual[name] >= 0.25), key=lambda name: -by_usual[name])
    if not heavy:
        heavy = [max(values, key=lambda name: saved(name, _half(values[name])))]
    return ", ".join(f"--{name} {values[name]}" if isinstance(values[name], int) else f"--{name}" for name in heavy[:3])


def _half(value: Any) -> Any:
    """Return half of a number or of a list, at least one; anything else as it is."""
    if isinstance(value, int):
        return max(1, value // 2)
    return value[: max(1, len(value) // 2)] if isinstance(value, list) else value


def in_units(size: int) -> str:
    """Write a number of bytes in the largest of the units, from bytes to EiB, of which it is at least one."""
    power = min(max(size.bit_length() - 1, 0) // 10, len(UNITS) - 1)
    return f"{size / 2 ** (10 * power):,.{2 if power else 0}f} {UNITS[power]}"


def accelerated() -> bool:
    """Say whether jax is to find an accelerator, by its own variable or else by the devices of this machine."""
    asked = (os.environ.get("JAX_PLATFORMS") or os.environ.get("JAX_PLATFORM_NAME") or "").split(",")[0]
    devices = ("nvidia[0-9]*", "accel*", "vfio/[0-9]*", "kfd", "dxg")
    return asked != "cpu" if asked else any(next(Path("/dev").glob(name), None) for name in devices)
