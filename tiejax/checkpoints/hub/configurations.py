"""Conversion between a checkpoint's config.json and models of tiejax: its sizes, and the model built from them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import flax.traverse_util
import jax
import jax.numpy as jnp
import tokenizers

from tiejax.checkpoints.hub import parameter_names
from tiejax.checkpoints.hub.checkpoint import CONFIG, Checkpoint
from tiejax.checkpoints.hub.errors import CheckpointError
from tiejax.checkpoints.hub.parameter_names import Names
from tiejax.models import bert, gpt2
from tiejax.models.language_model import LanguageModel
from tiejax.models.shapes import STD, Shape
from tiejax.models.transformer import Transformer
from tiejax.text.tokenizer import SPECIAL, SPECIAL_OF_ROBERTA

# Name of an activation in the transformers library -> its name in tiejax. If several are equal, the first is written.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}
# Settings that change what a model computes, with the only supported value.
ONLY: dict[str, Any] = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "inner_group_num": 1,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
}


class Sizes(NamedTuple):
    """The sizes of a model. embed_in, embed_out: widths of the tables. groups: number of groups of layers sharing weights."""

    vocabulary: int
    width: int
    layers: int
    heads: int
    feed_forward: int
    positions: int
    types: int | None
    embed_in: int
    embed_out: int
    activation: str
    epsilon: float
    groups: int


class Convertible(NamedTuple):
    """A family whose weights can be read and written.

    keys: field of `Sizes` -> (key in config.json, default of the transformers library, another name of the key or "").
    classes: classes of that library without a head, and with a language model's head.
    """

    title: str
    type: str
    names: Names
    keys: Mapping[str, tuple[str, Any, str]]
    classes: tuple[str, str]
    causal: bool = False


_KEYS: dict[str, tuple[str, Any, str]] = {
    "vocabulary": ("vocab_size", 30_522, ""),
    "width": ("hidden_size", 768, ""),
    "layers": ("num_hidden_layers", 12, ""),
    "heads": ("num_attention_heads", 12, ""),
    "feed_forward": ("intermediate_size", 3072, ""),
    "positions": ("max_position_embeddings", 512, ""),
    "types": ("type_vocab_size", 2, ""),
    "activation": ("hidden_act", "gelu", ""),
    "epsilon": ("layer_norm_eps", 1e-12, ""),
}


def _with_defaults(**defaults: Any) -> dict[str, tuple[str, Any, str]]:
    """Return the keys of BERT with other defaults."""
    return _KEYS | {field: (_KEYS[field][0], default, "") for field, default in defaults.items()}


BERT = Convertible("BERT", "bert", parameter_names.BERT, _KEYS, ("BertModel", "BertForMaskedLM"))
REMBERT = Convertible(
    "RemBERT",
    "rembert",
    parameter_names.REMBERT,
    {
        **_with_defaults(vocabulary=250_300, width=1152, layers=32, heads=18, feed_forward=4608),
        "embed_in": ("input_embedding_size", 256, ""),
        "embed_out": ("output_embedding_size", 1664, ""),
    },
    ("RemBertModel", "RemBertForMaskedLM"),
)
ALBERT = Convertible(
    "ALBERT",
    "albert",
    parameter_names.ALBERT,
    {
        **_with_defaults(vocabulary=30_000, width=4096, heads=64, feed_forward=16_384, activation="gelu_new"),
        "embed_in": ("embedding_size", 128, ""),
        "groups": ("num_hidden_groups", 1, ""),
    },
    ("AlbertModel", "AlbertForMaskedLM"),
)
GPT2 = Convertible(
    "GPT-2",
    "gpt2",
    parameter_names.GPT2,
    {
        "vocabulary": ("vocab_size", 50_257, ""),
        "width": ("n_embd", 768, "hidden_size"),
        "layers": ("n_layer", 12, "num_hidden_layers"),
        "heads": ("n_head", 12, "num_attention_heads"),
        "feed_forward": ("n_inner", None, ""),
        "positions": ("n_positions", 1024, "max_position_embeddings"),
        "activation": ("activation_function", "gelu_new", ""),
        "epsilon": ("layer_norm_epsilon", 1e-5, ""),
    },
    ("GPT2Model", "GPT2LMHeadModel"),
    causal=True,
)
FAMILIES = (BERT, REMBERT, ALBERT, GPT2)


def family_of(checkpoint: Checkpoint) -> Convertible:
    """Return the family of a checkpoint; raises CheckpointError unless it is one of `FAMILIES`."""
    kind = checkpoint.config.get("model_type")
    for family in FAMILIES:
        if kind == family.type:
            return family
    readable = ", ".join(f"{family.title} ({family.type})" for family in FAMILIES)
    raise CheckpointError(f"{checkpoint.folder / CONFIG}: model_type is {kind}; weights can be read for {readable}")


def sizes_of(config: Mapping[str, Any], family: Convertible, file: Path) -> Sizes:
    """Return the sizes in a configuration; raises CheckpointError for unsupported ones. file: its path, for errors."""
    for key, only in ONLY.items():
        if config.get(key) is not None and config[key] != only:
            raise CheckpointError(f"{file}: {key} is {config[key]}; only {only} is supported")
    values = {
        field: config[key] if key in config else config.get(other, default)
        for field, (key, default, other) in family.keys.items()
    }
    width = values["width"]
    if "feed_forward" in values and values["feed_forward"] is None and isinstance(width, int):
        values["feed_forward"] = 4 * width
    values.setdefault("embed_in", width)
    values.setdefault("embed_out", values["embed_in"])
    values.setdefault("groups", values["layers"])
    values = {field: _checked(field, value, family.keys.get(field, ("",))[0], file) for field, value in values.items()}
    sizes = Sizes(**{"types": None, **values})
    problem = _shape(sizes).problem()
    if problem is None and sizes.groups > sizes.layers:
        problem = f"more groups ({sizes.groups}) than layers ({sizes.layers})"
    if problem:
        absent = [
            f"{key} {values[field]}" for field, (key, _, other) in family.keys.items() if not {key, other} & config.keys()
        ]
        defaults = f"; by default: {', '.join(absent)}" if absent else ""
        raise CheckpointError(f"{file}: {problem}{defaults}")
    return sizes


def _checked(field: str, value: Any, key: str, file: Path) -> Any:
    """Check the value of a key in config.json and convert it for `Sizes`; raises CheckpointError."""
    if field == "activation":
        if not isinstance(value, str) or value not in ACTIVATIONS:
            raise CheckpointError(f"{file}: {key}: expected one of {', '.join(ACTIVATIONS)}, got {value!r}")
        return ACTIVATIONS[value]
    if field == "epsilon":
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise CheckpointError(f"{file}: {key}: expected a number above 0, got {value!r}")
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise CheckpointError(f"{file}: {key}: expected an integer >= 1, got {value!r}")
    return value


def _shape(sizes: Sizes) -> Shape:
    return Shape(sizes.embed_in, sizes.embed_out, sizes.width, sizes.layers, sizes.heads)


def build(sizes: Sizes, family: Convertible, dropout: float) -> LanguageModel:
    """Build the model of these sizes. dropout: rate in training; the configuration's value is ignored."""
    if family.causal:
        parts = sizes.vocabulary, sizes.layers, sizes.width, sizes.heads, sizes.feed_forward, sizes.positions, sizes.activation
        model = gpt2.build(*parts, dropout)
        return model.clone(encoder=model.encoder.clone(rematerialise=False, norm_epsilon=sizes.epsilon, parent=None))
    assert sizes.types is not None
    model = bert.build(_shape(sizes), sizes.vocabulary, sizes.positions, sizes.types, dropout)
    encoder = model.encoder.clone(
        feed_forward=sizes.feed_forward, activation=sizes.activation, norm_epsilon=sizes.epsilon, parent=None
    )
    return model.clone(
        encoder=encoder,
        head_activation=sizes.activation,
        norm_epsilon=sizes.epsilon,
        projected=parameter_names.PROJECTION in family.names.modules,
    )


def parameter_shapes(model: LanguageModel) -> dict[str, tuple[int, ...]]:
    """Return path -> shape of a model's parameters, without computing them."""
    params = jax.eval_shape(lambda: model.init(jax.random.key(0), jnp.zeros((1, 1), jnp.int32)))["params"]
    return {path: leaf.shape for path, leaf in flax.traverse_util.flatten_dict(params, sep="/").items()}


def counterpart(model: LanguageModel, tied: bool, head: bool) -> Convertible:
    """Return the family as which a model of tiejax is saved.

    A causal model is saved as GPT-2, a tied one as BERT, or as ALBERT if its table is narrower than H, and an untied one as
    RemBERT. A model without a head is saved as BERT if its table is as wide as H.
    """
    wide = (model.embed_width or model.width) == model.width and not model.projected
    if getattr(model.encoder, "causal", False):
        return GPT2
    if tied:
        return BERT if wide else ALBERT
    return BERT if wide and not head else REMBERT


def sizes_of_model(model: LanguageModel, family: Convertible, target: Path) -> Sizes:
    """Return the sizes of a model to be saved; raises CheckpointError, naming `target`, if the family has no such model."""
    encoder = model.encoder
    if not isinstance(encoder, Transformer):
        raise CheckpointError(f"{target}: a {type(encoder).__name__} encoder cannot be saved; only a Transformer can")
    embed_in, embed_out = model.embed_width or model.width, model.head_width or model.width
    causal, maps = family.causal, parameter_names.PROJECTION in family.names.modules
    # field -> (the model's value, the family's value)
    fields: dict[str, tuple[Any, Any]] = {
        "causal": (encoder.causal, causal),
        "norm_first": (encoder.norm_first, causal),
        "embedding_norm": (model.embedding_norm, not causal),
        "head_bias": (model.head_bias, not causal),
        "head_activation": (model.head_activation, None if causal else encoder.activation),
        "norm_epsilon": (encoder.norm_epsilon if causal else model.norm_epsilon, encoder.norm_epsilon),
        "token_types": (model.token_types is not None, not causal),
        "max_positions": (model.max_positions is not None, True),
        "embed_width": (embed_in, embed_in if maps else model.width),
        "head_width": (embed_out, embed_out if "embed_out" in family.keys else embed_in),
        "projected": (model.projected, model.projected if maps else False),
    }
    for field, (value, needed) in fields.items():
        if value != needed:
            raise CheckpointError(f"{target}: a {family.title} has {field} {needed}, but the model to save has {value}")
    assert model.max_positions is not None
    same: dict[str, Any] = {name: getattr(encoder, name) for name in ("layers", "heads", "feed_forward", "activation")}
    return Sizes(
        **same,
        vocabulary=model.vocabulary,
        width=model.width,
        positions=model.max_positions,
        types=model.token_types,
        embed_in=embed_in,
        embed_out=embed_out,
        epsilon=encoder.norm_epsilon,
        groups=encoder.layers,
    )


def new(model: LanguageModel, family: Convertible, tokenizer: tokenizers.Tokenizer | None) -> dict[str, Any]:
    """Return the entries of a new configuration other than the sizes.

    tokenizer: gives the id of the padding token if the model has none.
    """
    dropout = getattr(model.encoder, "dropout", 0.0)
    kinds = (
        ("resid_pdrop", "embd_pdrop", "attn_pdrop")
        if family.causal
        else ("hidden_dropout_prob", "attention_probs_dropout_prob")
    )
    pads = [] if tokenizer is None else [tokenizer.token_to_id(names[0]) for names in (SPECIAL, SPECIAL_OF_ROBERTA)]
    pads = [pad for pad in (model.padding, *pads) if pad is not None]
    return {
        **dict.fromkeys(kinds, dropout),
        "initializer_range": STD,
        "pad_token_id": pads[0] if pads else None,
        # The defaults of the transformers library are ids in its own vocabularies.
        "bos_token_id": None,
        "eos_token_id": None,
    }


def configuration(sizes: Sizes, family: Convertible, old: Sizes | None, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return `config` with the sizes of a model. Entries of sizes that equal those in `old` are not changed."""
    changed = {}
    for field, (key, _, other) in family.keys.items():
        value = getattr(sizes, field)
        if old is None or getattr(old, field) != value:
            name = other if other in config and key not in config else key
            theirs = (theirs for theirs, ours in ACTIVATIONS.items() if ours == value)
            changed[name] = next(theirs) if field == "activation" else value
    return {**config, "model_type": family.type, **changed}
