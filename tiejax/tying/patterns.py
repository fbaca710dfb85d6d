"""Paths with `*`, and the paths that error messages list."""

import difflib
import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tiejax.tying.errors import TieError
from tiejax.tying.leaves import NNX_SUFFIX, is_tieable

LISTED = 10  # the largest number of leaves that an error lists


def expand(source: str, target: str, leaves: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the pairs of leaves that two paths with `*` name; the pair itself if there is no `*`.

    A `*` of `source` matches any run of characters of a leaf that can be tied, slashes included, and the same run replaces the
    corresponding `*` of `target`. If `target` has more of them, its first ones match any run without slashes.

    Args:
        source: The path or pattern of sources.
        target: The path or pattern of targets, with at least as many `*`.
        leaves: The leaves of the tree by path; `None` in place of a target.

    Returns:
        Pairs (path of the source, path of the target).

    Raises:
        TieError: No leaf matches, or a pattern of targets matches both arrays and `None`.
    """
    if "*" not in source and "*" not in target:
        return [(source, target)]
    runs = source.count("*")
    sources = [(source, ())] if not runs else _matches(source, ["(.*)"] * runs, leaves)
    if not sources:
        raise TieError(f"no leaf matches {source}; {listed(leaves, source)}")
    free = target.count("*") - runs
    if not free:
        return [(path, _filled(target, groups)) for path, groups in sources]
    pairs = [
        (path, found)
        for path, groups in sources
        for found, _ in _matches(target, ["[^/]*"] * free + [re.escape(group) for group in groups], leaves, none=True)
        if found not in (path, f"{path}{NNX_SUFFIX}")
    ]
    if not pairs:
        raise TieError(f"no leaf matches {target}; {listed(leaves, target)}")
    empty = [found for _, found in pairs if leaves[found] is None]
    if empty and len(empty) < len(pairs):
        raise TieError(f"{target} matches {empty[0]}, which is None, as well as arrays; write a narrower pattern")
    return pairs


def _matches(
    pattern: str, runs: Sequence[str], leaves: Mapping[str, Any], none: bool = False
) -> list[tuple[str, tuple[str, ...]]]:
    """Return the paths that match a pattern, with their groups; `runs` holds a regular expression for each `*`.

    The final `/value` of an NNX variable is optional. none: whether `None` counts as a leaf.
    """
    whole = re.compile(f"{_filled(pattern, runs, re.escape)}(?:{NNX_SUFFIX})?")
    found = ((path, whole.fullmatch(path)) for path, leaf in leaves.items() if is_tieable(leaf) or (none and leaf is None))
    return [(path, match.groups()) for path, match in found if match]


def _filled(pattern: str, runs: Sequence[str], fixed: Any = str) -> str:
    """Return a pattern with every `*` replaced, and `fixed` applied to the text between them."""
    pieces = map(fixed, pattern.split("*"))
    return "".join(itertools.chain(*itertools.zip_longest(pieces, runs, fillvalue="")))


def nearest(wanted: str, paths: Collection[str], number: int = LISTED) -> list[str]:
    """Return the paths that are most similar to `wanted`, best first."""
    return difflib.get_close_matches(wanted, list(paths), n=number, cutoff=0.0)


def listed(paths: Collection[str], wanted: str | None = None) -> str:
    """Return the words that list the leaves of a tree: all if they are few, otherwise the nearest to `wanted`, or the first."""
    if len(paths) <= LISTED:
        return f"the leaves are {', '.join(paths)}" if paths else "the tree has no leaves"
    if wanted is None:
        return f"the first of {len(paths):,} leaves are {', '.join(itertools.islice(paths, LISTED))}"
    return f"the nearest of {len(paths):,} leaves are {', '.join(nearest(wanted.replace('*', ''), paths))}"
