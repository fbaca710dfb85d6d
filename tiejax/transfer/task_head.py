"""Task heads of an encoder: classifiers of sentences (with BERT's pooler), of tokens, or on a learnt mix of layers."""

from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from tiejax.models.shapes import STD

PyTree = Any
HeadKind = Literal["tagging", "classification", "layer_mix"]
Pooling = Literal["mean", "first"]


def init_head(key: Key[Array, ""], kind: HeadKind, width: int, labels: int, layers: int) -> PyTree:
    """Return the initial parameters of a head: kernels from N(0, .02^2), zero biases, and equal weights for a mix of layers.

    layers: number of layers of the encoder; a mix also includes the input of the first layer.
    """
    first, second = jax.random.split(key)
    head: dict[str, Any] = {"classifier": _dense(first, width, labels)}
    if kind == "classification":
        head["pooler"] = _dense(second, width, width)
    if kind == "layer_mix":
        head["mix"] = {"weights": jnp.zeros(layers + 1), "factor": jnp.ones(())}
    return head


def _dense(key: Key[Array, ""], inputs: int, outputs: int) -> PyTree:
    return {"kernel": STD * jax.random.normal(key, (inputs, outputs)), "bias": jnp.zeros(outputs)}


def head_logits(
    head: PyTree,
    kind: HeadKind,
    states: Float[Array, "*layers rows length width"],
    segments: Int[Array, "rows length"],
    pooling: Pooling | None = None,
    drop: Any = None,
) -> Float[Array, "rows length labels"]:
    """Return the logits of every label at every token.

    tagging: W h + b. classification: W tanh(W_p h' + b_p) + b, where h' is the state of [CLS], as in BERT (Devlin et al.,
    2019), or the mean state of the sentence; the loss uses the logits of only one token per sentence.
    layer_mix: W (g sum_l softmax(s)_l h_l) + b, with the states h_l of every layer (Tenney et al., ICLR 2019, equation 1), or
    with the mean of this mix over the sentence. pooling: "first" leaves each token its own state, "mean" gives it the mean of
    its sentence (default of "classification"; "layer_mix" has none, since it may ask for labels of sentences or of words).
    drop: function that applies dropout to the input of the classifier.
    """
    if kind == "layer_mix":
        if pooling is None:
            raise ValueError('pooling: a layer mix needs "mean" for labels of sentences or "first" for labels of words')
        mix = head["mix"]
        states = mix["factor"] * jnp.tensordot(jax.nn.softmax(mix["weights"]), states, 1)
    if kind != "tagging" and pooling != "first":
        states = mean_of_segments(states, segments)
    if kind == "classification":
        states = jnp.tanh(states @ head["pooler"]["kernel"] + head["pooler"]["bias"])
    states = states if drop is None else drop(states)
    logits: jax.Array = states @ head["classifier"]["kernel"] + head["classifier"]["bias"]
    return logits


def mean_of_segments(
    states: Float[Array, "rows length width"], segments: Int[Array, "rows length"]
) -> Float[Array, "rows length width"]:
    """Return at every token the mean state of its segment (sentence)."""
    same = (segments[:, :, None] == segments[:, None, :]).astype(states.dtype)
    return jnp.matmul(same / jnp.sum(same, axis=-1, keepdims=True), states)
