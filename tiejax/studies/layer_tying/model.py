"""The model of a run and its loss, compiled for one device."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tiejax import models, training, tying
from tiejax.pretraining.loss import predict_slots
from tiejax.studies.layer_tying.settings import Settings
from tiejax.studies.layer_tying.text import Batch
from tiejax.text import masking as text_batches
from tiejax.text.twins import Twins
from tiejax.training.layered import Layered, LayeredAdamW, stack_of, with_stack

TABLES = ("embed/embedding", "head/embedding")


def build_model(settings: Settings, vocabulary: int) -> Any:
    """Return the language model of a configuration, for so many tokens of the tokenizer."""

    pre = settings.architecture == "gpt2"
    assert settings.feed_forward is not None
    encoder = models.Transformer(
        settings.layers,
        settings.width,
        settings.heads,
        settings.feed_forward,
        settings.activation,
        settings.dropout,
        identical_layers=False,
        stack_size=1,
        rematerialise=True,
        norm_first=pre,
        causal=settings.objective == "causal",
        kernel_std=0.02,
        residual_std=0.02 / math.sqrt(2 * settings.layers) if pre else 0.02,
        hidden_dropout=False,
        dtype=jnp.dtype(settings.dtype),
    )
    return models.LanguageModel(
        vocabulary + (settings.objective == "masked"),  # and [MASK]
        settings.width,
        encoder,
        embedding_std=0.02,
        max_positions=settings.context,
        embedding_norm=not pre,
        embedding_dropout=settings.dropout,
        dtype=jnp.dtype(settings.dtype),
    )


def initial(settings: Settings, model: Any) -> Callable[[Any, Any], Any]:
    """Return (root key, layers that own weights) -> parameters; a layer starts the same whatever others there are."""

    def init(key: jax.Array, own: jax.Array) -> Any:
        tokens = jnp.zeros((1, settings.context), jnp.int32)

        def layer(number: jax.Array) -> Any:
            drawn = model.init(jax.random.fold_in(training.stream(key, "layers"), number), tokens)["params"]
            return jax.tree.map(lambda leaf: leaf[0], stack_of(drawn))

        params = model.init(training.stream(key, "init"), tokens)["params"]
        params = with_stack(params, jax.vmap(layer)(own))
        return jax.tree.map(lambda leaf: leaf.astype(settings.dtype), params)

    return init


def build(
    settings: Settings, vocabulary: int, begin: int, device: "jax.Device", other_loss: Callable[..., Any] | None = None
) -> "Layered":
    """Return everything that is compiled of a resolved configuration, for one device.

    other_loss: instead of the experiment's own (for benchmarks).
    """

    model = build_model(settings, vocabulary)
    places = settings.batch_size * (settings.context - 1)
    masking = text_batches.Masking(Twins(vocabulary, (), (), ()), (begin,), vocabulary, text_batches.slots_for(places))

    def loss(params: Any, batch: Batch, key: jax.Array | None, reads: jax.Array, sends: jax.Array) -> jax.Array:
        tokens = batch.tokens.astype(jnp.int32)
        rngs = {"dropout": key} if key is not None and settings.dropout else None
        if settings.objective == "masked":
            rows = jnp.arange(len(tokens))
            asked = masking.visit(tokens, jnp.ones_like(tokens), rows, batch.key)
            shown, target = asked.tokens, asked.target
            weight = asked.weight * batch.weight[asked.slot // settings.context]
        else:
            shown, target = tokens, tokens[:, 1:].reshape(-1)
            weight = jnp.repeat(batch.weight, settings.context - 1)
        states = model.apply({"params": params}, shown, None, None, rngs is None, reads, sends, rngs=rngs, method="encode")
        if settings.objective == "masked":
            states = states.reshape(-1, settings.width)[asked.slot]
        else:
            states = states[:, :-1].reshape(-1, settings.width)
        total, _ = predict_slots(states, params["head"]["embedding"], target, weight)
        # Of a small batch it may be that nothing is masked.
        return total / jnp.maximum(jnp.sum(weight), 1)

    return Layered(
        initial(settings, model),
        other_loss or loss,
        LayeredAdamW(settings.learning_rate, settings.weight_decay, settings.clip),
        [tying.Tie(*TABLES)],
        settings.moments,
        settings.storage,
        device,
    )


def facts_of_model(settings: Settings, vocabulary: int) -> dict[str, Any]:
    """Return what results say of the model, with the parameters of an untied stack, the shared table counted once."""

    shapes = jax.eval_shape(initial(settings, build_model(settings, vocabulary)), jax.random.key(0), np.arange(settings.layers))
    number = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))
    return {"parameters_untied": number - math.prod(shapes["head"]["embedding"].shape), "activation": settings.activation}
