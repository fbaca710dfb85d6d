"""Training a stack of layers whose ties change: compact or full storage, one executable for each stack_size of the stack.

The stack is the subtree `encoder/layers` of the parameters, every leaf `[stack_size, ...]`; a layer reads its place in it. Only the
places that exist have weights, gradients and moments, so compact storage of 8 distinct layers is 8 layers large; on the host
(checkpoints, the best step's parameters) every layer has a place.
"""

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from tiejax import tying

PyTree = Any
Moments = Literal["copy", "zero"]
# (stored parameters' full tree, batch, dropout key or None, places, sends) -> mean loss
LayeredLoss = Callable[[PyTree, Any, Any, Any, Any], jax.Array]
STACK = ("encoder", "layers")


class LayeredState(NamedTuple):
    """Parameters, tied ones stored once, and Adam's state: of the stack, with a step count a place, and of the rest."""

    params: PyTree
    of_stack: PyTree
    of_rest: PyTree


def stack_of(params: PyTree) -> PyTree:
    """Return the stack in a parameter tree."""
    for name in STACK:
        params = params[name]
    return params


def with_stack(params: PyTree, stack: PyTree) -> PyTree:
    """Return a parameter tree with another stack."""
    outer, inner = STACK
    return {**params, outer: {**params[outer], inner: stack}}


def stack_size_of(params: PyTree) -> int:
    """Return the number of places in the stack of a parameter tree."""
    return int(jax.tree.leaves(stack_of(params))[0].shape[0])


def _taken(state: LayeredState, source: Any) -> LayeredState:
    stack, of_stack = jax.tree.map(lambda leaf: leaf[source], (stack_of(state.params), state.of_stack))
    return LayeredState(with_stack(state.params, stack), of_stack, state.of_rest)


def moved(stack: PyTree, of_stack: PyTree, source: jax.Array, separated: jax.Array, moments: Moments) -> tuple[PyTree, PyTree]:
    """Return a stack and its optimizer state whose place p is what stood at `source[p]`.

    moments: what a layer that separates from another remembers: its owner's (`copy`), or nothing, its bias correction starting
    anew (`zero`).
    """

    stack, of_stack = jax.tree.map(lambda leaf: leaf[source], (stack, of_stack))
    if moments == "copy":
        return stack, of_stack

    def cleared(leaf: jax.Array) -> jax.Array:
        return jnp.where(separated.reshape(-1, *(1,) * (leaf.ndim - 1)), jnp.zeros_like(leaf), leaf)

    return stack, jax.tree.map(cleared, of_stack)


def _bytes(tree: PyTree) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))


def _shapes(batch: Any) -> tuple[Any, ...]:
    return tuple(leaf.shape for leaf in jax.tree.leaves(batch))


@dataclasses.dataclass(frozen=True)
class LayeredAdamW:
    """AdamW with clipping by the global norm, the stack's places each with a step count of their own.

    p -= rate (m / (sqrt(v) + eps) + weight_decay p), m and v bias-corrected. max_norm: of the gradient, tied arrays once.
    """

    rate: float
    weight_decay: float
    max_norm: float
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    @property
    def _adam(self) -> optax.GradientTransformation:
        return optax.scale_by_adam(*self.betas, self.eps)

    def init(self, params: PyTree) -> LayeredState:
        """Return the state before the first step of parameters with ties `store`d once."""
        return LayeredState(params, jax.vmap(self._adam.init)(stack_of(params)), self._adam.init(with_stack(params, None)))

    def update(self, grads: PyTree, state: LayeredState, trained: jax.Array) -> LayeredState:
        """Return the state after one step. trained: how often the update is applied to each place; 0 leaves it untouched."""
        grads, _ = optax.clip_by_global_norm(self.max_norm).update(grads, optax.EmptyState())
        rest, of_rest = self._adam.update(with_stack(grads, None), state.of_rest)
        stack, of_stack = jax.vmap(self._adam.update)(stack_of(grads), state.of_stack)

        def step(param: jax.Array, update: jax.Array) -> jax.Array:
            return param - self.rate * (update + self.weight_decay * param)

        def chosen(new: jax.Array, old: jax.Array) -> jax.Array:
            return jnp.where((trained > 0).reshape(-1, *(1,) * (new.ndim - 1)), new, old)

        def place(param: jax.Array, update: jax.Array) -> jax.Array:
            times = trained.astype(param.dtype).reshape(-1, *(1,) * (param.ndim - 1))
            return param - times * self.rate * (update + self.weight_decay * param)

        params = jax.tree.map(step, with_stack(state.params, None), rest)
        params = with_stack(params, jax.tree.map(place, stack_of(state.params), stack))
        return LayeredState(params, jax.tree.map(chosen, of_stack, state.of_stack), of_rest)


class Size(NamedTuple):
    """What training with so many places in the stack takes, in bytes; gradients are as large as what they are gradients of.

    peak_bytes: arguments, results and temporaries of a step as compiled. move_bytes: the state before and after a change of
    ties, from or to this stack_size, that takes the most.
    """

    parameters: int
    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    peak_bytes: int
    move_bytes: int


class Layered:
    """Steps, evaluations and moves of a stack on one device, compiled at the first visit of a stack_size and never again.

    init: root key and the layers that own weights -> parameters, whose stack holds these in this order. loss: as
    `LayeredLoss`, given the full tree, in which tied leaves are in their places. moments: as in `moved`.
    sizes, compilations, compile_s: bytes by stack_size; how much was compiled so far, and the seconds that it took.
    """

    def __init__(
        self,
        init: Callable[[jax.Array, jax.Array], PyTree],
        loss: LayeredLoss,
        optimizer: LayeredAdamW,
        ties: Sequence[tying.Tie],
        moments: Moments,
        storage: tying.Storage,
        device: jax.Device,
    ) -> None:
        self._ties, self._storage, self._device = tuple(ties), storage, device
        self._steps: dict[int, Any] = {}
        self._losses: dict[Any, Any] = {}
        self._moves: dict[tuple[int, int], Any] = {}
        self.sizes: dict[int, Size] = {}
        self.compilations, self.compile_s = 0, 0.0

        def start(key: jax.Array, own: jax.Array) -> LayeredState:
            return optimizer.init(tying.store(init(key, own), self._ties))

        def mean(stored: PyTree, batch: Any, key: Any, wiring: tying.Wiring) -> jax.Array:
            return loss(tying.view(stored, self._ties), batch, key, wiring.reads, wiring.sends)

        def step(state: LayeredState, batch: Any, key: Any, wiring: tying.Wiring) -> tuple[LayeredState, jax.Array]:
            value, grads = jax.value_and_grad(mean)(state.params, batch, key, wiring)
            return optimizer.update(grads, state, jnp.asarray(wiring.trained)), value

        self._start = jax.jit(start)
        self._step = jax.jit(step, donate_argnums=0)
        self._loss = jax.jit(lambda stored, batch, wiring: mean(stored, batch, None, wiring))
        self._move = jax.jit(lambda stack, state, source, separated: moved(stack, state, source, separated, moments))

    def place(self, tree: PyTree) -> PyTree:
        """Return a tree of arrays on the device."""
        return jax.device_put(tree, self._device)

    def start(self, key: jax.Array, owner: tying.Owner) -> LayeredState:
        """Return the state before the first step; the layers that own weights start as they would in an untied stack."""
        own = np.arange(len(owner)) if self._storage == "full" else np.unique(owner)
        found: LayeredState = self._start(*self.place((key, own.astype(np.int32))))
        return found

    def step(self, state: LayeredState, batch: Any, key: jax.Array, wiring: tying.Wiring) -> tuple[LayeredState, jax.Array]:
        """Return the state after a step on a batch, and the batch's loss before it; the state that is given is used up."""
        self.visit(state, batch, key, wiring)
        found: tuple[LayeredState, jax.Array] = self._steps[stack_size_of(state.params)](
            state, *self.place((batch, key, wiring))
        )
        return found

    def loss(self, params: PyTree, batch: Any, wiring: tying.Wiring) -> jax.Array:
        """Return the loss of a batch, without dropout."""
        given = params, *self.place((batch, wiring))
        key = stack_size_of(params), _shapes(batch)
        if key not in self._losses:
            self._losses[key] = self._compile(self._loss, given)
        found: jax.Array = self._losses[key](*given)
        return found

    def move(self, state: LayeredState, move: tying.Move) -> LayeredState:
        """Return the state with its stack changed as `move` says."""
        stack_sizes = stack_size_of(state.params), len(move.source)
        given = stack_of(state.params), state.of_stack, *self.place(tuple(move))
        if stack_sizes not in self._moves:
            self._moves[stack_sizes] = self._compile(self._move, given)
        stack, of_stack = self._moves[stack_sizes](*given)
        return LayeredState(with_stack(state.params, stack), of_stack, state.of_rest)

    def to_host(self, state: LayeredState, owner: tying.Owner) -> LayeredState:
        """Return the state on the host with a place for every layer, whatever is tied; `to_device` is its inverse."""
        fetched = jax.device_get(state)
        return fetched if self._storage == "full" else _taken(fetched, tying.written_out(owner))

    def to_device(self, fetched: LayeredState, owner: tying.Owner) -> LayeredState:
        """Return a fetched state on the device, with the places of this owner vector alone."""
        return self.place(fetched if self._storage == "full" else _taken(fetched, np.unique(owner)))

    def params_to_host(self, params: PyTree, owner: tying.Owner) -> PyTree:
        """Return parameters alone as `to_host` does."""
        return self.to_host(LayeredState(params, None, None), owner).params

    def params_to_device(self, fetched: PyTree, owner: tying.Owner) -> PyTree:
        """Return parameters alone as `to_device` does."""
        return self.to_device(LayeredState(fetched, None, None), owner).params

    def visit(self, state: LayeredState, batch: Any, key: jax.Array, wiring: tying.Wiring) -> None:
        """Compile what a stack_size needs, moves from and to its neighbours among it, so that no later change of ties waits."""
        stack_size = stack_size_of(state.params)
        if stack_size in self._steps:
            return
        batch, key, wiring = self.place((batch, key, wiring))
        compiled = self._steps[stack_size] = self._compile(self._step, (state, batch, key, wiring))
        if (stack_size, _shapes(batch)) not in self._losses:
            self._losses[stack_size, _shapes(batch)] = self._compile(self._loss, (state.params, batch, wiring))
        near = (
            [stack_size]
            if self._storage == "full"
            else range(max(1, stack_size - 1), min(len(wiring.reads), stack_size + 1) + 1)
        )
        for stack_sizes in {(stack_size, other) for other in near} | {(other, stack_size) for other in near}:
            if stack_sizes not in self._moves:
                self._moves[stack_sizes] = self._compiled_move(state, *stack_sizes)
        memory = compiled.memory_analysis()
        arrays = jax.tree.leaves(state.params)
        parameter_bytes, stack_bytes = _bytes(arrays), _bytes((stack_of(state.params), state.of_stack))
        optimizer_bytes = _bytes((state.of_stack, state.of_rest))
        self.sizes[stack_size] = Size(
            parameters=sum(leaf.size for leaf in arrays),
            parameter_bytes=parameter_bytes,
            gradient_bytes=parameter_bytes,
            optimizer_bytes=optimizer_bytes,
            peak_bytes=int(
                memory.argument_size_in_bytes
                + memory.temp_size_in_bytes
                + memory.output_size_in_bytes
                - memory.alias_size_in_bytes
            ),
            move_bytes=parameter_bytes + optimizer_bytes + stack_bytes // stack_size * max(near),
        )

    def _compiled_move(self, state: LayeredState, before: int, after: int) -> Any:
        here = jax.sharding.SingleDeviceSharding(self._device)

        def shape(leaf: jax.Array) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((before, *leaf.shape[1:]), leaf.dtype, sharding=here)

        stack = jax.tree.map(shape, (stack_of(state.params), state.of_stack))
        source, separated = (jax.ShapeDtypeStruct((after,), kind, sharding=here) for kind in (jnp.int32, jnp.bool_))
        return self._compile(self._move, (*stack, source, separated))

    def _compile(self, function: Any, given: tuple[Any, ...]) -> Any:
        began = time.perf_counter()
        compiled = function.lower(*given).compile()
        self.compilations += 1
        self.compile_s += time.perf_counter() - began
        return compiled
