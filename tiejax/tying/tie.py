"""A tie as data: which leaf reads which, through which transform, and which uses send gradient."""

import dataclasses
import difflib
import re
from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp

from tiejax.tying.errors import TieError
from tiejax.tying.weighted import Weight, fits, same

PyTree = Any
OF_VARIABLE = "/value"  # ends the path of the leaf of an NNX variable


@dataclasses.dataclass(frozen=True)
class Tie:
    """Make the leaf at `target` read the leaf at `source`.

    Paths are written with slashes, as in `embed/embedding`; the `/value` of an NNX variable may be left out where there is no
    `*`. A `*` in `source` stands for any run of characters, slashes included; `target` must then hold as many `*`, which are
    filled in order: `Tie("block_0/*", "block_1/*")` ties every leaf of two blocks.

    transform: `identity`, or `transpose` of the last two axes.
    gradient: `all` uses of the shared array send gradient to it, or only the `owner`'s own (the source's); or two weights
    (a, b), numbers or arrays that fit the source: it takes a times the gradient of the source's use and b times that of the
    target's, so that `all` is (1, 1) and `owner` (1, 0). Made in a traced function, a tie may have traced weights, which change
    without compiling again. Ties with arrays as weights are neither compared nor hashed.
    """

    source: str
    target: str
    transform: Literal["identity", "transpose"] = "identity"
    gradient: Literal["all", "owner"] | tuple[Weight, Weight] = "all"

    def __post_init__(self) -> None:
        if self.transform not in ("identity", "transpose"):
            raise TieError(f"{self}: transform must be 'identity' or 'transpose', got {self.transform!r}")
        weights = self.gradient if isinstance(self.gradient, tuple) else ()
        are_weights = len(weights) == 2 and all(isinstance(one, int | float) or hasattr(one, "dtype") for one in weights)
        if not are_weights and (weights or self.gradient not in ("all", "owner")):
            raise TieError(f"{self}: gradient must be 'all', 'owner' or two weights (a, b), got {self.gradient!r}")
        if self.source.count("*") != self.target.count("*"):
            raise TieError(f"{self}: source and target must hold equally many '*'")

    def __str__(self) -> str:
        return f"tie {self.source} -> {self.target}"

    @property
    def weights(self) -> tuple[Weight, Weight]:
        """How much of the gradient of the source's and of the target's use the shared array takes."""
        if isinstance(self.gradient, tuple):
            return self.gradient
        return (1.0, 1.0) if self.gradient == "all" else (1.0, 0.0)


def apply_transform(tie: Tie, x: Any) -> Any:
    """Apply the tie's transform to an array of jax or numpy; it is its own inverse, so it also carries gradients back."""
    return x.swapaxes(-1, -2) if tie.transform == "transpose" else x


def path_name(path: tuple[Any, ...]) -> str:
    """Write a jax key path as `a/b/c`."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def leaves_by_path(tree: PyTree) -> tuple[dict[str, Any], Any]:
    """Return the leaves of `tree` by path, `None` counted as a leaf, with the structure that rebuilds the tree."""
    pairs, treedef = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda leaf: leaf is None)
    leaves = {path_name(path): leaf for path, leaf in pairs}
    if len(leaves) != len(pairs):
        names = [path_name(path) for path, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise TieError(f"two leaves are both called {twice}: rename one so that a tie can tell them apart")
    return leaves, treedef


def _describe(path: str, leaf: Any) -> str:
    return f"{path} {tuple(jnp.shape(leaf))} {jnp.result_type(leaf)}"


def _expand(tie: Tie, paths: Sequence[str]) -> list[Tie]:
    """Write a tie with `*` as one tie per pair of leaves; a tie without one is returned as it is."""
    if "*" not in tie.source:
        return [tie]
    pattern = re.compile("(.*)".join(re.escape(part) for part in tie.source.split("*")))
    expanded = []
    for path in paths:
        if match := pattern.fullmatch(path):
            target = tie.target
            for group in match.groups():
                target = target.replace("*", group, 1)
            expanded.append(dataclasses.replace(tie, source=path, target=target))
    if not expanded:
        raise TieError(f"{tie}: no leaf matches {tie.source}; there are {', '.join(paths)}")
    return expanded


def _check_leaf(tie: Tie, path: str, leaves: dict[str, Any], missing_is_none: bool) -> None:
    if path in leaves and (leaves[path] is not None or missing_is_none):
        return
    near = difflib.get_close_matches(path, leaves, n=3, cutoff=0.3) or list(leaves)
    raise TieError(f"{tie}: there is no leaf {path}; nearest: {', '.join(near)}")


def resolve(ties: Sequence[Tie], params: PyTree) -> tuple[Tie, ...]:
    """Check ties against `params` and return one tie per target, each directly from the leaf that is stored.

    `params` may hold arrays, or shapes and dtypes (`jax.eval_shape`). Patterns are expanded; a chain a -> b, b -> c becomes
    a -> b, a -> c. In a tree that `store` returned, targets are `None` and their shapes are not compared.

    Raises TieError, naming both paths: a missing leaf or a pattern that matches none, a leaf with two sources, a cycle,
    shapes or dtypes that do not fit, weights that do not, or that say two things of one use.
    """
    leaves, _ = leaves_by_path(params)
    given = [_as_stored(one, leaves) for tie in ties for one in _expand(tie, list(leaves))]
    by_target: dict[str, Tie] = {}
    for tie in given:
        if tie.target in by_target:
            raise TieError(f"{tie}: {tie.target} already reads {by_target[tie.target].source}")
        by_target[tie.target] = tie

    resolved = []
    for tie in given:
        root, seen = tie, [tie.target]
        while root.source in by_target:
            seen.append(root.source)
            link = by_target[root.source]
            if link.source in seen:
                raise TieError(f"{tie}: a cycle: {' <- '.join([*seen, link.source])}")
            if isinstance(root.gradient, tuple) or isinstance(link.gradient, tuple):
                raise TieError(f"{tie}: ties in a chain cannot have gradient weights; let both read {link.source}")
            root = dataclasses.replace(
                root,
                source=link.source,
                transform="identity" if root.transform == link.transform else "transpose",
                gradient="all" if root.gradient == link.gradient == "all" else "owner",
            )
        root = dataclasses.replace(root, target=tie.target)
        if root.source == root.target:
            raise TieError(f"{tie}: a cycle: a leaf cannot read itself")
        _check_leaf(tie, root.source, leaves, missing_is_none=False)
        _check_leaf(tie, root.target, leaves, missing_is_none=True)
        _check_fit(root, leaves[root.source], leaves[root.target])
        resolved.append(root)
    _check_weights(resolved)
    return tuple(resolved)


def _as_stored(tie: Tie, leaves: dict[str, Any]) -> Tie:
    """Return a tie whose paths are those of leaves where it leaves out the `/value` of NNX variables."""

    def path(name: str) -> str:
        return f"{name}{OF_VARIABLE}" if name not in leaves and f"{name}{OF_VARIABLE}" in leaves else name

    source, target = path(tie.source), path(tie.target)
    same = (source, target) == (tie.source, tie.target)
    return tie if same else dataclasses.replace(tie, source=source, target=target)


def _check_weights(resolved: Sequence[Tie]) -> None:
    """Raise TieError where several ties of one source say different things of the source's own use."""
    by_source: dict[str, Tie] = {}
    for tie in resolved:
        first = by_source.setdefault(tie.source, tie)
        if not same(tie.weights[0], first.weights[0]):
            raise TieError(f"{tie}: {first} gives the use of {tie.source} another weight; give both the same")


def _check_fit(tie: Tie, source: Any, target: Any) -> None:
    shape = tuple(jnp.shape(source))
    if tie.transform == "transpose":
        if len(shape) < 2:
            raise TieError(f"{tie}: cannot transpose {_describe(tie.source, source)}")
        shape = (*shape[:-2], shape[-1], shape[-2])
    for weight in tie.weights:
        if not fits(weight, tuple(jnp.shape(source))):
            raise TieError(f"{tie}: weights {tuple(jnp.shape(weight))} do not fit {_describe(tie.source, source)}")
    if target is None:
        return
    if shape != tuple(jnp.shape(target)) or jnp.result_type(source) != jnp.result_type(target):
        hint = " transposed" if tie.transform == "transpose" else ""
        both = f"{_describe(tie.source, source)}{hint} and {_describe(tie.target, target)}"
        raise TieError(f"{tie}: shapes and dtypes do not fit: {both}")
