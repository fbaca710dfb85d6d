"""Training of a stack of layers whose ties change, in compact or full storage, with one executable per stack size.

The stack is a subtree of the parameters, named by its path, for example `encoder/layers`. Its leaves are `[stack_size, ...]`,
and each layer reads one slot. Only existing slots have weights, gradients and moments: compact storage of 8 distinct layers
takes the memory of 8 layers. On the host (in checkpoints and the best step's parameters) every layer has a slot.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tiejax import tying
from tiejax.training.choices import Moments, Precision
from tiejax.training.layered_adamw import LayeredOptimizer
from tiejax.training.placement import DATA, total
from tiejax.training.stack import LayeredState, moved, stack_of, stack_size_of, with_stack
from tiejax.training.step import products_in
from tiejax.tying.leaves import tree_bytes

PyTree = Any
# (full tree of parameters, batch, dropout key or None, reads [layers], sends [layers]) -> mean loss, or a device's share of it
LayeredLoss = Callable[[PyTree, Any, Any, Any, Any], jax.Array]


def _specs(batch: Any) -> Any:
    """Return the partition of a batch, leaves `[rows, ...]` or scalars, over the devices that share its rows."""
    return jax.tree.map(lambda leaf: PartitionSpec(DATA) if np.ndim(leaf) else PartitionSpec(), batch)


class Size(NamedTuple):
    """The number of parameters, and the memory of training with one stack size.

    peak_bytes: bytes of arguments, results and temporaries of the compiled step. move_bytes: the largest total bytes of the
    states before and after a change of ties from this stack size.
    """

    parameters: int
    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    peak_bytes: int
    move_bytes: int


class Layered:
    """Steps, evaluations and moves (changes of ties) of a stack of layers, compiled once per stack size, for all rates.

    Args:
        init: (root key, int32 owners) -> parameters, whose stack has a slot for each layer in `owners`, in this order.
        loss: a `LayeredLoss`; it receives the full tree, in which both leaves of every tie of `ties` exist.
        optimizer: the optimizer, which also names the path of the stack.
        ties: ties between leaves outside the stack, which are stored once.
        moments: optimizer state of a layer that separates from its owner: `copy` or `zero`.
        storage: `compact` (a slot for each distinct layer) or `full` (a slot for each layer).
        devices: the devices that train the model together. Each has all parameters and a part of a batch's rows; if there are
            several, the loss is a device's share of the mean, by `placement.total`.
        precision: precision of float32 matrix products in steps; evaluations compute them in float32.
        scanned: run `steps` as one computation, since accelerators would otherwise wait for the host between steps.

    Attributes:
        sizes: memory by stack size.
        compilations: number of compilations so far.
        compile_s: seconds of compilation so far.
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
        self._everywhere = NamedSharding(self._mesh, PartitionSpec())
        self._uses, self._rate, self._scanned = optimizer.uses, optimizer.rate, scanned
        # Executables: steps by stack size, scans by stack size and number of steps, losses by stack size and shapes of the
        # batch, moves by stack sizes before and after.
        self._executables: dict[tuple[Any, ...], Any] = {}
        self.sizes: dict[int, Size] = {}
        self.compilations, self.compile_s = 0, 0.0

        def start(key: jax.Array, owners: jax.Array) -> LayeredState:
            return optimizer.init(tying.store(init(key, owners), self._ties))

        def mean(stored: PyTree, batch: Any, key: Any, wiring: tying.Wiring) -> jax.Array:
            return loss(tying.view(stored, self._ties), batch, key, wiring.reads, wiring.sends)

        def step(
            state: LayeredState, batch: Any, key: Any, wiring: tying.Wiring, rate: jax.Array
        ) -> tuple[LayeredState, jax.Array]:
            used, used_wiring = optimizer.uses(state.params, wiring)
            with products_in(precision):
                value, grads = self._summed(jax.value_and_grad(mean)(used, batch, key, used_wiring))
            return optimizer.update(grads, state, wiring, rate), value

        def evaluate(stored: PyTree, batch: Any, wiring: tying.Wiring) -> jax.Array:
            with products_in("highest"):
                return jnp.asarray(self._summed(mean(stored, batch, None, wiring)))

        def scan(
            state: LayeredState, batches: Any, keys: jax.Array, wiring: tying.Wiring, rates: jax.Array
        ) -> tuple[LayeredState, jax.Array]:
            def body(state: LayeredState, inputs: tuple[Any, jax.Array, jax.Array]) -> tuple[LayeredState, jax.Array]:
                batch, key, rate = inputs
                after: tuple[LayeredState, jax.Array] = self._on_devices(step)(state, batch, key, wiring, rate)
                return after

            return jax.lax.scan(body, state, (batches, keys, rates))

        self._start = jax.jit(start, out_shardings=self._everywhere)
        self._step = jax.jit(self._on_devices(step), donate_argnums=0)
        self._scan = jax.jit(scan, donate_argnums=0)
        self._loss = jax.jit(self._on_devices(evaluate))
        self._move = jax.jit(
            lambda stack, state, source, separated: moved(stack, state, source, separated, moments),
            out_shardings=self._everywhere,
        )

    def place(self, tree: PyTree) -> PyTree:
        """Put a tree of arrays on the devices, replicated."""
        return jax.device_put(tree, self._everywhere)

    def _place_batch(self, batch: Any) -> Any:
        """Put a batch on the devices, with its rows split over them."""
        return jax.device_put(batch, jax.tree.map(lambda spec: NamedSharding(self._mesh, spec), _specs(batch)))

    def _on_devices(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Map a function of (tree, batch, ...) over the devices, each with its part of the batch's rows."""
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
        """Return the sum of the devices' shares."""
        return shares if self._mesh.size == 1 else total(shares)

    def stack_size(self, params: PyTree) -> int:
        """Return the number of slots in the stack of these parameters."""
        return stack_size_of(params, self._path)

    def start(self, key: jax.Array, owner: tying.Owner) -> LayeredState:
        """Return the state before the first step; layers that own weights start with the values of an untied stack."""
        owners = np.arange(len(owner)) if self._storage == "full" else np.unique(owner)
        state: LayeredState = self._start(*self.place((key, owners.astype(np.int32))))
        return state

    def step(
        self, state: LayeredState, batch: Any, key: jax.Array, wiring: tying.Wiring, rate: Any = None
    ) -> tuple[LayeredState, jax.Array]:
        """Train a step; return the state and the loss of the batch before the update. `state` is donated.

        rate: learning rate, or a pair of that and the rate of the tables, as the optimizer's `rate` (default: that).
        """
        self.compile_for(state, batch, key, wiring)
        compiled = self._executables["step", self.stack_size(state.params)]
        others = self.place((key, wiring, self._rate_array(rate)))
        after: tuple[LayeredState, jax.Array] = compiled(state, self._place_batch(batch), *others)
        return after

    def _rate_array(self, rate: Any = None) -> np.ndarray:
        return np.asarray(self._rate if rate is None else rate, float)

    def steps(
        self,
        state: LayeredState,
        batches: Sequence[Any],
        keys: Sequence[jax.Array],
        wiring: tying.Wiring,
        rates: Sequence[Any] | np.ndarray | None = None,
    ) -> tuple[LayeredState, list[jax.Array]]:
        """Train a step on each batch; return the state and the loss of each batch before its update. `state` is donated.

        rates: learning rate of each step, as in `step` (default: that of the optimizer).
        """
        if rates is None:
            rates = [self._rate] * len(batches)
        if not self._scanned or len(batches) == 1:
            losses = []
            for batch, key, rate in zip(batches, keys, rates, strict=True):
                state, loss = self.step(state, batch, key, wiring, rate)
                losses.append(loss)
            return state, losses
        self.compile_for(state, batches[0], keys[0], wiring)
        shardings = jax.tree.map(lambda spec: NamedSharding(self._mesh, PartitionSpec(None, *spec)), _specs(batches[0]))
        stacked = jax.device_put(jax.tree.map(lambda *leaves: jnp.stack(leaves), *batches), shardings)
        arguments = state, stacked, *self.place((jnp.stack(keys), wiring, np.asarray(rates)))
        scan = self._compiled(("scan", self.stack_size(state.params), len(batches)), self._scan, arguments)
        after, step_losses = scan(*arguments)
        return after, list(step_losses)

    def trace_shapes(self, owner: tying.Owner, batch: Any, wiring: tying.Wiring) -> Any:
        """Return the step (`jax.stages.Traced`) traced from shapes, for devices that need not exist."""
        key = jax.eval_shape(lambda: jax.random.key(0))
        owners = jax.ShapeDtypeStruct((len(owner if self._storage == "full" else np.unique(owner)),), jnp.int32)
        state = jax.eval_shape(self._start, key, owners)

        def shaped(leaf: Any, how: PartitionSpec) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(np.shape(leaf), leaf.dtype, sharding=NamedSharding(self._mesh, how))

        def whole(tree: PyTree) -> PyTree:
            return jax.tree.map(lambda leaf: shaped(leaf, PartitionSpec()), tree)

        others = (key, wiring, jax.device_put(self._rate_array()))
        return self._step.trace(whole(state), jax.tree.map(shaped, batch, _specs(batch)), *whole(others))

    def loss(self, params: PyTree, batch: Any, wiring: tying.Wiring) -> jax.Array:
        """Return the loss of a batch without dropout."""
        arguments = params, self._place_batch(batch), self.place(wiring)
        loss: jax.Array = self._compiled_loss(arguments)(*arguments)
        return loss

    def move(self, state: LayeredState, move: tying.Move) -> LayeredState:
        """Return the state after a change of ties, as computed by `tying.move`."""
        arguments = stack_of(state.params, self._path), state.stack_state, *self.place(tuple(move))
        compiled = self._compiled(("move", self.stack_size(state.params), len(move.source)), self._move, arguments)
        stack, stack_state = compiled(*arguments)
        return LayeredState(with_stack(state.params, self._path, stack), stack_state, state.rest_state)

    def to_host(self, state: LayeredState, owner: tying.Owner) -> LayeredState:
        """Return the state on the host, with a slot for every layer whatever its ties; `to_device` is the inverse."""
        on_host = jax.device_get(state)
        return on_host if self._storage == "full" else self._take(on_host, tying.expansion_slots(owner))

    def to_device(self, on_host: LayeredState, owner: tying.Owner) -> LayeredState:
        """Put a state of the host on the devices, with only the slots that this owner vector uses."""
        return self.place(on_host if self._storage == "full" else self._take(on_host, np.unique(owner)))

    def compile_for(self, state: LayeredState, batch: Any, key: jax.Array, wiring: tying.Wiring) -> None:
        """Compile step and loss for the stack size of `state`."""
        stack_size = self.stack_size(state.params)
        if stack_size in self.sizes:
            return
        batch, others = self._place_batch(batch), self.place((key, wiring, self._rate_array()))
        step = self._compiled(("step", stack_size), self._step, (state, batch, *others))
        self._compiled_loss((state.params, batch, others[1]))
        self.sizes[stack_size] = self._size(state, wiring, step.memory_analysis())

    def _size(self, state: LayeredState, wiring: tying.Wiring, memory: Any) -> Size:
        """Return the memory of training with this stack size."""
        stack_size, arrays = self.stack_size(state.params), jax.tree.leaves(state.params)
        parameter_bytes, optimizer_bytes = tree_bytes(arrays), tree_bytes((state.stack_state, state.rest_state))
        stack_bytes = tree_bytes((stack_of(state.params, self._path), state.stack_state))
        # One change of ties adds at most one slot.
        largest = stack_size if self._storage == "full" else min(stack_size + 1, len(wiring.reads))
        used = memory.argument_size_in_bytes + memory.temp_size_in_bytes + memory.output_size_in_bytes
        return Size(
            parameters=sum(leaf.size for leaf in arrays),
            parameter_bytes=parameter_bytes,
            gradient_bytes=tree_bytes(jax.eval_shape(self._uses, state.params, wiring)[0]),
            optimizer_bytes=optimizer_bytes,
            peak_bytes=int(used - memory.alias_size_in_bytes),
            move_bytes=parameter_bytes + optimizer_bytes + stack_bytes // stack_size * largest,
        )

    def _take(self, state: LayeredState, source: Any) -> LayeredState:
        """Return the state with only the slots `source` of its stack, in this order."""
        stack = stack_of(state.params, self._path)
        stack, stack_state = jax.tree.map(lambda leaf: leaf[source], (stack, state.stack_state))
        return LayeredState(with_stack(state.params, self._path, stack), stack_state, state.rest_state)

    def _compiled_loss(self, arguments: tuple[Any, ...]) -> Any:
        params, batch, _ = arguments
        shapes = tuple(leaf.shape for leaf in jax.tree.leaves(batch))
        return self._compiled(("loss", self.stack_size(params), shapes), self._loss, arguments)

    def _compiled(self, key: tuple[Any, ...], function: Any, arguments: tuple[Any, ...]) -> Any:
        """Return the executable of a function for such arguments, compiled at its first use."""
        if key not in self._executables:
            began = time.perf_counter()
            self._executables[key] = function.lower(*arguments).compile()
            self.compilations += 1
            self.compile_s += time.perf_counter() - began
        return self._executables[key]
