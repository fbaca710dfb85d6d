"""Checks of the functions of a comparison by the shapes of their results, before anything is trained or written."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tiejax import tying
from tiejax.lab.comparison import claims
from tiejax.lab.comparison.arms import Arm
from tiejax.lab.comparison.data import Data, failure, length_of
from tiejax.lab.comparison.recipe import number_of_rates, with_metrics
from tiejax.lab.settings.command_line import BadInput
from tiejax.statistics.claims import Claim, repeated_id
from tiejax.system.memory import machine_memory, size_words
from tiejax.training.optimizer import with_own_rates
from tiejax.tying.across import arguments_used
from tiejax.tying.leaves import is_array, tree_bytes
from tiejax.tying.tie import leaves_by_path
from tiejax.tying.transforms import parts

PyTree = Any
KEY = jax.eval_shape(lambda: jax.random.key(0))


class Shapes(NamedTuple):
    """Shapes of the parameters, and the resolved ties."""

    params: PyTree
    ties: tying.Ties


def _called(name: str, function: Callable[..., Any], *args: Any, advice: str = "") -> Any:
    """Return the shapes of a function's result; raises BadInput, which names it, if it fails."""
    try:
        return jax.eval_shape(function, *args)
    except Exception as error:  # whatever the function raises
        raise BadInput(f"{name}: failed with {failure(error)}{advice}") from None


def shapes_of(init: Callable[[jax.Array], PyTree], ties: tying.TiesLike) -> Shapes:
    """Return the shapes of the parameters and the ties between them; raises BadInput."""
    params = _called("init", init, KEY)
    leaves = leaves_by_path(params)[0]
    if others := [path for path, leaf in leaves.items() if leaf is not None and not is_array(leaf)]:
        raise BadInput(
            f"init: expected arrays only, but {others[0]} is {leaves[others[0]]!r:.60}; leave it out (nnx.split, eqx.filter)"
        )
    for path, leaf in leaves.items():
        if leaf is not None and not jnp.issubdtype(leaf.dtype, jnp.inexact):
            raise BadInput(
                f"init: expected floating-point arrays, but {path} is {leaf.dtype}; leave out what is not trained, such as "
                "states of random keys and counts (nnx.state(model, nnx.Param), eqx.is_inexact_array)"
            )
    if not leaves:
        raise BadInput("init: returned no parameters")
    try:
        resolved = tying.resolve_full(ties, params)
    except tying.TieError as error:
        raise BadInput(f"ties: {str(error).removeprefix('ties: ')}") from None
    if not resolved:
        raise BadInput("ties: expected at least one")
    for tie in resolved:
        if any(isinstance(part, tying.Functions) for part in parts(tie.transform)):
            raise BadInput(
                f"ties: {tie} has a pair of functions, which checkpoints cannot store; expected transpose, Reshape, Slice, "
                "Scale or Cast, or several of them"
            )
    return Shapes(params, resolved)


def checked_number(name: str, value: Any, kind: type) -> Any:
    """Return a number of Python, also for one of numpy; raises BadInput unless it is of this kind, int or float."""
    plain = value.item() if isinstance(value, np.generic) else value
    if isinstance(plain, bool) or not isinstance(plain, int if kind is int else int | float):
        raise BadInput(f"{name}: expected {'an integer' if kind is int else 'a number'}, got {value!r:.60}")
    return plain


def checked_numbers(name: str, values: Any) -> list[float]:
    """Return a list of floats; raises BadInput unless it is a sequence of numbers."""
    if isinstance(values, str) or not isinstance(values, Sequence | np.ndarray):
        raise BadInput(f"{name}: expected a list of numbers, got {values!r:.60}")
    return [float(checked_number(name, value, float)) for value in values]


def check_values(name: str, max_norm: Any, gate: Any) -> None:
    """Raise BadInput unless the name is a line of text, the norm, if limited, by a number > 0, and the gate, if any, finite."""
    if not (isinstance(name, str) and name.strip() and name.isprintable()):
        raise BadInput(f"name: expected a line of text, got {name!r:.60}")
    if max_norm is not None and not (isinstance(max_norm, int | float) and 0 < max_norm < float("inf")):
        raise BadInput(f"max_norm: expected a finite number > 0, or None, got {max_norm!r:.60}")
    if gate is not None and not (isinstance(gate, int | float) and math.isfinite(gate)):
        raise BadInput(f"gate: expected a loss that models must end below, or None, got {gate!r:.60}")


def own_claims(own: Callable[..., Any] | None, arms: Sequence[Arm], seeds: int = 16) -> Sequence[Claim]:
    """Return claims of one's own, made from random losses; raises BadInput if they cannot be made."""
    if own is None:
        return []
    rng = np.random.default_rng(0)
    losses = {arm.name: rng.uniform(1, 2, seeds) for arm in arms}
    try:
        found = own(losses)
    except Exception as error:  # whatever the function raises
        raise BadInput(f"claims: failed with {failure(error)}") from None
    if not isinstance(found, list | tuple) or any(not isinstance(claim, Claim) for claim in found):
        raise BadInput(f"claims: expected a list of tiejax.statistics.claims.Claim, got {found!r:.60}")
    for claim in found:
        if len(claim.differences) > seeds:
            raise BadInput(
                f"claims: {claim.id}: expected one difference per seed, got {len(claim.differences)} of {seeds} seeds; average "
                "what a seed has several of"
            )
    main = claims.claims(losses, arms, None, "", None).get(claims.MAIN, [])
    if repeated := repeated_id([*main, *found]):
        raise BadInput(f"claims: two have the id {repeated}, counting those that every comparison tests; give others")
    return found


def check_losses(loss: Callable[..., Any], evaluate: Callable[[PyTree, PyTree], Any], data: Data, shapes: Shapes) -> None:
    """Raise BadInput unless the losses are scalars that can be differentiated."""
    batch = data.shapes
    found = _called("loss", loss, shapes.params, batch, KEY)
    value, metrics = found if isinstance(found, tuple) and len(found) == 2 else (found, {})
    if not isinstance(metrics, Mapping):
        raise BadInput(
            f"loss: expected a number, or a pair of a number and a dictionary, got a pair with a {type(metrics).__name__}"
        )
    _check_scalar("loss", value)
    _called("loss", jax.grad(with_metrics(loss), has_aux=True), shapes.params, batch, KEY)
    advice = "; held-out examples are evaluated with key None: leave dropout out then, or give evaluate=(params, batch) -> loss"
    for size in {min(data.batch_size, length_of(data.held_out)), length_of(data.held_out) % data.batch_size} - {0}:
        part = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((size, *leaf.shape[1:]), leaf.dtype), data.held_out)  # noqa: B023
        _check_scalar("evaluate", _called("evaluate", evaluate, shapes.params, part, advice=advice))


def is_differentiable(loss: Callable[[PyTree, PyTree], Any], data: Data, shapes: Shapes) -> bool:
    """Return whether a loss without a key can be differentiated."""
    try:
        jax.eval_shape(jax.grad(loss), shapes.params, data.shapes)
    except Exception:  # of any kind, from a function of the user
        return False
    return True


def _check_scalar(name: str, value: Any) -> None:
    shape = getattr(value, "shape", None)
    if shape != () or not jnp.issubdtype(value.dtype, jnp.floating):
        what = f"{value.dtype} of shape {shape}" if shape is not None else type(value).__name__
        raise BadInput(f"{name}: expected the mean loss, a floating-point scalar, got {what}")


def check_schedule(schedule: Callable[..., Any]) -> None:
    """Raise BadInput unless the schedule returns a factor for a traced step of a known number of steps."""
    step = jax.ShapeDtypeStruct((), jnp.int32)
    factor = _called("schedule", lambda step: jnp.asarray(schedule(step, 100), jnp.float32), step)
    if factor.shape != ():
        raise BadInput(f"schedule: expected a factor, got an array of shape {factor.shape}")


def check_optimizer(optimizer: Callable[..., Any], table_factors: Any, shapes: Shapes) -> PyTree:
    """Return the shapes of the optimizer's state.

    Raises BadInput unless the optimizer is a function of one or two learning rates that updates these parameters.
    """
    number = number_of_rates(optimizer) if callable(optimizer) else 0
    if number not in (1, 2):
        raise BadInput("optimizer: expected a function of the learning rate, or of that and the tables', such as optax.adamw")
    if number == 1 and table_factors not in (None, [1], [1.0]):
        raise BadInput("table_factors: needs an optimizer of two learning rates, (rate, table_rate)")
    own = with_own_rates(optimizer, number, lambda step: 1.0)
    advice = "; learning rates are traced, so that one program trains several: no Python branch may depend on them"
    _check_rates(optimizer, number, shapes)
    state = _called("optimizer", own.init, shapes.params, advice=advice)
    updates, _ = _called("optimizer", own.update, shapes.params, state, shapes.params, advice=advice)
    if list(leaves_by_path(updates)[0]) != list(leaves_by_path(shapes.params)[0]):
        raise BadInput("optimizer: its updates have another structure than the parameters")
    try:
        tying.check_leafwise(own, shapes.params, shapes.ties)
    except tying.TieError as error:
        message = str(error).replace("max_norm of Ensemble and make_step", "max_norm of Comparison")
        raise BadInput(f"optimizer: {message}") from None
    return state


def _check_rates(optimizer: Callable[..., Any], number: int, shapes: Shapes) -> None:
    """Raise BadInput unless the optimizer's updates depend on each of its learning rates."""
    rates = [jax.ShapeDtypeStruct((), jnp.float32)] * number

    def update(*args: Any) -> Any:
        rates, (state, params) = args[:number], args[number:]
        return optimizer(*rates).update(params, state, params)[0]

    try:
        state = jax.eval_shape(lambda params: optimizer(*([1.0] * number)).init(params), shapes.params)
        used = arguments_used(update, *rates, state, shapes.params)
    except Exception:  # whatever the optimizer raises, which the caller reports
        return
    if unused := [name for place, name in enumerate(("the learning rate", "the table rate")[:number]) if place not in used]:
        raise BadInput(
            f"optimizer: its updates do not depend on {unused[0]} that it is given; expected, for example, "
            "lambda rate: optax.adamw(rate), and not optax.inject_hyperparams, which keeps the first rate in its state"
        )


def check_changes(arms: Sequence[Arm], optimizer: Callable[..., Any], shapes: Shapes) -> None:
    """Raise BadInput unless the optimizer's state can be continued as every arm that changes asks."""
    own = with_own_rates(optimizer, number_of_rates(optimizer), lambda step: 1.0)
    state = jax.eval_shape(own.init, shapes.params)
    for arm in arms:
        if arm.fork is None:
            continue

        def change(params: PyTree, state: PyTree, arm: Arm = arm) -> PyTree:
            if arm.tied:
                return tying.retie_switched(own, params, state, shapes.ties, "mean")
            policy, new = arm.change.policy, arm.change.new
            uses = own.init(tying.only_tied(params, shapes.ties)) if policy == "split" else None
            return tying.untie_switched(own, params, state, shapes.ties, policy, new, uses)

        try:
            jax.eval_shape(change, shapes.params, state)
        except tying.TieError as error:
            raise BadInput(f"arms: {arm.name}: {error}") from None
        except Exception as error:  # whatever the optimizer raises
            raise BadInput(f"arms: {arm.name}: the change of the optimizer's state failed with {failure(error)}") from None


def check_recorders(recorders: Mapping[str, Callable[..., Any]], data: Data, shapes: Shapes) -> None:
    """Raise BadInput unless every recorder returns a dictionary of arrays, all of them with names of their own."""
    names: dict[str, str] = {}
    for name, function in recorders.items():
        found = _called(f"recorders: {name}", function, shapes.params, data.shapes)
        if not isinstance(found, Mapping):
            raise BadInput(f"recorders: {name}: expected a dictionary of numbers, got {type(found).__name__}")
        for field in found:
            if (stored := f"{name}_{field}") in names:
                other = names[stored]
                raise BadInput(f"recorders: {name}: {field} would be stored as {stored}, as a field of {other} is; rename it")
            names[stored] = name


def check_sections(sections: Sequence[Any]) -> None:
    """Raise BadInput unless all sections of a report are functions."""
    if not isinstance(sections, Sequence) or not all(map(callable, sections)):
        raise BadInput(f"sections: expected a list of functions of the results, got {sections!r:.80}")


def check_size(params: PyTree, opt_state: PyTree, members: int) -> None:
    """Raise BadInput if the models that train at a time do not fit into memory with their optimizer state and gradients."""
    each = 2 * tree_bytes(params) + tree_bytes(opt_state)
    memory = _memory()
    here = members if jax.default_backend() == "cpu" else -(-members // jax.device_count())
    if memory is not None and here * each > memory:
        raise BadInput(
            f"init: a model needs {size_words(each)} with its gradients and optimizer state, and {here} train at a time; "
            f"{'this machine' if jax.default_backend() == 'cpu' else 'a device'} has {size_words(memory)}"
        )


def check_mesh(devices: int, batch_size: int, ties: tying.Ties) -> None:
    """Raise BadInput unless a number of devices can train a model together."""
    if jax.device_count() % devices:
        raise BadInput(f"--mesh: expected a divisor of the number of devices, {jax.device_count()}, got {devices}")
    if batch_size % devices:
        raise BadInput(f"--mesh: {devices} devices cannot share a batch of {batch_size} examples evenly")
    if devices > 1 and (moving := [tie for tie in ties if not tying.keeps_places(tie.transform)]):
        raise BadInput(f"--mesh: {moving[0]} moves entries, which needs one device per model")


def check_mean(
    devices: int, init: Callable[[jax.Array], PyTree], evaluate: Callable[[PyTree, PyTree], Any], data: Data
) -> None:
    """Raise BadInput if the loss of a batch is not the mean over the parts that several devices have, at first parameters."""
    if devices == 1:
        return
    params, batch, loss = init(jax.random.key(0)), data.batch(), jax.jit(evaluate)
    whole = loss(params, batch)
    parts = jax.lax.map(lambda part: loss(params, part), jax.tree.map(lambda leaf: np.stack(np.split(leaf, devices)), batch))
    if not np.isclose(whole, mean := parts.mean(), rtol=1e-4 if whole.dtype == jnp.float32 else 1e-2, equal_nan=True):
        raise BadInput(
            f"--mesh: the loss of the first batch is {whole:.6g}, but the mean over its {devices} parts {mean:.6g}; with "
            "several devices per model it must be a mean over the examples, with weights that depend on each example alone"
        )


def _memory() -> int | None:
    """Return the bytes of memory of this machine, or of an accelerator; None if unknown."""
    if jax.default_backend() == "cpu":
        return machine_memory()
    stats = jax.local_devices()[0].memory_stats() or {}
    return stats.get("bytes_limit")
