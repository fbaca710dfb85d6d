"""Moments of every layer: shared weights that two layers train, by hand in numpy and beside torch itself."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tiejax import tying
from tiejax.lab.studies.layer_tying import model as layer_model
from tiejax.lab.studies.layer_tying.model import STACK
from tiejax.lab.studies.layer_tying.settings import Settings
from tiejax.lab.studies.layer_tying.text import BlockBatch
from tiejax.models import TABLE_PATHS
from tiejax.training.optimizer import clip_as_torch
from tiejax.training.layered_adamw import PerLayerAdamW
from tiejax.training.stack import stack_of

RATE, DECAY = 0.1, 0.3


def wiring_of(reads, sends):
    trained = np.bincount(np.array(reads)[np.array(sends)], minlength=max(reads) + 1)
    return tying.Wiring(np.array(reads, np.int32), np.array(sends), trained.astype(np.int32))


@pytest.mark.parametrize("max_norm", [0.5, 1e3])
def test_shared_weights_that_two_layers_train_against_a_loop(x64, max_norm):
    """Layers 0 and 2 read one array, 1 another; 2 trains at first, then rests, then trains on with what it remembers."""
    rng = np.random.default_rng(0)
    table, w = rng.normal(size=3), rng.normal(size=(2, 4))
    optimizer = PerLayerAdamW(RATE, DECAY, clip_as_torch(max_norm), STACK, layers=3)
    state = optimizer.init({"embed": jnp.asarray(table), "encoder": {"layers": {"w": jnp.asarray(w)}}})
    reads, moments = [0, 1, 0], {name: [0, np.zeros(4), np.zeros(4)] for name in range(3)} | {"embed": [0, 0.0, 0.0]}

    def direction(name, g):
        """Adam's, from the moments of its own; they are changed."""
        t, m, v = moments[name]
        moments[name] = t, m, v = t + 1, 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        return m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)

    for sends in [[True, True, True]] * 3 + [[True, True, False]] * 2 + [[True, False, True]] * 3:
        of_table, of_uses = rng.normal(size=3), rng.normal(size=(3, 4)) * np.array(sends)[:, None]
        grads = {"embed": jnp.asarray(of_table), "encoder": {"layers": {"w": jnp.asarray(of_uses)}}}
        state = optimizer.update(grads, state, wiring_of(reads, sends))
        norm = np.sqrt((of_table**2).sum() + (of_uses**2).sum())  # every use by itself: not of the sum of 0's and 2's
        scale = min(1, max_norm / (norm + 1e-6))
        table = table - RATE * (direction("embed", scale * of_table) + DECAY * table)
        for layer, place in enumerate(reads):
            if sends[layer]:
                w[place] = (1 - RATE * DECAY) * w[place]
                w[place] = w[place] - RATE * direction(layer, scale * of_uses[layer])
    np.testing.assert_allclose(state.params["embed"], table, rtol=1e-12)
    np.testing.assert_allclose(stack_of(state.params, STACK)["w"], w, rtol=1e-12)
    of_layers = state.rest_state.layers
    assert of_layers.count.tolist() == [moments[layer][0] for layer in range(3)] == [8, 5, 6]
    np.testing.assert_allclose(of_layers.mu["w"], [moments[layer][1] for layer in range(3)], rtol=1e-12)
    np.testing.assert_allclose(of_layers.nu["w"], [moments[layer][2] for layer in range(3)], rtol=1e-12)


def test_gradients_of_uses_stay_apart_and_add_up_to_the_gradient_of_the_place(x64):
    optimizer = PerLayerAdamW(RATE, DECAY, optax.identity(), STACK, layers=3)
    params = {"encoder": {"layers": {"w": jnp.array([[1.0, 2.0], [3.0, 5.0]])}}}
    used, wiring = optimizer.uses(params, wiring_of([0, 1, 0], [True] * 3))

    def product(params, reads):
        return jnp.prod(jnp.stack([stack_of(params, STACK)["w"][place].sum() for place in reads]))

    assert wiring.reads.tolist() == [0, 1, 2]
    of_uses = stack_of(jax.grad(product)(used, wiring.reads), STACK)["w"]
    of_places = stack_of(jax.grad(product)(params, [0, 1, 0]), STACK)["w"]
    # The product of 3, 8 and 3: each factor's gradient is the product of the others.
    assert of_uses.tolist() == [[24, 24], [9, 9], [24, 24]]
    assert of_places.tolist() == [[48, 48], [9, 9]]


LAYERS, VOCABULARY, CONTEXT = 4, 11, 6
# Weights that two layers train, that their owner leaves behind, that others find; at last all layers have those of the first.
ACTIONS = ((2, 2), (3, 2), (3, 3), (2, 0), (2, 2), (1, 1), (2, 1), (2, 2), (1, 0), (3, 1), (3, 3), (1, 1), (2, 1), (2, 2))
STEPS_BETWEEN = 4
OURS = {
    "attn.c_attn": ("qkv", "kernel"),
    "attn.c_proj": ("out", "kernel"),
    "mlp.c_fc": ("feed_forward_in", "kernel"),
    "mlp.c_proj": ("feed_forward_out", "kernel"),
    "ln_1": ("attention_norm", "scale"),
    "ln_2": ("feed_forward_norm", "scale"),
}


def batch_of(number):
    tokens = np.random.default_rng(number).integers(1, VOCABULARY, (3, CONTEXT)).astype(np.uint16)
    return BlockBatch(tokens, np.ones(3, np.float32), jax.random.key(0))


def named(params, reads):
    """Our parameters by the names of the library's GPT-2."""
    stack, norm = stack_of(params, STACK), params["encoder"]["final_norm"]
    leaves = {
        "transformer.wte.weight": params["embed"]["embedding"],
        "transformer.wpe.weight": params["positions"]["embedding"],
        "transformer.ln_f.weight": norm["scale"],
        "transformer.ln_f.bias": norm["bias"],
    }
    for layer, place in enumerate(reads):
        for theirs, (own, weight) in OURS.items():
            leaves[f"transformer.h.{layer}.{theirs}.weight"] = stack[own][weight][place]
            leaves[f"transformer.h.{layer}.{theirs}.bias"] = stack[own]["bias"][place]
    return {name: np.asarray(leaf) for name, leaf in leaves.items()}


def gpt2(params):
    """The library's GPT-2 in float64, from our parameters; those above the first layer are frozen."""
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
    """What an action is in torch: the parameters of a copy point at another's storage, and the optimizer is told nothing."""
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
    object.__setattr__(settings, "dtype", "float64")  # which no user can ask for
    layered = layer_model.build(settings, VOCABULARY, 0, jax.devices()[:1])
    ties = tying.start_ties(LAYERS, settings.start, settings.ties)
    state = layered.start(jax.random.key(5), ties.owner)
    model = gpt2(tying.view(jax.device_get(state.params), [tying.Tie(*TABLE_PATHS)]))
    rates = {"lr": settings.learning_rate, "weight_decay": settings.weight_decay}
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
            state, loss = layered.step(state, batch, jax.random.key(0), wiring)
            assert float(loss) == pytest.approx(torch_step(model, optimizer, batch.tokens, settings.clip), abs=1e-10)
            updates += 1
    assert updates == 56
    assert together == 8  # so many of the maps have weights that several layers train
    theirs = dict(model.named_parameters())
    for name, leaf in named(jax.device_get(state.params), tying.slots(ties.owner, storage)).items():
        np.testing.assert_allclose(leaf, theirs[name].detach().numpy(), rtol=0, atol=1e-10, err_msg=name)
