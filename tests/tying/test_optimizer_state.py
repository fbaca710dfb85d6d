"""Which leaves of an optimizer state belong to a parameter, and their transforms. Oracles: numpy, and states by hand."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tiejax.tying import (
    Reshape,
    Slice,
    Tie,
    TieError,
    copy_to_targets,
    only_tied,
    retie,
    retie_switched,
    store,
    untie,
    untie_switched,
    view,
)
from tiejax.tying.optimizer_state import owned_leaves

TIES = [Tie("in", "out", "transpose")]
ADAM = optax.adam(0.1)


def tables(size=3, width=3):
    rng = np.random.default_rng(size + width)
    return {"in": jnp.asarray(rng.normal(size=(size, width))), "out": jnp.asarray(rng.normal(size=(width, size)))}


def leaf(tree, path):
    return np.asarray(
        {jax.tree_util.keystr(keys, simple=True, separator="/"): x for keys, x in jax.tree.leaves_with_path(tree)}[path]
    )


def after_steps(optimizer, params, steps=3):
    @jax.jit
    def run(params):
        state = optimizer.init(params)
        for step in range(steps):
            grads = jax.tree.map(lambda x, step=step: jnp.sin(7 * x + step), params)
            _, state = optimizer.update(grads, state, params)
        return state

    return run(params)


@pytest.mark.parametrize("width", [2, 3, 5])
def test_row_and_column_moments_of_adafactor_against_numpy(x64, width):
    """v_row reduces the largest axis, the last of equal ones: only in a square do the two change places."""
    optimizer, stored = optax.scale_by_factored_rms(min_dim_size_to_factor=2), store(tables(3, width), TIES)
    state, over = optimizer.init(stored), [np.zeros(width), np.zeros(3)]
    for step in range(3):
        gradient = np.random.default_rng(step).normal(size=(3, width))
        _, state = optimizer.update({"in": jnp.asarray(gradient), "out": None}, state, stored)
        decay = 1 - (step + 1.0) ** -0.8
        over = [decay * old + (1 - decay) * np.square(gradient).mean(axis) for axis, old in enumerate(over)]
    params, state = untie(optimizer, stored, state, TIES)
    over_rows, over_columns = over  # over the rows of `in`, which are the columns of `out`
    row = {"in": over_columns if width >= 3 else over_rows, "out": over_rows if width <= 3 else over_columns}
    column = {"in": over_rows if width >= 3 else over_columns, "out": over_columns if width <= 3 else over_rows}
    for name in ("in", "out"):
        np.testing.assert_allclose(state.v_row[name], row[name], rtol=1e-6)
        np.testing.assert_allclose(state.v_col[name], column[name], rtol=1e-6)
    again = retie(optimizer, params, state, TIES, keep="target")[1]
    np.testing.assert_allclose(again.v_row["in"], row["in"], rtol=1e-6)
    np.testing.assert_allclose(again.v_col["in"], column["in"], rtol=1e-6)


@pytest.mark.slow
def test_reductions_of_three_axes_follow_a_transpose_of_the_last_two(x64):
    optimizer = optax.scale_by_factored_rms(min_dim_size_to_factor=2)
    for shape in [(2, 3, 3), (5, 3, 2), (5, 2, 3), (3, 3, 2), (3, 2, 3), (3, 3, 3)]:
        x = jnp.asarray(np.random.default_rng(0).normal(size=shape))
        alone = {"in": x, "out": x.swapaxes(-1, -2)}
        expected = after_steps(optimizer, alone)
        stored = store(alone, TIES)
        found = untie(optimizer, stored, after_steps(optimizer, stored), TIES)[1]
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), found, expected)


REDUCING = {
    "adafactor": (optax.scale_by_factored_rms(min_dim_size_to_factor=2), r"v_row/in \([46],\) .*\(FactoredState\)"),
    "sm3": (optax.scale_by_sm3(), r"mu/in/0 \(6,\) .*\(ScaleBySM3State\)"),
}
PARTS = {
    "reshape": (Reshape((4, 6)), lambda x: x.reshape(4, 6)),
    "slice of rows": (Slice((1, 5)), lambda x: x[1:5]),
    "slice of columns": (Slice((0, 3), axis=1), lambda x: x[:, :3]),
}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("name", REDUCING)
def test_reductions_are_refused_under_a_reshape_and_a_slice(name, part):
    """A mean or a maximum over rows says nothing about some of them, in either form of the tie."""
    (optimizer, leaf_words), (transform, of) = REDUCING[name], PARTS[part]
    table = jnp.asarray(np.random.default_rng(0).normal(size=(6, 4)))
    params, ties = {"in": table, "out": of(table)}, [Tie("in", "out", transform)]
    stored = store(params, ties)
    words = rf"^tie in -> out: the .* of {leaf_words} is unknown; start again with optimizer.init$"
    with pytest.raises(TieError, match=words):
        untie(optimizer, stored, after_steps(optimizer, stored), ties)
    state = after_steps(optimizer, params)
    with pytest.raises(TieError, match=words):
        copy_to_targets(state, params, ties, True)
    for change in (lambda: retie(optimizer, params, state, ties), lambda: retie_switched(optimizer, params, state, ties)):
        with pytest.raises(TieError, match=r"^tie in -> out: .* is unknown; start again with optimizer.init$"):
            change()


@pytest.mark.parametrize("part", PARTS)
def test_moments_follow_a_reshape_and_a_slice(x64, part):
    """The moments of Adam by hand; those of entries that the target does not read stay when the two are joined."""
    transform, of = PARTS[part]
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(2, 6, 4))
    ties = [Tie("in", "out", transform)]
    stored = store({"in": jnp.asarray(first), "out": of(jnp.asarray(first))}, ties)
    mu, nu, state = np.zeros((6, 4)), np.zeros((6, 4)), ADAM.init(stored)
    for gradient in (first, second):
        _, state = ADAM.update({"in": jnp.asarray(gradient), "out": None}, state, stored)
        mu, nu = 0.9 * mu + 0.1 * gradient, 0.999 * nu + 0.001 * gradient**2
    params, state = untie(ADAM, stored, state, ties)
    for found, expected in ((state[0].mu, mu), (state[0].nu, nu)):
        np.testing.assert_allclose(found["in"], expected, rtol=1e-6)
        np.testing.assert_allclose(found["out"], of(expected), rtol=1e-6)
    changed = jax.tree.map(lambda x: 3 * x, state[0].mu["out"])
    state = (state[0]._replace(mu=state[0].mu | {"out": changed}), *state[1:])
    read = of(np.arange(24).reshape(6, 4)).ravel()
    tripled = mu.copy()
    tripled.ravel()[read] *= 3
    for keep, expected in (("source", mu), ("target", tripled), ("mean", (mu + tripled) / 2)):
        joined = retie(ADAM, params, state, ties, keep=keep)[1]
        np.testing.assert_allclose(joined[0].mu["in"], expected, rtol=1e-6, err_msg=keep)


@pytest.mark.parametrize("optimizer", [optax.scale_by_factored_rms(min_dim_size_to_factor=2), optax.scale_by_sm3()])
@pytest.mark.parametrize("width", [2, 3])
def test_reductions_in_the_switched_form(x64, optimizer, width):
    """The state of both leaves, trained apart, joined and copied: what either leaf alone gives."""
    params = tables(3, width)
    state = after_steps(optimizer, params)
    as_source = after_steps(optimizer, {"in": params["in"], "out": params["in"].T})
    as_target = after_steps(optimizer, {"in": params["out"].T, "out": params["out"]})

    def assert_equal(one, other):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), one, other)

    assert_equal(copy_to_targets(state, params, TIES, True), as_source)
    assert_equal(copy_to_targets(state, params, TIES, False), state)
    assert_equal(retie_switched(optimizer, params, state, TIES, "source")[1], as_source)
    assert_equal(retie_switched(optimizer, params, state, TIES, "target")[1], as_target)
    mean = jax.tree.map(lambda a, b: (a + b) / 2 if jnp.ndim(a) else a, as_source, as_target)
    assert_equal(retie_switched(optimizer, params, state, TIES)[1], mean)
    assert_equal(untie_switched(optimizer, params, state, TIES, "copy")[1], state)
    _, kept = untie_switched(optimizer, params, state, TIES, "zero-keep-count")
    fresh = optimizer.init(params)
    for path in owned_leaves(state, params):
        np.testing.assert_array_equal(leaf(kept, path), leaf(fresh if "out" in path else state, path))


GROUPS = optax.multi_transform({"a": optax.adam(0.1, b1=0.8), "b": ADAM}, {"in": "a", "out": "b"})


def test_source_and_target_in_different_groups():
    params = tables()
    stored = store(params, TIES)
    old, full = after_steps(GROUPS, stored), after_steps(GROUPS, params)
    with pytest.raises(TieError, match=r"has no inner_states/b/.*/mu/in, .*multi_transform.*'split'") as error:
        untie(GROUPS, stored, old, TIES)
    assert "retie" not in str(error.value)  # nothing was untied
    uses = after_steps(GROUPS, only_tied(view(stored, TIES), TIES))
    state = untie(GROUPS, stored, old, TIES, "split", use_states=uses)[1]
    jax.tree.map(np.testing.assert_array_equal, state, uses)
    with pytest.raises(TieError, match=r"has no inner_states/a/.*/mu/out, .*keep='source'"):
        retie(GROUPS, params, full, TIES)
    joined = retie(GROUPS, params, full, TIES, keep="source")[1]
    assert jax.tree.structure(joined) == jax.tree.structure(GROUPS.init(stored))
    np.testing.assert_array_equal(
        leaf(joined, "inner_states/a/inner_state/0/mu/in"), leaf(full, "inner_states/a/inner_state/0/mu/in")
    )
    jax.tree.map(np.testing.assert_array_equal, untie_switched(GROUPS, params, full, TIES, "copy")[1], full)
    for change in (lambda: retie_switched(GROUPS, params, full, TIES), lambda: copy_to_targets(full, params, TIES, True)):
        with pytest.raises(TieError, match="the optimizer treats the two leaves differently"):
            change()


def test_flattened_parameters_are_refused_in_both_forms():
    optimizer, params = optax.flatten(optax.adamw(0.1)), tables()
    stored, state = store(params, TIES), optimizer.init(params)
    for change in (
        lambda: untie(optimizer, stored, optimizer.init(stored), TIES),
        lambda: retie(optimizer, params, state, TIES),
        lambda: retie_switched(optimizer, params, state, TIES),
        lambda: untie_switched(optimizer, params, state, TIES, "zero-keep-count"),
        lambda: copy_to_targets(state, params, TIES, True),
    ):
        with pytest.raises(TieError, match=r"0/mu \(\d+,\) float32 of the optimizer state mixes parameters.*optax.flatten"):
            change()


def test_lookahead_is_refused_in_the_switched_form():
    params = optax.LookaheadParams.init_synced(tables())
    state = optax.lookahead(ADAM, 2, 0.5).init(params)
    with pytest.raises(TieError, match=r"fast_state/0/mu/in .* optax.lookahead"):
        copy_to_targets(state, params, [Tie("fast/in", "fast/out", "transpose")], True)


def test_history_of_lbfgs_can_be_copied_but_neither_divided_nor_joined():
    optimizer, params = optax.scale_by_lbfgs(memory_size=2), tables(3, 2)
    state = after_steps(optimizer, params)
    copied = copy_to_targets(state, params, TIES, True)
    memory = copied.diff_params_memory
    np.testing.assert_array_equal(memory["out"], np.asarray(memory["in"]).swapaxes(-1, -2))
    with pytest.raises(TieError, match=r"ScaleByLBFGSState.* cannot be kept: its weights are inner products"):
        retie_switched(optimizer, params, state, TIES)
    with pytest.raises(TieError, match="ScaleByLBFGSState"):
        untie_switched(optimizer, params, state, TIES, "zero-keep-count")


MOMENTUM = optax.sgd(0.1, momentum=0.9)


def test_stored_gradient_of_a_line_search_is_refused():
    params = tables()
    optimizer = optax.scale_by_backtracking_linesearch(5, store_grad=True)
    with pytest.raises(TieError, match=r"grad/out .*ScaleByBacktrackingLinesearchState.* holds the gradient"):
        untie(optimizer, store(params, TIES), optimizer.init(store(params, TIES)), TIES)
    with pytest.raises(TieError, match=r"grad/in .*ScaleByBacktrackingLinesearchState"):
        retie_switched(optimizer, params, optimizer.init(params), TIES)


MOMENTUM = optax.sgd(0.1, momentum=0.9)
FOREIGN = {
    "more than momentum": (
        lambda stored: (*MOMENTUM.init(stored), ADAM.init(stored)[0]),
        "has 2/count, which optimizer.init does not return: it belongs to another optimizer or to other parameters",
    ),
    "no momentum": (optax.sgd(0.1).init, "has no 0/trace/in: it belongs to another optimizer or to other parameters"),
    "other shapes": (
        lambda stored: MOMENTUM.init({**stored, "in": jnp.zeros((2, 3))}),
        r"0/trace/in \(2, 3\) float32 of the optimizer state: optimizer.init returns \(3, 3\) float32",
    ),
    "another dtype": (
        optax.sgd(0.1, momentum=0.9, accumulator_dtype=jnp.float16).init,
        r"0/trace/in \(3, 3\) float16 of the optimizer state: optimizer.init returns \(3, 3\) float32",
    ),
    "full parameters": (
        lambda stored: MOMENTUM.init(view(stored, TIES)),
        "has 0/trace/out, which optimizer.init does not return",
    ),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_states_of_other_optimizers_or_parameters_are_refused(name):
    make, message = FOREIGN[name]
    stored = store(tables(), TIES)
    with pytest.raises(TieError, match=message):
        untie(MOMENTUM, stored, make(stored), TIES)


def test_measurements_of_a_monitor_are_left_out():
    optimizer = optax.chain(ADAM, optax.monitor({"norm": optax.measure_with_ema(optax.tree.norm, 0.9)}))
    stored = store(tables(), TIES)
    adam, monitor = after_steps(optimizer, stored)
    with pytest.raises(TieError, match=r"has 1/measurements/norm, .* as optax.monitor adds measurements; then leave it out"):
        untie(optimizer, stored, (adam, monitor), TIES)
    params, state = untie(optimizer, stored, (adam, monitor._replace(measurements={})), TIES)
    assert jax.tree.structure(state) == jax.tree.structure(optimizer.init(params))
    jax.tree.map(np.testing.assert_array_equal, state[1].measure_states, monitor.measure_states)
    optimizer.update(params, state, params)


def test_unknown_reductions_are_refused_across_a_transpose_alone():
    def init(params):
        return {"rows": jax.tree.map(lambda x: x.sum(axis=1), params)}

    optimizer, params = optax.GradientTransformation(init, lambda grads, state, params=None: (grads, state)), tables()
    stored = store(params, TIES)
    with pytest.raises(TieError, match=r"the transpose of rows/in \(3,\) float32 of the optimizer state .*optimizer\.init"):
        untie(optimizer, stored, init(stored), TIES)
    with pytest.raises(TieError, match="the transpose of rows/in"):
        copy_to_targets(init(params), params, TIES, True)
    state = untie(optimizer, stored, init(stored), [Tie("in", "out")])[1]
    np.testing.assert_array_equal(state["rows"]["out"], params["in"].sum(axis=1))


def test_projections_of_galore_are_refused_across_a_transpose_alone():
    """A square matrix and its transpose have projectors of equal shape, onto different subspaces."""
    optimizer, params = optax.contrib.scale_by_galore(rank=3), tables()
    state = after_steps(optimizer, params, steps=1)
    with pytest.raises(TieError, match=r"\(3, 3\) .* is unknown: it projects a matrix and its transpose onto different"):
        copy_to_targets(state, params, TIES, True)
    copied = copy_to_targets(state, params, [Tie("in", "out")], True)
    np.testing.assert_array_equal(copied.projector["out"], state.projector["in"])
    with pytest.raises(TieError, match=r"optimizer.init does not accept stored parameters.*untie_switched"):
        untie(optimizer, store(params, TIES), state, TIES)


TREES = {
    "a tuple, as long as a chain": ((jnp.ones(2), jnp.ones(2)), "0", "1"),
    "a list": ([jnp.ones(2), jnp.ones(2)], "0", "1"),
    "names of a state's fields": ({"count": jnp.ones(2), "mu": {"mu": jnp.ones(2)}}, "count", "mu/mu"),
    "names of groups": ({"a": jnp.ones(2), "b": jnp.ones(2), "rest": {"x": jnp.ones(1), "y": jnp.ones(1)}}, "a", "b"),
}
SCHEDULE = optax.linear_schedule(0.1, 0.0, 9)


@pytest.mark.parametrize("name", TREES)
@pytest.mark.parametrize(
    "optimizer",
    [optax.sgd(SCHEDULE), optax.sgd(SCHEDULE, momentum=0.9), optax.adam(SCHEDULE), optax.sm3(0.1)],
    ids=["sgd", "momentum", "adam", "sm3"],
)
def test_parameters_in_any_containers(name, optimizer):
    tree, source, target = TREES[name]
    ties = [Tie(source, target)]
    stored = store(tree, ties)
    old = after_steps(optimizer, stored)
    params, state = untie(optimizer, stored, old, ties)
    expected = after_steps(optimizer, view(stored, ties))
    jax.tree.map(np.testing.assert_array_equal, state, expected)
    jax.tree.map(np.testing.assert_array_equal, retie(optimizer, params, state, ties)[1], old)
    jax.tree.map(np.testing.assert_array_equal, copy_to_targets(state, params, ties, True), state)


def test_masked_subtrees_and_groups_named_like_parameters():
    tree, ties = TREES["names of groups"][0], [Tie("a", "b")]
    optimizer = optax.multi_transform({"a": ADAM, "b": optax.sgd(SCHEDULE)}, {"a": "a", "b": "a", "rest": "b"})
    stored = store(tree, ties)
    old = after_steps(optimizer, stored)
    params, state = untie(optimizer, stored, old, ties)
    jax.tree.map(np.testing.assert_array_equal, state, after_steps(optimizer, view(stored, ties)))
    assert jax.tree.structure(state) == jax.tree.structure(optimizer.init(params))
    jax.tree.map(np.testing.assert_array_equal, retie(optimizer, params, state, ties)[1], old)


def test_complex_parameters_that_are_split_into_two():
    optimizer = optax.contrib.split_real_and_imaginary(ADAM)
    x = jnp.asarray([[1 + 2j, 3j], [2.0, 1j], [0.5, 1.0]])
    stored = store({"in": x, "out": x.T}, TIES)
    state = untie(optimizer, stored, after_steps(optimizer, stored), TIES)[1]
    jax.tree.map(np.testing.assert_allclose, state, after_steps(optimizer, view(stored, TIES)))


def test_python_numbers_in_a_state_take_the_dtype_of_a_new_state():
    optimizer = optax.inject_hyperparams(optax.sgd)(learning_rate=0.1)
    stored = jax.tree.map(lambda x: x.astype(jnp.bfloat16), store(tables(), TIES))
    state = optimizer.init(stored)
    state.hyperparams["learning_rate"] = 0.5
    found = untie(optimizer, stored, state, TIES)[1].hyperparams["learning_rate"]
    assert (float(found), found.dtype) == (0.5, optimizer.init(stored).hyperparams["learning_rate"].dtype)


class Factors(NamedTuple):
    rows: dict
    columns: dict


def shampoo():
    """Return Shampoo without roots: sums of G G^T and G^T G, which shapes do not tell from moments if G is square."""

    def init(params):
        return Factors(*(jax.tree.map(lambda x, a=axis: jnp.zeros((x.shape[a],) * 2), params) for axis in (0, 1)))

    def update(grads, state, params=None):
        rows = jax.tree.map(lambda old, g: old + g @ g.T, state.rows, grads)
        columns = jax.tree.map(lambda old, g: old + g.T @ g, state.columns, grads)
        return jax.tree.map(lambda left, g, right: -left @ g @ right, rows, grads, columns), Factors(rows, columns)

    return optax.GradientTransformation(init, update)


def bare():
    """Return the same, with a tree of factors of rows in place of a class, as an optimizer of one's own may have."""

    def update(grads, state, params=None):
        rows = jax.tree.map(lambda old, g: old + g @ g.T, state, grads)
        return jax.tree.map(lambda left, g: -left @ g, rows, grads), rows

    return optax.GradientTransformation(lambda params: jax.tree.map(lambda x: jnp.zeros((x.shape[0],) * 2), params), update)


WRAPPED = {
    "bare": bare(),
    "chain": optax.chain(bare(), optax.scale(-1.0)),
    "masked": optax.masked(bare(), {"in": True, "out": True}),
    "apply_if_finite": optax.apply_if_finite(bare(), 3),
    "MultiSteps": optax.MultiSteps(bare(), 2),
    "inject_hyperparams": optax.inject_hyperparams(lambda rate: optax.chain(bare(), optax.scale(rate)))(0.1),
    "partition": optax.partition({"tables": bare()}, {"in": "tables", "out": "tables"}),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_factors_without_a_class_are_refused(name):
    optimizer, params = WRAPPED[name], tables()
    stored = store(params, TIES)
    with pytest.raises(TieError, match=r"of the optimizer state .* is unknown"):
        untie(optimizer, stored, optimizer.init(stored), TIES)
    with pytest.raises(TieError, match=r"of the optimizer state .* is unknown"):
        retie(optimizer, params, optimizer.init(params), TIES)


@pytest.mark.parametrize("width", [3, 2])
def test_factors_of_rows_and_columns_are_refused_across_a_transpose(width):
    """By hand, the factors of a transposed gradient are those of the gradient, exchanged."""
    optimizer, params = shampoo(), tables(3, width)
    stored = store(params, TIES)
    state = after_steps(optimizer, stored)
    gradient = jnp.ones((3, width)).at[0].set(2.0)
    _, by_hand = optimizer.update({"in": gradient, "out": gradient.T}, optimizer.init(params))
    np.testing.assert_array_equal(by_hand.rows["out"], by_hand.columns["in"])
    full = view(stored, TIES)
    full_state = after_steps(optimizer, full)
    for call in (
        lambda: untie(optimizer, stored, state, TIES),
        lambda: retie(optimizer, full, full_state, TIES),
        lambda: copy_to_targets(full_state, full, TIES, True),
    ):
        with pytest.raises(TieError, match=r"the transpose of .* of the optimizer state \(Factors\) is unknown"):
            call()
    _, new = untie(optimizer, stored, state, TIES, policy="zero-keep-count")
    np.testing.assert_array_equal(new.rows["in"], state.rows["in"])
    np.testing.assert_array_equal(new.rows["out"], np.zeros((width, width)))


def test_factors_of_rows_and_columns_under_a_tie_of_the_same_layout():
    optimizer, ties = shampoo(), [Tie("in", "out")]
    stored = store(tables(), ties)
    state = after_steps(optimizer, stored)
    _, new = untie(optimizer, stored, state, ties)
    np.testing.assert_array_equal(new.rows["out"], state.rows["in"])
    np.testing.assert_array_equal(new.columns["out"], state.columns["in"])
