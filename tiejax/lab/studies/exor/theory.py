r"""What the loss alone requires of the distance of two input embeddings: minimisation without weight decay, and its blind spot.

Theory: in an optimal model, symbols of one meaning have equal input embeddings, provided that the first linear map W that
reads an embedding is injective. Weight decay draws embeddings together too. `Minimiser` therefore continues from trained
parameters with L-BFGS in float64 on the exact loss, without decay, and `distances` shows whether a pair comes together.

The loss has no minimum: impossible symbols need logits of -infinity. L-BFGS follows it down until the gradient vanishes or the
iterations are used up; the excess over the Bayes loss says how near the infimum it came.

Where W is not injective the theorem does not hold. In a transformer of one layer, the state of the mask m depends on the
embedding e of another symbol only through the numbers

    q_m . W_k e    and    W_o W_v e        (for each head),

its attention score and what it contributes: `reading_map` stacks them as one matrix. If that matrix has a null vector u, all
outputs in all contexts are the same for e and e + c u, however large c is.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from jaxtyping import Float

from tiejax import tying
from tiejax.geometry.distances import Pair, group_pairs
from tiejax.lab.studies.exor.engines import Engine, FastEngine
from tiejax.lab.studies.exor.recorders import exact_risk
from tiejax.lab.studies.exor.task import EXor
from tiejax.models.transformer import Transformer
from tiejax.tying import Tie

PyTree = Any
GRADIENT = 1e-10  # the largest entry of the gradient at which L-BFGS stops
MEMORY = 30  # updates from which L-BFGS estimates curvature
PER_DECADE = 8  # points of a path, evenly spaced in the logarithm of the iteration


def training_loss(engine: Engine, ordered: bool) -> Callable[[PyTree], Float[jax.Array, ""]]:
    """Return the exact cross-entropy of the training split as a function of parameters; it computes in their precision."""
    risk, (expected,) = exact_risk(engine, ordered)
    # A fast engine's inputs are numbers of occurrences, whose logarithms are taken in their precision.
    inputs = jax.tree.map(jnp.asarray, risk.inputs) if isinstance(engine, FastEngine) else risk.inputs
    risk = dataclasses.replace(risk, inputs=inputs, pairs={})
    # Other splits may be empty, with weights that are NaN.
    expected = expected._replace(weight=expected.weight[:1], asking={})
    return lambda params: risk(params, expected)["cross_entropy"][0]


class Minimum(NamedTuple):
    """The end of a minimisation.

    losses, gradients: loss and norm of the gradient at the start and at the end. reason: the message of L-BFGS. path: full
    parameters by iteration, from 0 to the last, between which iterations are evenly spaced in their logarithm.
    """

    losses: tuple[float, float]
    gradients: tuple[float, float]
    reason: str
    path: dict[int, PyTree]


class Minimiser:
    """L-BFGS on stored parameters, compiled once for all members of an arm; use it with 64-bit types enabled.

    loss: loss of full parameters, which are like `like`. ties: those of the arm, none for untied members.
    """

    def __init__(self, loss: Callable[[PyTree], jax.Array], like: PyTree, ties: Sequence[Tie]) -> None:
        self._ties = ties
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, float), tying.store(like, ties))
        _, self._unravel = jax.flatten_util.ravel_pytree(zeros)
        self._value_and_gradient = jax.jit(jax.value_and_grad(lambda vector: loss(self._full(vector))))

    def _full(self, vector: jax.Array) -> PyTree:
        return tying.view(self._unravel(vector), self._ties)

    def minimise(self, params: PyTree, iterations: int) -> Minimum:
        """Minimise the loss from full parameters, with at most so many iterations."""
        stored = tying.store(params, self._ties)
        start = np.concatenate([np.ravel(leaf).astype(float) for leaf in jax.tree.leaves(stored)])
        path, done, due = {0: start}, 0, _on_path(iterations)

        def after(intermediate_result: scipy.optimize.OptimizeResult) -> None:
            nonlocal done
            done += 1
            if done in due:
                path[done] = intermediate_result.x.copy()

        found = scipy.optimize.minimize(
            self._evaluate,
            start,
            method="L-BFGS-B",
            jac=True,
            callback=after,
            options={"maxiter": iterations, "maxfun": 20 * iterations, "maxcor": MEMORY, "ftol": 0.0, "gtol": GRADIENT},
        )
        path[done] = found.x
        (first, slope), (last, end) = self._evaluate(start), self._evaluate(found.x)
        norms = float(np.linalg.norm(slope)), float(np.linalg.norm(end))
        full = {iteration: self._full(jnp.asarray(vector)) for iteration, vector in path.items()}
        return Minimum((first, last), norms, str(found.message), full)

    def _evaluate(self, vector: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = self._value_and_gradient(jnp.asarray(vector))
        return float(value), np.asarray(gradient)


def _on_path(iterations: int) -> set[int]:
    """Return the iterations at which a path has a point."""
    points = max(2, math.ceil(PER_DECADE * math.log10(max(iterations, 10))))
    return set(np.geomspace(1, max(iterations, 1), points).round().astype(int).tolist())


def distances(table: Float[np.ndarray, "vocabulary width"], task: EXor) -> dict[str, tuple[float, float]]:
    """Return the distance of each pair of spellings in a table, and its relative distance (see `trajectories`).

    With more than two spellings of a bit, distances are means over their pairs.
    """
    scale = scale_of(table, task)
    found = {pair: mean_distance(table, group_pairs(used)) for pair, used in task.used.items() if len(used) > 1}
    return {pair: (apart, apart / scale) for pair, apart in found.items()}


def scale_of(table: Float[np.ndarray, "vocabulary width"], task: EXor) -> float:
    """Return the mean distance between used spellings of 0 and of 1 in a table."""
    return mean_distance(table, group_pairs(task.used["zero"], task.used["one"]))


def mean_distance(table: Float[np.ndarray, "rows width"], pairs: Sequence[Pair]) -> float:
    """Return the mean distance between the rows of the given pairs."""
    first, second = np.array(pairs).T
    return float(np.linalg.norm(table[first] - table[second], axis=-1).mean())


def reading_map(engine: Engine, params: PyTree) -> Float[np.ndarray, "numbers width"] | None:
    """Return the matrix of everything that a transformer of one layer reads from the embedding of a symbol but the mask.

    Rows: the attention score of the mask for the symbol, then what the symbol contributes, for each head. None for other
    models, in which an embedding is also read by residual connections.
    """
    encoder = engine.model.encoder
    if not isinstance(encoder, Transformer) or encoder.layers != 1:
        return None
    layer = jax.tree.map(lambda leaf: np.asarray(leaf[0], float), params["encoder"]["layers"])
    mask = np.asarray(params["embed"]["embedding"][engine.tasks[0].mask], float)
    width = len(mask)
    query, key, value = layer["qkv"]["kernel"].T.reshape(3, encoder.heads, width // encoder.heads, width)
    asked = (query @ mask + layer["qkv"]["bias"][:width].reshape(encoder.heads, -1)) / math.sqrt(width // encoder.heads)
    out = layer["out"]["kernel"].reshape(encoder.heads, width // encoder.heads, width)  # [head, entry, output]
    scores = np.einsum("hd,hdw->hw", asked, key)
    contributions = np.einsum("hdo,hdw->how", out, value).reshape(-1, width)
    return np.concatenate([scores, contributions])


def smallest_share(reading: Float[np.ndarray, "numbers width"]) -> float:
    """Return the smallest singular value of a reading map over its largest: 0 if it is not injective."""
    singular = np.linalg.svd(reading, compute_uv=False)
    return float(singular[-1] / singular[0])
