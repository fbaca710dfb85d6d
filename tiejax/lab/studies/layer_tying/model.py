"""The model, loss and optimizer of a layer-tying run, compiled for the devices that train it, and the file of its weights."""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import optax
import safetensors.flax

from tiejax import models, training, tying
from tiejax.lab.studies.layer_tying.settings import Form, Settings
from tiejax.lab.studies.layer_tying.text import BlockBatch
from tiejax.models import bert, gpt2
from tiejax.models.shapes import Shape
from tiejax.pretraining.loss import Head, causal_loss
from tiejax.pretraining.masked import masked_loss
from tiejax.text.masking import Masking, slots_for
from tiejax.text.twins import Twins
from tiejax.training.layered import Layered, LayeredLoss
from tiejax.training.layered_adamw import LayeredAdamW, LayeredOptimizer, PerLayerAdamW
from tiejax.training.optimizer import clip_as_torch
from tiejax.training.placement import DATA, total
from tiejax.training.stack import stack_of, with_stack

STACK = "encoder/layers"
# The tables whose learning rate has a factor; the output layer reads that of the tokens.
EMBEDDINGS = ("embed/embedding", "positions/embedding", "types/embedding")


def build_model(settings: Settings, vocabulary: int, form: Form | None = None) -> models.LanguageModel:
    """Return the language model of the settings.

    vocabulary: number of tokens of the tokenizer. form: what the model's method changes (default: nothing).
    """
    vocabulary += settings.objective == "masked"  # and [MASK]
    form = settings.form("untied") if form is None else form
    # The layers compute in this dtype; wider weights are cast when they are read.
    dtype = jnp.dtype(settings.dtype if settings.dtype != "float32" else settings.compute_dtype)
    how: dict[str, Any] = {"dropout": settings.dropout, "padding": settings.padding, "dtype": dtype}
    if settings.architecture == "gpt2":
        context = settings.context + (settings.details == "published")
        how["initial_std"] = settings.initial_std
        model = gpt2.build(vocabulary, settings.layers, form.width, settings.heads, form.feed_forward, context, **how)
    else:  # with BERT's head; a causal one differs only by its attention mask, as `transformers.BertLMHeadModel`
        shape = Shape(form.width, form.width, form.width, settings.layers, settings.heads)
        how |= {"embedding_std": settings.initial_std, "kernel_std": settings.initial_std, "rematerialise": True}
        model = bert.build(shape, vocabulary, settings.context, **how)
        model = model.clone(head_activation=settings.activation)
    encoder = model.encoder.clone(
        feed_forward=form.feed_forward,
        activation=settings.activation,
        causal=settings.objective == "causal",
        attention_dropout=settings.attention_dropout,
        lora_rank=form.lora_rank,
        residual_scale=form.residual_scale,
        stack_size=1,
        parent=None,
    )
    return model.clone(encoder=encoder)


def initial(settings: Settings, model: models.LanguageModel) -> Callable[[Any, Any], Any]:
    """Return (root key, owner layers) -> initial parameters; those of a layer do not depend on the other layers."""

    def init(key: jax.Array, owners: jax.Array) -> Any:
        tokens = jnp.zeros((1, settings.context), jnp.int32)

        def init_layer(number: jax.Array) -> Any:
            params = model.init(jax.random.fold_in(training.stream(key, "layers"), number), tokens)["params"]
            return jax.tree.map(lambda leaf: leaf[0], stack_of(params, STACK))

        params = model.init(training.stream(key, "init"), tokens)["params"]
        params = with_stack(params, STACK, jax.vmap(init_layer)(owners))
        return jax.tree.map(lambda leaf: leaf.astype(settings.dtype), params)

    return init


def make_loss(settings: Settings, model: models.LanguageModel, vocabulary: int, begin: int, devices: int = 1) -> LayeredLoss:
    """Return the loss, (parameters, batch, dropout key or None, reads, sends) -> nats per token, masked or causal.

    devices: number of devices that share the rows of a batch; each returns its share of the mean.
    """

    def device_index() -> jax.Array | int:
        return jax.lax.axis_index(DATA) if devices > 1 else 0

    sum_over_devices = total if devices > 1 else lambda number: number

    def encode(params: Any, tokens: jax.Array, key: jax.Array | None, reads: jax.Array, sends: jax.Array) -> jax.Array:
        rngs = None
        if key is not None and max(settings.dropout, settings.attention_dropout or 0) > 0:
            # Devices hold different rows, which need different dropout masks.
            rngs = {"dropout": jax.random.fold_in(key, device_index()) if devices > 1 else key}
        states = model.apply(
            {"params": params}, tokens, deterministic=rngs is None, owner=reads, sends=sends, rngs=rngs, method="encode"
        )
        return jnp.asarray(states)  # [batch_size, context, width]

    def head(params: Any) -> Head:
        def transform(states: jax.Array) -> jax.Array:
            return jnp.asarray(model.apply({"params": params}, states, method="transform"))

        return Head(params["head"]["embedding"], transform, params["head"].get("bias"))

    def causal(params: Any, batch: BlockBatch, key: jax.Array | None, reads: jax.Array, sends: jax.Array) -> jax.Array:
        tokens = batch.tokens.astype(jnp.int32)
        states = encode(params, tokens, key, reads, sends)
        return causal_loss(states, head(params), tokens, batch.weight, end, sum_over_devices)

    # GPT-2 uses one token as begin and end token.
    end = begin if settings.details == "published" else None
    places = settings.batch_size // devices * (settings.context - 1)
    masking = Masking(Twins(vocabulary, (), (), ()), special=(begin,), mask=vocabulary, slots=slots_for(places))

    def masked(params: Any, batch: BlockBatch, key: jax.Array | None, reads: jax.Array, sends: jax.Array) -> jax.Array:
        tokens = batch.tokens.astype(jnp.int32)
        number = device_index() * len(tokens) + jnp.arange(len(tokens))
        rows = masking.visit(tokens, jnp.ones_like(tokens), number, batch.key)
        states = encode(params, rows.tokens, key, reads, sends)
        return masked_loss(states, head(params), rows, batch.weight, sum_over_devices)

    return masked if settings.objective == "masked" else causal


def make_optimizer(settings: Settings) -> LayeredOptimizer:
    """Return AdamW with moments per distinct layer or, with the published rule of ties, per layer."""
    clip = clip_as_torch if settings.details == "published" else optax.clip_by_global_norm
    rate = settings.learning_rate
    rates = (rate, rate * settings.table_rate) if settings.two_rates else rate
    how = rates, settings.weight_decay, clip(settings.clip), STACK
    if settings.ties == "published":
        return PerLayerAdamW(*how, settings.layers, tables=EMBEDDINGS)
    return LayeredAdamW(*how, tables=EMBEDDINGS)


def build(
    settings: Settings,
    vocabulary: int,
    begin: int,
    devices: Sequence[jax.Device],
    other_loss: LayeredLoss | None = None,
    form: Form | None = None,
) -> Layered:
    """Return the compiled training functions of resolved settings, for devices that train one model together.

    begin: the begin token of a block. other_loss: replaces the loss of the study (for benchmarks). form: as in `build_model`.
    """
    model = build_model(settings, vocabulary, form)
    return Layered(
        initial(settings, model),
        other_loss or make_loss(settings, model, vocabulary, begin, len(devices)),
        make_optimizer(settings),
        [tying.Tie(*models.TABLE_PATHS)],
        settings.moments,
        settings.storage,
        devices,
        settings.matmul_precision,
        scanned=jax.default_backend() != "cpu",
    )


def facts_of_model(settings: Settings, vocabulary: int) -> dict[str, Any]:
    """Return the `model` of results.json; parameters are those of an untied stack, with the shared table counted once."""
    init = initial(settings, build_model(settings, vocabulary))
    shapes = jax.eval_shape(init, jax.random.key(0), np.arange(settings.layers))
    number = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))
    return {"parameters_untied": number - math.prod(shapes["head"]["embedding"].shape), "activation": settings.activation}


def with_slots(params: Any, source: np.ndarray) -> Any:
    """Return parameters with only the slots `source` of their stack, in this order."""
    return with_stack(params, STACK, jax.tree.map(lambda leaf: leaf[source], stack_of(params, STACK)))


def weights_file(params: Any, owner: np.ndarray) -> bytes:
    """Serialise parameters, stacked over all layers, as a safetensors file with each distinct array once.

    The ties are in its metadata: `owner`, the layer whose weights each layer uses; `places`, the slot of each layer in the
    saved stack; `tied`, the paths of the two tables that share one array.
    """
    # Index by owner, as `to_device` does with a state on the host, so that this works with resolved and with published ties.
    leaves = jax.tree_util.tree_leaves_with_path(with_slots(params, np.unique(owner)))
    named = {jax.tree_util.keystr(path, simple=True, separator="/"): jnp.asarray(leaf) for path, leaf in leaves}
    facts = {"owner": owner.tolist(), "places": tying.slots(owner, "compact").tolist(), "tied": models.TABLE_PATHS}
    content: bytes = safetensors.flax.save(named, {name: json.dumps(value) for name, value in facts.items()})
    return content


def read_weights(path: Path) -> tuple[Any, np.ndarray]:
    """Read a file of `weights_file`: the full parameters, and the slot of the stack that each layer reads, int32 `[layers]`."""
    with safetensors.safe_open(path, "flax") as file:
        facts = file.metadata()
        named = {tuple(name.split("/")): file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    params = tying.view(flax.traverse_util.unflatten_dict(named), [tying.Tie(*json.loads(facts["tied"]))])
    return params, np.array(json.loads(facts["places"]), np.int32)
