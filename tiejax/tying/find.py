"""Ways to find or declare ties: shared or equal arrays, leaves selected by functions, and tied keys of transformers models."""

import hashlib
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from tiejax.tying.errors import TieError, short
from tiejax.tying.leaves import is_array
from tiejax.tying.patterns import listed
from tiejax.tying.tie import PyTree, Tie, leaves_by_path
from tiejax.tying.transforms import TransformName


def find_ties(tree: PyTree, equal: bool = True) -> list[Tie]:
    """Find ties in a tree: leaves that are the same array object or, if `equal`, arrays with the same bits.

    Each array is also compared with the transposes of the others. The first leaf of each group, in the order of the tree, is
    the source of all others. Arrays that hold a single repeated value, such as biases initialised to zero, are equal by chance:
    they are tied only if they are the same object. Traced arrays, and leaves that are not arrays, are skipped.

    Args:
        tree: Any tree, such as the parameters of a model or an NNX module whose layers share a variable.
        equal: Whether to compare values. If false, only leaves that are the same array object are tied.

    Returns:
        The ties, in the order of their targets in the tree.

    Raises:
        TieError: The tree holds arrays of another library, such as tensors of torch.

    Examples:
        >>> import numpy as np
        >>> table = np.arange(6.0).reshape(2, 3)
        >>> find_ties({"embed": table, "head": table.T.copy(), "bias": np.zeros(2)})
        [Tie(source='embed', target='head', transform='transpose', gradient='all')]
    """
    leaves = leaves_by_path(tree)[0]
    for path, leaf in leaves.items():
        if is_array(leaf) and not isinstance(leaf, np.ndarray | np.generic | jax.Array | jax.ShapeDtypeStruct):
            library, name = type(leaf).__module__.partition(".")[0], type(leaf).__name__
            raise TieError(
                f"{path} is a {library}.{name}, not an array of numpy or jax; convert the leaves first, as with "
                "leaf.detach().numpy() for a tensor of torch"
            )
    arrays = {path: leaf for path, leaf in leaves.items() if isinstance(leaf, np.ndarray | jax.Array)}
    sources: dict[Any, str] = {}
    ties = []
    for path, leaf in arrays.items():
        if isinstance(leaf, jax.core.Tracer):
            continue
        as_source, as_target = _fingerprints(leaf, equal)
        found = next(((sources[key], transform) for key, transform in as_target if key in sources), None)
        if found is not None:
            ties.append(Tie(found[0], path, transform=found[1]))
        else:
            sources |= dict.fromkeys(as_source, path)
    return ties


def _fingerprints(leaf: Any, equal: bool) -> tuple[list[Any], list[tuple[Any, TransformName]]]:
    """Return the fingerprints of an array, and those of possible sources, each with the transform that yields the array."""
    same_object = ("object", id(leaf))
    if not equal or jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.extended):  # random keys are not compared
        return [same_object], [(same_object, "identity")]
    array = np.asarray(leaf)
    first = array.flat[:1]
    if array.size < 2 or ((array == first) | ((array != array) & (first != first))).all():  # also NaN alone
        return [same_object], [(same_object, "identity")]
    own = _contents(array)
    as_target: list[tuple[Any, TransformName]] = [(same_object, "identity"), (own, "identity")]
    if array.ndim >= 2:
        as_target.append((_contents(array.swapaxes(-1, -2)), "transpose"))
    return [same_object, own], as_target


def _contents(array: np.ndarray) -> tuple[Any, ...]:
    return array.shape, str(array.dtype), hashlib.sha256(np.ascontiguousarray(array).tobytes()).digest()


def tie_between(tree: PyTree, source: Callable[[Any], Any], target: Callable[[Any], Any], **how: Any) -> Tie:
    """Create the tie between two leaves, each selected by a function instead of a path.

    Args:
        tree: The tree that holds both leaves; its values are not used.
        source: Selects the source in a tree like `tree`, such as `lambda model: model.embed.weight`.
        target: Selects the target.
        **how: The fields `transform` and `gradient` of the tie.

    Returns:
        A tie with the paths of both leaves.

    Raises:
        TieError: `source` or `target` is not a function, or selects something other than one leaf.

    Examples:
        >>> params = {"embed": {"table": 1.0}, "head": [2.0, 3.0]}
        >>> str(tie_between(params, lambda x: x["embed"]["table"], lambda x: x["head"][1]))
        'tie embed/table -> head/1'
    """
    for role, select in (("source", source), ("target", target)):
        if not callable(select):
            found = f"{role}: expected a function that selects a leaf, got {type(select).__name__}"
            raise TieError(f"{found}; the arguments are tie_between(tree, source, target)")
    leaves, treedef = leaves_by_path(tree)
    marked = jax.tree_util.tree_unflatten(treedef, [_Mark(path) for path in leaves])

    def path(select: Callable[[Any], Any], role: str) -> str:
        selected = select(marked)
        found = jax.tree.leaves(selected)  # an NNX variable is a tree with one leaf
        if len(found) != 1 or not isinstance(found[0], _Mark):
            raise TieError(
                f"{role}: expected a function that selects one leaf, got {type(selected).__name__}; {listed(leaves)}"
            )
        return found[0].path

    return Tie(path(source, "source"), path(target, "target"), **how)


class _Mark:
    """Stand-in for a leaf, which records the leaf's path."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __getitem__(self, key: Any) -> "_Mark":
        """Return the whole leaf for `...`, which reads the array of an NNX variable."""
        if key is not Ellipsis:
            raise TieError(f"expected a function that selects a leaf, got {self.path}[{short(key)}]; write a Slice")
        return self

    def __getattr__(self, name: str) -> Any:
        if name == "T":
            raise TieError(f"expected a function that selects a leaf, got {self.path}.T; write transform='transpose'")
        raise AttributeError(name)


def ties_of_keys(
    keys: Mapping[str, str], names: Callable[[str], str] = lambda name: name.replace(".", "/"), **how: Any
) -> list[Tie]:
    """Convert a mapping of tied keys, as declared by models of the transformers library, to ties.

    Args:
        keys: A mapping from each target's key to its source's key, separated by dots, such as `_tied_weights_keys` of a model.
        names: Converts a key to the path of that leaf (default: replace dots with slashes).
        **how: The fields `transform` and `gradient` of all ties.

    Returns:
        One tie per entry of `keys`.

    Raises:
        TieError: `keys` is a list, which does not name the sources, or a key is a regular expression. Write such a tie as a
            `Tie` with `*`.

    Examples:
        >>> [str(tie) for tie in ties_of_keys({"lm_head.weight": "model.embed_tokens.weight"})]
        ['tie model/embed_tokens/weight -> lm_head/weight']
    """
    if not isinstance(keys, Mapping):
        first = keys[0] if isinstance(keys, list | tuple) and keys else "lm_head.weight"
        raise TieError(
            "keys: expected a mapping from each target's key to its source's key, got "
            f"{type(keys).__name__} {short(keys)}; write {{{str(first)[:80]!r}: 'model.embed_tokens.weight'}}"
        )
    for name in (*keys, *keys.values()):
        if not isinstance(name, str):
            raise TieError(f"keys: expected names of tensors, got {short(name)}")
        if not re.fullmatch(r"[\w.]+", name):
            raise TieError(f"expected the name of a tensor, got the pattern {name!r}; write it as a Tie with '*'")
    return [Tie(names(source), names(target), **how) for target, source in keys.items()]
