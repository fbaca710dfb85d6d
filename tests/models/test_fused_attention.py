"""Fused attention, lowered for an absent GPU; jax is patched to report that cuDNN is available."""

import re

import jax
import jax._src.cudnn.fused_attention_stablehlo as cudnn
import jax.numpy as jnp
import numpy as np
import pytest

from tiejax.models import attention
from tiejax.models.transformer import Transformer

ROWS, LENGTH, WIDTH, HEADS, LAYERS = 4, 16, 32, 4, 2


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(attention, "_capability", lambda: 9.0)
    monkeypatch.setattr(cudnn, "check_cudnn_version", lambda: 91000)


def lowered(function, *arguments):
    return jax.jit(function).trace(*arguments).lower(lowering_platforms=("cuda",)).as_text()


def fused_calls(text):
    """Return the names of the fused kernels, forward and backward, in a program for CUDA."""
    return re.findall(r"__cudnn\$fmha\w+", text)


def gradient_of(encoder, length=LENGTH, segments=False, position=False):
    """Return the gradient function of an encoder's output, and its arguments."""
    x = jax.ShapeDtypeStruct((ROWS, length, WIDTH), jnp.bfloat16)
    segment_rows = jnp.asarray(np.repeat([[1] * (length // 2) + [2] * (length - length // 2)], ROWS, 0)) if segments else None
    at = jnp.arange(ROWS) if position else None
    params = jax.eval_shape(lambda key: encoder.init(key, jnp.zeros(x.shape, x.dtype))["params"], jax.random.key(0))

    def loss(params, x):
        return jnp.sum(encoder.apply({"params": params}, x, position=at, segments=segment_rows).astype(jnp.float32))

    return jax.grad(loss), params, x


def encoder_of(causal=False, rematerialise=False):
    return Transformer(
        layers=LAYERS,
        width=WIDTH,
        heads=HEADS,
        feed_forward=2 * WIDTH,
        activation="gelu",
        dropout=0.0,
        identical_layers=False,
        causal=causal,
        rematerialise=rematerialise,
        dtype=jnp.bfloat16,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("segments", "causal", "rematerialise"),
    [(False, False, False), (True, True, False), (True, False, True), (False, True, True)],
)
def test_every_layer_uses_the_fused_kernel_with_the_right_mask(gpu, segments, causal, rematerialise):
    text = lowered(*gradient_of(encoder_of(causal, rematerialise), segments=segments))
    calls = fused_calls(text)
    forward, backward = (sum(call.endswith("Backward") is way for call in calls) for way in (False, True))
    # A rematerialised stack is one layer in a scan, whose forward pass runs again.
    assert (forward, backward) == ((2, 1) if rematerialise else (LAYERS, LAYERS))
    assert all(("ScaleBias" in call) is segments for call in calls)
    # \\22 is a quotation mark.
    assert set(re.findall(r"mask_type\\22: \\22(\w+?)\\22", text)) == {"CAUSAL" if causal else "NO_MASK"}


@pytest.mark.parametrize(("segments", "causal"), [(True, False), (True, True)])
def test_vmapped_members_share_one_kernel(gpu, causal, segments):
    gradient, params, x = gradient_of(encoder_of(causal), segments=segments)

    def members(leaf):
        return jax.ShapeDtypeStruct((3, 2, *leaf.shape), leaf.dtype)

    arm_gradient = jax.vmap(gradient, in_axes=(0, None))  # seeds share batches among their arms
    calls = fused_calls(
        lowered(jax.vmap(arm_gradient), jax.tree.map(members, params), jax.ShapeDtypeStruct((3, *x.shape), x.dtype))
    )
    assert len(calls) == 2 * LAYERS


@pytest.mark.parametrize(("segments", "causal"), [(False, True), (True, False)])
def test_odd_lengths_and_single_queries_can_be_differentiated(gpu, causal, segments):
    odd = fused_calls(lowered(*gradient_of(encoder_of(causal), length=LENGTH + 1, segments=segments)))
    assert odd == []
    one = fused_calls(lowered(*gradient_of(encoder_of(causal), segments=segments, position=True)))
    assert len(one) == 2 * (LAYERS - 1)  # the last layer has one query per row


def test_only_dropout_of_attention_weights_excludes_the_kernel(gpu):
    """No fused kernel can drop attention weights."""
    for rate, number in ((0.0, 2 * LAYERS), (None, 0)):
        encoder = encoder_of().clone(dropout=0.1, attention_dropout=rate)
        x = jax.ShapeDtypeStruct((ROWS, LENGTH, WIDTH), jnp.bfloat16)
        params = jax.eval_shape(lambda key, x, e=encoder: e.init(key, x)["params"], jax.random.key(0), x)

        def loss(params, x, encoder=encoder):
            states = encoder.apply({"params": params}, x, deterministic=False, rngs={"dropout": jax.random.key(0)})
            return jnp.sum(states.astype(jnp.float32))

        assert len(fused_calls(lowered(jax.grad(loss), params, x))) == number
