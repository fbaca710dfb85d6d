"""Training of a stack whose ties change: compact against full storage, moments, memory and compilations."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from processes import end, start_python

from tiejax import tying
from tiejax.lab.studies.layer_tying import model as layer_model
from tiejax.lab.studies.layer_tying.model import STACK
from tiejax.lab.studies.layer_tying.settings import Settings
from tiejax.lab.studies.layer_tying.text import BlockBatch
from tiejax.models import TABLE_PATHS
from tiejax.training.layered import Layered
from tiejax.training.layered_adamw import LayeredAdamW
from tiejax.training.stack import LayeredState, moved, rest_of, stack_of, stack_size_of, with_stack

VOCABULARY, LAYERS = 11, 3


def settings_of(**changed):
    fields = {"layers": LAYERS, "width": 8, "heads": 2, "context": 6, "batch_size": 2, "learning_rate": 0.01, "steps": 8}
    return Settings(**fields | changed).resolved()


def batch_of(number, rows=2, context=6):
    tokens = np.random.default_rng(number).integers(0, VOCABULARY, (rows, context)).astype(np.uint16)
    return BlockBatch(tokens, np.ones(rows, np.float32), jax.random.key(number))


def build(**changed):
    return layer_model.build(settings_of(**changed), VOCABULARY, 0, jax.devices()[:1])


@pytest.fixture(scope="module")
def compact():
    return build()


@pytest.fixture(scope="module")
def full():
    return build(storage="full")


@pytest.fixture(scope="module")
def published():
    """Return both storages, with moments per layer."""
    return [build(ties="published", gradient="owner", storage=storage) for storage in ("compact", "full")]


def wiring_of(owner):
    """Return the wiring in which every layer trains the slot that it reads."""
    return tying.wiring(tying.LayerTies(owner, np.ones(len(owner), bool), owner), "compact", "all", "resolved")


def random_choices(number):
    rng = np.random.default_rng(3)
    layers = rng.integers(1, LAYERS, number)
    return [(int(layer), int(rng.integers(0, layer + 1))) for layer in layers]


def trained(layered, storage, choices, steps_between=2, gradient="all", rule="resolved"):
    """Train through changes of ties; return the host state with the stack by layer, losses and stack sizes."""
    ties = tying.start_ties(LAYERS, "independent", rule)
    state, losses, stack_sizes = layered.start(jax.random.key(5), ties.owner), [], []
    for number, (layer, choice) in enumerate(choices):
        before = ties
        ties = tying.choose(ties, layer, choice, rule)
        state = layered.move(state, tying.move(before.owner, ties.owner, storage))
        if number % 2:
            state = layered.to_device(layered.to_host(state, ties.owner), ties.owner)
        for extra in range(steps_between):
            wiring = tying.wiring(ties, storage, gradient, rule)
            state, loss = layered.step(state, batch_of(number + extra), jax.random.key(0), wiring)
            losses.append(float(loss))
        stack_sizes.append(stack_size_of(state.params, STACK))
    on_host = jax.device_get(state)
    reads = tying.slots(ties.owner, storage)
    stack, stack_state = jax.tree.map(lambda leaf: leaf[reads], (stack_of(on_host.params, STACK), on_host.stack_state))
    return LayeredState(with_stack(on_host.params, STACK, stack), stack_state, on_host.rest_state), losses, stack_sizes


@pytest.mark.slow
@pytest.mark.parametrize(("gradient", "rule"), [("all", "resolved"), ("owner", "resolved"), ("owner", "published")])
def test_compact_storage_equals_full_storage_over_50_steps_of_random_ties(compact, full, published, gradient, rule):
    compact, full = published if rule == "published" else (compact, full)
    choices = [(2, 2), (1, 1), *random_choices(23)]
    own, losses, stack_sizes = trained(compact, "compact", choices, gradient=gradient, rule=rule)
    whole, losses_of_full, sizes_of_full = trained(full, "full", choices, gradient=gradient, rule=rule)
    assert len(losses) == 50
    assert len(set(stack_sizes)) > 1
    assert set(sizes_of_full) == {LAYERS}
    np.testing.assert_allclose(losses, losses_of_full, rtol=1e-6)
    # Biases of keys are left out: their gradient is only rounding error, which Adam amplifies.
    for state in (own, whole):
        moments = state.rest_state.layers if rule == "published" else state.stack_state
        for stack in (stack_of(state.params, STACK), moments.mu, moments.nu):
            stack["qkv"]["bias"] = np.delete(stack["qkv"]["bias"], np.s_[8:16], axis=-1)
    for one, other in zip(jax.tree.leaves(own), jax.tree.leaves(whole), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6 * max(1, np.abs(other).max()))


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["gpt2", "bert"])
def test_tables_train_at_their_own_rate_as_with_optax_on_an_unrolled_model(x64, architecture):
    """Layers 1 and 2 share weights; embedding tables, of which the output layer reads one, have a second AdamW."""
    settings, owner = settings_of(architecture=architecture, weight_decay=0.1, table_rate=4.0), [0, 1, 1]
    object.__setattr__(settings, "dtype", "float64")  # not offered by the settings
    layered, ties = layer_model.build(settings, VOCABULARY, 0, jax.devices()[:1]), [tying.Tie(*TABLE_PATHS)]
    state, wiring = layered.start(jax.random.key(5), np.array(owner, np.int32)), wiring_of(np.array(owner, np.int32))
    loss = layer_model.make_loss(settings, layer_model.build_model(settings, VOCABULARY), VOCABULARY, 0)
    stack, every = stack_of(state.params, STACK), jnp.arange(LAYERS, dtype=jnp.int32)
    unrolled = rest_of(state.params, STACK), [jax.tree.map(lambda leaf, slot=slot: leaf[slot], stack) for slot in range(2)]

    def mean(unrolled, batch):
        layers = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(unrolled[1][number] for number in owner))
        return loss(tying.view(with_stack(unrolled[0], STACK, layers), ties), batch, None, every, every >= 0)

    def label(path, _):
        return "tables" if path[-1].key == "embedding" else "others"

    rates = {"tables": 4 * settings.learning_rate, "others": settings.learning_rate}
    by_label = {name: optax.adamw(rate, weight_decay=0.1) for name, rate in rates.items()}
    labels = jax.tree_util.tree_map_with_path(label, unrolled)
    assert jax.tree.leaves(labels).count("tables") == (2 if architecture == "gpt2" else 3)
    theirs = optax.chain(optax.clip_by_global_norm(settings.clip), optax.multi_transform(by_label, labels))

    @jax.jit
    def step(unrolled, opt_state, batch):
        value, grads = jax.value_and_grad(mean)(unrolled, batch)
        updates, opt_state = theirs.update(grads, opt_state, unrolled)
        return optax.apply_updates(unrolled, updates), opt_state, value

    opt_state = jax.jit(theirs.init)(unrolled)
    for number in range(3):
        unrolled, opt_state, value = step(unrolled, opt_state, batch_of(number))
        state, found = layered.step(state, batch_of(number), jax.random.key(0), wiring)
        assert float(found) == pytest.approx(float(value), rel=1e-10)
    whole = jax.tree.map(lambda *leaves: jnp.stack(leaves), *unrolled[1])
    for one, other in zip(jax.tree.leaves(state.params), jax.tree.leaves(with_stack(unrolled[0], STACK, whole)), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("factor", [1.0, 4.0])
def test_scanned_steps_equal_single_steps(factor):
    settings = settings_of(dropout=0.1, table_rate=factor)
    model = layer_model.build_model(settings, VOCABULARY)
    loss, optimizer = layer_model.make_loss(settings, model, VOCABULARY, 0, 1), layer_model.make_optimizer(settings)
    how = [tying.Tie(*TABLE_PATHS)], "copy", "compact", jax.devices()[:1]
    owner, ended, rates = np.array([0, 1, 1], np.int32), [], [0.03, 0.02, 0.001]
    rates = rates if factor == 1 else [(rate, factor * rate) for rate in rates]
    for scanned in (False, True):
        layered = Layered(layer_model.initial(settings, model), loss, optimizer, *how, scanned=scanned)
        state = layered.start(jax.random.key(5), owner)
        keys = [jax.random.key(number) for number in range(3)]
        state, losses = layered.steps(state, [batch_of(number) for number in range(3)], keys, wiring_of(owner), rates)
        ended.append(jax.device_get((state, losses)))
        assert losses[0] > 0
    for one, other in zip(*map(jax.tree.leaves, ended), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    # Both at the given rate: the first step of AdamW moves a weight by at most the rate, plus its decay.
    first = layered.start(jax.random.key(5), owner)
    before = jax.device_get(first.params)
    after, _ = layered.steps(first, [batch_of(0)], keys[:1], wiring_of(owner), rates[:1])
    moved_by = jax.tree.map(lambda new, old: np.abs(np.asarray(new) - old).max(), after.params, before)
    assert moved_by["encoder"]["layers"]["qkv"]["kernel"] == pytest.approx(0.03, rel=0.05)
    assert moved_by["embed"]["embedding"] == pytest.approx(0.03 * factor, rel=0.05)
    assert moved_by["positions"]["embedding"] == pytest.approx(0.03 * factor, rel=0.05)


@pytest.mark.slow
def test_one_compilation_per_stack_size_and_none_per_pattern(compact, full):
    choices = random_choices(12)
    _, _, stack_sizes = trained(compact, "compact", [(2, 2), *choices], steps_between=1)
    assert set(compact.sizes) >= set(stack_sizes)
    trained(compact, "compact", [(1, 0), *choices[::-1]], steps_between=1)
    sizes = len(compact.sizes)
    assert compact.compilations <= 2 * sizes + (3 * sizes - 2)  # a step and a loss of each, moves between neighbours
    trained(full, "full", choices, steps_between=1)
    assert full.compilations == 3  # a step, a loss, a move


@pytest.mark.slow
def test_memory_is_that_of_the_distinct_layers(compact):
    trained(compact, "compact", [(1, 0), (2, 0), (1, 1), (2, 2)], steps_between=1)
    sizes = compact.sizes
    shapes = jax.eval_shape(
        layer_model.initial(settings_of(), layer_model.build_model(settings_of(), VOCABULARY)),
        jax.random.key(0),
        jnp.arange(1),
    )
    layer = sum(leaf.size for leaf in jax.tree.leaves(stack_of(shapes, STACK)))
    rest = sum(leaf.size for leaf in jax.tree.leaves(shapes)) - layer - VOCABULARY * 8  # the output table is the input table
    for number in (1, 2, 3):
        assert sizes[number].parameters == rest + number * layer
        assert sizes[number].parameter_bytes == 4 * (rest + number * layer)
        assert sizes[number].optimizer_bytes == 8 * (rest + number * layer) + 4 * (number + 1)  # and the step counts
    # For one more layer, a step holds its parameters, gradients and both moments.
    assert sizes[3].peak_bytes - sizes[2].peak_bytes >= 4 * 3 * layer
    # During a change from 2 layers to 3 both stacks exist, with moments and counts, and the rest once.
    assert sizes[2].move_bytes == 12 * (rest + (2 + 3) * layer) + 4 * (1 + 2 + 3)


@pytest.mark.slow
def test_memory_of_published_ties_includes_moments_and_gradients_of_all_layers(published):
    layered, _ = published
    owner = tying.check_owner([0, 0, 0])
    state = layered.start(jax.random.key(0), owner)
    layered.compile_for(state, batch_of(0), jax.random.key(0), wiring_of(owner))
    layer = sum(leaf.size for leaf in jax.tree.leaves(stack_of(state.params, STACK)))
    rest = sum(leaf.size for leaf in jax.tree.leaves(state.params)) - layer
    size = layered.sizes[1]
    assert (size.parameters, size.parameter_bytes) == (rest + layer, 4 * (rest + layer))
    assert size.gradient_bytes == 4 * (rest + LAYERS * layer)
    assert size.optimizer_bytes == 8 * (rest + LAYERS * layer) + 4 * (LAYERS + 1)  # and the step counts
    # A change of ties does not move the moments.
    assert size.move_bytes == size.parameter_bytes + size.optimizer_bytes + 4 * 2 * layer


@pytest.mark.slow
def test_gradients_of_48_uses_of_8_layers_are_summed_in_place():
    settings = settings_of(layers=48, width=32, heads=2, context=4, batch_size=1)
    layered = layer_model.build(settings, VOCABULARY, 0, jax.devices()[:1])
    owner = tying.static_map("cycle", 48, 8)
    state = layered.start(jax.random.key(0), owner)
    layered.compile_for(state, batch_of(0, 1, 4), jax.random.key(0), wiring_of(owner))
    size = layered.sizes[8]
    layer = sum(leaf.nbytes for leaf in jax.tree.leaves(stack_of(state.params, STACK))) // 8
    temporaries = size.peak_bytes - size.parameter_bytes - size.optimizer_bytes
    # Gradients of 8 layers, and the temporaries of one layer; separate gradients of all uses would take 48 layers.
    assert temporaries < 24 * layer


def hand_made(stack_size):
    """Return a state with weights 10 p, moments 10 p + 1 and 10 p + 2, and count p in slot p."""
    numbers = jnp.arange(stack_size, dtype=jnp.float32) * 10
    params = {"embed": {"embedding": jnp.ones(2)}, "encoder": {"layers": {"w": numbers[:, None]}}}
    stack_state = optax.ScaleByAdamState(jnp.arange(stack_size), {"w": numbers[:, None] + 1}, {"w": numbers[:, None] + 2})
    return LayeredState(params, stack_state, None)


@pytest.mark.parametrize(
    ("storage", "moments", "weights", "mu", "count"),
    [
        # Layer 2 separates from layer 0: it takes the weights of slot 0, and its moments or zeros.
        ("compact", "copy", [0, 10, 0], [1, 11, 1], [0, 1, 0]),
        ("compact", "zero", [0, 10, 0], [1, 11, 0], [0, 1, 0]),
        ("full", "copy", [0, 10, 0, 30], [1, 11, 1, 31], [0, 1, 0, 3]),
        ("full", "zero", [0, 10, 0, 30], [1, 11, 0, 31], [0, 1, 0, 3]),
    ],
)
def test_separated_layer_starts_from_its_owner(storage, moments, weights, mu, count):
    before, after = tying.check_owner([0, 1, 0, 0]), tying.check_owner([0, 1, 2, 0])
    source, separated = tying.move(before, after, storage)
    state = hand_made(2 if storage == "compact" else 4)
    stack, stack_state = moved(
        stack_of(state.params, STACK), state.stack_state, jnp.asarray(source), jnp.asarray(separated), moments
    )
    assert stack["w"][:, 0].tolist() == weights
    assert stack_state.mu["w"][:, 0].tolist() == mu
    assert stack_state.count.tolist() == count


def test_layered_adamw_equals_optax_with_counts_per_slot(x64):
    rng = np.random.default_rng(0)
    params = {"embed": jnp.asarray(rng.normal(size=(3, 2))), "encoder": {"layers": {"w": jnp.asarray(rng.normal(size=(2, 4)))}}}
    optimizer = LayeredAdamW(0.1, 0.3, optax.clip_by_global_norm(0.5), STACK, tables=("embed",))  # one rate for all
    theirs = optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(0.1, weight_decay=0.3))
    state, expected, opt_state = optimizer.init(params), params, theirs.init(params)
    both = wiring_of(tying.independent(2))
    update_theirs = jax.jit(theirs.update)
    for _ in range(4):
        grads = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape)), params)
        state = optimizer.update(grads, state, both)
        updates, opt_state = update_theirs(grads, opt_state, expected)
        expected = optax.apply_updates(expected, updates)
    for own, other in zip(jax.tree.leaves(state.params), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-12)
    assert state.stack_state.count.tolist() == [4, 4]

    # A slot that no layer trains keeps its weights and state bitwise.
    grads = {"embed": jnp.zeros((3, 2)), "encoder": {"layers": {"w": jnp.full((2, 4), 0.1)}}}
    once = optimizer.update(grads, state, both)
    other = optimizer.update(grads, state, both._replace(trained=np.array([1, 0], np.int32)))
    start, single, chosen = (stack_of(each.params, STACK)["w"] for each in (state, once, other))
    np.testing.assert_array_equal(chosen[0], single[0])
    np.testing.assert_array_equal(chosen[1], start[1])
    assert other.stack_state.count.tolist() == [5, 4]
    np.testing.assert_array_equal(other.stack_state.mu["w"][1], state.stack_state.mu["w"][1])


@pytest.mark.slow
def test_frozen_layers_do_not_change(published):
    compact, _ = published
    ties = tying.choose(tying.start_ties(LAYERS, "frozen-random", "published"), 2, 2, "published")
    state = compact.start(jax.random.key(1), ties.owner)
    before = jax.device_get(stack_of(state.params, STACK))
    wiring = tying.wiring(ties, "compact", "owner", "published")
    state, _ = compact.step(state, batch_of(0), jax.random.key(0), wiring)
    for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(jax.device_get(stack_of(state.params, STACK))), strict=True):
        np.testing.assert_array_equal(old[1], new[1])
        assert not np.array_equal(old[0], new[0])
        assert not np.array_equal(old[2], new[2])


@pytest.mark.parametrize(("owner", "written"), [([0, 1, 0], [0, 1, 0]), ([0, 0, 1], [0, 1, 1])])
def test_to_host_and_to_device_are_inverse(compact, owner, written):
    """In the second case only layer 2 reads the weights that layer 1 owns, as the published rule can cause."""
    owner = np.array(owner, np.int32)
    state = compact.start(jax.random.key(2), owner)
    on_host = compact.to_host(state, owner)
    for small, large in zip(
        jax.tree.leaves(stack_of(state.params, STACK)), jax.tree.leaves(stack_of(on_host.params, STACK)), strict=True
    ):
        np.testing.assert_array_equal(large, np.asarray(small)[written])
    for one, other in zip(jax.tree.leaves(compact.to_device(on_host, owner)), jax.tree.leaves(state), strict=True):
        np.testing.assert_array_equal(one, other)


def test_initial_layer_does_not_depend_on_other_layers(compact):
    own = compact.start(jax.random.key(3), tying.check_owner([0, 1, 2]))
    two = compact.start(jax.random.key(3), tying.check_owner([0, 0, 2]))
    for three, pair in zip(
        jax.tree.leaves(stack_of(own.params, STACK)), jax.tree.leaves(stack_of(two.params, STACK)), strict=True
    ):
        np.testing.assert_array_equal(np.asarray(three)[[0, 2]], pair)
    np.testing.assert_array_equal(own.params["embed"]["embedding"], two.params["embed"]["embedding"])


def test_stack_at_a_nested_path():
    params = {"a": {"b": {"stack": {"w": jnp.zeros((3, 2))}, "c": jnp.ones(1)}}, "d": jnp.ones(2)}
    assert stack_size_of(params, "a/b/stack") == 3
    other = with_stack(params, "a/b/stack", {"w": jnp.ones((4, 2))})
    assert (stack_size_of(params, "a/b/stack"), stack_size_of(other, "a/b/stack")) == (3, 4)
    without = {"a": {"b": {"stack": None, "c": 0}}, "d": 0}
    assert jax.tree.structure(rest_of(other, "a/b/stack")) == jax.tree.structure(without)
    # The optimizer has a step count per slot of this stack.
    state = LayeredAdamW(0.1, 0.0, optax.clip_by_global_norm(1.0), "a/b/stack").init(params)
    assert state.stack_state.count.shape == (3,)
    assert state.rest_state.count.shape == ()


# The same steps on one device and on two that share the rows; saves parameters, losses, and the loss of one more batch.
ON_DEVICES = """
import sys
import jax, numpy as np
from tiejax import tying
from tiejax.lab.studies.layer_tying import model
from tiejax.lab.studies.layer_tying.settings import Settings
from tiejax.lab.studies.layer_tying.text import BlockBatch
settings = Settings(layers=3, width=8, heads=2, context=6, batch_size=4, steps=8, **eval(sys.argv[2])).resolved()
layered = model.build(settings, 11, 0, jax.devices())
owner = tying.check_owner([0, 0, 2])
wiring = tying.wiring(tying.LayerTies(owner, np.ones(3, bool), owner), "compact", "all", "resolved")
def batch(number):
    tokens = np.random.default_rng(number).integers(0, 11, (4, 6)).astype(np.uint16)
    return BlockBatch(tokens, np.array([1, 1, 1, 0], np.float32), jax.random.key(number))
state, losses = layered.start(jax.random.key(0), owner), []
for number in range(5):
    state, loss = layered.step(state, batch(number), jax.random.key(number), wiring)
    losses.append(float(loss))
state = layered.move(state, tying.move(owner, tying.independent(3), "compact"))
apart = tying.independent(3)
independent = tying.wiring(tying.LayerTies(apart, np.ones(3, bool), apart), "compact", "all", "resolved")
losses.append(float(layered.loss(state.params, batch(9), independent)))
leaves = jax.tree.leaves(layered.to_host(state, tying.independent(3)))
np.savez(sys.argv[1], *leaves, losses=losses, devices=len(state.params["embed"]["embedding"].devices()))
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["{}", "{'architecture': 'bert', 'objective': 'masked'}"])
def test_devices_that_share_rows_train_the_same_model(tmp_path, how):
    """Rows of weight 0 are all on one device, and masks are drawn per row."""
    found = {}
    for number in (1, 2):
        file = tmp_path / f"{number}.npz"
        ended = end(start_python("-c", ON_DEVICES, file, how, env={"JAX_NUM_CPU_DEVICES": str(number)}))
        assert ended.status == 0, ended.err
        with np.load(file) as arrays:
            found[number] = dict(arrays)
        assert found[number].pop("devices") == number
    for name, values in found[1].items():
        np.testing.assert_allclose(values, found[2][name], rtol=1e-4, atol=1e-6, err_msg=name)
    assert np.ptp(found[1]["losses"]) > 0.01
