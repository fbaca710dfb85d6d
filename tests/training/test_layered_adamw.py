"""AdamW with moments per layer, for weights that several layers train: against numpy, and against torch."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from gpt2_names import named

from tiejax import tying
from tiejax.lab.studies.layer_tying import model as layer_model
from tiejax.lab.studies.layer_tying.model import STACK
from tiejax.lab.studies.layer_tying.settings import Settings
from tiejax.lab.studies.layer_tying.text import BlockBatch
from tiejax.models import TABLE_PATHS
from tiejax.training.layered_adamw import PerLayerAdamW
from tiejax.training.optimizer import clip_as_torch
from tiejax.training.stack import stack_of

RATE, DECAY = 0.1, 0.3


def wiring_of(reads, sends):
    trained = np.bincount(np.array(reads)[np.array(sends)], minlength=max(reads) + 1)
    return tying.Wiring(np.array(reads, np.int32), np.array(sends), trained.astype(np.int32))


@pytest.mark.parametrize("max_norm", [0.5, 1e3])
@pytest.mark.parametrize("rates", [RATE, (RATE, 4 * RATE)], ids=["one rate", "two rates"])
def test_shared_weights_against_a_loop(x64, max_norm, rates):
    """Layers 0 and 2 read one slot, 1 another; layer 2 trains, pauses, and continues with its moments."""
    table_rate = np.broadcast_to(rates, 2)[1]
    rng = np.random.default_rng(0)
    table, w = rng.normal(size=3), rng.normal(size=(2, 4))
    optimizer = PerLayerAdamW(rates, DECAY, clip_as_torch(max_norm), STACK, layers=3, tables=("embed",))
    state = optimizer.init({"embed": jnp.asarray(table), "encoder": {"layers": {"w": jnp.asarray(w)}}})
    reads, moments = [0, 1, 0], {name: [0, np.zeros(4), np.zeros(4)] for name in range(3)} | {"embed": [0, 0.0, 0.0]}

    def direction(name, g):
        """Return Adam's direction for a gradient, and update the moments `name`."""
        t, m, v = moments[name]
        moments[name] = t, m, v = t + 1, 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        return m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)

    for sends in [[True, True, True]] * 3 + [[True, True, False]] * 2 + [[True, False, True]] * 3:
        table_grad, use_grads = rng.normal(size=3), rng.normal(size=(3, 4)) * np.array(sends)[:, None]
        grads = {"embed": jnp.asarray(table_grad), "encoder": {"layers": {"w": jnp.asarray(use_grads)}}}
        state = optimizer.update(grads, state, wiring_of(reads, sends))
        norm = np.sqrt((table_grad**2).sum() + (use_grads**2).sum())  # each use separately, not the sum of layers 0 and 2
        scale = min(1, max_norm / (norm + 1e-6))
        table = table - table_rate * (direction("embed", scale * table_grad) + DECAY * table)
        for layer, slot in enumerate(reads):
            if sends[layer]:
                w[slot] = (1 - RATE * DECAY) * w[slot]
                w[slot] = w[slot] - RATE * direction(layer, scale * use_grads[layer])
    np.testing.assert_allclose(state.params["embed"], table, rtol=1e-12)
    np.testing.assert_allclose(stack_of(state.params, STACK)["w"], w, rtol=1e-12)
    layers = state.rest_state.layers
    assert layers.count.tolist() == [moments[layer][0] for layer in range(3)] == [8, 5, 6]
    np.testing.assert_allclose(layers.mu["w"], [moments[layer][1] for layer in range(3)], rtol=1e-12)
    np.testing.assert_allclose(layers.nu["w"], [moments[layer][2] for layer in range(3)], rtol=1e-12)


def test_gradients_of_uses_sum_to_the_gradient_of_the_slot(x64):
    optimizer = PerLayerAdamW(RATE, DECAY, optax.identity(), STACK, layers=3)
    params = {"encoder": {"layers": {"w": jnp.array([[1.0, 2.0], [3.0, 5.0]])}}}
    used, wiring = optimizer.uses(params, wiring_of([0, 1, 0], [True] * 3))

    def product(params, reads):
        return jnp.prod(jnp.stack([stack_of(params, STACK)["w"][slot].sum() for slot in reads]))

    assert wiring.reads.tolist() == [0, 1, 2]
    by_use = stack_of(jax.grad(product)(used, wiring.reads), STACK)["w"]
    by_slot = stack_of(jax.grad(product)(params, [0, 1, 0]), STACK)["w"]
    # The product 3 * 8 * 3: the gradient of each factor is the product of the others.
    assert by_use.tolist() == [[24, 24], [9, 9], [24, 24]]
    assert by_slot.tolist() == [[48, 48], [9, 9]]


LAYERS, VOCABULARY, CONTEXT = 4, 11, 6
# Choices with weights shared by two layers, weights that their owner leaves, and finally all layers tied to the first.
ACTIONS = ((2, 2), (3, 2), (3, 3), (2, 0), (2, 2), (1, 1), (2, 1), (2, 2), (1, 0), (3, 1), (3, 3), (1, 1), (2, 1), (2, 2))
STEPS_BETWEEN = 4


def batch_of(number):
    tokens = np.random.default_rng(number).integers(1, VOCABULARY, (3, CONTEXT)).astype(np.uint16)
    return BlockBatch(tokens, np.ones(3, np.float32), jax.random.key(0))


def gpt2(params):
    """Return the GPT-2 of transformers in float64 with our parameters; layers after the first are frozen."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": VOCABULARY, "n_positions": CONTEXT + 1, "n_embd": 8, "n_layer": LAYERS, "n_head": 2}
    drop = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    config = transformers.GPT2Config(**sizes, **drop, activation_function="gelu", attn_implementation="eager")
    model = transformers.GPT2LMHeadModel(config).double()
    given = {name: torch.tensor(leaf) for name, leaf in named(params, range(LAYERS)).items()}
    model.load_state_dict(given | {"lm_head.weight": given["transformer.wte.weight"]}, strict=True)
    for block in model.transformer.h[1:]:
        block.requires_grad_(False)
    return model


def copy_or_train(model, layer, choice):
    """Apply an action in torch: a copy's parameters point at another layer's storage, without change to the optimizer."""
    block = model.transformer.h[layer]
    block.requires_grad_(choice == layer)
    if choice != layer:
        for parameter, other in zip(block.parameters(), model.transformer.h[choice].parameters(), strict=True):
            parameter.data = other.data


def torch_step(model, optimizer, tokens, clip):
    torch = pytest.importorskip("torch")
    inputs = torch.tensor(tokens.astype(np.int64))
    targets = torch.cat([inputs[:, 1:], torch.zeros_like(inputs[:, :1])], dim=1)  # token 0 begins and ends a block
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(inputs).logits.reshape(-1, VOCABULARY), targets.reshape(-1))
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=clip)
    optimizer.step()
    return loss.item()


@pytest.mark.parity
@pytest.mark.parametrize("storage", ["compact", "full"])
def test_published_ties_train_as_torch_parameters_that_share_storage(x64, storage):
    torch = pytest.importorskip("torch")
    settings = Settings(
        layers=LAYERS, width=8, heads=2, context=CONTEXT, batch_size=3, learning_rate=0.01, weight_decay=0.1, steps=8, clip=0.8,
        ties="published", gradient="owner", start="frozen-random", details="published", storage=storage,
    ).resolved()  # fmt: skip
    object.__setattr__(settings, "dtype", "float64")  # not offered by the settings
    layered = layer_model.build(settings, VOCABULARY, 0, jax.devices()[:1])
    ties = tying.start_ties(LAYERS, settings.start, settings.ties)
    state = layered.start(jax.random.key(5), ties.owner)
    model = gpt2(tying.view(jax.device_get(state.params), [tying.Tie(*TABLE_PATHS)]))
    rate = 1.5 * settings.learning_rate  # given with every step
    rates = {"lr": rate, "weight_decay": settings.weight_decay}
    optimizer = torch.optim.AdamW(model.parameters(), **rates, foreach=False)
    updates, together = 0, 0
    for action in ACTIONS:
        before, ties = ties, tying.choose(ties, *action, "published")
        copy_or_train(model, *action)
        state = layered.move(state, tying.move(before.owner, ties.owner, storage))
        wiring = tying.wiring(ties, storage, settings.gradient, settings.ties)
        together += wiring.trained.max() > 1
        for _ in range(STEPS_BETWEEN):
            batch = batch_of(updates)
            state, loss = layered.step(state, batch, jax.random.key(0), wiring, rate)
            assert float(loss) == pytest.approx(torch_step(model, optimizer, batch.tokens, settings.clip), abs=1e-10)
            updates += 1
    assert updates == 56
    assert together == 8  # number of maps with weights that several layers train
    theirs = dict(model.named_parameters())
    for name, leaf in named(jax.device_get(state.params), tying.slots(ties.owner, storage)).items():
        np.testing.assert_allclose(leaf, theirs[name].detach().numpy(), rtol=0, atol=1e-10, err_msg=name)
