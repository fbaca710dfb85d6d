"""The training and held-out examples of a comparison: trees of arrays, or a function that makes batches."""

import contextlib
import hashlib
import json
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from tiejax.lab.settings.command_line import BadInput
from tiejax.training.sources import ExampleFeed, FunctionFeed
from tiejax.tying.leaves import tree_bytes
from tiejax.tying.tie import leaves_by_path

PyTree = Any
Batches = Callable[[int, int], PyTree]  # (seed, step) -> batch
# Beginnings of the names of files that are not the user's; the last two are of code that libraries generate.
LIBRARIES = (
    *(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "purelib", "platlib")),
    f"{Path(__file__).parents[2]}/",
    "<frozen ",
    "<string>",
)
WINDOW_BYTES, MOST_WINDOW = 2**26, 64  # of the batches that are read ahead for one seed, and in steps


class Data(NamedTuple):
    """The examples of a comparison: arrays `[examples, ...]`, of which a step takes `batch_size`; or a function of batches."""

    training: PyTree | Batches
    held_out: PyTree
    batch_size: int

    @property
    def made(self) -> bool:
        """Whether a function makes the training batches."""
        return callable(self.training)

    def feed(self, first: int, last: int) -> Any:
        """Return the feed of the training steps first, ..., last - 1 of the run."""
        window = max(1, min(MOST_WINDOW, WINDOW_BYTES // max(1, tree_bytes(self.batch()))))
        if self.made:
            return FunctionFeed(self.training, first, window, last)
        return ExampleFeed(self.training, self.batch_size, first, window)

    def batch(self, seed: int = 0, step: int = 0) -> PyTree:
        """Return a training batch; seed, step: of a function."""
        if self.made:
            return jax.tree.map(np.array, self.training(seed, step))  # a copy: the function may use its buffer again
        return jax.tree.map(lambda leaf: leaf[: self.batch_size], self.training)

    @property
    def shapes(self) -> PyTree:
        """Shapes and dtypes of a training batch."""
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), self.batch())

    def batches(self, most: int | None = None) -> tuple[PyTree, PyTree | None]:
        """Return held-out examples in whole batches `[batches, batch_size, ...]`, and the rest; None if there is none.

        most: number of examples, spread evenly; all by default.
        """
        number = length_of(self.held_out)
        chosen = np.arange(number) if most is None else np.unique(np.linspace(0, number - 1, min(most, number)).astype(int))
        size = min(self.batch_size, len(chosen))
        whole = len(chosen) // size

        def in_batches(leaf: np.ndarray) -> np.ndarray:
            return leaf[chosen[: whole * size]].reshape(whole, size, *leaf.shape[1:])

        rest = chosen[whole * size :]
        return (
            jax.tree.map(in_batches, self.held_out),
            jax.tree.map(lambda leaf: leaf[rest], self.held_out) if len(rest) else None,
        )

    @property
    def fingerprint(self) -> str:
        """The SHA-256 (hex) of the held-out examples and the training ones, or of up to three batches of a function."""
        digest = hashlib.sha256()
        trees = [self.batch() if self.made else self.training]
        for place in ((0, 1), (1, 0)) if self.made else ():
            with contextlib.suppress(Exception):  # a function may know the steps and seeds of the run only
                trees.append(self.batch(*place))
        for tree in (*trees, self.held_out):
            for leaf in jax.tree.leaves(tree):
                digest.update(json.dumps([list(leaf.shape), str(leaf.dtype)]).encode())
                digest.update(np.ascontiguousarray(leaf).tobytes())
        return digest.hexdigest()


def checked(training: Any, held_out: Any, batch_size: int) -> Data:
    """Return the examples as arrays of numpy; raises BadInput, which names the argument."""
    if not (isinstance(batch_size, int) and batch_size >= 1):
        raise BadInput(f"batch_size: expected an integer >= 1, got {batch_size!r}")
    if callable(held_out):
        raise BadInput("held_out: expected arrays [examples, ...], which are evaluated whole, got a function")
    arrays = {"held_out": _arrays("held_out", held_out)}
    if not callable(training):
        arrays["training"] = _arrays("training", training)
        if length_of(arrays["training"]) < batch_size:
            raise BadInput(f"training: {length_of(arrays['training']):,} examples are fewer than a batch of {batch_size}")
    data = Data(arrays.get("training", training), arrays["held_out"], batch_size)
    try:
        batch = data.batch()
        again = data.batch() if data.made else batch
    except Exception as error:  # whatever the function raises
        raise BadInput(f"training: the function failed for seed 0 and step 0: {failure(error)}") from None
    if data.made:
        _check_function(batch, again, batch_size)
    if not jax.tree.leaves(batch):
        raise BadInput("training: a batch has no arrays")
    _check_same(batch, data.held_out)
    return data


def _check_function(batch: PyTree, again: PyTree, batch_size: int) -> None:
    """Raise BadInput unless a function of batches made the same batch twice, of `batch_size` examples."""
    lengths = {len(leaf) if leaf.ndim else 0 for leaf in jax.tree.leaves(batch)}
    if lengths - {batch_size}:
        found = ", ".join(map(str, sorted(lengths)))
        raise BadInput(f"training: expected batches of {batch_size} examples (batch_size), the function returned {found}")
    first, second = (
        {path: (leaf.shape, leaf.dtype, leaf.tobytes()) for path, leaf in leaves_by_path(one)[0].items()}
        for one in (batch, again)
    )
    if first != second:
        raise BadInput(
            "training: the function returned two different batches for seed 0 and step 0; a batch must depend on seed and step "
            "alone, as with numpy.random.default_rng([seed, step])"
        )


def _check_same(batch: PyTree, held_out: PyTree) -> None:
    """Raise BadInput unless held-out examples have the form of training examples."""
    own, other = ({path: (leaf.shape[1:], leaf.dtype) for path, leaf in leaves_by_path(tree)[0].items()}
                  for tree in (batch, held_out))  # fmt: skip
    if own != other:
        raise BadInput(f"held_out: expected examples like those of training, {_form(batch)}, got {_form(held_out)}")


def _form(tree: PyTree) -> str:
    return str(jax.tree.map(lambda leaf: f"{leaf.dtype}[n{''.join(f', {size}' for size in leaf.shape[1:])}]", tree)).replace(
        "'", ""
    )


def length_of(tree: PyTree) -> int:
    """Return the number of examples."""
    return len(jax.tree.leaves(tree)[0])


def _arrays(name: str, tree: Any) -> PyTree:
    try:
        found = jax.tree.map(np.asarray, tree)
    except Exception as error:  # whatever a leaf that is no array raises
        raise BadInput(f"{name}: expected arrays [examples, ...]: {failure(error)}") from None
    leaves = jax.tree.leaves(found)
    if not leaves or any(leaf.ndim < 1 or leaf.dtype == object for leaf in leaves):
        raise BadInput(f"{name}: expected arrays [examples, ...], got {type(tree).__name__}")
    lengths = {len(leaf) for leaf in leaves}
    if len(lengths) > 1 or 0 in lengths:
        raise BadInput(f"{name}: expected arrays with one number of examples, got {', '.join(map(str, sorted(lengths)))}")
    return found


def failure(error: Exception) -> str:
    """Return the type of an error, the first line of its message, and its place in a file of the user."""
    words = f"{type(error).__name__}: {' '.join(str(error).partition(chr(10))[0].split())[:200]}"
    return words + (f" ({place})" if (place := place_of(error)) else "")


def place_of(error: BaseException) -> str:
    """Return the file and line of the innermost frame of an error outside of libraries, or "" if there is none."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(LIBRARIES)]
    return f"{Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""
