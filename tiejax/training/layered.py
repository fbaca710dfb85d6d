"""Training a stack of layers whose ties change: compact or full storage, one executable for each size of the stack.

The stack is a subtree of the parameters that is named by its path, as `encoder/layers`. Every leaf of it is
`[stack_size, ...]`, and a layer reads its place in it. Only the places that exist have weights, gradients and moments, so
compact storage of 8 distinct layers is 8 layers large. On the host (checkpoints, the best step's parameters) every layer has
a place.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tiejax import tying
from tiejax.training.layered_adamw import LayeredOptimizer
from tiejax.training.precision import Precision, products_in
from tiejax.training.sharding import DATA, total
from tiejax.training.stack import LayeredState, Moments, moved, stack_of, stack_size_of, with_stack

PyTree = Any
# (full tree of parameters, batch, dropout key or None, places, sends) -> mean loss, or a device's share of it
LayeredLoss = Callable[[PyTree, Any, Any, Any, Any], jax.Array]


def _bytes(tree: PyTree) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _specs(batch: Any) -> Any:
    """Return how the leaves of a batch, `[rows, ...]` or scalars, lie on the devices that share its rows."""
    return jax.tree.map(lambda leaf: PartitionSpec(DATA) if np.ndim(leaf) else PartitionSpec(), batch)


def _shapes(batch: Any) -> tuple[Any, ...]:
    return tuple(leaf.shape for leaf in jax.tree.leaves(batch))


class Size(NamedTuple):
    """What training with so many places in the stack takes, in bytes; gradients are as large as what they are taken of.

    peak_bytes: arguments, results and temporaries of a step as compiled. move_bytes: the state before and after a change of
    ties, from or to this stack size, that takes the most.
    """

    parameters: int
    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    peak_bytes: int
    move_bytes: int


class Layered:
    """Steps, evaluations and moves of a stack, compiled at the first visit of a stack size and never again.

    init: root key and the layers that own weights -> parameters, whose stack holds these in this order. loss: as
    `LayeredLoss`, given the full tree, in which tied leaves are in their places. optimizer: knows the path of the stack.
    devices: that train the model together; each has all parameters and a part of a batch's rows, and where there are several
    the loss is a device's share of the mean, by `sharding.total`.
    moments: as in `moved`. precision: of the products of float32 in steps; those of evaluations are always in float32.
    scanned: `steps` are one computation, for accelerators, which wait for the host between two.
    sizes, compilations, compile_s: bytes by stack size; how much was compiled so far, and the seconds that it took.
    """

    def __init__(
        self,
        init: Callable[[jax.Array, jax.Array], PyTree],
        loss: LayeredLoss,
        optimizer: LayeredOptimizer,
        ties: Sequence[tying.Tie],
        moments: Moments,
        storage: tying.Storage,
        devices: Sequence[jax.Device],
        precision: Precision = "highest",
        scanned: bool = False,
    ) -> None:
        self._ties, self._path, self._storage = tuple(ties), optimizer.stack, storage
        self._mesh = Mesh(np.asarray(devices), (DATA,))
        self._uses, self._scanned = optimizer.uses, scanned
        # Compiled: steps by stack size, several by stack size and number, losses by stack size and shapes of the batch, moves
        # by both stack sizes.
        self._steps: dict[int, Any] = {}
        self._scans: dict[tuple[int, int], Any] = {}
        self._losses: dict[tuple[int, tuple[Any, ...]], Any] = {}
        self._moves: dict[tuple[int, int], Any] = {}
        self.sizes: dict[int, Size] = {}
        self.compilations, self.compile_s = 0, 0.0

        def start(key: jax.Array, owners: jax.Array) -> LayeredState:
            return optimizer.init(tying.store(init(key, owners), self._ties))

        def mean(stored: PyTree, batch: Any, key: Any, wiring: tying.Wiring) -> jax.Array:
            return loss(tying.view(stored, self._ties), batch, key, wiring.reads, wiring.sends)

        def step(state: LayeredState, batch: Any, key: Any, wiring: tying.Wiring) -> tuple[LayeredState, jax.Array]:
            used, of_used = optimizer.uses(state.params, wiring)
            with products_in(precision):
                value, grads = self._summed(jax.value_and_grad(mean)(used, batch, key, of_used))
            return optimizer.update(grads, state, wiring), value

        def evaluate(stored: PyTree, batch: Any, wiring: tying.Wiring) -> jax.Array:
            with products_in("highest"):
                return jnp.asarray(self._summed(mean(stored, batch, None, wiring)))

        def scan(state: LayeredState, batches: Any, keys: jax.Array, wiring: tying.Wiring) -> tuple[LayeredState, jax.Array]:
            def body(state: LayeredState, of_step: tuple[Any, jax.Array]) -> tuple[LayeredState, jax.Array]:
                after: tuple[LayeredState, jax.Array] = self._on_devices(step)(state, *of_step, wiring)
                return after

            return jax.lax.scan(body, state, (batches, keys))

        self._start = jax.jit(start, out_shardings=self._everywhere)
        self._step = jax.jit(self._on_devices(step), donate_argnums=0)
        self._scan = jax.jit(scan, donate_argnums=0)
        self._loss = jax.jit(self._on_devices(evaluate))
        self._move = jax.jit(
            lambda stack, state, source, separated: moved(stack, state, source, separated, moments),
            out_shardings=self._everywhere,
        )

    def place(self, tree: PyTree) -> PyTree:
        """Return a tree of arrays on the devices, whole on each."""
        return jax.device_put(tree, self._everywhere)

    def _place_batch(self, batch: Any) -> Any:
        """Return a batch with its rows dealt out over the devices."""
        return jax.device_put(batch, jax.tree.map(lambda spec: NamedSharding(self._mesh, spec), _specs(batch)))

    @property
    def _everywhere(self) -> NamedSharding:
        return NamedSharding(self._mesh, PartitionSpec())

    def _on_devices(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function of (tree, batch, ...) as it is computed by all devices, each on its part of the batch."""
        if self._mesh.size == 1:
            return function
        whole = PartitionSpec()

        def computed(tree: PyTree, batch: Any, *others: Any) -> Any:
            in_specs = whole, _specs(batch), *(whole for _ in others)
            return jax.shard_map(function, mesh=self._mesh, in_specs=in_specs, out_specs=whole, check_vma=False)(
                tree, batch, *others
            )

        return computed

    def _summed(self, shares: PyTree) -> PyTree:
        """Return the sum over the devices."""
        return shares if self._mesh.size == 1 else total(shares)

    def stack_size(self, params: PyTree) -> int:
        """Return the number of places in the stack of these parameters."""
        return stack_size_of(params, self._path)

    def start(self, key: jax.Array, owner: tying.Owner) -> LayeredState:
        """Return the state before the first step; the layers that own weights start as they would in an untied stack."""
        owners = np.arange(len(owner)) if self._storage == "full" else np.unique(owner)
        state: LayeredState = self._start(*self.place((key, owners.astype(np.int32))))
        return state

    def step(self, state: LayeredState, batch: Any, key: jax.Array, wiring: tying.Wiring) -> tuple[LayeredState, jax.Array]:
        """Return the state after a step on a batch, and the batch's loss before it; the state that is given is used up."""
        self.visit(state, batch, key, wiring)
        compiled = self._steps[self.stack_size(state.params)]
        after: tuple[LayeredState, jax.Array] = compiled(state, self._place_batch(batch), *self.place((key, wiring)))
        return after

    def steps(
        self, state: LayeredState, batches: Sequence[Any], keys: Sequence[jax.Array], wiring: tying.Wiring
    ) -> tuple[LayeredState, list[jax.Array]]:
        """Return the state after a step on each of these batches, and their losses; the state that is given is used up."""
        if not self._scanned or len(batches) == 1:
            losses = []
            for batch, key in zip(batches, keys, strict=True):
                state, loss = self.step(state, batch, key, wiring)
                losses.append(loss)
            return state, losses
        self.visit(state, batches[0], keys[0], wiring)
        lie = jax.tree.map(lambda spec: NamedSharding(self._mesh, PartitionSpec(None, *spec)), _specs(batches[0]))
        stacked = jax.device_put(jax.tree.map(lambda *leaves: jnp.stack(leaves), *batches), lie)
        arguments = state, stacked, *self.place((jnp.stack(keys), wiring))
        name = self.stack_size(state.params), len(batches)
        if name not in self._scans:
            self._scans[name] = self._compile(self._scan, arguments)
        after, of_steps = self._scans[name](*arguments)
        return after, list(of_steps)

    def trace_step(self, state: LayeredState, batch: Any, key: jax.Array, wiring: tying.Wiring) -> Any:
        """Return a step as jax has traced it, which can be lowered for platforms that are not here."""
        return self._step.trace(state, self._place_batch(batch), *self.place((key, wiring)))

    def trace_shapes(self, owner: tying.Owner, batch: Any, wiring: tying.Wiring) -> Any:
        """Return a step as jax has traced it from shapes alone, for devices that need not be there."""
        key = jax.eval_shape(lambda: jax.random.key(0))
        owners = jax.ShapeDtypeStruct((len(owner if self._storage == "full" else np.unique(owner)),), jnp.int32)
        state = jax.eval_shape(self._start, key, owners)

        def shaped(leaf: Any, how: PartitionSpec) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(np.shape(leaf), leaf.dtype, sharding=NamedSharding(self._mesh, how))

        def whole(tree: PyTree) -> PyTree:
            return jax.tree.map(lambda leaf: shaped(leaf, PartitionSpec()), tree)

        return self._step.trace(whole(state), jax.tree.map(shaped, batch, _specs(batch)), whole(key), whole(wiring))

    def loss(self, params: PyTree, batch: Any, wiring: tying.Wiring) -> jax.Array:
        """Return the loss of a batch, without dropout."""
        arguments = params, self._place_batch(batch), self.place(wiring)
        loss: jax.Array = self._compiled_loss(arguments)(*arguments)
        return loss

    def move(self, state: LayeredState, move: tying.Move) -> LayeredState:
        """Return the state with its stack changed as `move` says."""
        sizes = self.stack_size(state.params), len(move.source)
        arguments = stack_of(state.params, self._path), state.of_stack, *self.place(tuple(move))
        if sizes not in self._moves:
            self._moves[sizes] = self._compile(self._move, arguments)
        stack, of_stack = self._moves[sizes](*arguments)
        return LayeredState(with_stack(state.params, self._path, stack), of_stack, state.of_rest)

    def to_host(self, state: LayeredState, owner: tying.Owner) -> LayeredState:
        """Return the state on the host with a place for every layer, whatever is tied; `to_device` is its inverse."""
        on_host = jax.device_get(state)
        return on_host if self._storage == "full" else self._taken(on_host, tying.written_out(owner))

    def to_device(self, on_host: LayeredState, owner: tying.Owner) -> LayeredState:
        """Return a state of the host on the device, with the places of this owner vector alone."""
        return self.place(on_host if self._storage == "full" else self._taken(on_host, np.unique(owner)))

    def params_to_host(self, params: PyTree, owner: tying.Owner) -> PyTree:
        """Return parameters alone as `to_host` does."""
        return self.to_host(LayeredState(params, None, None), owner).params

    def params_to_device(self, on_host: PyTree, owner: tying.Owner) -> PyTree:
        """Return parameters alone as `to_device` does."""
        return self.to_device(LayeredState(on_host, None, None), owner).params

    def visit(self, state: LayeredState, batch: Any, key: jax.Array, wiring: tying.Wiring) -> None:
        """Compile what a stack size needs, moves from and to its neighbours among it, so that no later change of ties waits."""
        stack_size = self.stack_size(state.params)
        if stack_size in self._steps:
            return
        batch, (key, wiring) = self._place_batch(batch), self.place((key, wiring))
        self._steps[stack_size] = self._compile(self._step, (state, batch, key, wiring))
        self._compiled_loss((state.params, batch, wiring))
        near = self._neighbours(stack_size, layers=len(wiring.reads))
        for sizes in {(stack_size, other) for other in near} | {(other, stack_size) for other in near}:
            if sizes not in self._moves:
                self._moves[sizes] = self._compiled_move(state, *sizes)
        self.sizes[stack_size] = self._size(state, wiring, largest=max(near))

    def _neighbours(self, stack_size: int, layers: int) -> list[int]:
        """Return the stack sizes that one change of ties can lead to."""
        if self._storage == "full":
            return [stack_size]
        return list(range(max(1, stack_size - 1), min(layers, stack_size + 1) + 1))

    def _size(self, state: LayeredState, wiring: tying.Wiring, largest: int) -> Size:
        """Return what training with this stack takes; largest: the most places that one change of ties can lead to."""
        stack_size, arrays = self.stack_size(state.params), jax.tree.leaves(state.params)
        parameter_bytes, optimizer_bytes = _bytes(arrays), _bytes((state.of_stack, state.of_rest))
        stack_bytes = _bytes((stack_of(state.params, self._path), state.of_stack))
        memory = self._steps[stack_size].memory_analysis()
        used = memory.argument_size_in_bytes + memory.temp_size_in_bytes + memory.output_size_in_bytes
        return Size(
            parameters=sum(leaf.size for leaf in arrays),
            parameter_bytes=parameter_bytes,
            gradient_bytes=_bytes(jax.eval_shape(self._uses, state.params, wiring)[0]),
            optimizer_bytes=optimizer_bytes,
            peak_bytes=int(used - memory.alias_size_in_bytes),
            move_bytes=parameter_bytes + optimizer_bytes + stack_bytes // stack_size * largest,
        )

    def _taken(self, state: LayeredState, source: Any) -> LayeredState:
        """Return the state with those places of its stack."""
        stack = stack_of(state.params, self._path)
        stack, of_stack = jax.tree.map(lambda leaf: leaf[source], (stack, state.of_stack))
        return LayeredState(with_stack(state.params, self._path, stack), of_stack, state.of_rest)

    def _compiled_loss(self, arguments: tuple[Any, ...]) -> Any:
        params, batch, _ = arguments
        key = self.stack_size(params), _shapes(batch)
        if key not in self._losses:
            self._losses[key] = self._compile(self._loss, arguments)
        return self._losses[key]

    def _compiled_move(self, state: LayeredState, before: int, after: int) -> Any:
        def shape(leaf: jax.Array) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((before, *leaf.shape[1:]), leaf.dtype, sharding=self._everywhere)

        stack = jax.tree.map(shape, (stack_of(state.params, self._path), state.of_stack))
        source, separated = (jax.ShapeDtypeStruct((after,), kind, sharding=self._everywhere) for kind in (jnp.int32, jnp.bool_))
        return self._compile(self._move, (*stack, source, separated))

    def _compile(self, function: Any, arguments: tuple[Any, ...]) -> Any:
        began = time.perf_counter()
        compiled = function.lower(*arguments).compile()
        self.compilations += 1
        self.compile_s += time.perf_counter() - began
        return compiled
