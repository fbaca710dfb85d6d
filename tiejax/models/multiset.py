r"""The multiset form of a masked LM without positional information: exact, with much less arithmetic.

Without positions, two tokens of the same symbol have equal states in every layer. A sequence is then its multiset of symbols,
with n_u occurrences of symbol u, and one hidden state per symbol suffices. With x_s the state of symbol s, attention over
tokens becomes attention over symbols,

    sum_tokens exp(q_s . k_t) v_t / sum_tokens exp(q_s . k_t)  =  sum_u n_u exp(q_s . k_u) v_u / sum_u n_u exp(q_s . k_u)

which is softmax attention with ln n_u added to the score of symbol u (-inf for absent symbols). The mask occurs once in every
multiset, so no sum is empty. Three further savings are also exact:

* the inputs of the first layer are rows of the table, so its scores do not depend on the multiset;
* only the state of the mask is read, so the last layer has one query;
* repeated multisets can be computed once and weighted (`training.asked_loss` takes the weights).

Arrays are [features, symbols, multisets]: with multisets last, contractions over the few features are matrix products with long
rows. On two cores with AVX-512 this trains small models ten times as fast as the token form, and twice as fast as the same
arithmetic with features unrolled and members on the last axis.

Dropout would give equal symbols different states, and the LSTM and the mixer see positions: `check` rejects them.
"""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from tiejax.models.language_model import LanguageModel
from tiejax.models.layers import LAYER_NORM_EPSILON
from tiejax.models.transformer import ACTIVATIONS, Transformer

PyTree = Any
Product = Callable[[jax.Array, jax.Array], jax.Array]

MOST_TERMS = 8  # with 32, medium models took minutes and 3 GB to compile on a CPU


# Options of the model and of its encoder that have to be these, since their equations are computed here without them.
MODEL: Mapping[str, Any] = {
    **{"max_positions": None, "token_types": None, "embedding_norm": False, "projected": False, "head_activation": None},
    **{"embed_width": None, "head_width": None, "dtype": None, "padding": None},
}
WIDTHS = ("embed_width", "head_width")  # which may also be that of the encoder
ENCODER: Mapping[str, Any] = {
    **{"norm_first": False, "causal": False, "lora_rank": 0, "residual_scale": 0.0, "norm_epsilon": LAYER_NORM_EPSILON},
    **{"dtype": None},
}


class NotExact(ValueError):
    """The model is not a function of the multiset of its symbols."""


def check(model: LanguageModel) -> None:
    """Raise NotExact, with the reason, unless the model can be computed on multisets."""
    if not isinstance(model.encoder, Transformer):
        raise NotExact(f"the {type(model.encoder).__name__} sees the order of its symbols")
    if model.encoder.stack_size not in (None, model.encoder.layers):
        raise NotExact("layers that share weights through an owner vector are not supported")
    if max(model.encoder.dropout, model.encoder.attention_dropout or 0, model.embedding_dropout) > 0:
        raise NotExact("dropout treats equal symbols differently")
    for module, defaults in ((model, MODEL), (model.encoder, ENCODER)):
        for name, value in defaults.items():
            given = getattr(module, name)
            if given != value and not (name in WIDTHS and given == model.width):
                raise NotExact(f"{name}={given!r} is not supported")


def product_by_sums(matrix: Float[Array, "rows inner"], x: Float[Array, "inner columns"]) -> Float[Array, "rows columns"]:
    """Return the matrix product as an unrolled sum of few terms, which an accelerator fuses with the surrounding operations."""
    if len(x) > MOST_TERMS:
        return matrix @ x
    return functools.reduce(jnp.add, [matrix[:, term, None] * x[term] for term in range(len(x))])


def encode(
    model: LanguageModel,
    params: PyTree,
    counts: Float[Array, "vocabulary multisets"],
    mask: int,
    product: Product = jnp.matmul,
) -> Float[Array, "width multisets"]:
    """Return h, the encoded state of the mask in each multiset, equal to `LanguageModel.encode` for its sequences.

    counts: number of occurrences of each symbol; symbol `mask` occurs once in every multiset. product: a function that
    multiplies two matrices. Raises NotExact as `check` does.
    """
    check(model)
    encoder, weights = model.encoder, params["encoder"]["layers"]
    x = params["embed"]["embedding"].T[:, :, None]
    bias = jnp.log(counts)
    for layer in range(encoder.layers):
        queries = slice(mask, mask + 1) if layer == encoder.layers - 1 else slice(None)
        layer_weights = jax.tree.map(lambda leaf, layer=layer: leaf[layer], weights)
        x = _layer(layer_weights, x, bias, queries, encoder.heads, encoder.activation, product)
    return x[:, 0]


def logits(
    model: LanguageModel,
    params: PyTree,
    counts: Float[Array, "vocabulary multisets"],
    mask: int,
    product: Product = jnp.matmul,
) -> Float[Array, "vocabulary multisets"]:
    """Return the logits at the mask of each multiset; arguments as in `encode`."""
    scores = product(params["head"]["embedding"], encode(model, params, counts, mask, product))
    return scores + params["head"]["bias"][:, None] if model.head_bias else scores


def _layer(
    weights: PyTree,
    x: Float[Array, "width symbols #multisets"],
    bias: Float[Array, "symbols multisets"],
    queries: slice,
    heads: int,
    activation: str,
    product: Product,
) -> Float[Array, "width queries multisets"]:
    """Apply one post-LN layer (`EncoderLayer`'s equations) for the queried symbols."""
    width, multisets = x.shape[0], bias.shape[1]

    def dense(name: str, value: jax.Array) -> jax.Array:
        return product(weights[name]["kernel"].T, value) + weights[name]["bias"][:, None]

    def norm(name: str, value: jax.Array) -> jax.Array:
        centred = value - jnp.mean(value, axis=0)
        scale = 1 / jnp.sqrt(jnp.mean(jnp.square(centred), axis=0) + LAYER_NORM_EPSILON)
        return centred * scale * weights[name]["scale"][:, None] + weights[name]["bias"][:, None]

    # Only the queried symbols need a query. Heads are computed one by one, because XLA for CPUs multiplies batches of small
    # matrices slowly if another axis has size 1.
    queried = x[:, queries]
    kernel, offset = weights["qkv"]["kernel"].T, weights["qkv"]["bias"][:, None]
    query = product(kernel[:width], queried.reshape(width, -1)) + offset[:width]
    key_value = product(kernel[width:], x.reshape(width, -1)) + offset[width:]
    query = query.reshape(heads, width // heads, *queried.shape[1:])
    key, value = key_value.reshape(2, heads, width // heads, *x.shape[1:])
    attended = [_attend(*head, bias, product) for head in zip(query, key, value, strict=True)]
    before = jnp.broadcast_to(queried, (*queried.shape[:2], multisets))
    x = norm("attention_norm", before.reshape(width, -1) + dense("out", jnp.concatenate(attended)))
    hidden = ACTIVATIONS[activation](dense("feed_forward_in", x))
    return norm("feed_forward_norm", x + dense("feed_forward_out", hidden)).reshape(width, -1, multisets)


def _attend(
    query: Float[Array, "size queries #multisets"],
    key: Float[Array, "size symbols #multisets"],
    value: Float[Array, "size symbols #multisets"],
    bias: Float[Array, "symbols multisets"],
    product: Product,
) -> Float[Array, "size queries*multisets"]:
    """Attend from the queried symbols to all symbols in one head; `bias` is ln n."""
    scores = jnp.sum(key[:, :, None] * query[:, None], axis=0) / math.sqrt(len(query)) + bias[:, None]
    share = jnp.exp(scores - jax.lax.stop_gradient(jnp.max(scores, axis=0)))  # [symbols, queries, multisets]
    total = jnp.sum(share, axis=0).reshape(-1)
    if value.shape[2] == 1:
        return product(value[..., 0], share.reshape(len(share), -1)) / total
    return jnp.sum(value[:, :, None] * share, axis=1).reshape(len(value), -1) / total
