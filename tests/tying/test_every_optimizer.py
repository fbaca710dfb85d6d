"""Untying and retying the state of every optimizer that optax exports; docs/tying_optimizers.md lists the outcomes.

Oracles: the state that the optimizer's `init` returns; a run with two leaves that receive the tied gradient at every step; and
the leaves of the state that disappear with a parameter, found by calling `init` without it.
"""

import functools
import inspect
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest

from tiejax.tying import (
    Scale,
    Tie,
    TieError,
    check_leafwise,
    collect,
    copy_to_targets,
    retie,
    store,
    symmetrise,
    untie,
    view,
)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of arguments within optax

RATE = 0.1
SHAPES = {"in": (4, 3), "out": (3, 4), "left": (3, 3), "right": (3, 3), "bias": (3,)}
WORKS, SUMS, REFUSED = "works", "works, sums continue", "refused"
PAGE = Path(__file__).parents[2] / "docs" / "tying_optimizers.md"
ROW = re.compile(rf"^\| ({WORKS}|{SUMS}|{REFUSED}) \| (.+?) \| .+ \|$", re.MULTILINE)
TRANSPOSED = [Tie("in", "out", "transpose"), Tie("left", "right", "transpose")]
STEPS = 3

# Exported functions without an annotated result that are not optimizers.
OTHERS = {
    "bias_correction",
    "matrix_inverse_pth_root",
    "multi_normal",
    "schedule_free_eval_params",
    "sigmoid_binary_cross_entropy",
    "tree_map_params",
    "unitwise_clip",
    "update_infinity_moment",
    "update_moment",
    "update_moment_per_elem_norm",
}


@functools.cache
def exported():
    """Return every function of optax that makes an optimizer, by name."""
    found = {"MultiSteps": optax.MultiSteps}
    for module, prefix in ((optax, ""), (optax.transforms, ""), (optax.contrib, "contrib.")):
        for name in dir(module):
            function = getattr(module, name)
            if name.startswith("_") or name in OTHERS or not inspect.isfunction(function):
                continue
            result = inspect.signature(function).return_annotation
            if result is inspect.Signature.empty or "GradientTransformation" in str(result):
                found[prefix + name] = function
    return found


def not_bias(tree):
    return {name: name != "bias" for name in tree}


def labels(tree):
    return {name: "bias" if name == "bias" else "tables" for name in tree}


def as_matrices(tree):
    return jax.tree.map(lambda leaf: optax.contrib.MuonDimensionNumbers(), tree)


def later(step, **_):
    return step > 0


ADAM = optax.adam(RATE)
GROUPS = {"bias": optax.sgd(RATE), "tables": ADAM}
MADE = {
    "MultiSteps": lambda of: of(ADAM, STEPS),
    "adafactor": lambda of: of(RATE, min_dim_size_to_factor=2, momentum=0.9),
    "adaptive_grad_clip": lambda of: of(0.1),
    "add_noise": lambda of: of(0.1, 0.5, key=0),
    "apply_if_finite": lambda of: of(ADAM, 3),
    "chain": lambda of: of(optax.clip(1.0), ADAM),
    "clip": lambda of: of(1.0),
    "clip_by_block_rms": lambda of: of(1.0),
    "clip_by_global_norm": lambda of: of(1.0),
    "conditionally_mask": lambda of: of(ADAM, later),
    "conditionally_transform": lambda of: of(ADAM, later),
    "contrib.differentially_private_aggregate": lambda of: of(1.0, 0.1, key=0),
    "contrib.dpsgd": lambda of: of(RATE, 1.0, 0.1, seed=0, momentum=0.9),
    "contrib.galore": lambda of: of(RATE, rank=2),
    "contrib.mechanize": lambda of: of(ADAM),
    "contrib.muon": lambda of: of(RATE, ns_steps=1),
    "contrib.sam": lambda of: of(ADAM, optax.chain(optax.contrib.normalize(), optax.sgd(RATE))),
    "contrib.scale_by_galore": lambda of: of(rank=2),
    "contrib.scale_by_muon": lambda of: optax.masked(of(ns_steps=1, weight_dimension_numbers=as_matrices), not_bias),
    "contrib.schedule_free": lambda of: of(ADAM, RATE),
    "contrib.split_real_and_imaginary": lambda of: of(ADAM),
    "ema": lambda of: of(0.9),
    "flatten": lambda of: of(ADAM),
    "freeze": lambda of: of(not_bias(SHAPES)),
    "inject_hyperparams": lambda of: of(optax.adam)(RATE),
    "inject_stateful_hyperparams": lambda of: of(optax.adam)(RATE),
    "lookahead": lambda of: of(ADAM, 2, 0.5),
    "masked": lambda of: of(ADAM, not_bias),
    "measure_with_ema": lambda of: optax.monitor({"norm": of(optax.tree.norm, 0.9)}),
    "monitor": lambda of: of({"norm": optax.tree.norm}),
    "multi_transform": lambda of: of(GROUPS, labels),
    "named_chain": lambda of: of(("clip", optax.clip(1.0)), ("adam", ADAM)),
    "noisy_sgd": lambda of: of(RATE, key=0),
    "partition": lambda of: of(GROUPS, labels),
    "scale": lambda of: of(-RATE),
    "scale_by_backtracking_linesearch": lambda of: of(5),
    "scale_by_factored_rms": lambda of: of(min_dim_size_to_factor=2),
    "scale_by_schedule": lambda of: of(lambda count: -RATE / (1 + count)),
    "scale_by_zoom_linesearch": lambda of: of(5),
    "selective_transform": lambda of: of(ADAM, freeze_mask={name: name == "bias" for name in SHAPES}),
    "sgd": lambda of: of(RATE, momentum=0.9),
    "snapshot": lambda of: of("norm", optax.tree.norm),
    "stateless": lambda of: of(lambda updates, params: updates),
    "stateless_with_tree_map": lambda of: of(lambda update, param: -RATE * update),
    "trace": lambda of: of(0.9),
    "with_extra_args_support": lambda of: of(ADAM),
}
ARGUMENTS = {
    **dict.fromkeys(["lbfgs", "scale_by_backtracking_linesearch", "scale_by_zoom_linesearch"], ("value", "grad", "value_fn")),
    **dict.fromkeys(["contrib.hutchinson_estimator_diag_hessian", "contrib.sophia"], ("obj_fn",)),
    **dict.fromkeys(
        ["contrib.momo", "contrib.momo_adam", "contrib.reduce_on_plateau", "polyak_sgd", "scale_by_polyak"], ("value",)
    ),
}
PER_EXAMPLE = ("contrib.differentially_private_aggregate", "contrib.dpsgd")


def made(name):
    function = exported()[name]
    if name in MADE:
        return MADE[name](function)
    parameters = inspect.signature(function).parameters.values()
    required = [one.name for one in parameters if one.default is inspect.Parameter.empty]
    assert required in ([], ["learning_rate"]), f"{name}: add how to make it to MADE"
    return function(RATE) if required else function()


def start():
    rng = np.random.default_rng(0)
    return {name: jnp.asarray(rng.normal(size=shape)) for name, shape in SHAPES.items()}


def gradients(step):
    """Gradients of all uses, which do not depend on parameters."""
    rng = np.random.default_rng(1 + step)
    return {name: jnp.asarray(rng.normal(size=shape)) for name, shape in SHAPES.items()}


def objective(tree):
    return sum(jnp.sum(jnp.square(leaf - 0.5)) for leaf in jax.tree.leaves(tree))


def updated(name, optimizer, grads, state, params):
    values = {"value": objective(params["bias"]), "grad": grads, "value_fn": objective, "obj_fn": objective}
    if name in PER_EXAMPLE:
        grads = jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf]), grads)
    updates, state = optimizer.update(grads, state, params, **{key: values[key] for key in ARGUMENTS.get(name, ())})
    return updates, state, optax.apply_updates(params, updates)


def trained_once(name, optimizer, ties):
    """Return stored parameters and their state."""
    params = store(start(), ties)
    state = optimizer.init(params)
    for step in range(STEPS):
        _, state, params = updated(name, optimizer, collect(gradients(step), ties), state, params)
    return params, state


def trained_twice(name, optimizer, ties):
    """Return both leaves, which received the tied gradient at every step, and their state."""
    params = copy_to_targets(start(), start(), ties, True)
    state = optimizer.init(params)
    for step in range(STEPS):
        _, state, params = updated(name, optimizer, symmetrise(gradients(step), ties, True), state, params)
        params = copy_to_targets(params, params, ties, True)
    return params, state


def described(tree):
    return jax.tree.map(lambda leaf: (jnp.shape(leaf), jnp.asarray(leaf).dtype), tree)


def assert_fits(state, optimizer, params):
    fresh = optimizer.init(params)
    assert jax.tree.structure(state) == jax.tree.structure(fresh)
    assert described(state) == described(fresh)


def differences(one, other):
    """Return the paths at which two trees of the same structure differ."""
    pairs = zip(jax.tree_util.tree_leaves_with_path(one), jax.tree.leaves(other), strict=True)
    return [jax.tree_util.keystr(path) for (path, a), b in pairs if not close(a, b)]


def close(one, other):
    """Whether two leaves agree, relative to the largest entry."""
    one, other = (
        np.asarray(jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x) for x in (one, other)
    )
    if not np.issubdtype(one.dtype, np.inexact) or np.isnan(other).any():
        return np.array_equal(one, other, equal_nan=np.issubdtype(one.dtype, np.inexact))
    return one.shape == other.shape and np.abs(one - other).max(initial=0) <= 1e-4 * np.abs(other).max(initial=0)


def paths_of(optimizer, params, name):
    """Return the paths of the state that exist only with a parameter."""
    without = optimizer.init({**params, name: None})
    present = {path for path, _ in jax.tree_util.tree_leaves_with_path(without)}
    return [path for path, _ in jax.tree_util.tree_leaves_with_path(optimizer.init(params)) if path not in present]


def assert_carried(optimizer, ties, params, old, state):
    """Check that all leaves are those of the stored state, and those of targets the transformed ones of their sources."""
    before, after = (dict(jax.tree_util.tree_leaves_with_path(tree)) for tree in (old, state))
    for tie in ties:
        sources, targets = (paths_of(optimizer, params, path) for path in (tie.source, tie.target))
        for source, target in zip(sources, targets, strict=True):
            found, expected = after.pop(target), np.asarray(before[source])
            if expected.shape == SHAPES[tie.source] and tie.transform == "transpose":
                expected = expected.T
            assert close(found, jnp.asarray(expected)), target
    assert after.keys() == before.keys()
    for path, leaf in after.items():
        assert close(leaf, before[path]), path


def outcome(name, ties):
    """Untie and retie; return WORKS, SUMS if the run with two leaves has other sums over all parameters, or the refusal."""
    optimizer = made(name)
    if name == "lookahead":
        return refused_lookahead(optimizer, ties)
    try:
        optimizer.init(store(start(), ties))
    except AttributeError:
        return refused_without_target(optimizer, ties)
    stored, old = trained_once(name, optimizer, ties)
    twice, twin = trained_twice(name, optimizer, ties)
    try:
        params, state = untie(optimizer, stored, old, ties)
    except TieError as error:
        with pytest.raises(TieError, match=r"the optimizer state.*optimizer\.init"):
            retie(optimizer, twice, twin, ties)
        return str(error)
    assert_fits(state, optimizer, params)
    updates, after, _ = updated(name, optimizer, gradients(STEPS), state, params)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(updates))
    assert_fits(after, optimizer, params)
    if differences((params, state), (twice, twin)):
        assert_carried(optimizer, ties, params, old, state)
    else:
        expected, _, _ = updated(name, optimizer, gradients(STEPS), twin, twice)
        assert differences(updates, expected) == []
    again, again_state = retie(optimizer, params, state, ties)
    assert_fits(again_state, optimizer, again)
    assert differences((again, again_state), (stored, old)) == []
    return SUMS if differences(state, twin) else WORKS


def refused_without_target(optimizer, ties):
    with pytest.raises(TieError, match=r"optimizer\.init does not accept stored parameters") as refused:
        untie(optimizer, store(start(), ties), None, ties)
    with pytest.raises(TieError, match=r"optimizer\.init does not accept stored parameters"):
        retie(optimizer, start(), optimizer.init(start()), ties)
    return str(refused.value)


def refused_lookahead(optimizer, ties):
    both = optax.LookaheadParams.init_synced(store(start(), ties))
    of_both = [Tie(f"{part}/{tie.source}", f"{part}/{tie.target}", tie.transform) for tie in ties for part in ("fast", "slow")]
    state = optimizer.init(both)
    with pytest.raises(TieError, match=r"optimizer\.init") as refused:
        untie(optimizer, both, state, of_both)
    full = optax.LookaheadParams.init_synced(start())
    with pytest.raises(TieError, match=r"optimizer\.init"):
        retie(optimizer, full, optimizer.init(full), of_both)
    # What to do: untie the optimizer inside.
    params, inside = untie(ADAM, both.fast, state.fast_state, ties)
    full = optax.LookaheadParams(fast=params, slow=view(both.slow, ties))
    optimizer.update(gradients(0), state._replace(fast_state=inside), full)
    return str(refused.value)


def table():
    """Return the outcomes of the page, as pairs of a name and an outcome."""
    return [(name, outcome) for outcome, names in ROW.findall(PAGE.read_text()) for name in re.findall(r"`([\w.]+)`", names)]


def test_the_page_lists_every_optimizer_once():
    listed = [name for name, _ in table()]
    assert len(set(listed)) == len(listed)
    assert set(exported()) <= set(listed), "run this test for the new ones, and add them to docs/tying_optimizers.md"
    if f"optax {optax.__version__}" in PAGE.read_text():
        assert set(listed) == set(exported())


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(exported()))
def test_outcome_is_that_of_the_page(name):
    found = outcome(name, TRANSPOSED)
    assert (found if found in (WORKS, SUMS) else REFUSED) == dict(table())[name], found


# The update of a leaf depends on others, but that has no effect in the first steps, or only joins the leaves in one array.
ACROSS = {"contrib.dadapt_adamw", "contrib.dog", "contrib.mechanize", "contrib.prodigy", "flatten"}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(exported().keys() - ARGUMENTS.keys() - set(PER_EXAMPLE) - {"lookahead"}))
def test_optimizers_that_count_a_switched_pair_twice_are_refused(name):
    """Refused exactly if a model with two leaves trains differently from one that stores the array once."""
    optimizer = made(name)
    try:
        check_leafwise(optimizer, start(), TRANSPOSED)
        refused = False
    except TieError:
        refused = True
    if "galore" in name:  # which does not accept stored parameters
        assert not refused
        return
    (once, _), (twice, _) = trained_once(name, optimizer, TRANSPOSED), trained_twice(name, optimizer, TRANSPOSED)
    differ = any(not close(twice[path], leaf) for path, leaf in once.items() if leaf is not None)
    assert refused == (differ or name in ACROSS)


# Optimizers whose state holds values of parameters, beside moments.
VALUED = [
    *("contrib.cocob", "contrib.dog", "contrib.dowg", "contrib.madgrad", "contrib.mechanize", "contrib.prodigy", "contrib.sam"),
    *("contrib.schedule_free", "contrib.schedule_free_adamw", "contrib.schedule_free_sgd", "scale_by_distance_over_gradients"),
]


@pytest.mark.slow
@pytest.mark.parametrize("name", VALUED)
def test_values_in_a_state_are_scaled_with_the_parameter(name):
    """A leaf that no gradient reaches moves in proportion to its source, in whatever the state remembers of it."""
    optimizer, tie = made(name), Tie("left", "right", Scale(0.5))
    fresh = optimizer.init({**start(), "right": start()["left"] * 0.5})
    values = [path for path in paths_of(optimizer, start(), "right") if path in holding(optimizer)]
    stored, state = trained_once(name, optimizer, [tie])
    params, state = untie(optimizer, stored, state, [tie])
    assert jax.tree.structure(state) == jax.tree.structure(fresh)
    leaves = dict(jax.tree_util.tree_leaves_with_path(state))
    sources = dict(zip(paths_of(optimizer, start(), "right"), paths_of(optimizer, start(), "left"), strict=True))
    assert values
    for path in values:
        np.testing.assert_allclose(leaves[path], 0.5 * leaves[sources[path]])
    for keep in ("mean", "target"):
        again, after = retie(optimizer, params, state, [tie], keep)
        assert differences(again, stored) == []
        found = dict(jax.tree_util.tree_leaves_with_path(after))
        for path in values:
            np.testing.assert_allclose(found[sources[path]], leaves[sources[path]], rtol=1e-6)


def holding(optimizer):
    """Return the paths of the arrays of a state that change with the values of the parameters at the start."""
    one, other = optimizer.init(start()), optimizer.init(jax.tree.map(lambda leaf: leaf + 1, start()))
    pairs = zip(jax.tree_util.tree_leaves_with_path(one), jax.tree.leaves(other), strict=True)
    return {path for (path, a), b in pairs if a.ndim and not close(a, b)}


# Whose corrections depend on a counter, or a mark, of all parameters.
REFUSED_ZERO = (
    "adam",
    "adan",
    "contrib.simplified_ademamix",
    "optimistic_gradient_descent",
    "contrib.ademamix",
    "novograd",
    "lion",
)
COUNTED = (*REFUSED_ZERO, "adagrad", "rmsprop", "sgd", "adadelta")


@pytest.mark.slow
@pytest.mark.parametrize("name", COUNTED)
def test_policy_zero_restarts_a_leaf_or_is_refused(name):
    """The first update of the new leaf is that of a new optimizer, as far as the policy is accepted."""
    optimizer, tie = made(name), Tie("left", "right")
    stored, state = trained_once(name, optimizer, [tie])
    params, _ = untie(optimizer, stored, state, [tie])
    expected, _, _ = updated(name, optimizer, gradients(9), optimizer.init(params), params)
    if name in REFUSED_ZERO:
        with pytest.raises(TieError, match="is that of all leaves together"):
            untie(optimizer, stored, state, [tie], policy="zero")
        return
    _, zeroed = untie(optimizer, stored, state, [tie], policy="zero")
    found, _, _ = updated(name, optimizer, gradients(9), zeroed, params)
    np.testing.assert_allclose(found["right"], expected["right"], rtol=1e-5)


def test_split_is_refused_for_values_of_parameters():
    optimizer, tie = optax.contrib.schedule_free_sgd(RATE), Tie("left", "right")
    stored, state = trained_once("contrib.schedule_free_sgd", optimizer, [tie])
    uses = optimizer.init({name: leaf for name, leaf in start().items() if name in ("left", "right")} | dict.fromkeys(SHAPES))
    with pytest.raises(TieError, match=r"policy 'split': .*z/left of the optimizer state holds values of left"):
        untie(optimizer, stored, state, [tie], policy="split", use_states=uses)


@pytest.mark.parametrize("keep", ["mean", "target"])
def test_retie_does_not_drop_the_state_of_a_target(keep):
    optimizer = optax.multi_transform(
        {"f": optax.sgd(RATE), "t": ADAM}, lambda tree: {name: "t" if name == "right" else "f" for name in tree}
    )
    params, tie = start(), Tie("left", "right")
    with pytest.raises(TieError, match=r"has .*mu/right, but no .*mu/left: the optimizer treats the two leaves differently"):
        retie(optimizer, params, optimizer.init(params), tie, keep=keep)
    retie(optimizer, params, optimizer.init(params), tie, keep="source")
