"""What the configurations of several experiments must hold; each check raises BadInput that names the option."""

import collections
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.settings.sizes import MOST_SEEDS, check_most


def default_data_dir() -> str:
    """Return where prepared text is kept unless something else is said: tiejax in the user's cache."""
    return str(Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tiejax")


def seed_list(seeds: int | list[int]) -> list[int]:
    """Return the seeds that a number (0, 1, ...) or a list of them stands for."""
    return list(range(seeds)) if isinstance(seeds, int) else list(seeds)


def check_seeds(seeds: int | list[int]) -> None:
    """Seeds are at least one, not too many, between 0 and 2^31 - 1, each once."""
    if seeds == [] or (isinstance(seeds, int) and seeds < 1):
        raise BadInput(f"--seeds: needs at least one seed, got {seeds}")
    named = seeds if isinstance(seeds, list) else [seeds - 1]  # a list of all of them may be huge
    if outside := [seed for seed in named if not 0 <= seed < 2**31]:
        raise BadInput(f"--seeds: must lie between 0 and 2147483647, got {outside[0]}")
    if isinstance(seeds, int) and seeds > MOST_SEEDS:
        raise BadInput(f"--seeds: must be at most {MOST_SEEDS:,} seeds, got {seeds}")
    if repeated := [seed for seed, count in collections.Counter(named).items() if count > 1]:
        raise BadInput(f"--seeds: every seed once, {repeated[0]} is repeated")


def check_counts(config: Any, names: Sequence[str]) -> None:
    """These fields are at least 1, and at most what is sane (`sizes.MOST`), where they are given as a number."""
    for name in names:
        value = getattr(config, name)
        if isinstance(value, int):
            if value < 1:
                raise BadInput(f"--{name}: must be at least 1, got {value}")
            check_most(name, value)


def check_positive(config: Any, names: Sequence[str]) -> None:
    """These fields are finite and above 0 where they are given."""
    for name in names:
        value = getattr(config, name)
        if value is not None and not (math.isfinite(value) and value > 0):
            raise BadInput(f"--{name}: must be above 0, got {value}")


def check_not_negative(config: Any, names: Sequence[str]) -> None:
    """These fields are finite and not negative."""
    for name in names:
        value = getattr(config, name)
        if not (math.isfinite(value) and value >= 0):
            raise BadInput(f"--{name}: must be a finite number and not negative, got {value}")


def check_shares(config: Any, names: Sequence[str]) -> None:
    """These fields are probabilities below 1."""
    for name in names:
        if not 0 <= (value := getattr(config, name)) < 1:
            raise BadInput(f"--{name}: must lie in [0, 1), got {value}")


def check_lengths(config: Any, most: int, shortest: int = 3) -> None:
    """A row holds [CLS], a token and [SEP], and at most so many tokens; no sentence needs more than a row.

    shortest: the tokens of the shortest sentence that there can be.
    """
    if not 3 <= config.max_length <= most:
        raise BadInput(f"--max_length: must lie between 3, for [CLS], a token and [SEP], and {most}, got {config.max_length}")
    if not shortest <= config.min_length <= config.max_length:
        longest = f"--max_length {config.max_length}"
        raise BadInput(f"--min_length: must lie between {shortest} and {longest}, got {config.min_length}")


def check_model(config: Any) -> None:
    """Dropout is a probability below 1, and the heads, where there are any, divide the width."""
    check_shares(config, ("dropout",))
    if config.heads and config.width % config.heads:
        raise BadInput(f"--heads: {config.heads} heads do not divide the width {config.width}")


def check_schedule(config: Any) -> None:
    """The smallest rate of a cosine is not above the largest."""
    if config.schedule == "cosine" and config.minimum_learning_rate > config.learning_rate:
        raise BadInput(
            f"--minimum_learning_rate: {config.minimum_learning_rate} is above --learning_rate {config.learning_rate}"
        )


def check_untie_at(config: Any) -> None:
    """Check `untie_at`: whole steps of a run, or fractions of it."""
    values = config.untie_at
    if values is None:
        return
    if not values:
        raise BadInput("--untie_at: needs at least one step or fraction, got none")
    # As they are written: step 1 is the second step, 1.0 the end.
    if repeated := [value for value, count in collections.Counter(map(repr, values)).items() if count > 1]:
        raise BadInput(f"--untie_at: every value once, {repeated[0]} is repeated")
    check_most("untie_at", len(values))
    for value in values:
        most = 1.0 if isinstance(value, float) or config.steps is None else config.steps
        if not 0 <= value <= most or (isinstance(value, int) and config.steps is None and value):
            steps = "" if config.steps is None else f"a step from 0 to --steps {config.steps}, or "
            raise BadInput(f"--untie_at: {steps}a fraction of the run, written with a point, from 0. to 1., got {value}")
    if config.steps is not None:
        check_untie_steps(values, config.steps)


def check_untie_steps(untie_at: Sequence[int | float], steps: int) -> None:
    """Every value of `untie_at` falls on a step of its own; to be checked as soon as the steps of a run are known."""
    at_step: dict[int, int | float] = {}
    for value in untie_at:
        step = round(value * steps) if isinstance(value, float) else value
        if step in at_step:
            both = f"{at_step[step]} and {value} both fall on step {step} of {steps}"
            raise BadInput(f"--untie_at: every step once; {both}")
        at_step[step] = value
