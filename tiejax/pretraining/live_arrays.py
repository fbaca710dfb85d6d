"""Peak memory of a traced computation by kind of array (parameters, gradients, optimizer, activations), from its jaxpr alone.

This plans memory for accelerators that need not be present. The alternative, `jax.stages.Compiled.memory_analysis()` of the
program compiled for CPUs, is wrong in half precision: for RemBERT on 64 devices it reports 13.9 GB in bfloat16 and 12.3 GB in
float32, where this count gives 9.5 GB and 11.1 GB. It would also need 64 devices in this process and 10 s instead of 2 s per
batch size, and does not distinguish the kinds of array.

The model assumes that operations run in program order and that an array is live until its last read. The most important
rules of XLA determine which results become arrays in memory:

    once       equal computations on the same arrays run once, except in rematerialised code
    views      reshapes and transposed matrices are read in place
    fused      element-wise results, broadcasts and slices that are read only by such operations or by reductions are computed
               where they are read, unless they have several readers and are expensive, are broadcasts, or are computed from
               several large arrays
    in place   an element-wise result, a scatter or the carry of a loop reuses the memory of an array at its last read
    loops      hold the live arrays of one run of their body, in addition to their operands and results

Not modelled: the order of independent operations, fragmentation of the heap, copies of the carry of a loop, and operations that
a device does not support directly (such as half precision on CPUs).
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jax.extend import core

PARAMETERS, GRADIENTS, OPTIMIZER, ACTIVATIONS = "parameters", "gradients", "optimizer", "activations"
KINDS = (PARAMETERS, GRADIENTS, OPTIMIZER, ACTIVATIONS)


def _names(names: str) -> frozenset[str]:
    return frozenset(names.split())


# Names of JAX primitives, grouped by how XLA treats them.
BINARY = _names("add add_any sub mul div max min pow and or xor eq ne lt le gt ge select_n nextafter rem")
EXPENSIVE = _names("exp exp2 log log1p expm1 tanh logistic sin cos erf erfc erf_inv sqrt rsqrt cbrt pow")
CHEAP = _names("""
    abs broadcast_in_dim ceil clamp concatenate convert_element_type dynamic_slice floor integer_pow iota is_finite neg not pad
    rev round shift_left shift_right_arithmetic shift_right_logical sign slice split square stack transpose
""")
FUSIBLE = BINARY | EXPENSIVE | CHEAP
REDUCTIONS = _names("argmax argmin reduce_and reduce_max reduce_min reduce_or reduce_prod reduce_sum")
VIEWS = _names("copy copy_p expand_dims pcast pvary reduce_precision reshape squeeze stop_gradient")
IN_PLACE = FUSIBLE | _names("dynamic_update_slice psum psum_invariant scatter scatter-add")
PRODUCTS = _names("conv_general_dilated dot_general ragged_dot_general")
LOOPS = _names("cond scan while")
REMATERIALISED = _names("checkpoint remat remat2")

CALLED = ("jaxpr", "call_jaxpr", "fun_jaxpr")  # equation parameters that hold the jaxpr of a call
STACK = "stack"  # name of the operation that stacks the results of an unrolled loop
SCALAR = 8  # bytes


@dataclasses.dataclass(eq=False)
class Array:
    """An array of a program. size: bytes. made_by: its operation, None for inputs. base: the array read by a view."""

    shape: tuple[int, ...]
    size: int
    made_by: "Operation | None" = None
    base: "Array | None" = None

    @classmethod
    def like(cls, aval: Any, made_by: "Operation | None" = None, base: "Array | None" = None) -> "Array":
        """Return an array with the shape and dtype of a traced value; a random key counts 16 bytes."""
        item = aval.dtype.itemsize if isinstance(aval.dtype, np.dtype) else 16
        return cls(aval.shape, math.prod(aval.shape) * item, made_by, base)


Value = Any  # an Array, or the value of a literal


@dataclasses.dataclass(eq=False)
class Operation:
    """An operation on arrays. given: operands. bodies: the jaxprs of a loop. carried: indices of the operands in its carry."""

    name: str
    given: list[Value]
    results: list[Array] = dataclasses.field(default_factory=list)
    bodies: Sequence[Any] = ()
    carried: range = range(0)

    @property
    def reads(self) -> list[Array]:
        """The arrays that are read, with views replaced by their bases."""
        return [value.base or value for value in self.given if isinstance(value, Array)]


class Program:
    """The operations of a jaxpr in program order, with calls and fully unrolled loops inlined."""

    def __init__(self, jaxpr: core.Jaxpr) -> None:
        self._seen: dict[Any, list[Array]] = {}
        self.operations: list[Operation] = []
        self.given = [Array.like(variable.aval) for variable in jaxpr.invars]
        returned = self._run(jaxpr, list(self.given))
        self.returned = [(value.base or value) if isinstance(value, Array) else None for value in returned]
        self._drop_unread()

    def _run(self, jaxpr: core.Jaxpr, given: Sequence[Value]) -> list[Value]:
        values: dict[Any, Value] = {variable: Array.like(variable.aval) for variable in jaxpr.constvars}
        values.update(zip(jaxpr.invars, given, strict=True))

        def read(atom: Any) -> Value:
            return atom.val if isinstance(atom, core.Literal) else values[atom]

        for equation in jaxpr.eqns:
            results = self._apply(equation, [read(atom) for atom in equation.invars])
            values.update(zip(equation.outvars, results, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def _apply(self, equation: Any, given: list[Value]) -> list[Value]:
        """Return the results of one equation."""
        name, avals = equation.primitive.name, [variable.aval for variable in equation.outvars]
        if name == "optimization_barrier":
            return given
        if name == "scan":
            return self._scan(equation, given, avals)
        if name in LOOPS:
            bodies = [body.jaxpr for value in equation.params.values() for body in _programs(value)]
            constants = len(given) if name == "cond" else equation.params["cond_nconsts"] + equation.params["body_nconsts"]
            return self._add(Operation(name, given, bodies=bodies, carried=range(constants, len(given))), avals)
        for body in (body for key in CALLED for body in _programs(equation.params.get(key))):
            return self._call(body, given, name in REMATERIALISED)
        if name in BINARY:  # jax broadcasts axes of length 1
            given = [self._broadcast(value, avals[0].shape) for value in given]
        parameters = sorted((key, str(value)) for key, value in equation.params.items() if "jaxpr" not in key)
        return self._add(Operation(name, given), avals, (name, str(parameters)))

    def _call(self, body: Any, given: list[Value], rematerialised: bool) -> list[Value]:
        """Return the results of a call. rematerialised: compute again even if an equal result exists."""
        before = self._seen
        self._seen = {} if rematerialised else before
        results = self._run(body.jaxpr if isinstance(body, core.ClosedJaxpr) else body, given)
        self._seen = before
        return results

    def _broadcast(self, value: Value, shape: tuple[int, ...]) -> Value:
        if not isinstance(value, Array) or value.shape in (shape, ()):
            return value
        size = value.size // max(1, math.prod(value.shape)) * math.prod(shape)
        operation = Operation("broadcast_in_dim", [value])
        operation.results = [Array(shape, size, operation)]
        return self._once(operation, ("along", shape))[0]

    def _add(self, operation: Operation, avals: Iterable[Any], parameters: Any = None) -> list[Array]:
        """Return the results of an operation, or of an equal earlier one. parameters: compared too; None never matches."""
        is_view = operation.name in VIEWS or (operation.name == "transpose" and operation.given[0].shape[2:] == ())
        base = operation.reads[0] if is_view and operation.reads else None
        operation.results = [Array.like(aval, operation, base) for aval in avals]
        return self._once(operation, parameters)

    def _once(self, operation: Operation, parameters: Any) -> list[Array]:
        key = parameters, tuple(value if isinstance(value, Array) else repr(value) for value in operation.given)
        if parameters is not None:
            if key in self._seen:
                return self._seen[key]
            self._seen[key] = operation.results
        if not any(result.base for result in operation.results):
            self.operations.append(operation)
        return operation.results

    def _scan(self, equation: Any, given: list[Value], avals: Sequence[Any]) -> list[Value]:
        body, length, carry = equation.params["jaxpr"].jaxpr, equation.params["length"], equation.params["num_carry"]
        first = equation.params["num_consts"]
        if equation.params["unroll"] < length:
            return self._add(Operation("scan", given, bodies=[body], carried=range(first, first + carry)), avals)
        every: list[list[Value]] = [[]] * length
        carried, stacked = given[first : first + carry], given[first + carry :]
        for step in reversed(range(length)) if equation.params["reverse"] else range(length):
            variables = body.invars[first + carry :]
            slices = [self._slice(value, step, length, one.aval) for value, one in zip(stacked, variables, strict=True)]
            results = self._run(body, [*given[:first], *carried, *slices])
            carried, every[step] = results[:carry], results[carry:]
        columns = zip(*every, strict=True) if avals[carry:] else ()
        stacks = [
            self._add(Operation(STACK, list(column)), [aval])[0] for column, aval in zip(columns, avals[carry:], strict=True)
        ]
        return [*carried, *stacks]

    def _slice(self, value: Value, step: int, length: int, aval: Any) -> Value:
        """Return the operand of one step of an unrolled loop; the stacked results of an earlier loop are read in place."""
        made_by = value.made_by if isinstance(value, Array) else None
        if made_by is not None and made_by.name == STACK and len(made_by.given) == length:
            return made_by.given[step]
        return self._add(Operation("slice", [value]), [aval], ("step", step))[0]

    def _drop_unread(self) -> None:
        read, kept = {array for array in self.returned if array is not None}, []
        for operation in reversed(self.operations):
            if read.intersection(operation.results):
                read.update(operation.reads)
                kept.append(operation)
        self.operations = kept[::-1]


def _programs(value: Any) -> list[Any]:
    """Return the jaxprs in a parameter of an equation."""
    values = value if isinstance(value, tuple) else (value,)
    return [one for one in values if isinstance(one, core.Jaxpr | core.ClosedJaxpr)]


def alive(jaxpr: core.Jaxpr, given: Sequence[str], returned: Sequence[str], outside: int = 0) -> Counter[str]:
    """Return the bytes of the arrays that are live at the peak of a program, by kind.

    given, returned: the kind of each argument and of each result, one of KINDS; arguments are donated. outside: number of
    leading arguments that are not counted. An array computed from parameters alone counts as parameters. One that reaches the
    new parameters and moments only through element-wise operations, reductions, scatters and collectives counts as gradients.
    All others count as activations.
    """
    program = Program(jaxpr)
    fused, kinds = _fused(program), _kinds(program, given, returned)
    ends = _last_reads(program, fused)
    held = {array for array in program.given[outside:] if array in ends}
    now = Counter[str]()
    _count(now, kinds, held)
    worst = Counter(now)
    ending: dict[int, list[Array]] = {}
    for array, place in ends.items():
        ending.setdefault(place, []).append(array)
    for place, operation in enumerate(program.operations):
        made = [array for array in operation.results if array not in fused]
        over = [array for array in ending.get(place, []) if array in held]
        replaced = _replaced(operation, made, over)
        _count(now, kinds, replaced, -1)
        _count(now, kinds, made)
        worst = max(worst, now + _inside(operation, kinds), key=Counter.total)
        over = [array for array in over if array not in replaced] + [array for array in made if array not in ends]
        _count(now, kinds, over, -1)
        held = (held | set(made)) - set(over) - set(replaced)
    return worst


def _count(counter: Counter[str], kinds: Mapping[Array, str], arrays: Iterable[Array], sign: int = 1) -> None:
    for array in arrays:
        counter[kinds[array]] += sign * array.size


def _readers(program: Program) -> dict[Array, list[Operation]]:
    readers: dict[Array, list[Operation]] = {}
    for operation in program.operations:
        for array in operation.reads:
            readers.setdefault(array, []).append(operation)
    return readers


def _fused(program: Program) -> set[Array]:
    """Return the results that are fused into the operations that read them."""
    readers, returned = _readers(program), set(program.returned)
    fused: set[Array] = set()
    written_by: dict[Array, set[Operation]] = {}  # array -> the unfused operations that read it, directly or through fused ones
    for operation in reversed(program.operations):
        for array in operation.results:
            by = readers.get(array, [])
            users = set[Operation]()
            for reader in by:
                for result in reader.results:
                    users |= written_by[result] if result in fused else {reader}
            written_by[array] = users
            if (
                array not in returned
                and all(reader.name in FUSIBLE | REDUCTIONS for reader in by)
                and _is_fused(operation, users)
            ):
                fused.add(array)
    return fused


def _is_fused(operation: Operation, users: set[Operation]) -> bool:
    """Return whether an operation is fused into the operations `users` that read its result."""
    if operation.name not in FUSIBLE or len(users) < 2:
        return operation.name in FUSIBLE
    if operation.name == "broadcast_in_dim":
        return all(array.size <= SCALAR for array in operation.reads)
    elements = math.prod(operation.results[0].shape)
    return operation.name not in EXPENSIVE and sum(math.prod(array.shape) >= elements for array in operation.reads) < 2


def _last_reads(program: Program, fused: set[Array]) -> dict[Array, int]:
    """Return for each array the index of the last operation that reads it, directly or through fused ones."""
    behind: dict[Array, set[Array]] = {}  # fused array -> the arrays that are read in its place
    ends: dict[Array, int] = {}
    for place, operation in enumerate(program.operations):
        read = set[Array]().union(*(behind.get(array, {array}) for array in operation.reads))
        for array in operation.results:
            if array in fused:
                behind[array] = read
            else:
                ends.update(dict.fromkeys(read, place))
    return ends | dict.fromkeys((array for array in program.returned if array is not None), len(program.operations))


def _replaced(operation: Operation, made: Sequence[Array], over: Sequence[Array]) -> list[Array]:
    """Return the arrays whose memory the results of an operation reuse."""
    if operation.name in LOOPS:
        carried = [operation.given[place] for place in operation.carried]
        over = [array for array in over if any(isinstance(one, Array) and (one.base or one) is array for one in carried)]
        made = [array for array in made if array in operation.results[: len(carried)]]
    elif operation.name not in IN_PLACE:
        return []
    left, replaced = list(over), []
    for array in made:
        for fitting in [one for one in left if one.size == array.size][:1]:
            left.remove(fitting)
            replaced.append(fitting)
    return replaced


def _kinds(program: Program, given: Sequence[str], returned: Sequence[str]) -> dict[Array, str]:
    """Return the kind of every array, as defined in `alive`."""
    kinds = dict(zip(program.given, given, strict=True))
    for operation in program.operations:
        read = {kinds.get(array, ACTIVATIONS) for array in operation.reads if array.size > SCALAR}
        same = read.pop() if len(read) == 1 else ACTIVATIONS
        kinds.update(dict.fromkeys(operation.results, same if same in (PARAMETERS, OPTIMIZER) else ACTIVATIONS))
    readers, leading = _readers(program), set[Array]()
    wanted = {array: kind for array, kind in zip(program.returned, returned, strict=True) if array and kind != ACTIVATIONS}
    for operation in reversed(program.operations):
        for array in operation.results:
            by = readers.get(array, [])
            if array in wanted or (by and all(_leads(reader, array, leading) for reader in by)):
                leading.add(array)
                kinds[array] = GRADIENTS if kinds[array] == ACTIVATIONS else kinds[array]
    return kinds | wanted


def _leads(operation: Operation, array: Array, leading: set[Array]) -> bool:
    """Return whether an operation passes `array` on to new parameters and moments alone, and is not a matrix product."""
    if operation.name not in LOOPS:
        return operation.name not in PRODUCTS and leading.issuperset(operation.results)
    places = [place for place, one in enumerate(operation.given) if isinstance(one, Array) and (one.base or one) is array]
    return all(place in operation.carried and operation.results[place - operation.carried.start] in leading for place in places)


def _inside(operation: Operation, kinds: Mapping[Array, str]) -> Counter[str]:
    """Return the bytes that are live at the peak of the body of a loop, by kind, without the operands of the loop."""
    worst = Counter[str]()
    for body in operation.bodies:
        given, returned, outside = [ACTIVATIONS] * len(body.invars), [ACTIVATIONS] * len(body.outvars), len(body.invars)
        if operation.name == "scan":
            given = [
                kinds.get(one.base or one, ACTIVATIONS) if isinstance(one, Array) else ACTIVATIONS for one in operation.given
            ]
            returned, outside = [kinds[array] for array in operation.results], operation.carried.stop
        worst = max(worst, alive(body, given, returned, outside), key=Counter.total)
    return worst
