"""Arguments of wrong types, in a wrong order, or of the other kind of tree: one line that says what to do."""

import inspect

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import optax
import pytest

from tiejax import tying
from tiejax.tying import Tie, TieError

TIE = Tie("a", "b")
OPTIMIZER = optax.adamw(1e-2)


@pytest.fixture(autouse=True)
def unchecked(monkeypatch):
    """Switch off the type checks of the tests, which users do not have."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


def full():
    return {"a": jnp.ones((2, 2)), "b": jnp.zeros((2, 2))}


def stored():
    return tying.store(full(), TIE)


def many():
    return {f"layer_{number}/kernel": jnp.ones(1) for number in range(2000)}


@pytest.mark.parametrize("ties", [TIE, [TIE], (TIE,)], ids=["one", "list", "tuple"])
def test_one_tie_or_several(ties):
    assert tying.store(full(), ties)["b"] is None


def test_every_function_takes_one_tie():
    params, grads, own = full(), full(), stored()
    for function in (tying.store, tying.resolve, tying.only_tied, tying.equal_leaves):
        function(params, TIE) if function is not tying.resolve else function(TIE, params)
    tying.view(own, TIE)
    tying.collect(grads, TIE)
    assert tying.tied_loss(lambda params: params["b"].sum(), TIE)(own) == 4
    tied = tying.copy_to_targets(params, params, TIE, True)
    tying.assert_tied(tied, TIE)
    tying.clip_by_global_norm(tying.symmetrise(grads, TIE, True), TIE, True, 1.0)
    untied, state = tying.untie(OPTIMIZER, own, OPTIMIZER.init(own), TIE)
    tying.retie(OPTIMIZER, untied, state, TIE)


FIRST = "the tree comes first, then the ties"
MISTAKES = {
    "swapped": (lambda: tying.store([TIE], full()), f"expected a tree of arrays, got ties in its place; {FIRST}"),
    "swapped view": (lambda: tying.view([TIE], full()), f"got ties in its place; {FIRST}"),
    "swapped assertion": (lambda: tying.assert_tied(TIE, full()), f"got ties in its place; {FIRST}"),
    "swapped tree": (lambda: tying.store(full(), full()), f"ties: expected a Tie or a list of them, got dict .*; {FIRST}"),
    "a path": (lambda: tying.store(full(), "a"), "ties: expected a Tie or a list of them, got str 'a'"),
    "paths": (lambda: tying.store(full(), ["a", "b"]), "ties: expected a Tie or a list of them, got str 'a'"),
    "a pair": (lambda: tying.store(full(), [("a", "b")]), r"got tuple \('a', 'b'\); write Tie\('a', 'b'\)"),
    "an iterator": (lambda: tying.view(stored(), iter([TIE])), "ties: expected a Tie or a list of them, got list_iterator"),
    "no ties": (lambda: tying.store(full(), None), "ties: expected a Tie or a list of them, got NoneType None"),
    "swapped loss": (lambda: tying.tied_loss([TIE], lambda params: 1.0), r"got list; write tied_loss\(loss, ties\)"),
    "find_ties": (lambda: tying.find_ties(TIE), "expected a tree of arrays, got ties"),
    "tie_between": (
        lambda: tying.tie_between(lambda tree: tree, lambda tree: tree, full()),
        r"target: expected a function that selects a leaf, got dict; the arguments are tie_between\(tree, source, target\)",
    ),
    "part of a leaf": (
        lambda: tying.tie_between(full(), lambda tree: tree["a"][0], lambda tree: tree["b"]),
        r"expected a function that selects a leaf, got a\[0\]; write a Slice",
    ),
    "transposed leaf": (
        lambda: tying.tie_between(full(), lambda tree: tree["a"], lambda tree: tree["b"].T),
        r"expected a function that selects a leaf, got b\.T; write transform='transpose'",
    ),
    "T": (lambda: Tie("a", "b", "T"), "transform must be .*, got 'T'; did you mean 'transpose'"),
    "a near name": (lambda: Tie("a", "b", "transposed"), "got 'transposed'; did you mean 'transpose'"),
    "path of an index": (lambda: Tie(1, "b"), "source: expected a path such as 'embed/embedding', got 1"),
    "path of keys": (lambda: Tie("a", ("head", "w")), r"target: expected a path such as 'head/w', got \('head', 'w'\)"),
    "three weights": (
        lambda: Tie("a", "b", gradient=[1, 2, 3]),
        r"gradient must be .* two finite weights \(a, b\), got \(1, 2, 3\)",
    ),
    "an infinite weight of jax": (
        lambda: Tie("a", "b", gradient=(jnp.inf * jnp.ones(2), 1.0)),
        r"gradient must be .* two finite weights \(a, b\)",
    ),
    "a list of keys": (
        lambda: tying.ties_of_keys(["lm_head.weight"]),
        r"keys: expected a mapping .*, got list \['lm_head.weight'\]; write \{'lm_head.weight': 'model.embed_tokens.weight'\}",
    ),
    "no keys": (lambda: tying.ties_of_keys(None), "keys: expected a mapping .*, got NoneType None; write {'lm_head.weight'"),
    "keys that are no names": (lambda: tying.ties_of_keys({"a": 1}), "keys: expected names of tensors, got 1"),
    "stored": (lambda: tying.store(tying.store(full(), Tie("b", "a")), TIE), "a is None; the source must hold an array"),
    "untied": (
        lambda: tying.untie(OPTIMIZER, full(), OPTIMIZER.init(full()), TIE),
        "b still holds an array; pass the tree",
    ),
    "no optimizer": (
        lambda: tying.untie(stored(), OPTIMIZER, OPTIMIZER.init(stored()), TIE),
        r"optimizer: expected an optax optimizer, .* got dict; the arguments are untie\(optimizer, stored, opt_state, ties\)",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_say_what_to_do(name):
    call, message = MISTAKES[name]
    with pytest.raises(TieError, match=message) as error:
        call()
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


CHANGES = ["untie", "retie", "untie_switched", "retie_switched"]


@pytest.mark.parametrize("name", CHANGES)
def test_swapped_parameters_and_state(name):
    function, params = getattr(tying, name), stored() if name == "untie" else full()
    with pytest.raises(TieError, match="the parameters and the optimizer state are swapped; the arguments are"):
        function(OPTIMIZER, {"mu": params}, params, TIE)


def test_functions_that_end_and_restore_ties_have_one_shape():
    shapes = [list(inspect.signature(getattr(tying, name)).parameters) for name in CHANGES]
    assert {shape[0] for shape in shapes} == {"optimizer"}
    assert {(*shape[2:4],) for shape in shapes} == {("opt_state", "ties")}
    for name in CHANGES[2:]:
        params, state = getattr(tying, name)(OPTIMIZER, full(), OPTIMIZER.init(full()), TIE)
        assert jax.tree.structure(params) == jax.tree.structure(full())
        assert jax.tree.structure(state) == jax.tree.structure(OPTIMIZER.init(full()))


NEED_FULL = {
    "assert_tied": lambda: tying.assert_tied(stored(), TIE),
    "equal_leaves": lambda: tying.equal_leaves(stored(), TIE),
    "copy_to_targets": lambda: tying.copy_to_targets(stored(), stored(), TIE, True),
    "symmetrise": lambda: tying.symmetrise(stored(), TIE, True),
    "global_norm": lambda: tying.global_norm(stored(), TIE, True),
    "only_tied": lambda: tying.only_tied(stored(), TIE),
    "collect": lambda: tying.collect(stored(), TIE),
    "retie_switched": lambda: tying.retie_switched(OPTIMIZER, stored(), OPTIMIZER.init(stored()), TIE),
    "untie_switched": lambda: tying.untie_switched(OPTIMIZER, stored(), OPTIMIZER.init(stored()), TIE),
    "retie": lambda: tying.retie(OPTIMIZER, stored(), OPTIMIZER.init(stored()), TIE),
}


@pytest.mark.parametrize("name", NEED_FULL)
def test_stored_parameters_where_full_ones_are_needed(name):
    with pytest.raises(TieError, match=r"tie a -> b: b is None; pass the full tree, as view\(stored, ties\) returns it"):
        NEED_FULL[name]()


@pytest.mark.parametrize("on", [0.5, 1, "yes", None, np.ones(3, bool), [True, False], [[True]]])
def test_switches_of_a_wrong_shape_or_type(on):
    with pytest.raises(TieError, match="on: expected a boolean, or one for each of the 1 resolved ties, got"):
        tying.symmetrise(full(), TIE, on)


def test_gradient_weights_of_a_wrong_shape():
    with pytest.raises(TieError, match=r"gradient_weights: expected two for each of the 1 resolved ties, got"):
        tying.symmetrise(full(), TIE, True, (1.0, 0.5))


@pytest.mark.parametrize("on", [True, [True], np.array(True), np.bool_(True), jnp.array([True])])
def test_switches_of_all_allowed_types(on):
    assert tying.symmetrise(full(), TIE, on)["b"].tolist() == [[1, 1], [1, 1]]


def test_unknown_choices():
    state = OPTIMIZER.init(stored())
    with pytest.raises(ValueError, match="new: expected one of source, target, got 'both'"):
        tying.untie(OPTIMIZER, stored(), state, TIE, new="both")
    with pytest.raises(ValueError, match="policy: expected one of copy, zero, zero-keep-count, split, got 'reset'"):
        tying.untie(OPTIMIZER, stored(), state, TIE, policy="reset")
    with pytest.raises(ValueError, match="keep: expected one of mean, source, target, got 'both'"):
        tying.retie(OPTIMIZER, full(), OPTIMIZER.init(full()), TIE, keep="both")


@pytest.mark.slow
def test_ten_leaves_at_most_are_listed():
    """Of 2,000 leaves, the nearest: those whose names share most with the pattern or path."""
    for tie in (Tie("layer_1234/kernels/*", "x/*"), Tie("layer_0/kernel", "layer_1234/kernels*")):
        with pytest.raises(TieError, match="the nearest of 2,000 leaves are") as error:
            tying.store(many(), tie)
        listed = str(error.value).partition("leaves are ")[2].split(", ")
        assert len(listed) == 10
        assert "layer_1234/kernel" in listed
    with pytest.raises(TieError, match=r"no leaf layer_1234/kernels; did you mean layer_1234/kernel, [^,]*, [^,]*\?$"):
        tying.store(many(), Tie("layer_1234/kernels", "layer_0/kernel"))
    with pytest.raises(TieError, match=r"no leaf q; did you mean [^,]*, [^,]*, [^,]*\?$"):  # nothing is near
        tying.store(many(), Tie("q", "layer_0/kernel"))
    with pytest.raises(TieError, match=r"the first of 2,000 leaves are ([^,]*, ){9}[^,]*$"):
        tying.tie_between(many(), lambda tree: tree, lambda tree: tree)
    with pytest.raises(TieError, match="no leaf a; the tree has no leaves"):
        tying.store({}, TIE)
