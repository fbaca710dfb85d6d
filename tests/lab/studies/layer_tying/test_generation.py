"""Tests of continuations: the sampling loop against logits of every prefix, and the weights that a run leaves on the disk."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tiejax import tying
from tiejax.lab.studies.layer_tying.generation import lengths, sampler
from tiejax.lab.studies.layer_tying.model import build, build_model, initial, make_loss, read_weights, weights_file
from tiejax.lab.studies.layer_tying.settings import Settings
from tiejax.lab.studies.layer_tying.text import BlockBatch
from tiejax.models import TABLE_PATHS
from tiejax.training.stack import LayeredState

VOCABULARY, CONTEXT, PROMPT = 13, 9, 3
MAP = [0, 0, 2]


def settings_of(**changed):
    fields = {"layers": 3, "width": 8, "heads": 2, "context": CONTEXT, "batch_size": 2}
    return Settings(**fields | changed).resolved()


def model_of(settings, method="untied"):
    """Return a model with its parameters for `MAP`, which are far from their initial values, as after training."""
    model = build_model(settings, VOCABULARY, settings.form(method))
    params = jax.jit(initial(settings, model))(jax.random.key(0), np.unique(MAP))
    rng = np.random.default_rng(1)
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf + 0.3 * rng.normal(size=leaf.shape), leaf.dtype), params)
    ties = [tying.Tie(*TABLE_PATHS)]
    return model, tying.view(tying.store(params, ties), ties)


BLOCKS = np.random.default_rng(5).integers(0, VOCABULARY, (3, CONTEXT)).astype(np.int32)
READS = np.array([0, 0, 1], np.int32)
VARIANT = {"v": {"map": MAP, "lora_rank": 2, "residual_scale": "1/N", "width": 4}}
MODELS = [
    ("untied", {}),
    ("untied", {"architecture": "bert"}),
    ("untied", {"details": "published"}),
    ("v", {"variants": VARIANT}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("method", "changed"), MODELS)
def test_every_token_is_drawn_from_the_logits_of_the_tokens_before_it(method, changed):
    """The logits are those of all positions at once; a low temperature takes the most likely token."""
    model, params = model_of(settings_of(**changed), method)
    key, apply = jax.random.key(3), jax.jit(model.apply)

    def logits_of(blocks):
        """Return the logits of each place after the prompt, `[place, block, token]`."""
        return np.moveaxis(np.asarray(apply({"params": params}, blocks, owner=READS))[:, PROMPT:-1], 1, 0)

    sample = sampler(model, PROMPT)
    found, likely = (np.asarray(each(params, READS, BLOCKS, key)) for each in (sample, sampler(model, PROMPT, 1e-6)))
    places = range(1 + PROMPT, CONTEXT)
    drawn = [
        jax.random.categorical(jax.random.fold_in(key, place), logits / np.float32(0.8))
        for place, logits in zip(places, logits_of(found), strict=True)
    ]
    for blocks, expected in ((found, np.array(drawn)), (likely, np.argmax(logits_of(likely), axis=-1))):
        np.testing.assert_array_equal(blocks[:, 1 + PROMPT :], expected.T)
        np.testing.assert_array_equal(blocks[:, : 1 + PROMPT], BLOCKS[:, : 1 + PROMPT])
    assert not np.array_equal(found, likely)
    assert not np.array_equal(found, sample(params, READS, BLOCKS, jax.random.key(4)))


@pytest.mark.slow
def test_half_precision_takes_a_token_that_is_most_likely_up_to_rounding():
    model, params = model_of(settings_of(dtype="bfloat16"))
    found = np.asarray(sampler(model, PROMPT, temperature=1e-6)(params, READS, BLOCKS, jax.random.key(0)))
    np.testing.assert_array_equal(found[:, : 1 + PROMPT], BLOCKS[:, : 1 + PROMPT])
    logits = np.asarray(jax.jit(model.apply)({"params": params}, found, owner=READS), np.float32)[:, PROMPT:-1]
    taken = np.take_along_axis(logits, found[:, 1 + PROMPT :, None], axis=-1)[..., 0]
    assert (logits.max(-1) - taken).max() <= 2**-5 * np.abs(logits).max()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("storage", "ties", "gradient", "owner", "dtype"),
    [
        ("full", "resolved", "all", MAP, "float32"),
        ("compact", "resolved", "all", MAP, "bfloat16"),
        ("full", "published", "owner", [0, 0, 1], "bfloat16"),  # layer 2 reads the weights of layer 1, which reads others
        ("compact", "published", "owner", [0, 0, 1], "float32"),
    ],
)
def test_weights_in_a_file_have_the_loss_that_the_run_computes(tmp_path, storage, ties, gradient, owner, dtype):
    settings = settings_of(storage=storage, ties=ties, gradient=gradient, dtype=dtype)
    owner, batch = np.array(owner, np.int32), BlockBatch(BLOCKS[:2], np.ones(2, np.float32), jax.random.key(0))
    layered = build(settings, VOCABULARY, 0, jax.devices()[:1])
    stored = layered.start(jax.random.key(0), owner).params
    rng = np.random.default_rng(1)
    stored = jax.tree.map(lambda leaf: jnp.asarray(leaf + 0.3 * rng.normal(size=leaf.shape), leaf.dtype), stored)
    wiring = tying.wiring(tying.LayerTies(owner, np.ones(3, bool), owner), storage, "all", "resolved")
    expected = float(layered.loss(stored, batch, wiring))

    path = tmp_path / "model.safetensors"
    path.write_bytes(weights_file(layered.to_host(LayeredState(stored, None, None), owner).params, owner))
    params, reads = read_weights(path)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype(dtype)}
    loss = make_loss(settings, build_model(settings, VOCABULARY), VOCABULARY, 0)
    assert float(jax.jit(loss)(params, batch, None, reads, np.ones(3, bool))) == pytest.approx(expected, rel=1e-5)
    other = np.roll(reads, 1)
    assert float(jax.jit(loss)(params, batch, None, other, np.ones(3, bool))) != pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(
    ("context", "prompt", "continuation"),
    [(2, 0, 1), (3, 0, 2), (4, 1, 2), (12, 3, 8), (36, 11, 24), (37, 12, 24), (128, 12, 24)],
)
def test_prompt_and_continuation_fit_the_context(context, prompt, continuation):
    assert lengths(context) == (prompt, continuation)
    assert 1 + prompt + continuation <= context
