"""How the models of one's own comparison are trained, recorded and judged."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tiejax import training, tying
from tiejax.lab.comparison.arms import Arm
from tiejax.lab.comparison.data import Data, length_of
from tiejax.lab.comparison.optimizer import Schedule
from tiejax.lab.comparison.training import Arrays
from tiejax.training.choices import Precision
from tiejax.training.optimizer import with_own_rates
from tiejax.training.placement import DATA, member_map, total
from tiejax.tying.tie import adjoint_transform, apply_transform, leaves_by_path

PyTree = Any
FINAL = "final_loss"
CURVE_EXAMPLES = 256  # held-out examples of the records during training


class Recipe(NamedTuple):
    """How the models of a comparison train (see `lab.comparison.training.Trainer`); the arguments of `Comparison`, checked.

    Attributes:
        record_loss: (parameters, batch) -> the loss of which gradients are recorded, without dropout.
        every: steps between records.
        devices: number of devices that train a model together.
    """

    init: Callable[[jax.Array], PyTree]
    loss: Callable[..., Any]
    evaluate: Callable[[PyTree, PyTree], Any]
    record_loss: Callable[[PyTree, PyTree], Any]
    data: Data
    ties: tying.Ties
    optimizer: Callable[..., Any]
    schedule: Schedule
    recorders: Mapping[str, Callable[[PyTree, PyTree], Mapping[str, Any]]]
    every: int
    max_norm: float | None
    precision: Precision
    devices: int = 1

    @property
    def rates(self) -> int:
        """The number of learning rates that the optimizer takes."""
        return number_of_rates(self.optimizer)

    def ensemble(self, arm: Arm, first: int, last: int, steps: int) -> training.Ensemble:
        """Return the ensemble that trains an arm for the steps first, ..., last - 1 of a run, which it counts from 0."""
        end = round(steps * arm.horizon)
        return training.Ensemble(
            init=self.init,
            sample=lambda seed_key, step, batch: batch,
            loss=with_metrics(self.loss, self.devices),
            optimizer=with_own_rates(self.optimizer, self.rates, lambda step: self.schedule(step, end)),
            ties=self.ties,
            arm_ties=np.array([[arm.tied]]),
            steps=last - first,
            first_step=first,
            recorders=self._recorders(),
            max_norm=self.max_norm,
            source=self.data.feed(first, last),
            members=training.Unrolled() if jax.default_backend() == "cpu" else training.Vmapped(),
            precision=self.precision,
            devices=self.devices,
        )

    def with_rates(self, opt_state: Any, rates: Sequence[Sequence[float]]) -> Any:
        """Return the optimizer state of members `[seed, 1, ...]` with the learning rates `[seed][number]` of each seed."""
        return opt_state._replace(rates=jnp.asarray(rates, jnp.float32)[:, None])

    def judge(self, arm: Arm) -> Callable[[PyTree], Arrays]:
        """Return params -> the mean loss of all held-out examples, `[seed]`."""
        held_out = self.data.batches()

        def of_member(member: PyTree, shared: tuple[PyTree, PyTree | None]) -> dict[str, jax.Array]:
            return {FINAL: self._mean(member, *shared)}

        mapped = member_map(of_member, self.devices)
        return lambda params: {name: values[:, 0] for name, values in mapped(params, held_out).items()}

    def final_loss(self, judged: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the final held-out loss `[seed]`."""
        return np.asarray(judged[FINAL])

    def _mean(self, params: PyTree, whole: PyTree, rest: PyTree | None) -> jax.Array:
        """Return the mean loss of batches `[batches, batch_size, ...]` and of a smaller one."""
        losses = jax.lax.map(lambda batch: jnp.asarray(self.evaluate(params, batch), jnp.float32), whole)
        if rest is None:
            return jnp.mean(losses)
        size, more = jax.tree.leaves(whole)[0].shape[1], length_of(rest)
        total = jnp.sum(losses) * size + jnp.asarray(self.evaluate(params, rest), jnp.float32) * more
        return total / (len(losses) * size + more)

    def _recorders(self) -> dict[str, training.Recorder]:
        whole, rest = self.data.batches(CURVE_EXAMPLES)

        def train(params: PyTree, batch: PyTree, seed_key: Any, step: jax.Array) -> dict[str, jax.Array]:
            return record(self.record_loss, params, batch, self.ties, self.devices)

        def validate(params: PyTree, batch: PyTree, seed_key: Any, step: jax.Array) -> dict[str, jax.Array]:
            return {"loss": self._mean(params, *jax.tree.map(jnp.asarray, (whole, rest)))}

        def own(params: PyTree, batch: PyTree, seed_key: Any, step: jax.Array) -> dict[str, jax.Array]:
            found = {name: function(params, batch) for name, function in self.recorders.items()}
            each = {f"{name}_{field}": _storable(value) for name, row in found.items() for field, value in row.items()}
            return mean_over(each, self.devices)

        functions = {"train": train, "validation": validate} | ({"own": own} if self.recorders else {})
        return {name: training.Recorder(self.every, measure) for name, measure in functions.items()}


def number_of_rates(optimizer: Callable[..., Any]) -> int:
    """Return the number of learning rates that an optimizer takes: its arguments without a default."""
    parameters = inspect.signature(optimizer).parameters.values()
    return sum(one.default is inspect.Parameter.empty for one in parameters)


def mean_over(tree: PyTree, devices: int) -> PyTree:
    """Return the mean of means over the parts of a batch that the devices of a model have."""
    return tree if devices == 1 else total(jax.tree.map(lambda leaf: leaf / devices, tree))


def with_metrics(loss: Callable[..., Any], devices: int = 1) -> Callable[..., tuple[jax.Array, dict[str, jax.Array]]]:
    """Return a loss that returns a pair of the loss, in float32, and metrics; of several devices, each one's share of it."""

    def of_batch(params: PyTree, batch: PyTree, key: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
        if devices > 1:  # each drops other values
            key = jax.random.fold_in(key, jax.lax.axis_index(DATA))
        found = loss(params, batch, key)
        value, metrics = found if isinstance(found, tuple) else (found, {})
        return jnp.asarray(value, jnp.float32) / devices, dict(metrics)

    return of_batch


def record(
    loss_of: Callable[[PyTree, PyTree], Any], params: PyTree, batch: PyTree, ties: tying.Ties, devices: int = 1
) -> dict[str, jax.Array]:
    r"""Return the loss on a batch, and how the two uses of tied leaves compare.

    distance = |T(W_a) - W_b| / |T(W_a)|,    ratio = |g_b| / |g_a|,    cosine = <g_a, g_b> / (|g_a| |g_b|)

    for the leaves a and b of each tie with its transform T, with Frobenius norms over all ties; g_b in the layout of a. Ratio
    and cosine are left out for a transform that is not linear.
    """
    found_here = jax.value_and_grad(lambda params: jnp.asarray(loss_of(params, batch), jnp.float32))(params)
    loss, grads = mean_over(found_here, devices)
    found = {"loss": loss, "finite": jnp.isfinite(loss)}
    leaves, of_leaves = leaves_by_path(params)[0], leaves_by_path(grads)[0]
    read = [(apply_transform(tie, leaves[tie.source]), leaves[tie.target]) for tie in ties]
    apart = sum((_square(one - other) for one, other in read), start=jnp.float32(0))
    found["distance"] = jnp.sqrt(apart / sum((_square(one) for one, _ in read), start=jnp.float32(0)))
    try:
        pairs = [(of_leaves[tie.source], adjoint_transform(tie, of_leaves[tie.target], leaves[tie.source])) for tie in ties]
    except tying.TieError:
        return found
    first, second = (jnp.sqrt(sum((_square(pair[place]) for pair in pairs), start=jnp.float32(0))) for place in (0, 1))
    product = sum((jnp.sum(one * other) for one, other in pairs), start=jnp.float32(0))
    return found | {"source": first, "target": second, "ratio": second / first, "cosine": product / (first * second)}


def _storable(value: Any) -> jax.Array:
    """Return a record as an array in a dtype that .npz files name."""
    array = jnp.asarray(value)
    return array.astype(jnp.float32) if array.dtype == jnp.bfloat16 else array


def _square(array: jax.Array) -> jax.Array:
    return jnp.sum(jnp.square(array.astype(jnp.float32)))
