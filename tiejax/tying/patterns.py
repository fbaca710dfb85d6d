"""Paths with `*`, and the paths that error messages list."""

import difflib
import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tiejax.tying.errors import TieError
from tiejax.tying.leaves import NNX_SUFFIX, nnx_variables, tieable

LISTED = 10  # the largest number of leaves that an error lists


def expand(source: str, target: str, leaves: Mapping[str, Any], arrays: Collection[str]) -> list[tuple[str, str]]:
    """Return the pairs of leaves that two paths with `*` name; the pair itself if there is no `*`.

    A `*` of `source` matches any run of characters of an array's path, slashes included, and the same run replaces the
    corresponding `*` of `target`. If `target` has more of them, its first ones match any run without slashes. leaves: of the
    tree by path, `None` in place of a target. arrays: paths that `source` may match. Raises TieError if no leaf matches, or if
    a pattern of targets matches both arrays and `None`.
    """
    if "*" not in target:
        return [(source, target)]
    variables = nnx_variables(leaves) | {path for path in arrays if path not in leaves and path.endswith(NNX_SUFFIX)}
    if "*" in source and not _sources(source, arrays, variables):
        raise TieError(f"no leaf matches {source}; {listed(leaves, source)}")
    pairs = _pairs(source, target, leaves, arrays if "*" in source else [source], variables)
    if not pairs:
        raise TieError(f"no leaf matches {target}; {listed(leaves, target)}")
    empty = [found for _, found in pairs if leaves.get(found) is None]
    if empty and len(empty) < len(pairs) and source.count("*") < target.count("*"):
        raise TieError(f"{target} matches {empty[0]}, which is None, as well as arrays; write a narrower pattern")
    return pairs


def reached(
    pairs: Sequence[tuple[str, str]], leaves: Mapping[str, Any], arrays: Collection[str], present: bool = False
) -> dict[str, str]:
    """Return the targets that follow from the sources `arrays` along chains of ties, each with its source; sources come first.

    Patterns match these targets too, until nothing new is found. In stored parameters the targets are `None`, and in a format
    without `None` they are missing from `leaves`. pairs: the source and the target of each tie, paths or patterns. present:
    leave out targets that are missing. Raises TieError if a pattern matches its own missing targets, again and again.
    """
    found: dict[str, str] = {}
    known, new = set(arrays), dict.fromkeys(arrays)
    variables = nnx_variables(leaves)
    named = [source for source, _ in pairs if source.endswith(NNX_SUFFIX) and not _is_beside_variables(source, leaves)]
    # The paths of a chain without end grow without bound; a chain that ends may use a tie twice.
    longest = max(map(len, leaves), default=0) + 2 * sum(len(target) for _, target in pairs)
    while new:
        now = [
            (own, _like(own, completed(other, leaves, variables), leaves, () if source in named else variables))
            for source, target in pairs
            for own, other in _pairs(source, target, leaves, new, variables)
        ]
        now = [(source, target) for source, target in now if not present or target in leaves]
        found |= {target: source for source, target in reversed(now) if target not in found}
        new = dict.fromkeys(target for _, target in now if target not in known)
        known.update(new)
        if grown := next((target for target in new if len(target) > longest), None):
            raise TieError(f"{found[grown]} -> {grown}: ties match their own targets without end; write narrower patterns")
        variables |= {target for target in new if target not in leaves and target.endswith(NNX_SUFFIX)}
    return found


def _is_beside_variables(source: str, leaves: Collection[str]) -> bool:
    """Whether a path that ends in `/value` is a variable's, judged by all leaves, or by several under its first key.

    Otherwise it may be a leaf by that name, whose siblings are missing, and its targets are taken as they are written.
    """
    under = [path for path in leaves if path.startswith(f"{source.partition('/')[0]}/")]
    return all(path.endswith(NNX_SUFFIX) for path in (under if len(under) > 1 else leaves))


def completed(path: str, leaves: Collection[str], variables: Collection[str]) -> str:
    """Return a path with the `/value` of an NNX variable, if that is a leaf; variables: the paths of all (`nnx_variables`)."""
    return f"{path}{NNX_SUFFIX}" if path not in leaves and f"{path}{NNX_SUFFIX}" in variables else path


def _like(source: str, target: str, leaves: Collection[str], variables: Collection[str]) -> str:
    """Return the path of a missing target with the suffix that its source has, if that is an NNX variable."""
    missing = target not in leaves and source in variables and not target.endswith(NNX_SUFFIX)
    return f"{target}{NNX_SUFFIX}" if missing else target


def _pairs(
    source: str, target: str, leaves: Mapping[str, Any], arrays: Collection[str], variables: Collection[str]
) -> list[tuple[str, str]]:
    """Return the pairs whose source is among `arrays`; variables: the paths of NNX variables."""
    free = target.count("*") - source.count("*")
    sources = _sources(source, arrays, variables)
    if not free:
        return [(path, _filled(target, groups)) for path, groups in sources]
    arrays_of_tree = tieable(leaves)
    paths = [path for path, leaf in leaves.items() if path in arrays_of_tree or leaf is None]
    return [
        (path, found)
        for path, groups in sources
        for found, _ in _matches(target, ["[^/]*"] * free + [re.escape(group) for group in groups], paths, variables)
        if found not in (path, f"{path}{NNX_SUFFIX}")
    ]


def _sources(source: str, arrays: Collection[str], variables: Collection[str]) -> list[tuple[str, tuple[str, ...]]]:
    """Return the paths that a source matches, with the groups of its `*`."""
    return _matches(source, ["(.*)"] * source.count("*"), arrays, variables)


def _matches(
    pattern: str, runs: Sequence[str], paths: Collection[str], variables: Collection[str]
) -> list[tuple[str, tuple[str, ...]]]:
    """Return the paths that match a pattern, with their groups; `runs` holds a regular expression for each `*`.

    The final `/value` of NNX variables, whose paths are `variables`, is optional.
    """
    if not runs:
        present = [path for path in (pattern, completed(pattern, paths, variables)) if path in paths]
        return [(path, ()) for path in present[:1]]
    start = pattern.partition("*")[0]
    own = re.compile(_filled(pattern, runs, re.escape))
    whole = re.compile(f"{own.pattern}(?:{NNX_SUFFIX})?")
    found = ((path, (whole if path in variables else own).fullmatch(path)) for path in paths if path.startswith(start))
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
    if "" in paths:
        kind = type(paths[""]).__name__ if isinstance(paths, Mapping) else "one type"
        return f"the tree is a single leaf ({kind}): pass a pytree of arrays, or register the class with jax.tree_util"
    if len(paths) <= LISTED:
        return f"the leaves are {', '.join(paths)}" if paths else "the tree has no leaves"
    if wanted is None:
        return f"the first of {len(paths):,} leaves are {', '.join(itertools.islice(paths, LISTED))}"
    return f"the nearest of {len(paths):,} leaves are {', '.join(nearest(wanted.replace('*', ''), paths))}"
