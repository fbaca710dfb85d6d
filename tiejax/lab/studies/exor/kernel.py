r"""Pallas kernel that trains the members of EXor on an accelerator for hundreds of steps per launch.

A step of EXor is so little arithmetic that an accelerator spends its time on launching kernels, thirty or more per step. Here
one Pallas kernel is launched for hundreds of steps. Its grid runs over the members; a program holds the parameters and moments
of one member, reads one batch per step, and updates them: gradient by `jax.vjp` of the loss below, the tie's sum of gradients,
AdamW. Between calls the members are the ensemble's usual states, so that records, checkpoints and resumption are unaffected.

Its results equal those of the fast engine (`models.multiset`) up to rounding. It supports transformers of one layer, the
published small size; `why_not` lists its other restrictions. Weight matrices keep their stored layout, `[in, out]`; activations
have features first and visits last. A visit is one word: 4 bits for the count of each symbol and 3 for the target.

Two compilers constrain the code: Triton supports only arrays of 2^n numbers, and has no erf, slices or products of small
matrices; Mosaic for TPUs needs scalars in a separate memory. Only `_call` depends on the compiler.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu, triton

from tiejax.lab.studies.exor.multisets import MultisetSampler
from tiejax.models.initializers import LAYER_NORM_EPSILON
from tiejax.models.language_model import LanguageModel
from tiejax.models.transformer import ACTIVATIONS
from tiejax.training import SeedKey
from tiejax.training.choices import OptimizerName
from tiejax.training.optimizer import BETAS
from tiejax.training.step import TrainState

PyTree = Any
Weights = dict[str, jax.Array]
Compiler = Literal["cuda", "tpu", "interpret"]

SYMBOLS = 8  # seven symbols, and "no symbol": the target of a word that pads a batch
COUNT_BITS = 4
LANES = 128
MOST_VISITS = 1024
WARPS = 4  # one thread per visit of a batch of 7-bit strings


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Optimizer settings, as in `training.make_optimizer` and `training.make_step`."""

    kind: OptimizerName
    schedule: optax.Schedule
    weight_decay: float
    eps: float
    max_norm: float | None


def why_not(model: LanguageModel, sampler: MultisetSampler) -> str | None:
    """Return the reason why the kernel cannot train this transformer on these batches, or None if it can."""
    encoder, task = model.encoder, sampler.tasks[0]
    if encoder.layers != 1:
        return f"it supports one layer, not {encoder.layers}"
    sizes = {"width": encoder.width, "heads": encoder.heads, "feed_forward": encoder.feed_forward}
    for name, size in sizes.items():
        if size & (size - 1):
            return f"its {name} must be a power of 2, not {size}"
    if max(sizes.values()) > 16:
        return "it keeps a member in registers and supports widths up to 16"
    if task.vocabulary >= SYMBOLS:
        return f"it supports up to {SYMBOLS - 1} symbols, not {task.vocabulary}"
    if task.bits >= 2**COUNT_BITS:
        return f"it supports up to {2**COUNT_BITS - 1} bits, not {task.bits}"
    if visits_per_batch(sampler) > MOST_VISITS:
        return f"it supports up to {MOST_VISITS:,} visits a step, not {visits_per_batch(sampler):,}; use a smaller --batch_size"
    return None if sampler.tabled else f"strings of {task.bits} bits with these spellings have too many outcomes for its tables"


def visits_per_batch(sampler: MultisetSampler) -> int:
    """Return the number of visits in a batch."""
    return sampler.batch_size or len(sampler.rows)


@dataclasses.dataclass(frozen=True)
class Kernel:
    """Trainer of members `[seed, arm]` of a one-layer transformer, one program per member.

    draw: (seed_key, step) -> the outcomes of a batch, as returned by `sampler.outcomes`.
    on: `[arms]`, whether the two tables of an arm are tied. steps_at_once: maximum steps per launch.
    compiler: `cuda` (Triton), `tpu` (Mosaic), or `interpret`, which runs the kernel's operations one by one.
    """

    model: LanguageModel
    sampler: MultisetSampler
    draw: Callable[[SeedKey, jax.Array], jax.Array]
    recipe: Recipe
    on: Sequence[bool]
    steps_at_once: int
    compiler: Compiler

    def train(self, keys: SeedKey, state: TrainState, first: jax.Array, stop: jax.Array) -> TrainState:
        """Train all members for steps `first` to `stop` - 1."""

        def some(carry: tuple[TrainState, jax.Array]) -> tuple[TrainState, jax.Array]:
            state, cursor = carry
            number = jnp.minimum(stop - cursor, self.steps_at_once)
            return self._train_some(keys, state, cursor, number), cursor + number

        return jax.lax.while_loop(lambda carry: carry[1] < stop, some, (state, first))[0]

    def _train_some(self, keys: SeedKey, state: TrainState, first: jax.Array, number: jax.Array) -> TrainState:
        adam = next(part for part in jax.tree.leaves(state.opt_state, is_leaf=_is_adam) if _is_adam(part))
        steps = first + jnp.arange(self.steps_at_once, dtype=jnp.int32)
        words = jax.vmap(lambda key: jax.vmap(lambda step: self._words(self.draw(key, step)))(steps))(keys)
        # Steps so far, the same for all members.
        counts = adam.count.ravel()[0] + jnp.arange(self.steps_at_once, dtype=jnp.int32)
        rates = jnp.broadcast_to(self.recipe.schedule(counts), counts.shape)
        table = jnp.stack([rates, *(1 - beta ** (counts + 1) for beta in BETAS)], axis=1)
        trees = [state.params, adam.mu, adam.nu]
        parts = [to_parts(tree) for tree in trees]
        trained = self._call(number, table.astype(jnp.float32), words, parts)
        params, mu, nu = (from_parts(part, tree) for part, tree in zip(trained, trees, strict=True))

        def advanced(part: Any) -> Any:
            if _is_adam(part):
                return part._replace(count=part.count + number, mu=mu, nu=nu)
            return part._replace(count=part.count + number) if isinstance(part, optax.ScaleByScheduleState) else part

        stateful = (optax.ScaleByAdamState, optax.ScaleByScheduleState)
        opt_state = jax.tree.map(advanced, state.opt_state, is_leaf=lambda part: isinstance(part, stateful))
        return TrainState(params, opt_state, state.use_states)

    def _words(self, outcomes: jax.Array) -> jax.Array:
        """Encode a batch as words `[visits]`, padded with words that are not visits."""
        context, target = self.sampler.context_and_target(outcomes)
        counts = self.sampler.context_counts.astype(np.int32)  # [vocabulary, contexts]
        shifts = COUNT_BITS * np.arange(len(counts))
        packed = jnp.asarray((counts << shifts[:, None]).sum(0, dtype=np.int32))[context]
        words = packed | target << COUNT_BITS * (SYMBOLS - 1)
        mask = self.sampler.tasks[0].mask
        none = 1 << COUNT_BITS * mask | (SYMBOLS - 1) << COUNT_BITS * (SYMBOLS - 1)
        return jnp.pad(words, (0, _padded(len(words)) - len(words)), constant_values=none)

    def _call(self, number: jax.Array, table: jax.Array, words: jax.Array, parts: list[Weights]) -> list[Weights]:
        """Launch the kernel. parts: parameters and moments, leaves `[seed, arm, rows, columns]`."""
        seeds, arms = parts[0]["embed"].shape[:2]
        flat, treedef = jax.tree.flatten(parts)
        flat = [leaf.reshape(seeds * arms, *leaf.shape[2:]) for leaf in flat]
        on = jnp.tile(jnp.asarray(self.on, jnp.int32), seeds)
        numbers = tpu.SMEM if self.compiler == "tpu" else None

        def whole(array: jax.Array) -> pl.BlockSpec:
            return pl.BlockSpec(array.shape, lambda member: (0,) * array.ndim, memory_space=numbers)

        def per_member(array: jax.Array) -> pl.BlockSpec:
            return pl.BlockSpec((None, *array.shape[1:]), lambda member: (member, 0, 0))

        scalars = [number[None], on, table]
        batches = pl.BlockSpec((None, *words.shape[1:]), lambda member: (member // arms, 0, 0))
        weights = [per_member(leaf) for leaf in flat]
        trained = pl.pallas_call(
            functools.partial(self._program, treedef),
            grid=(seeds * arms,),
            in_specs=[*map(whole, scalars), batches, *weights],
            out_specs=weights,
            out_shape=[jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in flat],
            # Mosaic for GPUs, the default there, does not support sums along an axis yet.
            compiler_params=triton.CompilerParams(num_warps=WARPS) if self.compiler == "cuda" else None,
            interpret=self.compiler == "interpret",
            name="exor_steps",
        )(*scalars, words, *flat)
        return jax.tree.unflatten(treedef, [leaf.reshape(seeds, arms, *leaf.shape[1:]) for leaf in trained])

    def _program(self, treedef: Any, number: Any, on: Any, table: Any, words: Any, *refs: Any) -> None:
        """Train the member of one program. refs: its parameters and moments, as inputs and then as outputs."""
        inputs, outputs = refs[: len(refs) // 2], refs[len(refs) // 2 :]
        is_on = on[pl.program_id(0)] > 0
        # A loaded value, since Triton does not accept a constant here.
        one = (number[0] > 0).astype(jnp.float32)

        def step(place: jax.Array, flat: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            params, mu, nu = jax.tree.unflatten(treedef, flat)
            batch = words[pl.ds(place, 1), :]  # [1, visits]
            _, backward = jax.vjp(lambda params: self._loss(params, batch), params)
            (grads,) = backward(one)
            rates = [table[place, column] for column in range(3)]
            return tuple(jax.tree.leaves(self._update(params, mu, nu, grads, is_on, *rates)))

        start = tuple(ref[...] for ref in inputs)
        for ref, value in zip(outputs, jax.lax.fori_loop(0, number[0], step, start), strict=True):
            ref[...] = value

    def _loss(self, weights: Weights, words: jax.Array) -> jax.Array:
        """Return the mean cross-entropy (nats) of a batch: the equations of `models.multiset` for one layer and one query."""
        task, heads = self.sampler.tasks[0], self.model.encoder.heads
        symbol = jax.lax.broadcasted_iota(jnp.int32, (SYMBOLS, 1), 0)
        fields = (words >> (COUNT_BITS * symbol)) & (2**COUNT_BITS - 1)  # [symbols, visits]
        bias = jnp.where((symbol < SYMBOLS - 1) & (fields > 0), jnp.log(jnp.maximum(fields, 1).astype(jnp.float32)), -1e30)
        target = words >> (COUNT_BITS * (SYMBOLS - 1))  # [1, visits]
        asked = ((target == symbol) & (symbol < SYMBOLS - 1)).astype(jnp.float32) / self._visits

        x = weights["embed"]  # [width, symbols]
        is_mask = jax.lax.broadcasted_iota(jnp.int32, (1, SYMBOLS), 1) == task.mask
        asking = jnp.sum(jnp.where(is_mask, x, 0.0), axis=1, keepdims=True)
        query, key, value = (
            _by_head(product(weights[f"{name}_kernel"], states) + weights[f"{name}_bias"], heads)
            for name, states in (("query", asking), ("key", x), ("value", x))
        )
        scores = jnp.sum(query * key, axis=1) / math.sqrt(key.shape[1])  # [heads, symbols]
        scores = scores[:, :, None] + bias[None]
        share = jnp.exp(scores - jax.lax.stop_gradient(jnp.max(scores, axis=1, keepdims=True)))
        attended = jnp.sum(value[..., None] * share[:, None], axis=2) / jnp.sum(share, axis=1)[:, None]
        attended = attended.reshape(-1, words.shape[1])
        x = norm(weights, "attention_norm", asking + dense(weights, "out", attended))
        hidden = ACTIVATION[self.model.encoder.activation](dense(weights, "feed_forward_in", x))
        x = norm(weights, "feed_forward_norm", x + dense(weights, "feed_forward_out", hidden))

        vocabulary = task.vocabulary
        logits = jnp.where(symbol < vocabulary, product(weights["head"], x), -1e30)
        highest = jax.lax.stop_gradient(jnp.max(logits, axis=0, keepdims=True))
        log_total = jnp.log(jnp.sum(jnp.exp(logits - highest), axis=0, keepdims=True)) + highest
        return jnp.sum(jnp.where(asked > 0, asked * (log_total - logits), 0.0))

    def _update(
        self, params: Weights, mu: Weights, nu: Weights, grads: Weights, on: jax.Array, rate: jax.Array, *corrections: jax.Array
    ) -> tuple[Weights, Weights, Weights]:
        """Return parameters and moments after one update. grads: gradients of the loss with untied tables."""
        recipe, (b1, b2) = self.recipe, BETAS
        both = grads["embed"] + grads["head"]
        grads = grads | {name: jnp.where(on, both, grads[name]) for name in ("embed", "head")}
        if recipe.max_norm is not None:
            squares = {name: jnp.sum(jnp.square(grad)) for name, grad in grads.items()}
            squares["head"] = jnp.where(on, 0.0, squares["head"])
            length = jnp.sqrt(functools.reduce(jnp.add, squares.values()))
            scale = jnp.where(length > recipe.max_norm, recipe.max_norm / length, 1.0)
            grads = {name: grad * scale for name, grad in grads.items()}
        results: tuple[Weights, Weights, Weights] = ({}, {}, {})
        for name, value in params.items():
            grad = grads[name] + recipe.weight_decay * value if recipe.kind == "adam" else grads[name]
            m = (1 - b1) * grad + b1 * mu[name]
            v = (1 - b2) * jnp.square(grad) + b2 * nu[name]
            change = m / corrections[0] / (jnp.sqrt(v / corrections[1]) + recipe.eps)
            if recipe.kind == "adamw":
                change = change + recipe.weight_decay * value
            for result, new in zip(results, (value - rate * change, m, v), strict=True):
                result[name] = new
        for result in results:  # bitwise equal, however the two updates were compiled
            result["head"] = jnp.where(on, result["embed"], result["head"])
        return results

    @property
    def _visits(self) -> int:
        """The number of visits in a batch."""
        return visits_per_batch(self.sampler)


# The arithmetic of a program.


def product(kernel: jax.Array, x: jax.Array) -> jax.Array:
    """Return W^T x for W `[in, out]` and x `[in, columns]`, as a sum of products, since it is too small for matrix units."""
    return jnp.sum(kernel[:, :, None] * x[:, None, :], axis=0)


def dense(weights: Weights, name: str, x: jax.Array) -> jax.Array:
    """Return W^T x + b."""
    return product(weights[f"{name}_kernel"], x) + weights[f"{name}_bias"]


def norm(weights: Weights, name: str, x: jax.Array) -> jax.Array:
    """Return the layer norm of every column."""
    centred = x - jnp.mean(x, axis=0, keepdims=True)
    scale = jax.lax.rsqrt(jnp.mean(jnp.square(centred), axis=0, keepdims=True) + LAYER_NORM_EPSILON)
    return centred * scale * weights[f"{name}_scale"] + weights[f"{name}_bias"]


@jax.custom_jvp
def erf(x: jax.Array) -> jax.Array:
    """Return erf(x) up to float32 rounding, as x P(x^2) / Q(x^2): the rational function used by Eigen and XLA."""
    x = jnp.clip(x, -3.832506856900711, 3.832506856900711)
    square = x * x
    return x * _polynomial(square, ERF_P) / _polynomial(square, ERF_Q)


@erf.defjvp
def _erf_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    """d erf(x) = 2 / sqrt(pi) exp(-x^2) dx."""
    (x,), (dx,) = primals, tangents
    return erf(x), 2 / math.sqrt(math.pi) * jnp.exp(-x * x) * dx


ERF_P = (0.00022905065861350646, 0.0034082910107109506, 0.050955695062380861, 0.18520832239976145, 1.128379143519084)
ERF_Q = (-1.1791602954361697e-7, 0.000023547966471313185, 0.0010179625278914885, 0.014070470171167667, 0.11098505178285362,
         0.49746925110067538, 1.0)  # fmt: skip


def _polynomial(x: jax.Array, coefficients: Sequence[float]) -> jax.Array:
    total = jnp.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        total = total * x + coefficient
    return total


ACTIVATION = dict(ACTIVATIONS) | {"gelu": lambda x: 0.5 * x * (1 + erf(x * math.sqrt(0.5)))}


def _by_head(x: jax.Array, heads: int) -> jax.Array:
    return x.reshape(heads, -1, x.shape[1])


# Layout of a member's parameters or moments in a program.

LAYER_PARTS = ("attention_norm", "out", "feed_forward_in", "feed_forward_norm", "feed_forward_out")


def to_parts(tree: PyTree) -> Weights:
    """Return the leaves `[seed, arm, ...]` of a model's tree as `[seed, arm, rows, columns]`, with `qkv` split in three."""
    layer = jax.tree.map(lambda leaf: leaf[:, :, 0], tree["encoder"]["layers"])
    matrices = {f"{name}_{part}": leaf for name in LAYER_PARTS for part, leaf in layer[name].items()}
    for part, leaf in layer["qkv"].items():
        matrices |= {
            f"{name}_{part}": of for name, of in zip(("query", "key", "value"), jnp.split(leaf, 3, axis=-1), strict=True)
        }
    columns = {name: leaf if name.endswith("kernel") else leaf[..., None] for name, leaf in matrices.items()}
    padding = SYMBOLS - tree["embed"]["embedding"].shape[2]
    tables = {name: jnp.swapaxes(tree[name]["embedding"], 2, 3) for name in ("embed", "head")}
    return columns | {name: jnp.pad(table, ((0, 0), (0, 0), (0, 0), (0, padding))) for name, table in tables.items()}


def from_parts(parts: Weights, like: PyTree) -> PyTree:
    """Invert `to_parts`: return the tree of parts, with the structure of `like`."""
    vocabulary = like["embed"]["embedding"].shape[2]
    tables = {name: {"embedding": jnp.swapaxes(parts[name], 2, 3)[:, :, :vocabulary]} for name in ("embed", "head")}

    def leaf(name: str, part: str) -> jax.Array:
        value = parts[f"{name}_{part}"]
        return value if part == "kernel" else value[..., 0]

    layer = {name: {part: leaf(name, part) for part in like["encoder"]["layers"][name]} for name in LAYER_PARTS}
    layer["qkv"] = {
        part: jnp.concatenate([leaf(name, part) for name in ("query", "key", "value")], axis=-1) for part in ("kernel", "bias")
    }
    return {**tables, "encoder": {"layers": jax.tree.map(lambda leaf: leaf[:, :, None], layer)}}


def _is_adam(part: Any) -> bool:
    return isinstance(part, optax.ScaleByAdamState)


def _padded(visits: int) -> int:
    """Return the smallest power of two >= `visits` that fills at least one row of a TPU's registers."""
    return max(LANES, 1 << (visits - 1).bit_length())
