"""Every study's training, lowered for GPUs and TPUs that are not here: nothing that they cannot do, or would do coarsely."""

import dataclasses
import functools
import pydoc_data.topics
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tiejax import training, tying
from tiejax.lab.runs.console import Console
from tiejax.lab.studies.causal_untying import model as causal_model
from tiejax.lab.studies.causal_untying import settings as causal_settings
from tiejax.lab.studies.causal_untying import text as causal_text
from tiejax.lab.studies.embedding_coupling import encoders as coupling_encoders
from tiejax.lab.studies.embedding_coupling import settings as coupling_settings
from tiejax.lab.studies.embedding_coupling import text as coupling_text
from tiejax.lab.studies.exor import ensemble as exor_ensemble
from tiejax.lab.studies.exor import settings as exor_settings
from tiejax.lab.studies.layer_tying import model as layer_model
from tiejax.lab.studies.layer_tying import q_learning
from tiejax.lab.studies.layer_tying import settings as layer_settings
from tiejax.lab.studies.layer_tying.text import BlockBatch
from tiejax.lab.studies.text_mlm import ensemble as text_ensemble
from tiejax.lab.studies.text_mlm import settings as text_settings
from tiejax.lab.studies.text_mlm import text as text_of_study
from tiejax.lab.studies.untying import settings as untying_settings
from tiejax.lab.studies.untying import study as untying_study
from tiejax.models import bert
from tiejax.models.shapes import Shape
from tiejax.training import trace_ensemble
from tiejax.transfer import fine_tuning
from tiejax.transfer.batches import TaskFeed, rows_of_batch
from tiejax.transfer.encoding import Encoded

pytestmark = pytest.mark.slow

SHORT = {"steps": 20, "bits": 4, "record_every": 10, "exact_every": 10, "half_period": 10, "seeds": 2}
TEXT = {"layers": 2, "width": 8, "heads": 2, "feed_forward": 16, "max_length": 16, "vocab_size": 300, "epochs": 1}
LAYERS = 3
# How members lie on devices. Anything else would be a call of a library that only some platform has.
ALLOWED = {"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape"}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    topics = [pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics)]
    (folder / "text.txt").write_text("\n\n".join(topics[:8]))
    return {"corpus": [str(folder / "text.txt")], "data_dir": str(folder / "prepared")}


def traced(ensemble, seeds=(0, 1)):
    return trace_ensemble(ensemble, seeds, ensemble.start(seeds))


def exor(corpus, precision, **how):
    settings = exor_settings.Settings(**SHORT, **how, matmul_precision=precision).resolved()
    return traced(exor_ensemble.build_ensemble(settings))


def for_gpu(corpus, precision, **how):
    settings = exor_settings.Settings(**SHORT, **how, matmul_precision=precision).resolved()
    return traced(exor_ensemble.build_ensemble(settings, "gpu"))


def untying(corpus, precision):
    settings = untying_settings.Settings(**SHORT, untie_at=[10], matmul_precision=precision).resolved()
    return traced(untying_study.build_ensemble(settings))


def text(corpus, precision, **how):
    settings = text_settings.Settings(**TEXT, **corpus, **how, matmul_precision=precision).resolved()
    return traced(text_ensemble.build_ensemble(settings, *text_of_study.prepare(settings, Console(quiet=True))), [0])


def coupling(corpus, precision):
    settings = coupling_settings.Settings(
        **corpus, vocab_size=300, max_length=16, batch_rows=4, steps=20, warm_up=2, matmul_precision=precision
    ).resolved()
    prepared = coupling_text.prepare_text(settings, Console(quiet=True), False)
    planned = coupling_text.plan(settings, prepared, 1)
    return traced(coupling_encoders.build_ensemble(settings, Shape(4, 6, 8, 2, 2), prepared, planned))


def fine_tuned(corpus, precision):
    data = Encoded(np.ones(12, np.int64), np.arange(0, 13, 4), np.zeros(12, np.int64), 0)
    model = bert.build(Shape(4, 6, 8, 2, 2), 19)
    objective = fine_tuning.Objective(model, "tagging", 2, 0.1)
    recipe = fine_tuning.Recipe(2, 0.01, 0.25, 1e-6, 1.0, precision)
    encoder = bert.discard_head(jax.jit(model.init)(jax.random.key(0), jnp.zeros((1, 1), jnp.int32))["params"])
    members = jax.tree.map(lambda leaf: np.asarray(leaf)[None, None], encoder)
    feed = TaskFeed(data, 8, 0, 2, rows_of_batch(data.lengths, 2, 8), window=3)
    return traced(fine_tuning.build_ensemble(objective, recipe, feed, members), [0])


def layers(corpus, precision, **how):
    settings = layer_settings.Settings(
        layers=LAYERS, width=8, heads=2, context=6, batch_size=2, steps=12, k=2, matmul_precision=precision, **how
    ).resolved()
    layered = layer_model.build(settings, 11, 0, jax.devices()[:1])
    owner = tying.independent(LAYERS)
    wiring = tying.wiring(
        tying.LayerTies(owner, np.ones(LAYERS, bool), owner), settings.storage, settings.gradient, settings.ties
    )
    batch = BlockBatch(np.ones((2, 6), np.uint16), np.ones(2, np.float32), jax.random.key(0))
    return layered.trace_shapes(owner, batch, wiring)


def causal(corpus, precision, members):
    settings = causal_settings.Settings(
        **corpus, layers=2, width=8, heads=2, context=8, batch_size=2, vocab_size=300, steps=600, record_every=10,
        validate_every=10, tied_rate=1e-3, untied_rate=1e-3, matmul_precision=precision,
    ).resolved()  # fmt: skip
    recipe = causal_model.Recipe(settings, causal_text.prepare(settings, Console(quiet=True)))
    ensemble = recipe.ensemble(causal_model.tuning_arm("tied"), 0, 600, 600)
    return traced(dataclasses.replace(ensemble, members=members))


def agent(corpus, precision):
    one, state = jnp.int32(1), jnp.arange(LAYERS, dtype=jnp.int32)
    transition = q_learning.Transition(state, one, one, jnp.float32(0), state)
    return jax.jit(q_learning.learn).trace(q_learning.start(jax.random.key(0), LAYERS), transition)


# The others take seconds each.
QUICK = ("exor, fast", "text, packed", "layers, gpt2", "agent")
CASES = {
    "exor, fast": functools.partial(exor, engine="fast"),
    "exor, plain": functools.partial(exor, engine="plain"),
    "exor, lstm": functools.partial(exor, model="lstm"),
    "exor, mixer": functools.partial(exor, model="mixer"),
    "exor, fast, for a GPU": functools.partial(for_gpu, engine="fast"),
    "exor, plain, for a GPU": functools.partial(for_gpu, engine="plain"),
    "exor, lstm, for a GPU": functools.partial(for_gpu, model="lstm"),
    "untying": untying,
    "causal": functools.partial(causal, members=training.Unrolled()),
    "causal, for a GPU": functools.partial(causal, members=training.Vmapped()),
    "text, packed": functools.partial(text, dropout=0.1),
    "coupling": coupling,
    "fine-tuning": fine_tuned,
    "layers, gpt2": layers,
    "layers, bert": functools.partial(layers, architecture="bert", objective="masked", ties="published", gradient="owner"),
    "agent": agent,
}


def precisions(text):
    """How the products of float32 are formed, one after the other."""
    products = re.findall(r"stablehlo\.dot_general.*", text)
    assert len(products) == text.count("dot_general")
    return [
        re.search(r"precision = \[(\w+), \w+\]", line).group(1) for line in products if re.search(r"\(tensor<\S*xf32>", line)
    ]


@pytest.mark.parametrize("name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CASES])
def test_training_lowers_with_its_products_in_float32(name, corpus):
    """No main has told jax of precision here: a library user's products are no coarser."""
    program = CASES[name](corpus, "highest")
    for platform in ("cuda", "tpu"):
        text = program.lower(lowering_platforms=(platform,)).as_text()
        assert set(re.findall(r"custom_call @(\w+)", text)) <= ALLOWED
        # jax's own random bits are counted in 64 bits, whole numbers without a sign; nothing else is.
        assert not re.search(r"(?:<|x)(?:f64|i64|complex<f64>)>", re.sub(r"dense<[^>]*> : tensor<\S*i64>", "", text))
        assert set(precisions(text)) == {"HIGHEST"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["exor, plain", "text, packed"])
def test_training_may_be_coarse_and_measures_are_not(name, corpus):
    exact, coarse = (
        precisions(CASES[name](corpus, precision).lower(lowering_platforms=("cuda",)).as_text())
        for precision in ("highest", "default")
    )
    assert len(coarse) == len(exact)
    # Measures make products of their own, which come first in a chunk or last.
    assert 0 < coarse.count("DEFAULT") < len(coarse)
    assert set(coarse) == {"DEFAULT", "HIGHEST"}


def test_steps_of_layers_may_be_coarse():
    for precision, found in (("default", "DEFAULT"), ("high", "HIGH")):
        text = layers(None, precision).lower(lowering_platforms=("tpu",)).as_text()
        assert set(precisions(text)) == {found}


def test_bfloat16_products_sum_in_float32():
    text = layers(None, "bfloat16").lower(lowering_platforms=("cuda",)).as_text()
    products = re.findall(r"stablehlo\.dot_general.*", text)
    assert products
    for line in products:
        assert "lhs_precision_type = bf16" in line
        assert "accumulation_type = f32" in line
        assert line.endswith("f32>")
