"""Checks of settings that several studies share; each raises BadInput with a message that names the option."""

import collections
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.settings.sizes import MOST_SEEDS, check_most
from tiejax.system.visible import cut


def default_data_dir() -> str:
    """Return the default folder for prepared text: `tiejax` in the user's cache."""
    try:
        return str(Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tiejax")
    except RuntimeError:
        raise BadInput("--data_dir: this user has no home directory; name a folder for prepared text") from None


def seed_list(seeds: int | list[int]) -> list[int]:
    """Return `seeds` as a list; a number n stands for 0, 1, ..., n - 1."""
    return list(range(seeds)) if isinstance(seeds, int) else list(seeds)


def check_seeds(seeds: int | list[int]) -> None:
    """Check that there is at least one seed, and that seeds are distinct and between 0 and 2^31 - 1."""
    if seeds == [] or (isinstance(seeds, int) and seeds < 1):
        raise BadInput(f"--seeds: expected at least one seed, got {cut(seeds)}")
    named = seeds if isinstance(seeds, list) else [seeds - 1]  # the largest is enough: the list may be huge
    if outside := [seed for seed in named if not 0 <= seed < 2**31]:
        raise BadInput(f"--seeds: expected seeds between 0 and 2147483647, got {cut(outside[0])}")
    if isinstance(seeds, int) and seeds > MOST_SEEDS:
        raise BadInput(f"--seeds: expected at most {MOST_SEEDS:,} seeds, got {cut(seeds)}")
    if repeated := [seed for seed, count in collections.Counter(named).items() if count > 1]:
        raise BadInput(f"--seeds: expected distinct seeds, but {repeated[0]} is repeated")


def is_longer(names: list[str], before: list[str]) -> bool:
    """Return whether a list of names, which may be separated by commas, has all of another one, which is not empty."""
    return bool(before) and {*before} <= {name for word in names for name in word.split(",")}


def extends(seeds: int | list[int], before: int | list[int]) -> bool:
    """Return whether a value of the setting `seeds` names all seeds of another, in the same order, and then more."""
    now, then = seed_list(seeds), seed_list(before)
    return len(now) > len(then) and now[: len(then)] == then


def seeds_of_looks(config: Any, default: int) -> dict[str, Any]:
    """Return the resolved values of `seeds` and `max_seeds`, of settings with `until`.

    With `until`, seeds are the first of a list, or 0, 1, ...; the resolved ones are those of the last look, if it is reached.
    default: number of seeds without `seeds` and `until`.
    """
    seeds, most = config.seeds, config.max_seeds
    if seeds is not None:
        check_seeds(seeds)
    if config.until is None:
        if most is not None:
            raise BadInput(f"--max_seeds: only applies with --until decided; use --seeds {cut(most)}")
        return {"seeds": default if seeds is None else seeds}
    check_counts(config, ("max_seeds",))
    if isinstance(seeds, int) and seeds != most:
        raise BadInput(
            f"--seeds: expected no number of seeds with --until decided, which adds seeds up to --max_seeds, got {cut(seeds)}"
        )
    if most is None and seeds is None:
        raise BadInput("--until: decided needs --max_seeds, the largest number of seeds")
    given = most if seeds is None else seeds
    most = len(seed_list(given)) if most is None else most
    if isinstance(given, int):
        return {"seeds": most, "max_seeds": most}
    if most > len(given):
        raise BadInput(f"--max_seeds: expected at most {len(given):,}, the number of seeds in --seeds, got {cut(most)}")
    return {"seeds": given[:most], "max_seeds": most}


def looks_up_to(looks: Sequence[int], most: int) -> list[int]:
    """Return the looks below `most` seeds, and `most` as the last one."""
    return [*(look for look in looks if look < most), most]


def check_rates(rates: Sequence[float], least: int) -> None:
    """Check that learning rates to choose from, at least `least`, are between 0 and 1 and ascend."""
    if len(rates) < least or any(not 0 < rate < 1 for rate in rates) or list(rates) != sorted(set(rates)):
        number = {2: "two", 3: "three"}[least]
        raise BadInput(f"--rates: expected at least {number} numbers between 0 and 1 in ascending order, got {cut(rates)}")


def check_ascending(name: str, values: Sequence[float]) -> None:
    """Check that there are values, and that they are above 0 and ascend."""
    if not values or any(not 0 < value < math.inf for value in values) or list(values) != sorted(set(values)):
        raise BadInput(f"--{name}: expected numbers > 0 in ascending order, got {values}")


def check_tuning_seeds(seeds: Sequence[int], tuning: Sequence[int]) -> None:
    """Check that no seed is one of those that choose the learning rates."""
    if both := set(seeds) & set(tuning):
        raise BadInput(f"--seeds: {min(both)} is one of the seeds that choose the learning rates; use others")


def check_utf8(config: Any, names: Sequence[str]) -> None:
    """Check that the absolute paths of folders in which libraries write files are UTF-8, which those libraries need."""
    for name in names:
        value = getattr(config, name)
        try:
            str(Path(value or "").absolute()).encode("utf-8")
        except UnicodeEncodeError:
            raise BadInput(f"--{name}: expected a path in UTF-8, got {cut(value)}") from None


def check_counts(config: Any, names: Sequence[str]) -> None:
    """Check that integer fields are at least 1 and at most `sizes.most_of(name)`; None and text are not checked."""
    for name in names:
        if isinstance(value := getattr(config, name), int):
            if value < 1:
                raise BadInput(f"--{name}: expected an integer >= 1, got {cut(value)}")
            check_most(name, value)


def check_positive(config: Any, names: Sequence[str]) -> None:
    """Check that fields are finite and above 0, or None."""
    _check_numbers(config, names, lambda value: math.isfinite(value) and value > 0, "a finite number > 0")


def check_not_negative(config: Any, names: Sequence[str]) -> None:
    """Check that fields are finite and not negative."""
    _check_numbers(config, names, lambda value: math.isfinite(value) and value >= 0, "a finite number >= 0")


def check_shares(config: Any, names: Sequence[str]) -> None:
    """Check that fields are probabilities below 1, or None."""
    _check_numbers(config, names, lambda value: 0 <= value < 1, "a number in [0, 1)")


def _check_numbers(config: Any, names: Sequence[str], holds: Callable[[float], bool], expected: str) -> None:
    for name in names:
        value = getattr(config, name)
        if value is not None and not holds(value):
            raise BadInput(f"--{name}: expected {expected}, got {cut(value)}")


def check_lengths(config: Any, most: int, shortest: int = 3) -> None:
    """Check that `max_length`, in tokens, is from 3 to `most`, and `min_length` from `shortest` to `max_length`.

    The shortest row has [CLS], a token and [SEP]. shortest: number of tokens in the shortest possible sentence.
    """
    if not 3 <= config.max_length <= most:
        raise BadInput(f"--max_length: expected 3 ([CLS], a token, [SEP]) to {most}, got {cut(config.max_length)}")
    if not shortest <= config.min_length <= config.max_length:
        longest = f"--max_length {config.max_length}"
        raise BadInput(f"--min_length: expected {shortest} to {longest}, got {cut(config.min_length)}")


def check_heads(config: Any) -> None:
    """Check that the heads, if any, divide the width."""
    if config.heads and config.width % config.heads:
        raise BadInput(f"--heads: {cut(config.heads)} heads do not divide the width {cut(config.width)}")


def check_context(config: Any) -> None:
    """Check that a block has a begin token and another, and at most 65,536 tokens."""
    if not 2 <= config.context <= 65536:
        raise BadInput(f"--context: expected 2 (the begin token and another) to 65536, got {config.context}")


def check_held_out(config: Any) -> None:
    """Check that validation and test text are both given, or neither."""
    for missing, other in (("validation", "test"), ("test", "validation")):
        if getattr(config, other) and not getattr(config, missing):
            raise BadInput(f"--{missing}: required with --{other}; with neither, --corpus is split 80/10/10")


def check_untie_at(config: Any) -> None:
    """Check `untie_at`: integers are steps of the run, floats are fractions of it."""
    values = config.untie_at
    if values is None:
        return
    if not values:
        raise BadInput("--untie_at: expected at least one step or fraction, got []")
    # Compared as text, because 1 (a step) and 1.0 (the end of the run) are equal as numbers.
    if repeated := [value for value, count in collections.Counter(map(repr, values)).items() if count > 1]:
        raise BadInput(f"--untie_at: expected distinct values, but {repeated[0]} is repeated")
    check_most("untie_at", len(values))
    for value in values:
        most = 1.0 if isinstance(value, float) or config.steps is None else config.steps
        if not 0 <= value <= most or (isinstance(value, int) and config.steps is None and value):
            steps = "" if config.steps is None else f"a step from 0 to --steps {config.steps}, or "
            raise BadInput(
                f"--untie_at: expected {steps}a fraction of the run with a decimal point, from 0. to 1., got {cut(value)}"
            )
    if config.steps is not None:
        check_untie_steps(values, config.steps)


def check_untie_steps(untie_at: Sequence[int | float], steps: int) -> None:
    """Check that the values of `untie_at` fall on distinct steps, which can be done once the steps of the run are known."""
    at_step: dict[int, int | float] = {}
    for value in untie_at:
        step = round(value * steps) if isinstance(value, float) else value
        if step in at_step:
            both = f"{at_step[step]} and {value} both fall on step {step} of {steps}"
            raise BadInput(f"--untie_at: expected distinct steps, but {both}")
        at_step[step] = value
