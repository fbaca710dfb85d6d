"""Ties in NNX modules, against models that are tied by hand: their losses, gradients, statistics and dropout keys."""

import pickle
from pathlib import Path

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import optax
import orbax.checkpoint
import pytest
from flax import nnx

import tiejax.nnx
from tiejax.tying import (
    Functions,
    Scale,
    Slice,
    Tie,
    TieError,
    find_ties,
    gradients_by_use,
    retie,
    store,
    tie_between,
    tied_loss,
)

VOCABULARY, WIDTH = 7, 3
TOKENS = jnp.arange(VOCABULARY)
TARGETS = (3 * TOKENS + 1) % VOCABULARY
TIE = Tie("emb/embedding", "head/kernel", transform="transpose")
RTOL = 1e-5


class Model(nnx.Module):
    """Batch normalisation and dropout between two tables."""

    def __init__(self, rngs):
        self.emb = nnx.Embed(VOCABULARY, WIDTH, rngs=rngs)
        self.norm = nnx.BatchNorm(WIDTH, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.calls = nnx.Variable(jnp.zeros((), int))
        self.head = nnx.Linear(WIDTH, VOCABULARY, use_bias=False, rngs=rngs)

    def body(self, tokens):
        self.calls[...] += 1
        return self.dropout(self.norm(self.emb(tokens)))

    def __call__(self, tokens):
        return self.head(self.body(tokens))

    @nnx.jit
    def compiled(self, tokens):
        return self(tokens)

    @nnx.remat
    def rematerialised(self, tokens):
        return self(tokens)


class ByHand(Model):
    """The same model without a head of its own."""

    def __init__(self, rngs):
        super().__init__(rngs)
        del self.head

    def __call__(self, tokens):
        return self.body(tokens) @ self.emb.embedding[...].T


def model(kind=Model):
    return kind(nnx.Rngs(0))


def tied(ties=TIE):
    return tiejax.nnx.tie(model(), ties)


def untied():
    """The untied model, whose head has the values of the table."""
    full = model()
    full.head.kernel[...] = full.emb.embedding[...].T
    return full


def cross_entropy(logits):
    return optax.softmax_cross_entropy_with_integer_labels(logits, TARGETS).mean()


def loss(model):
    return cross_entropy(model(TOKENS))


@nnx.jit
def step(model, optimizer):
    value, grads = nnx.value_and_grad(loss)(model)
    optimizer.update(model, grads)
    return value


def trained(model, rate, steps=4):
    optimizer = nnx.Optimizer(model, optax.adamw(rate), wrt=nnx.Param)
    return [float(step(model, optimizer)) for _ in range(steps)], optimizer


def arrays(tree, which=...):
    """The arrays of a module, an optimizer or a state by path; keys of dropout as integers."""
    state = tree if isinstance(tree, nnx.State) else nnx.state(tree, which)
    values = {
        "/".join(map(str, path)): leaf.get_value() for path, leaf in nnx.to_flat_state(state) if isinstance(leaf, nnx.Variable)
    }
    is_key = {path: jnp.issubdtype(value.dtype, jax.dtypes.prng_key) for path, value in values.items() if value is not None}
    return {path: np.asarray(jax.random.key_data(values[path]) if key else values[path]) for path, key in is_key.items()}


def assert_close(found, expected, **tolerance):
    assert found.keys() == expected.keys()
    for path, value in expected.items():
        np.testing.assert_allclose(found[path], value, err_msg=path, **({"rtol": RTOL, "atol": 1e-6} | tolerance))


def test_training_is_that_of_the_model_tied_by_hand():
    one, other = tied(), model(ByHand)
    losses, optimizer = trained(one, 1e-2)
    expected, reference = trained(other, 1e-2)
    np.testing.assert_allclose(losses, expected, rtol=RTOL)
    assert_close(arrays(one), arrays(other))  # parameters, statistics, dropout keys, the count of calls: each once
    assert_close(arrays(optimizer), arrays(reference))
    assert one.calls[...] == 4


def test_state_lives_at_rate_0():
    """Dropout draws new masks, and batch statistics move, as in the untied model; at rate 0 nothing else changes the loss."""
    one, other = tied(), untied()
    losses, expected = trained(one, 0.0)[0], trained(other, 0.0)[0]
    np.testing.assert_allclose(losses, expected, rtol=RTOL)
    assert len(set(losses)) == len(losses)
    others = nnx.Not(nnx.Param)
    assert_close(arrays(one, others), arrays(other, others))


@pytest.mark.slow
@pytest.mark.parametrize("call", ["compiled", "rematerialised"])
def test_methods_under_transforms(call):
    one, other = tied(), model(ByHand)
    found = nnx.value_and_grad(lambda model: cross_entropy(getattr(model, call)(TOKENS)))(one)
    expected = nnx.value_and_grad(loss)(other)
    np.testing.assert_allclose(found[0], expected[0], rtol=RTOL)
    assert_close(arrays(found[1]), arrays(expected[1]))
    assert_close(arrays(one), arrays(other))


def test_scan_over_steps():
    def losses(model):
        @nnx.jit
        @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=(nnx.Carry, 0))
        def steps(carry, _):
            return carry, step(*carry)

        return steps((model, nnx.Optimizer(model, optax.adamw(1e-2), wrt=nnx.Param)), jnp.arange(4))[1]

    one, other = tied(), model(ByHand)
    np.testing.assert_allclose(losses(one), losses(other), rtol=RTOL)
    assert_close(arrays(one), arrays(other))


def test_ensemble_by_vmap():
    def ensemble(create):
        models = nnx.split_rngs(splits=3)(nnx.vmap(create))(nnx.Rngs(0))
        optimizers = nnx.vmap(lambda model: nnx.Optimizer(model, optax.adamw(1e-2), wrt=nnx.Param))(models)
        return [nnx.vmap(step)(models, optimizers) for _ in range(3)], models

    losses, models = ensemble(lambda rngs: tiejax.nnx.tie(Model(rngs), TIE))
    expected, reference = ensemble(ByHand)
    np.testing.assert_allclose(losses, expected, rtol=RTOL)
    assert_close(arrays(models), arrays(reference))


@pytest.mark.parametrize("mode", [nnx.set_graph_mode, nnx.set_graph_updates])
def test_functional_loops_and_tree_mode(mode):
    """With neither graphs nor updates of graphs, NNX is used like this; it refuses modules that share a variable."""

    def losses(model):
        optimizer = nnx.Optimizer(model, optax.adamw(1e-2), wrt=nnx.Param)

        @nnx.jit
        def step(model, optimizer):
            graph, params, rest = nnx.split(model, nnx.Param, ...)

            def loss_of(params, rest):
                merged = nnx.merge(graph, params, rest, copy=True)
                return loss(merged), nnx.state(merged, nnx.Not(nnx.Param))

            (value, rest), grads = jax.value_and_grad(loss_of, has_aux=True)(params, rest)
            nnx.update(model, rest)
            optimizer.update(model, grads)
            return value

        return [step(model, optimizer) for _ in range(3)]

    with mode(False):
        one, other = tied(), model(ByHand)
        np.testing.assert_allclose(losses(one), losses(other), rtol=RTOL)
        assert_close(arrays(one), arrays(other))


class Decoder(nnx.Module):
    """One layer of attention with a cache."""

    def __init__(self, rngs):
        self.emb = nnx.Embed(VOCABULARY, 4, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(2, 4, decode=True, rngs=rngs)
        self.head = nnx.Linear(4, VOCABULARY, use_bias=False, rngs=rngs)
        self.attention.init_cache((1, 5, 4))

    def __call__(self, token):
        return self.head(self.attention(self.emb(token)))


class DecoderByHand(Decoder):
    def __call__(self, token):
        return self.attention(self.emb(token)) @ self.emb.embedding[...].T


def test_a_cache_is_filled_step_by_step():
    def decode(model):
        apply = nnx.jit(lambda model, token: model(token))
        return [np.asarray(apply(model, jnp.array([[token]]))) for token in (1, 5, 2)]

    one, other = tiejax.nnx.tie(model(Decoder), TIE), model(DecoderByHand)
    np.testing.assert_allclose(decode(one), decode(other), rtol=RTOL, atol=1e-6)
    assert one.attention.cache_index[...] == 3
    caches = arrays(other, nnx.Cache)
    assert len(caches) == 3
    assert_close(arrays(one, nnx.Cache), caches)


def test_a_tie_costs_no_operation():
    def cost(model):
        optimizer = nnx.Optimizer(model, optax.adamw(1e-2), wrt=nnx.Param)
        analysis = step.lower(model, optimizer).compile().cost_analysis()
        return {name: analysis[name] for name in ("flops", "bytes accessed")}

    assert cost(tied()) == cost(model(ByHand))


def test_closures_of_plain_jax():
    one, other = tied(), model(ByHand)
    one.eval(), other.eval()
    del one.calls, other.calls
    one.body = other.body = lambda tokens: one.emb(tokens)
    for function in (jax.jit(lambda tokens: one(tokens)), jax.vmap(one), one):
        np.testing.assert_allclose(function(TOKENS), other(TOKENS), rtol=RTOL)
    with pytest.raises(TieError, match="tied to emb/embedding"):
        one.head(jnp.ones(WIDTH))  # nothing of a trace was left behind


ROWS = np.linspace(0, 1, VOCABULARY)[:, None]


@pytest.mark.parametrize(
    ("gradient", "a", "b"),
    [("all", 1, 1), ("source", 1, 0), ((0.5, 0.25), 0.5, 0.25), ((0.0, 1.0), 0, 1), ((ROWS, 1.0), ROWS, 1)],
    ids=str,
)
@pytest.mark.parametrize("call", ["__call__", "compiled"])
def test_gradient_weights(gradient, a, b, call):
    one = tied(Tie("emb/embedding", "head/kernel", transform="transpose", gradient=gradient))

    def twice(model):  # weights of the first call do not act on the second
        return cross_entropy(getattr(model, call)(TOKENS)) + cross_entropy(getattr(model, call)(TOKENS))

    found, expected = arrays(nnx.grad(twice)(one)), arrays(nnx.grad(twice)(untied()))
    total = a * expected["emb/embedding"] + b * expected["head/kernel"].T
    np.testing.assert_allclose(found["emb/embedding"], total, rtol=RTOL, atol=1e-6)
    np.testing.assert_array_equal(one.emb.embedding[...], model().emb.embedding[...])


@pytest.mark.parametrize(
    ("transform", "function"),
    [
        (["transpose", Scale(0.5)], lambda table: table.T / 2),
        (Functions(lambda table: jnp.tanh(table.T), jnp.arctanh), lambda table: jnp.tanh(table.T)),
    ],
    ids=["scaled", "functions"],
)
def test_transforms(transform, function):
    one, other = tied(Tie("emb/embedding", "head/kernel", transform=transform)), model(ByHand)
    value, grads = nnx.value_and_grad(loss)(one)
    by_hand = lambda model: cross_entropy(model.body(TOKENS) @ function(model.emb.embedding[...]))  # noqa: E731
    expected, reference = nnx.value_and_grad(by_hand)(other)
    np.testing.assert_allclose(value, expected, rtol=RTOL)
    assert_close(arrays(grads), arrays(reference))


def hand_untied(optimizer):
    """The optimizer state of Adam with a copy of the table's moments for the head, in its layout."""
    adam = nnx.as_pure(optimizer.opt_state)[0]
    mu, nu = nnx.to_pure_dict(adam.mu), nnx.to_pure_dict(adam.nu)
    return adam.count, *({**moment, "head": {"kernel": moment["emb"]["embedding"].T}} for moment in (mu, nu))


def test_untie_with_the_optimizer():
    one = tied()
    _, optimizer = trained(one, 1e-2)
    count, mu, nu = hand_untied(optimizer)
    _, params, rest = nnx.split(one, nnx.Param, ...)
    params = {**nnx.to_pure_dict(params), "head": {"kernel": params["emb"]["embedding"][...].T}}
    assert tiejax.nnx.untie(one, optimizer) is one
    assert type(one) is Model
    assert isinstance(one.head.kernel, nnx.Param)
    assert optimizer.step[...] == 4

    other = model()
    nnx.update(other, params)
    nnx.update(other, {name: value for name, value in nnx.to_pure_dict(rest).items() if name != "head"})
    adam = optax.adamw(1e-2)
    state = (optax.ScaleByAdamState(count, mu, nu), *adam.init(params)[1:])
    for _ in range(3):
        value, grads = nnx.value_and_grad(loss)(other)
        updates, state = adam.update(nnx.to_pure_dict(grads), state, params)
        params = optax.apply_updates(params, updates)
        nnx.update(other, params)
        np.testing.assert_allclose(step(one, optimizer), value, rtol=RTOL)
    assert_close(arrays(one), arrays(other))
    assert not np.allclose(one.head.kernel[...], one.emb.embedding[...].T)


def test_retie_with_the_optimizer():
    one = model()
    _, optimizer = trained(one, 1e-2)
    table, kernel = one.emb.embedding[...], one.head.kernel[...]
    adam = nnx.as_pure(optimizer.opt_state)[0]
    means = [(moment["emb"]["embedding"] + moment["head"]["kernel"].T) / 2 for moment in (adam.mu, adam.nu)]
    assert tiejax.nnx.retie(one, optimizer, TIE, keep="mean") is one
    np.testing.assert_allclose(one.emb.embedding[...], (table + kernel.T) / 2, rtol=RTOL)
    found = nnx.as_pure(optimizer.opt_state)[0]
    for moment, mean in zip((found.mu, found.nu), means, strict=True):
        np.testing.assert_allclose(moment["emb"]["embedding"], mean, rtol=RTOL, atol=1e-9)
        assert "head" not in moment

    other = model(ByHand)
    nnx.update(other, nnx.state(one, nnx.Not(tiejax.nnx.Tied)))
    reference = nnx.Optimizer(other, optax.adamw(1e-2), wrt=nnx.Param)
    nnx.update(reference, nnx.state(optimizer))
    for _ in range(3):
        np.testing.assert_allclose(step(one, optimizer), step(other, reference), rtol=RTOL)
    assert_close(arrays(one), arrays(other))


def test_untie_without_an_optimizer():
    one = tiejax.nnx.untie(tied())
    np.testing.assert_array_equal(one.head.kernel[...], one.emb.embedding[...].T)
    np.testing.assert_allclose(loss(one), loss(model(ByHand)), rtol=RTOL)
    trained(one, 1e-2)


def test_an_optimizer_that_trains_no_tied_variable_does_not_change():
    """As that of adapters beside frozen tables."""

    def adapted(one):
        one.adapter = nnx.LoRA(WIDTH, 2, WIDTH, rngs=nnx.Rngs(1))
        optimizer = nnx.Optimizer(one, optax.adam(1e-2), wrt=nnx.LoRAParam)
        optimizer.update(one, jax.tree.map(jnp.ones_like, nnx.state(one, nnx.LoRAParam)))
        return one, optimizer

    one, optimizer = adapted(model())
    table, kernel, before = one.emb.embedding[...], one.head.kernel[...], arrays(nnx.state(optimizer))
    with pytest.raises(TieError, match="no leaf emb/embeding"):
        tiejax.nnx.retie(one, optimizer, tiejax.Tie("emb/embeding", "head/kernel"))
    tiejax.nnx.retie(one, optimizer, TIE, keep="mean")
    mean = (table + kernel.T) / 2
    np.testing.assert_allclose(one.emb.embedding[...], mean, rtol=RTOL)
    assert "head/kernel" not in arrays(nnx.state(one, nnx.Param))
    tiejax.nnx.untie(one, optimizer)
    np.testing.assert_allclose(one.head.kernel[...], mean.T, rtol=RTOL)
    assert_close(arrays(nnx.state(optimizer)), before)
    optimizer.update(one, jax.tree.map(jnp.ones_like, nnx.state(one, nnx.LoRAParam)))
    np.testing.assert_allclose(one.emb.embedding[...], mean, rtol=RTOL)


def test_checkpoints_hold_every_array_once(tmp_path):
    one = tied()
    trained(one, 1e-2)
    state = nnx.state(one, nnx.Not(nnx.RngKey))
    assert "head/kernel" not in arrays(state)
    with orbax.checkpoint.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", state)
        checkpointer.save(tmp_path / "dicts", nnx.to_pure_dict(state))
        checkpointer.wait_until_finished()
        abstract = nnx.eval_shape(tied)
        restored = [
            checkpointer.restore(tmp_path / "state", nnx.state(abstract, nnx.Not(nnx.RngKey))),
            checkpointer.restore(tmp_path / "dicts"),
        ]
    assert 0 < size(tmp_path / "state") < 2**20
    one.eval()
    for state in restored:
        other = tiejax.nnx.tie(Model(nnx.Rngs(1)), TIE)
        other.eval()
        assert not np.allclose(other(TOKENS), one(TOKENS))
        nnx.update(other, state)
        np.testing.assert_array_equal(other(TOKENS), one(TOKENS))


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def pickled(one):
    return pickle.loads(pickle.dumps(one))


def merged(one):
    return nnx.merge(*nnx.split(one), copy=True)


@pytest.mark.parametrize("copied", [nnx.clone, pickled, merged])
def test_copies_stay_tied(copied):
    one = tied()
    other = copied(one)
    assert isinstance(other, Model)
    other.emb.embedding[...] *= 2
    one.eval(), other.eval()
    by_hand = model(ByHand)
    by_hand.emb.embedding[...] *= 2
    by_hand.eval()
    np.testing.assert_allclose(other(TOKENS), by_hand(TOKENS), rtol=RTOL)
    assert not np.allclose(one(TOKENS), other(TOKENS))


def test_parts_of_a_module():
    def in_parts(model):
        return cross_entropy(model.head(model.body(TOKENS)))

    def in_a_block(model):
        with tiejax.nnx.filled(model):
            assert model.head.kernel.shape == (WIDTH, VOCABULARY)
            return in_parts(model)

    with pytest.raises(TieError, match=r"tied to emb/embedding; .* use `with tiejax\.nnx\.filled\(model\):`"):
        nnx.grad(in_parts)(tied())
    one, other = tied(), model(ByHand)
    assert_close(arrays(nnx.grad(in_a_block)(one)), arrays(nnx.grad(loss)(other)))
    assert_close(arrays(one), arrays(other))
    with tiejax.nnx.filled(other):  # not tied
        pass


class Shared(nnx.Module):
    """Variables in containers, and one that is shared as NNX does it."""

    def __init__(self, rngs):
        self.first, self.second = nnx.Linear(3, 3, rngs=rngs), nnx.Linear(3, 3, rngs=rngs)
        self.second.kernel = self.first.kernel
        self.layers = nnx.List([nnx.Linear(3, 3, rngs=rngs) for _ in range(3)])
        self.scales = nnx.Dict(a=nnx.Param(jnp.full(3, 2.0)), b=nnx.Param(jnp.full(3, 3.0)))
        self.offset = jnp.zeros(3)  # which is no variable
        self.plain = nnx.data({"a": [nnx.Param(jnp.full(3, 4.0))], "b": (nnx.Param(jnp.full(3, 5.0)),)})

    def __call__(self, x):
        for layer in (self.first, self.second, *self.layers):
            x = jnp.tanh(layer(x))
        return x * self.scales.a[...] * self.scales.b[...] * self.plain["a"][0][...] * self.plain["b"][0][...]


def test_patterns_and_containers():
    one = Shared(nnx.Rngs(0))
    first = one.layers[0]
    ties = [Tie("layers/0/*", "layers/*/*"), Tie("scales/a", "scales/b"), Tie("scales/a", "plain/a/0")]
    tiejax.nnx.tie(one, ties)
    left = {"first/kernel", "first/bias", "second/bias", "layers/0/kernel", "layers/0/bias", "scales/a", "plain/b/0"}
    assert arrays(one).keys() == left

    def by_hand(first, scale, x):
        x = jnp.tanh(one.second(jnp.tanh(one.first(x))))
        for _ in range(3):
            x = jnp.tanh(x @ first["kernel"] + first["bias"])
        return jnp.sum(x * scale**3 * 5.0)

    x = jnp.linspace(-1, 1, 6).reshape(2, 3)
    of_first = {"kernel": first.kernel[...], "bias": first.bias[...]}
    expected, scale = jax.grad(by_hand, (0, 1))(of_first, one.scales.a[...], x)
    found = arrays(nnx.jit(nnx.grad(lambda model, x: jnp.sum(model(x))))(one, x))
    assert_close({name: found[f"layers/0/{name}"] for name in expected}, expected)
    np.testing.assert_allclose(found["scales/a"], scale, rtol=RTOL)


def test_a_variable_that_is_shared_already():
    one, other = Shared(nnx.Rngs(0)), Shared(nnx.Rngs(0))
    x = jnp.linspace(-1, 1, 6).reshape(2, 3)
    ties = find_ties(one, equal=False)
    assert [str(tie) for tie in ties] == ["tie first/kernel/value -> second/kernel/value"]
    tiejax.nnx.tie(one, ties)
    summed = lambda model: jnp.sum(model(x))  # noqa: E731
    assert_close(arrays(nnx.grad(summed)(one)), arrays(nnx.grad(summed)(other)))
    tiejax.nnx.untie(one)
    assert one.first.kernel is not one.second.kernel
    buffers = [layer.kernel[...].unsafe_buffer_pointer() for layer in (one.first, one.second)]
    assert buffers[0] != buffers[1]  # both can be donated
    with pytest.raises(TieError, match="second/kernel and first/kernel are one variable; tie first/kernel as well"):
        tiejax.nnx.tie(other, Tie("layers/0/kernel", "second/kernel"))


def test_a_tie_under_the_second_name_of_a_shared_variable_ends():
    """The model of the same values with all variables of their own has the same output, before and after."""
    one, other = Shared(nnx.Rngs(0)), Shared(nnx.Rngs(0))
    x = jnp.linspace(-1, 1, 6).reshape(2, 3)
    tiejax.nnx.tie(one, Tie("second/kernel", "layers/0/kernel"))
    optimizer = nnx.Optimizer(one, optax.sgd(0.1), wrt=nnx.Param)
    optimizer.update(one, nnx.grad(lambda model: jnp.sum(model(x)))(one))
    expected = one(x)
    tiejax.nnx.untie(one, optimizer)
    np.testing.assert_array_equal(one(x), expected)
    nnx.update(other, nnx.state(one))
    other.layers[0].kernel[...] = one.first.kernel[...]
    np.testing.assert_array_equal(other(x), expected)


def evaluation(model):
    return nnx.view(model, deterministic=True, use_running_average=True)


@pytest.mark.parametrize("when", ["after tie", "before tie", "after untie"])
def test_views_of_a_module_never_read_an_old_array(when):
    """A view from before a change of the ties shares the variables: it follows, or is refused."""
    one = model()
    view = evaluation(one)
    tiejax.nnx.tie(one, TIE)
    if when != "before tie":
        view = evaluation(one)
    _, optimizer = trained(one, 0.1)
    if when == "after untie":
        tiejax.nnx.untie(one, optimizer)
        with pytest.raises(TieError, match=r"is an nnx\.view from before it was untied: make it again"):
            view(TOKENS)
        view = evaluation(one)
        step(one, optimizer)
    elif when == "before tie":
        with pytest.raises(TieError, match=r"in an nnx\.view, a state or another module from before"):
            view(TOKENS)
        view = evaluation(one)
    head = one.head.kernel[...] if when == "after untie" else one.emb.embedding[...].T
    features = evaluation(one).norm(one.emb.embedding[...])
    np.testing.assert_allclose(view(TOKENS), features @ head, rtol=RTOL, atol=1e-6)


def with_a_mask(name):
    one = model()
    variable = one.head.kernel if name == "head" else one.emb.embedding
    variable.set_metadata(on_get_value=lambda variable, value: value * 0.5)
    return one


def test_tie_between():
    full = model()
    one = tied(tie_between(full, lambda m: m.emb.embedding, lambda m: m.head.kernel, transform="transpose"))
    np.testing.assert_allclose(loss(one), loss(model(ByHand)), rtol=RTOL)


def in_mode(**mode):
    with nnx.var_defaults(**mode):
        tied()


def other_state(*, pure):
    state = nnx.state(Model(nnx.Rngs(1)))
    return nnx.to_pure_dict(state) if pure else state


def late():
    """A step of an optimizer that was created before the module was tied."""
    one = model()
    optimizer = nnx.Optimizer(one, optax.adam(1e-2), wrt=nnx.Param)
    step(tiejax.nnx.tie(one, TIE), optimizer)


def set_in_block():
    with tiejax.nnx.filled(tied()) as one:
        one.head.kernel[...] = jnp.zeros((WIDTH, VOCABULARY))


@pytest.fixture
def unchecked(monkeypatch):
    """Switch off the type checks of the tests, which users do not have."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


def traced_weights():
    tie = lambda b: tied(Tie("emb/embedding", "head/kernel", "transpose", (1.0, b)))  # noqa: E731
    jax.grad(lambda b: loss(tie(b)))(0.5)


def functional(wrapped):
    """The state of an nnx.Optimizer, or the optimizer itself, passed to the functions for trees."""
    params, adam = nnx.state(model(), nnx.Param), optax.adam(1e-2)
    optimizer = nnx.Optimizer(model(), adam, wrt=nnx.Param)
    retie(optimizer if wrapped else adam, params, optimizer.opt_state, TIE)


MISTAKES = {
    "set": (lambda: tied().head.kernel.set_value(jnp.zeros((3, 7))), "tied to emb/embedding and cannot be set"),
    "set in a block": (set_in_block, "tied to emb/embedding and cannot be set"),
    "an array in front of the head": (lambda: jnp.ones(WIDTH) @ tied().head.kernel, "tied to emb/embedding"),
    "operators": (lambda: tied().head.kernel.value, "tied to emb/embedding"),
    "untied state": (lambda: nnx.update(tied(), other_state(pure=False)), "tied to emb/embedding and cannot be set"),
    "untied dicts": (lambda: nnx.update(tied(), other_state(pure=True)), "tied to emb/embedding and cannot be set"),
    "merged": (lambda: nnx.merge(nnx.graphdef(tied()), other_state(pure=False))(TOKENS), "head/kernel holds an array"),
    "merged dicts": (lambda: nnx.merge(nnx.graphdef(tied()), other_state(pure=True))(TOKENS), "head/kernel holds an array"),
    "twice": (lambda: tiejax.nnx.tie(tied(), TIE), "already tied; untie it"),
    "untied": (lambda: tiejax.nnx.untie(model()), "the module is not tied"),
    "statistics": (lambda: tied(Tie("norm/mean", "norm/var")), "no leaf norm/mean"),
    "traced weights": (traced_weights, "traced gradient weights cannot be part of a module"),
    "in a tuple": (lambda: tiejax.nnx.tie(Shared(nnx.Rngs(0)), Tie("scales/a", "plain/b/0")), "plain/b/0 is in a tuple"),
    "references": (lambda: in_mode(ref=True), "variables of the modes ref and hijax cannot be tied"),
    "a mask": (lambda: tiejax.nnx.tie(with_a_mask("head"), TIE), "head/kernel has a hook `on_get_value`"),
    "a mask of the source": (lambda: tiejax.nnx.tie(with_a_mask("emb"), TIE), "emb/embedding has a hook `on_get_value`"),
    "hijax": (lambda: in_mode(hijax=True), "variables of the modes ref and hijax cannot be tied"),
    "swapped": (lambda: tiejax.nnx.tie(TIE, model()), "model: expected an nnx.Module, got Tie"),
    "a state": (lambda: tiejax.nnx.tie(nnx.state(model()), TIE), "model: expected an nnx.Module, got State"),
    "optax": (lambda: tiejax.nnx.untie(tied(), optax.adam(1e-2)), "optimizer: expected an nnx.Optimizer, got GradientTrans"),
    "late": (late, "pytree"),
    "an nnx.Optimizer for a tree": (lambda: functional(True), r"write tiejax\.nnx\.retie\(model, optimizer"),
    "its state for a tree": (lambda: functional(False), r"write tiejax\.nnx\.retie\(model, optimizer"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes(mistake, unchecked):
    call, message = MISTAKES[mistake]
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert isinstance(caught.value, TieError) or mistake == "late"  # optax's own error


def test_a_refused_tie_changes_nothing():
    one = Shared(nnx.Rngs(0))
    with pytest.raises(TieError):
        tiejax.nnx.tie(one, [Tie("scales/a", "scales/b"), Tie("scales/a", "plain/b/0")])
    assert type(one) is Shared
    assert isinstance(one.scales.b, nnx.Param)


def test_printing():
    one = tied()
    assert "source='emb/embedding'" in str(one)
    assert "TiedModel" in nnx.tabulate(one, TOKENS)


def batch_norm_only():
    full = model()
    full.dropout = nnx.Dropout(0.0)
    return full


def test_changes_in_a_copy_of_the_module_are_refused():
    """`view` copies a module; a loss that changes the copy is refused, unless it returns the changes."""
    graph, params, rest = nnx.split(batch_norm_only(), nnx.Param, ...)
    stored = store(nnx.merge(graph, params, rest), TIE)
    with pytest.raises(TieError, match=r"changed calls of a copy of the module.*tiejax\.nnx\.tie\(model, ties\)"):
        nnx.value_and_grad(tied_loss(loss, TIE))(stored)

    def returning(model):
        return loss(model), nnx.state(model, nnx.Not(nnx.Param))

    value, state = tied_loss(returning, TIE)(stored)
    by_hand = model(ByHand)
    by_hand.dropout = nnx.Dropout(0.0)
    np.testing.assert_allclose(value, loss(by_hand), rtol=RTOL)
    np.testing.assert_allclose(state["norm"]["mean"][...], by_hand.norm.mean[...], rtol=RTOL)


@pytest.mark.parametrize("call", ["__call__", "compiled", "rematerialised"])
def test_evaluation_of_a_copy_of_the_module(call):
    """Transforms inside the module replace the arrays of its variables, but nothing has changed."""
    full = batch_norm_only()
    full.body = lambda tokens: full.emb(tokens)
    full.eval()
    value = tied_loss(lambda model: cross_entropy(getattr(model, call)(TOKENS)), TIE)(store(full, TIE))
    table = full.emb.embedding[...]
    np.testing.assert_allclose(value, cross_entropy(table @ table.T), rtol=RTOL)


class Square(nnx.Module):
    """The product of two tied numbers, x a b."""

    def __init__(self):
        self.a, self.b = nnx.Param(jnp.float32(2)), nnx.Param(jnp.float32(5))

    def __call__(self, x):
        return x * self.a[...] * self.b[...]

    def gradient(self, x):
        return nnx.grad(lambda module: module(x))(self)["a"][...]

    @nnx.jit
    def compiled_gradient(self, x):
        return nnx.grad(lambda module: module(x))(self)["a"][...]

    def functional_gradient(self, x):
        graphdef, params, rest = nnx.split(self, nnx.Param, ...)
        return jax.grad(lambda params: nnx.merge(graphdef, params, rest)(x))(params)["a"][...]

    def gradient_of_parts(self, x, inside=lambda function: function):
        return nnx.grad(inside(lambda module: x * module.a[...] * module.b[...]))(self)["a"][...]

    def gradient_by_input(self, x):
        return jax.grad(lambda x: x * self.a[...] * self.b[...])(x)

    def product_of_clone(self, x):
        copy = nnx.clone(self)
        return x * copy.a[...] * copy.b[...]

    def rematerialised_parts(self, x):
        return nnx.remat(lambda module, x: x * module.a[...] * module.b[...])(self, x)

    def clone(self):
        return nnx.clone(self)

    def doubled(self):
        self.a[...] = 2 * self.a[...]
        return self.a[...] * self.b[...]


def square(gradient="all"):
    return tiejax.nnx.tie(Square(), Tie("a", "b", gradient=gradient))


@pytest.mark.parametrize("how", ["gradient", "compiled_gradient", "functional_gradient"])
def test_gradients_within_a_method(how):
    """Of x a a, which is 2 x a, also for the source that a transform traces."""
    assert float(getattr(square(), how)(3.0)) == 2 * 3 * 2
    with pytest.raises(TieError, match="gradients that are taken outside"):
        getattr(square(gradient=(0.5, 1.0)), how)(3.0)


@pytest.mark.parametrize("inside", [lambda function: function, nnx.jit, nnx.remat], ids=["as it is", "jit", "remat"])
def test_parts_of_a_copy_that_is_differentiated_are_not_constants(inside):
    """The target's use would be lost: 2 x a instead of x a a."""
    with pytest.raises(TieError, match=r"its array is a constant; .*filled\(copy\)"):
        square().gradient_of_parts(3.0, inside)
    module = square()
    with tiejax.nnx.filled(module), pytest.raises(TieError, match="its array is a constant"):
        nnx.grad(lambda module: module.a[...] * module.b[...])(module)
    with tiejax.nnx.filled(module):
        assert float(nnx.grad(parts_in_block)(module)["a"][...]) == 4


def parts_in_block(module):
    with tiejax.nnx.filled(module):
        return module.a[...] * module.b[...]


class Stack(nnx.Module):
    def __init__(self, key):
        self.layers, self.last = nnx.Param(jax.random.normal(key, (2, 3, 3))), nnx.Param(jnp.zeros((3, 3)))

    def of_last(self, x):
        return self.last[...] @ x


def test_a_slice_of_every_member_of_an_ensemble():
    """Outside of nnx.vmap the slice would be one of the members."""
    ties, keys = Tie("layers", "last", transform=Slice(1)), jax.random.split(jax.random.key(0), 2)
    ensemble = nnx.vmap(lambda key: tiejax.nnx.tie(Stack(key), ties))(keys)
    with pytest.raises(TieError, match=r"layers had 3 axes when it was tied and has 4, like members of nnx\.vmap"):
        tiejax.nnx.untie(ensemble)
    expected = ensemble.layers[...][:, 1]
    ended = nnx.vmap(lambda member: tiejax.nnx.untie(nnx.clone(member)))(ensemble)
    np.testing.assert_array_equal(ended.last[...], expected)


def test_transforms_of_the_last_axes_fit_members_with_one_more():
    """Tied within nnx.vmap and called outside of it, and the reverse."""
    keys, x = jax.random.split(jax.random.key(0), 2), jnp.arange(3.0)
    for transform in (["transpose", Scale(2.0)], Slice(slice(0, 3), axis=-1)):
        ties = Tie("layers", "last", transform=transform)

        def create(key):
            module = Stack(key)
            module.layers = nnx.Param(module.layers[...][0])
            return module

        one = nnx.vmap(lambda key: tiejax.nnx.tie(create(key), ties))(keys)  # noqa: B023
        other = tiejax.nnx.tie(nnx.vmap(create)(keys), ties)
        with tiejax.nnx.filled(one):
            expected = one.last[...] @ x
        assert expected.shape == (2, 3)
        np.testing.assert_allclose(nnx.vmap(lambda module: module.of_last(x))(other), expected, rtol=1e-6)


def test_copies_with_constant_sources_are_read():
    """In a method, of a module that is not what the gradient is taken by."""
    module = square()
    assert float(jax.grad(lambda x: module.product_of_clone(x))(3.0)) == 4


def test_other_gradients_of_parts():
    """By the input, within a method; and of a method whose transform has copied the module, from outside."""
    assert float(square().gradient_by_input(3.0)) == 4
    assert float(nnx.grad(lambda module: module.rematerialised_parts(3.0))(square())["a"][...]) == 12


def test_gradients_within_a_block():
    module = square()
    with tiejax.nnx.filled(module):
        assert float(nnx.grad(lambda module: module(3.0))(module)["a"][...]) == 12


def test_copies_made_within_a_method_are_tied():
    for copied in (square().clone(), cloned_in_block(square())):
        copied.a[...] = jnp.float32(6)
        assert float(copied(1.0)) == 36
        assert float(copied.gradient(1.0)) == 12
        with pytest.raises(TieError, match="holds no array"):
            copied.b[...]


def cloned_in_block(module):
    with tiejax.nnx.filled(module):
        return nnx.clone(module)


@pytest.mark.parametrize("gradient", ["all", "source", (0.5, 1.0)])
def test_a_source_that_a_method_sets(gradient):
    """The target follows at once, and the source keeps its new value."""
    module = square(gradient)
    assert float(module.doubled()) == 16
    assert float(module.a[...]) == 4
    assert float(nnx.jit(lambda module: module.doubled())(module)) == 64
    assert float(module.a[...]) == 8


@pytest.mark.parametrize("transform", [nnx.jit, nnx.remat])
def test_changes_under_transforms_are_refused(transform):
    """Whether a traced statistic has changed is not known."""
    full = model()
    stored = store(full, TIE)
    inside = transform(lambda module: cross_entropy(module(TOKENS)))
    for function in (tied_loss(inside, TIE), jax.grad(tied_loss(inside, TIE), allow_int=True)):
        with pytest.raises(TieError, match=r"the loss changed .* of a copy of the module, and the change would be lost"):
            function(stored)
    with pytest.raises(TieError, match="the loss changed"):
        gradients_by_use(inside, stored, TIE)
