"""Ties in a Flax NNX module, in place of its parameters; all other state of the module stays live.

`tiejax.tying` returns new trees, so `view` of a module is a copy, and what its methods change (statistics of batch
normalisation, counts of dropout keys, caches) is lost with it. Here the module itself is tied: every target becomes a
variable of type `Tied`, which holds no array, and each public method of the module runs with the targets filled from their
sources. So `nnx.state(model, nnx.Param)`, the optimizer and checkpoints have every array once, and gradients are the sum over
its uses.

Imported on its own, `import tiejax.nnx`, since it needs flax >= 0.12.
"""

import contextlib
import contextvars
import dataclasses
import functools
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.extend import core

from tiejax.tying.errors import TieError
from tiejax.tying.leaves import NNX_SUFFIX, is_array
from tiejax.tying.policies import Keep, New, Policy
from tiejax.tying.store import view
from tiejax.tying.tie import Tie, leaves_by_path
from tiejax.tying.ties import Ties, TiesLike, resolve_full
from tiejax.tying.transforms import Slice, Transpose, parts
from tiejax.tying.untie import retie as retie_tree
from tiejax.tying.untie import untie as untie_tree

__all__ = ["Tied", "filled", "retie", "tie", "untie"]

Keys = tuple[Any, ...]

CONTAINERS: Any = (nnx.List, list, tuple, dict)
STATELESS = SimpleNamespace(init=lambda params: (), update=lambda updates, state, params=None: (updates, state))
OUTSIDE = (
    "outside the methods of the tied module it holds no array; use `with tiejax.nnx.filled(model):`, or, in an nnx.view,"
    " a state or another module from before the module was tied, make that again"
)


CONSTANT = (
    "in this copy of the module, within a function that is differentiated, its array is a constant; call the copy itself, use "
    "`with tiejax.nnx.filled(copy):` in that function, or differentiate outside of the module's methods"
)


class Tied(nnx.Variable):
    """The variable in place of a tie's target. It holds no array, except while a method of the tied module runs.

    At any other time, reading it as layers do (`variable[...]`) raises TieError, and `get_value()` is None, so that a state has
    `None` in its place. The filter `tiejax.nnx.Tied` selects these variables.
    """

    def _refusal(self) -> str:
        return f"this variable is tied to {self.get_metadata('source')}; {OUTSIDE}"

    @classmethod
    def from_metadata(cls, value: Any, attributes: dict[str, Any]) -> Any:
        """Make a copy, as transforms of NNX do, and notice if its array is a constant of a transform that differentiates."""
        constant = attributes.get("constant", False) or (attributes.get("filled", False) and _is_constant(value))
        return super().from_metadata(value, attributes | {"constant": constant})

    def get_value(self, **index: Any) -> Any:
        """Return the array; outside the methods of the module, None or, if `index` is given, TieError."""
        active, raw = _ACTIVE.get(), self.get_raw_value()
        if id(self) in active:
            fill, target = active[id(self)]
            fill.array(target)  # sets the array of this variable if a source was set
        elif raw is not None and not active:  # of a copy that was made in a method
            _put(self, None, False)
        elif raw is not None and (self.get_metadata("constant", False) or _is_constant(raw)):
            raise TieError(f"this variable is tied to {self.get_metadata('source')}; {CONSTANT}")
        if self.get_raw_value() is None and index:
            raise TieError(self._refusal())
        return super().get_value(**index)

    @property
    def value(self) -> Any:
        """Return the array; raises TieError outside the methods of the module."""
        return self[...]

    @value.setter
    def value(self, value: Any) -> None:
        self.set_value(value)

    def __jax_array__(self) -> Any:
        return self[...]

    def __len__(self) -> int:
        return len(self[...])

    def set_value(self, value: Any, **index: Any) -> None:
        """Raise TieError: the array is the source's."""
        source = self.get_metadata("source")
        raise TieError(f"this variable is tied to {source} and cannot be set; set that one, or untie the module first")

    def set_raw_value(self, value: Any, **how: Any) -> None:
        """Set the array while the module is filled, as transforms of NNX do; otherwise only None is accepted."""
        if value is not None and self.get_raw_value() is None:
            self.set_value(value)
        _put(self, value)

    def update_from_state(self, variable_state: Any) -> None:
        """See `set_raw_value`."""
        self.set_raw_value(variable_state.get_raw_value())

    def __getattr__(self, name: str) -> Any:
        if name in self.get_metadata() or self.get_raw_value() is not None:
            return super().__getattr__(name)
        raise AttributeError(f"{name}: {self._refusal()}")

    def __nnx_repr__(self) -> Iterator[Any]:
        yield nnx.reprlib.Object(type=type(self).__name__)
        yield nnx.reprlib.Attr("source", self.get_metadata("source"))

    def __treescope_repr__(self, path: Any, subtree_renderer: Any) -> Any:
        return subtree_renderer(f"{type(self).__name__}({self.get_metadata('source')})", path)


class Bound(NamedTuple):
    """Resolved ties of a module, the keys that lead to each of their sources and targets, and the axes of each source."""

    ties: Ties
    keys: tuple[tuple[str, Keys], ...]
    axes: tuple[tuple[str, int], ...]

    def variables(self, model: Any) -> dict[str, Any]:
        """Return the variables of all sources and targets."""
        return {path: _at(model, keys) for path, keys in self.keys}


UNTIED = Bound(Ties(), (), ())


def tie(model: Any, ties: TiesLike, wrt: Any = nnx.Param) -> Any:
    """Tie a module in place: its targets hold no array and read their sources whenever a method of the module runs.

    Create the optimizer after the module is tied, as in `nnx.Optimizer(tie(model, ties), tx, wrt=nnx.Param)`; `retie` ties a
    module that already has an optimizer. The values of the targets are dropped.

    The variables themselves change. Objects that hold them, such as an `nnx.view` or `nnx.state` of the untied module, have no
    array of a target from then on: create them again, or copy the module first (`nnx.clone`).

    The module gets a subclass of its class, whose public methods fill the targets. A loss that calls parts of the module
    instead, as in `model.head(x)`, does so in `with tiejax.nnx.filled(model):`. Call `tie`, `untie` and `retie` outside of
    transforms, or in a function that creates and returns the module.

    Args:
        model: An `nnx.Module`.
        ties: A tie or several between variables of `model`. Patterns match the variables that `wrt` selects.
        wrt: A filter for the variables that can be tied.

    Returns:
        `model`.

    Raises:
        TieError: The ties do not fit `model`; it is already tied; a target is shared with a variable that is not tied; or a
            gradient weight is traced.
    """
    bound = _bound(model, ties, wrt)
    keys, variables = dict(bound.keys), bound.variables(model)
    shared = {id(_at(model, group[0])) for group in nnx.find_duplicates(model, only=nnx.Variable)}
    for one in bound.ties:
        variable = variables[one.target]
        original = type(variable), tuple(sorted(variable.get_metadata().items()))
        about: Any = {"source": one.source, "original": original, "filled": False, "constant": False}
        tied = Tied(None, eager_sharding=False, **about)
        if id(variable) in shared:  # it stays what it is under its other names
            _assign(model, keys[one.target], tied)
        else:
            _become(variable, Tied, None, tied.get_metadata())
    own_class: Any = type(model)
    object.__setattr__(model, "__class__", _tied_class(own_class, not jax.tree_util.all_leaves([model])))
    model.tied_leaves = bound
    return model


def untie(model: Any, optimizer: Any = None, policy: Policy = "copy", new: New = "target") -> Any:
    """End the ties of a module in place, together with the state of its optimizer.

    Args:
        model: The module that `tie` or `retie` returned.
        optimizer: The `nnx.Optimizer` of the module, or None. It does not change if it trains no source, as one of adapters.
        policy: How the optimizer state continues, as for `tiejax.untie`; not `split`.
        new: Which variable of a tie counts as new.

    Returns:
        `model`, of its own class again.

    Raises:
        TieError: The module is not tied, or see `tiejax.untie`.
        ValueError: An unknown policy.
    """
    bound = bindings(model)
    if not bound.ties:
        raise TieError("the module is not tied")
    _check_axes(bound, bound.variables(model))
    trained = optimizer is not None and _trains(model, optimizer, bound.ties)
    if trained:
        stored, opt_state = _pure(model, optimizer), _arrays(optimizer.opt_state)
        opt_state = untie_tree(optimizer.tx, stored, opt_state, bound.ties, policy, new)[1]
    variables = bound.variables(model)
    with filled(model):
        values = {one.target: jnp.array(variables[one.target].get_raw_value(), copy=True) for one in bound.ties}
    for target, value in values.items():
        kind, metadata = variables[target].get_metadata("original")
        _become(variables[target], kind, value, dict(metadata))
    del model.tied_leaves
    object.__setattr__(model, "__class__", type(model).__bases__[0])
    if trained:
        _set_state(model, optimizer, opt_state)
    return model


def retie(model: Any, optimizer: Any, ties: TiesLike, keep: Keep = "mean") -> Any:
    """Tie a module in place, together with the state of its optimizer.

    Args:
        model: An `nnx.Module` that is not tied.
        optimizer: The `nnx.Optimizer` of the module. It does not change if it trains no leaf of the ties, as one of adapters.
        ties: A tie or several between variables that the optimizer trains, or between parameters (`nnx.Param`).
        keep: The value and the state of the shared variable: the `mean` of both, or those of the `source` or the `target`.

    Returns:
        `model`.

    Raises:
        TieError: See `tie` and `tiejax.retie`.
        ValueError: An unknown value of `keep`.
    """
    params, wrt, tx, opt_state = _pure(model, optimizer), optimizer.wrt, optimizer.tx, _arrays(optimizer.opt_state)
    try:
        resolved = _bound(model, ties, wrt).ties
    except TieError:
        resolved = _bound(model, ties, nnx.Param).ties
        if _trains(model, optimizer, resolved):
            raise
        params, wrt, tx, opt_state = _arrays(nnx.state(model, nnx.Param)), nnx.Param, STATELESS, ()
    stored, opt_state = retie_tree(tx, params, opt_state, resolved, keep)
    tie(model, ties, wrt)
    leaves, variables = leaves_by_path(stored)[0], bindings(model).variables(model)
    for source in {one.source for one in resolved}:
        variables[source].set_raw_value(leaves[source])
    if tx is optimizer.tx:
        _set_state(model, optimizer, opt_state)
    return model


def bindings(model: Any) -> Bound:
    """Return the resolved ties of a module, which are none if it is not tied."""
    return getattr(model, "tied_leaves", UNTIED)


@contextlib.contextmanager
def filled(model: Any) -> Iterator[Any]:
    """Fill the targets of a tied module from their sources, for the block of a `with` statement.

    Needed where a loss calls parts of the module, `model.head(model.body(x))`, or reads a target. If the tie has gradient
    weights, the uses of the source belong in the block, too. Do not update parameters there. Threads need a copy of the module
    each (`nnx.clone`). A copy whose parameters are changed in a block or a method needs a block of its own if its parts are
    called: one with averaged weights, or one that `nnx.merge` makes in a function that `jax.grad` differentiates.

    Args:
        model: A tied module; any other is left as it is.

    Yields:
        `model`.

    Raises:
        TieError: A target holds an array, as after `nnx.merge` with the state of an untied module.
    """
    bound = bindings(model)
    if not bound.ties:
        yield model
        return
    variables = bound.variables(model)
    active = _ACTIVE.get()
    if all(id(variables[one.target]) in active and active[id(variables[one.target])][0].is_of(variables) for one in bound.ties):
        yield model  # a method calls another one
        return
    before = {
        path: (variable.get_raw_value(), bool(variable.get_metadata("filled", False))) for path, variable in variables.items()
    }
    for one in bound.ties:
        raw, by_us = before[one.target]
        if not isinstance(variables[one.target], Tied) or (raw is not None and not by_us):
            raise TieError(
                f"{one}: {one.target} holds an array; the module has the state of one that is not tied, or is an nnx.view from "
                "before it was untied: make it again"
            )
    if active and _passes_on(bound.ties, before):
        yield model
        return
    _check_axes(bound, variables)
    fill = _Fill(bound.ties, variables)
    token = _ACTIVE.set({**active, **{id(variables[one.target]): (fill, one.target) for one in bound.ties}})
    try:
        yield model
    finally:
        _ACTIVE.reset(token)
        fill.end()
        for one in bound.ties:
            raw, by_us = before[one.target] if active else (None, False)  # a copy that was made in a method ends here
            _put(variables[one.target], raw, by_us)


def _passes_on(ties: Ties, before: dict[str, tuple[Any, bool]]) -> bool:
    """Return whether a module that a transform made within a method has arrays with their gradient weights already.

    before: value of each variable, and whether it was put there for a method. Raises TieError if the transform
    differentiates, so that the weights would have no effect: the target is then a constant of the transform.
    """
    if not all(before[one.target][1] for one in ties):
        return False
    sources = {path: value for path, (value, _) in before.items() if path not in {one.target for one in ties}}
    full = view(sources | {one.target: None for one in ties}, ties)
    if all(full[path] is value for path, value in sources.items()):
        return False
    for one in ties:
        traces = [getattr(before[path][0], "_trace", None) for path in (one.source, one.target)]
        if one.source in sources and traces[0] is not traces[1]:
            raise TieError(f"{one}: a tie with gradient weights needs gradients that are taken outside of the module's methods")
    return True


class _Fill:
    """The arrays of a module while one of its methods runs, read again if a source is set meanwhile.

    Transforms of NNX within the method pass them on as the values of the targets. A copy of the module, such as the one that a
    transform makes, reads its own sources as soon as a method of it runs.
    """

    def __init__(self, ties: Ties, variables: dict[str, Any]) -> None:
        self._ties, self._variables = ties, variables
        self._targets = {one.target for one in ties}
        self._hooks: dict[str, dict[str, Any]] = {}  # of sources with gradient weights: their own hooks
        self._own: dict[str, Any] = {}
        self.written: set[str] = set()  # sources with gradient weights that the method has set
        with core.take_current_trace() as trace:
            self.trace = weakref.ref(trace)
        self._read()

    def is_of(self, variables: dict[str, Any]) -> bool:
        """Return whether these are the variables that are filled."""
        return all(self._variables.get(path) is variable for path, variable in variables.items())

    def array(self, target: str) -> Any:
        """Return the array of a target."""
        if any(self._variables[path].get_raw_value() is not value for path, value in self._shown.items()):
            self._read()
            self.written -= self._hooks.keys()  # their arrays are among the present ones
        return self._full[target]

    def end(self) -> None:
        """Give sources that have gradient weights their own arrays again, unless the method has set them."""
        for path, hooks in self._hooks.items():
            variable = self._variables[path]
            variable._var_metadata.pop("on_set_value")
            variable._var_metadata |= hooks
            if path not in self.written:
                _put(variable, self._own[path])

    def _read(self) -> None:
        own = {path: one.get_raw_value() for path, one in self._variables.items() if path not in self._targets}
        for path in self._hooks.keys() - self.written:
            own[path] = self._own[path]
        self._own, self._full = own, view(own | dict.fromkeys(self._targets), self._ties)
        self._shown = {path: self._full[path] for path in own}
        for path, value in self._shown.items():
            if value is not own[path]:
                self._show(path, value)
        for path in self._targets:
            _put(self._variables[path], self._full[path], True)

    def _show(self, path: str, value: Any) -> None:
        """Give a source its array with the gradient weight, and notice when the method sets it."""
        variable = self._variables[path]
        if path not in self._hooks:
            hooks = variable.get_metadata("on_set_value", ())
            self._hooks[path] = {"on_set_value": hooks} if hooks else {}
            variable._var_metadata["on_set_value"] = (_on_set, *(hooks if isinstance(hooks, tuple) else (hooks,)))
        _put(variable, value)

    def source_of(self, variable: Any) -> str | None:
        """Return the path of a source, None if the variable is none of them."""
        return next((path for path in self._hooks if self._variables[path] is variable), None)


def _on_set(variable: Any, value: Any) -> Any:
    """Remember that a method has set a source with gradient weights; a transform within it cannot say so."""
    for fill, _ in _ACTIVE.get().values():
        if (path := fill.source_of(variable)) is not None:
            fill.written.add(path)
            return value
    raise TieError("the source of a tie with gradient weights cannot be set by a transform within a method of the module")


# The variables that are filled now, by identity: what fills them, and the path of the target.
_ACTIVE: contextvars.ContextVar[dict[int, tuple[_Fill, str]]] = contextvars.ContextVar("tiejax_filled", default={})  # noqa: B039


def _put(variable: Any, value: Any, is_filled: bool | None = None) -> None:
    """Set the array of a variable, also of one that was created outside the current trace: within it, the array is removed.

    is_filled: of a target, whether the array is there for a method only.
    """
    object.__setattr__(variable, "_raw_value", value)
    if is_filled is not None:
        variable._var_metadata.update(filled=is_filled, constant=False)


def _is_constant(value: Any) -> bool:
    """Return whether the present transform differentiates by other arrays than this one, which was filled outside of it."""
    with core.take_current_trace() as trace:
        differentiates = type(trace).__name__ in ("LinearizeTrace", "JVPTrace")
        within = any(fill.trace() is trace for fill, _ in _ACTIVE.get().values())  # then the source is a constant as well
        return differentiates and not within and getattr(value, "_trace", None) is not trace


@functools.cache
def _tied_class(cls: Any, is_pytree: bool) -> Any:
    """Return the subclass of a module's class whose public methods run with the targets filled."""
    bases = [base for base in reversed(cls.__mro__) if base not in nnx.Module.__mro__]
    attributes = {name: value for base in bases for name, value in vars(base).items()}
    methods = {name: _filling(value) for name, value in attributes.items() if _is_method(name, value)}
    body = methods | {
        "__module__": cls.__module__,
        "__qualname__": f"Tied{cls.__qualname__}",
        "__reduce__": lambda self: (_unpickled, (cls, is_pytree, self.__getstate__())),
    }
    return type(cls)(f"Tied{cls.__name__}", (cls,), body, pytree=is_pytree)


def _unpickled(cls: Any, is_pytree: bool, state: Any) -> Any:
    model = object.__new__(_tied_class(cls, is_pytree))
    model.__setstate__(state)
    return model


def _is_method(name: str, value: Any) -> bool:
    """Whether an attribute of a class is a method that a user calls; methods under transforms, as of `nnx.jit`, are objects."""
    public = name == "__call__" or not name.startswith("__")
    return public and callable(value) and hasattr(value, "__get__") and not isinstance(value, type | staticmethod | classmethod)


def _filling(method: Any) -> Callable[..., Any]:
    @functools.wraps(method)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        with filled(self):
            return method.__get__(self, type(self))(*args, **kwargs)

    return run


def _variables(model: Any) -> dict[Keys, Any]:
    """Return the variables of a module by their keys; one that is shared is under all of its keys."""
    found = {keys: node for keys, node in nnx.iter_graph(model) if isinstance(node, nnx.Variable)}
    for group in nnx.find_duplicates(model, only=nnx.Variable):
        found |= dict.fromkeys(group, next(found[keys] for keys in group if keys in found))
    return found


def _bound(model: Any, ties: TiesLike, wrt: Any) -> Bound:
    """Resolve ties between variables of a module that is not tied."""
    if not isinstance(model, nnx.Pytree):
        raise TieError(f"model: expected an nnx.Module, got {type(model).__name__}; the module comes first, then the ties")
    if bindings(model).ties:
        raise TieError("the module is already tied; untie it, and tie it with all ties at once")
    variables, selects = _variables(model), nnx.filterlib.to_predicate(wrt)
    arrays = {keys: one for keys, one in variables.items() if is_array(one.get_raw_value())}
    chosen = {f"{_name(keys)}{NNX_SUFFIX}": keys for keys, one in arrays.items() if selects(keys, one)}
    resolved = resolve_full(ties, {path: variables[keys].get_raw_value() for path, keys in chosen.items()})
    # Of the names of a variable that has several, the first.
    first = {id(variables[keys]): keys for keys, _ in nnx.to_flat_state(nnx.state(model, nnx.Variable))}
    of_source = {one.source: first[id(variables[chosen[one.source]])] for one in resolved}
    used = [*of_source.values(), *(chosen[one.target] for one in resolved)]
    keys = {_name(one): one for one in used}
    bound = [
        dataclasses.replace(one, source=_name(of_source[one.source]), target=_name(chosen[one.target])) for one in resolved
    ]
    for one in bound:
        _check_target(model, one, keys, {other.target for other in bound}, variables)
    axes = {one.source: variables[keys[one.source]].get_raw_value().ndim for one in bound}
    return Bound(Ties(bound), tuple(keys.items()), tuple(axes.items()))


def _check_target(model: Any, tie: Tie, keys: dict[str, Keys], targets: set[str], variables: dict[Keys, Any]) -> None:
    """Raise TieError if a target is also another variable or cannot be replaced, or if its tie is not supported."""
    own = variables[keys[tie.target]]
    for other in (_name(path) for path, variable in variables.items() if variable is own):
        if other not in targets and other != tie.source:
            raise TieError(f"{tie}: {tie.target} and {other} are one variable; tie {other} as well")
    if any(variables[keys[path]].get_metadata(kind, False) for path in (tie.source, tie.target) for kind in ("ref", "hijax")):
        raise TieError(f"{tie}: variables of the modes ref and hijax cannot be tied; create them without nnx.var_defaults")
    for path in (tie.source, tie.target):
        if variables[keys[path]].get_metadata("on_get_value", ()):
            raise TieError(
                f"{tie}: {path} has a hook `on_get_value`, which the other use would not have; apply it in the layer"
            )
    if isinstance(_at(model, keys[tie.target][:-1]), tuple):
        raise TieError(f"{tie}: {tie.target} is in a tuple, which cannot be changed; use a list, nnx.List or nnx.Dict")
    if any(isinstance(weight, jax.core.Tracer) for weight in tie.weights):
        raise TieError(f"{tie}: traced gradient weights cannot be part of a module; give numbers or arrays")


def _check_axes(bound: Bound, variables: dict[str, Any]) -> None:
    """Raise TieError if a source has other axes than when it was tied, and its tie would act on these."""
    axes = dict(bound.axes)
    for one in bound.ties:
        raw = variables[one.source].get_raw_value()
        counts = any(_counts_axes(part) for part in parts(one.transform))
        if counts and raw is not None and raw.ndim != axes[one.source]:
            raise TieError(
                f"{one}: {one.source} had {axes[one.source]} axes when it was tied and has {raw.ndim}, like members of nnx.vmap"
                " outside of it; tie, call and untie the module with the same axes"
            )


def _counts_axes(transform: Any) -> bool:
    """Return whether an elementary transform may count axes from the first one; a transpose swaps the last two."""
    if isinstance(transform, Slice):
        return transform.axis >= 0
    return not isinstance(transform, Transpose) and transform.rearranges is not False


def _name(keys: Keys) -> str:
    return "/".join(map(str, keys))


def _at(model: Any, keys: Keys) -> Any:
    """Return the node of a module under a sequence of keys."""
    for key in keys:
        model = model[key] if isinstance(model, CONTAINERS) else getattr(model, key)
    return model


def _assign(model: Any, keys: Keys, variable: Any) -> None:
    """Replace a variable of a module."""
    parent: Any = _at(model, keys[:-1])
    if isinstance(parent, CONTAINERS):
        parent[keys[-1]] = variable
    else:
        setattr(parent, keys[-1], variable)


def _become(variable: Any, kind: Any, value: Any, metadata: dict[str, Any]) -> None:
    """Give a variable another type, so that it changes wherever it is held, as by the modules that `nnx.view` returns."""
    object.__setattr__(variable, "__class__", kind)
    object.__setattr__(variable, "_var_metadata", dict(metadata))
    _put(variable, value)


def _pure(model: Any, optimizer: Any) -> Any:
    """Return the arrays that an optimizer trains."""
    if not isinstance(optimizer, nnx.Optimizer):
        raise TieError(f"optimizer: expected an nnx.Optimizer, got {type(optimizer).__name__}")
    return _arrays(nnx.state(model, optimizer.wrt))


def _trains(model: Any, optimizer: Any, ties: Ties) -> bool:
    """Return whether an optimizer trains a leaf of the ties."""
    leaves = leaves_by_path(_pure(model, optimizer))[0]
    return any(leaves.get(path) is not None for one in ties for path in (one.source, one.target))


def _arrays(tree: Any) -> Any:
    """Return a tree with the arrays of its variables in their places."""
    is_variable = lambda node: isinstance(node, nnx.Variable)  # noqa: E731
    return jax.tree.map(lambda node: node.get_raw_value() if is_variable(node) else node, tree, is_leaf=is_variable)


def _set_state(model: Any, optimizer: Any, opt_state: Any) -> None:
    """Replace the state of an optimizer by one for the present variables of the module; the number of steps is kept."""
    fresh = nnx.Optimizer(model, optimizer.tx, wrt=optimizer.wrt).opt_state
    wanted, treedef = leaves_by_path(_arrays(fresh))
    leaves = leaves_by_path(opt_state)[0]
    nnx.update(fresh, nnx.state(jax.tree_util.tree_unflatten(treedef, [leaves[path] for path in wanted])))
    optimizer.opt_state = nnx.data(fresh)
