"""Small checkpoints of the supported families, with names and shapes of the transformers library."""

import ml_dtypes as ml_dtypes  # teaches numpy, and so safetensors, bfloat16
import numpy as np

VOCABULARY, WIDTH, LAYERS, HEADS, INNER, POSITIONS, TYPES = 11, 6, 3, 2, 10, 8, 2
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": INNER,
    "max_position_embeddings": POSITIONS,
    "type_vocab_size": TYPES,
}
CONFIGS = {
    "bert": SIZES | {"model_type": "bert", "architectures": ["BertForMaskedLM"], "hidden_act": "gelu"},
    "rembert": SIZES
    | {
        "model_type": "rembert",
        "architectures": ["RemBertForMaskedLM"],
        "input_embedding_size": 4,
        "output_embedding_size": 7,
    },
    "albert": SIZES
    | {"model_type": "albert", "architectures": ["AlbertForMaskedLM"], "embedding_size": 4, "num_hidden_groups": LAYERS},
    "gpt2": {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": VOCABULARY,
        "n_embd": WIDTH,
        "n_layer": LAYERS,
        "n_head": HEADS,
        "n_positions": POSITIONS,
    },
}
PREFIXES = {"bert": "bert.", "rembert": "rembert.", "albert": "albert.", "gpt2": "transformer."}


def linear(name, inputs, outputs):
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def norm(name, width):
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def embeddings(width):
    return {
        "embeddings.word_embeddings.weight": (VOCABULARY, width),
        "embeddings.position_embeddings.weight": (POSITIONS, width),
        "embeddings.token_type_embeddings.weight": (TYPES, width),
        **norm("embeddings.LayerNorm", width),
    }


def bert_layer(name):
    return {
        **linear(f"{name}.attention.self.query", WIDTH, WIDTH),
        **linear(f"{name}.attention.self.key", WIDTH, WIDTH),
        **linear(f"{name}.attention.self.value", WIDTH, WIDTH),
        **linear(f"{name}.attention.output.dense", WIDTH, WIDTH),
        **norm(f"{name}.attention.output.LayerNorm", WIDTH),
        **linear(f"{name}.intermediate.dense", WIDTH, INNER),
        **linear(f"{name}.output.dense", INNER, WIDTH),
        **norm(f"{name}.output.LayerNorm", WIDTH),
    }


def albert_layer(name):
    return {
        **linear(f"{name}.attention.query", WIDTH, WIDTH),
        **linear(f"{name}.attention.key", WIDTH, WIDTH),
        **linear(f"{name}.attention.value", WIDTH, WIDTH),
        **linear(f"{name}.attention.dense", WIDTH, WIDTH),
        **norm(f"{name}.attention.LayerNorm", WIDTH),
        **linear(f"{name}.ffn", WIDTH, INNER),
        **linear(f"{name}.ffn_output", INNER, WIDTH),
        **norm(f"{name}.full_layer_layer_norm", WIDTH),
    }


def conv1d(name, inputs, outputs):
    return {f"{name}.weight": (inputs, outputs), f"{name}.bias": (outputs,)}


def gpt2_layer(name):
    return {
        **norm(f"{name}.ln_1", WIDTH),
        **conv1d(f"{name}.attn.c_attn", WIDTH, 3 * WIDTH),
        **conv1d(f"{name}.attn.c_proj", WIDTH, WIDTH),
        **norm(f"{name}.ln_2", WIDTH),
        **conv1d(f"{name}.mlp.c_fc", WIDTH, 4 * WIDTH),
        **conv1d(f"{name}.mlp.c_proj", 4 * WIDTH, WIDTH),
    }


def encoder_shapes(kind, groups=LAYERS):
    if kind == "gpt2":
        layers = [gpt2_layer(f"h.{layer}") for layer in range(LAYERS)]
        start = {"wte.weight": (VOCABULARY, WIDTH), "wpe.weight": (POSITIONS, WIDTH), **norm("ln_f", WIDTH)}
    elif kind == "albert":
        layers = [albert_layer(f"encoder.albert_layer_groups.{group}.albert_layers.0") for group in range(groups)]
        start = embeddings(4) | linear("encoder.embedding_hidden_mapping_in", 4, WIDTH)
    else:
        layers = [bert_layer(f"encoder.layer.{layer}") for layer in range(LAYERS)]
        start = embeddings(WIDTH)
        if kind == "rembert":
            start = embeddings(4) | linear("encoder.embedding_hidden_mapping_in", 4, WIDTH)
    return start | {name: shape for layer in layers for name, shape in layer.items()}


def head_shapes(kind, tied):
    if kind == "gpt2":
        return {} if tied else {"lm_head.weight": (VOCABULARY, WIDTH)}
    if kind == "rembert":
        head = linear("cls.predictions.dense", WIDTH, 7) | norm("cls.predictions.LayerNorm", 7)
        return head | linear("cls.predictions.decoder", 7, VOCABULARY)
    if kind == "albert":
        scope, width = "predictions", 4
        head = linear("predictions.dense", WIDTH, 4) | norm("predictions.LayerNorm", 4)
    else:
        scope, width = "cls.predictions", WIDTH
        part = "cls.predictions.transform"
        head = linear(f"{part}.dense", WIDTH, WIDTH) | norm(f"{part}.LayerNorm", WIDTH)
    decoder = {} if tied else linear(f"{scope}.decoder", width, VOCABULARY)
    return head | {f"{scope}.bias": (VOCABULARY,)} | decoder


def tensors(kind, head=True, tied=True, pooler=False, prefix=None, groups=LAYERS, dtype=np.float32, seed=0):
    """Return random tensors of a class of the transformers library, by name."""
    prefix = PREFIXES[kind] if prefix is None else prefix
    shapes = encoder_shapes(kind, groups)
    if pooler:
        shapes |= linear("pooler" if kind == "albert" else "pooler.dense", WIDTH, WIDTH)
    shapes = {prefix + name: shape for name, shape in shapes.items()} | (head_shapes(kind, tied) if head else {})
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=shape).astype(dtype) for name, shape in shapes.items()}
