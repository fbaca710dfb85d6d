"""Input stage and prediction head with separate widths: values by hand, and projections by the identity."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tiejax import models
from tiejax.models import bert
from tiejax.models.shapes import Shape

VOCABULARY, WIDTH, EMBED, HEAD = 11, 8, 4, 6
TOKENS = jnp.array([[1, 2, 3, 4, 5], [5, 6, 7, 8, 9]])


def build(**fields):
    encoder = models.Transformer(2, WIDTH, 2, 16, norm_epsilon=1e-12)
    bert = {"max_positions": 8, "token_types": 2, "embedding_norm": True, "head_activation": "gelu", "head_bias": True}
    return models.LanguageModel(VOCABULARY, WIDTH, encoder, norm_epsilon=1e-12, **bert | fields)


def init(model, seed=0):
    """Return random parameters, so that no bias is 0 and no scale is 1."""
    params = jax.eval_shape(model.init, jax.random.key(seed), TOKENS)["params"]
    leaves, treedef = jax.tree.flatten(params)
    rng = np.random.default_rng(seed)
    return jax.tree.unflatten(treedef, [jnp.asarray(rng.standard_normal(leaf.shape)) * 0.5 for leaf in leaves])


def normed(x, norm):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12) * norm["scale"] + norm["bias"]


@pytest.mark.slow
def test_initial_kernels_of_bert_have_the_standard_deviation_that_is_given():
    """Those of the projection, the layers and the head; tables keep that of BERT."""
    params = bert.build(Shape(32, 48, 64, 2, 4), 500, kernel_std=0.1).init(jax.random.key(0), TOKENS)["params"]
    found = {jax.tree_util.keystr(path): float(leaf.std()) for path, leaf in jax.tree.leaves_with_path(params)}
    kernels, tables = ({path: std for path, std in found.items() if f"'{name}'" in path} for name in ("kernel", "embedding"))
    assert all(any(part in path for path in kernels) for part in ("projection", "layers", "head"))
    np.testing.assert_allclose([*kernels.values()], 0.1, rtol=0.05)
    np.testing.assert_allclose([*tables.values()], 0.02, rtol=0.15)


@pytest.mark.slow
def test_input_stage_adds_normalises_and_maps(x64):
    model = build(embed_width=EMBED)
    params = init(model)
    given = model.apply({"params": params}, TOKENS, every_layer=True, method="encode")[0]
    table, positions, types = (np.asarray(params[part]["embedding"]) for part in ("embed", "positions", "types"))
    assert (table.shape, positions.shape, types.shape) == ((VOCABULARY, EMBED), (8, EMBED), (2, EMBED))
    x = normed(table[TOKENS] + positions[:5] + types[0], params["norm"])
    expected = x @ np.asarray(params["projection"]["kernel"]) + params["projection"]["bias"]
    np.testing.assert_allclose(given, expected, rtol=1e-12)


@pytest.mark.slow
def test_token_types_differ(x64):
    model = build()
    params, kinds = init(model), jnp.array([[0, 0, 1, 1, 1], [0, 1, 1, 1, 1]])
    given = model.apply({"params": params}, TOKENS, token_types=kinds, every_layer=True, method="encode")[0]
    parts = [np.asarray(params[part]["embedding"]) for part in ("embed", "positions", "types")]
    expected = normed(parts[0][TOKENS] + parts[1][:5] + parts[2][kinds], params["norm"])
    np.testing.assert_allclose(given, expected, rtol=1e-12)


@pytest.mark.slow
def test_head_maps_activates_normalises_and_scores(x64):
    model = build(head_width=HEAD)
    params = init(model)
    states = model.apply({"params": params}, TOKENS, method="encode")
    logits = model.apply({"params": params}, TOKENS)
    head = params["head"]
    x = states @ head["dense"]["kernel"] + head["dense"]["bias"]
    x = normed(np.asarray(0.5 * x * (1 + jax.lax.erf(x / math.sqrt(2)))), head["norm"])
    np.testing.assert_allclose(logits, x @ head["embedding"].T + head["bias"], rtol=1e-10)
    assert head["embedding"].shape == (VOCABULARY, HEAD)
    np.testing.assert_allclose(model.apply({"params": params}, states, method="transform"), x, rtol=1e-10)


@pytest.mark.slow
def test_layer_outputs_equal_those_of_shallower_models(x64):
    """The output of layer i equals that of a model of i layers with the same weights."""
    model = build(embed_width=EMBED)
    params = init(model)
    every = model.apply({"params": params}, TOKENS, every_layer=True, method="encode")
    assert every.shape == (3, 2, 5, WIDTH)
    shallow = models.LanguageModel(
        VOCABULARY, WIDTH, models.Transformer(1, WIDTH, 2, 16, norm_epsilon=1e-12), norm_epsilon=1e-12, embed_width=EMBED,
        max_positions=8, token_types=2, embedding_norm=True, head_activation="gelu", head_bias=True,
    )  # fmt: skip
    below = params | {"encoder": {"layers": jax.tree.map(lambda leaf: leaf[:1], params["encoder"]["layers"])}}
    np.testing.assert_allclose(every[1], shallow.apply({"params": below}, TOKENS, method="encode"), rtol=1e-12)
    np.testing.assert_allclose(every[2], model.apply({"params": params}, TOKENS, method="encode"), rtol=1e-12)


@pytest.mark.slow
def test_identity_projection_changes_nothing(x64):
    """RemBERT in the transformers library always has a projection."""
    model, projected = build(), build(projected=True)
    params = init(model)
    with_map = params | {"projection": {"kernel": jnp.eye(WIDTH), "bias": jnp.zeros(WIDTH)}}
    logits = model.apply({"params": params}, TOKENS)
    np.testing.assert_allclose(projected.apply({"params": with_map}, TOKENS), logits, rtol=1e-12)


def test_fine_tuning_discards_exactly_the_parameters_below_head():
    """Counts by hand: E_in 4, E_out 6, H 8, 2 layers of 4H, 11 tokens, 8 positions, 2 types."""
    shapes = jax.eval_shape(lambda: build(embed_width=EMBED, head_width=HEAD).init(jax.random.key(0), TOKENS)["params"])
    count = {name: sum(leaf.size for leaf in jax.tree.leaves(part)) for name, part in shapes.items()}
    layer = 4 * (WIDTH**2 + WIDTH) + (WIDTH * 16 + 16) + (16 * WIDTH + WIDTH) + 4 * WIDTH
    assert count == {
        "embed": VOCABULARY * EMBED,
        "positions": 8 * EMBED,
        "types": 2 * EMBED,
        "norm": 2 * EMBED,
        "projection": EMBED * WIDTH + WIDTH,
        "encoder": 2 * layer,
        "head": WIDTH * HEAD + HEAD + 2 * HEAD + VOCABULARY * HEAD + VOCABULARY,
    }
