"""Training of layers that share weights and have a low-rank adaptation each. The oracle is optax on the model in plain form."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tiejax import models, tying
from tiejax.models import gpt2
from tiejax.training.layered import Layered
from tiejax.training.layered_adamw import LayeredAdamW
from tiejax.training.optimizer import BETAS

LAYERS, OWNER, RATE, DECAY, CLIP = 4, np.array([0, 0, 2, 2], np.int32), 0.01, 0.1, 0.5
MODEL = gpt2.build(11, LAYERS, 8, 2, 16, 6, lora_rank=2, residual_scale=-1.0)
TOKENS = jax.random.randint(jax.random.key(1), (5, 3, 6), 0, 11)  # [step, row, position]


def nats(params, tokens, reads=None, sends=None):
    states = MODEL.apply({"params": params}, tokens, owner=reads, sends=sends, method="encode")
    logits = states @ params["head"]["embedding"].T
    return optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], tokens[:, 1:]).mean()


def initial(key, owners):
    params = MODEL.init(key, TOKENS[0])["params"]
    params["encoder"]["layers"] = jax.tree.map(lambda leaf: leaf[owners], params["encoder"]["layers"])
    return params


@pytest.mark.slow
def test_steps_equal_those_of_optax():
    layered = Layered(
        initial,
        lambda params, tokens, key, reads, sends: nats(params, tokens, reads, sends),
        LayeredAdamW(RATE, DECAY, optax.clip_by_global_norm(CLIP), "encoder/layers"),
        [tying.Tie(*models.TABLE_PATHS)],
        "copy",
        "compact",
        jax.devices()[:1],
    )
    state = layered.start(jax.random.key(0), OWNER)
    ties = tying.LayerTies(OWNER, np.isin(np.arange(LAYERS), OWNER), OWNER)
    wiring = tying.wiring(ties, "compact", "all", "resolved")
    full = jax.device_get(jax.jit(initial)(jax.random.key(0), jnp.array([0, 2])))
    stored = tying.store(full, [tying.Tie(*models.TABLE_PATHS)])
    optimizer = optax.chain(
        optax.clip_by_global_norm(CLIP), optax.scale_by_adam(*BETAS), optax.add_decayed_weights(DECAY), optax.scale(-RATE)
    )
    moments = jax.jit(optimizer.init)(stored)

    @jax.jit
    def step(stored, moments, tokens):
        def loss(stored):
            return nats(tying.view(stored, [tying.Tie(*models.TABLE_PATHS)]), tokens, jnp.array([0, 0, 1, 1]))

        value, grads = jax.value_and_grad(loss)(stored)
        updates, moments = optimizer.update(grads, moments, stored)
        return optax.apply_updates(stored, updates), moments, value

    for number, tokens in enumerate(TOKENS):
        state, value = layered.step(state, tokens, jax.random.key(number), wiring)
        stored, moments, wanted = step(stored, moments, tokens)
        np.testing.assert_allclose(value, wanted, rtol=1e-5)
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, atol=2e-5), state.params, stored)
    # Only what exists has moments: two layers, and the adaptation of four.
    shapes = jax.tree.map(jnp.shape, (state.params["encoder"], state.rest_state.mu["encoder"]))
    assert shapes[0]["layers"]["qkv"]["kernel"] == (2, 8, 24)
    assert shapes[0]["lora"]["qkv"]["kernel"] == shapes[1]["lora"]["qkv"]["kernel"] == {"a": (4, 8, 2), "b": (4, 2, 24)}
    assert state.stack_state.mu["qkv"]["kernel"].shape == (2, 8, 24)
    assert float(np.abs(state.params["encoder"]["lora"]["qkv"]["kernel"]["b"]).max()) > 0
