"""Tests of the configurations in configs/embedding_coupling: validity, published shapes, lowering for accelerators."""

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from tiejax.lab.settings import command_line
from tiejax.lab.studies.embedding_coupling.settings import STUDY
from tiejax.models import bert
from tiejax.models.shapes import PUBLISHED_SHAPES
from tiejax.pretraining.masked import MaskedLM
from tiejax.text.masking import MaskedRows

CONFIGS = Path(__file__).parents[4] / "configs" / "embedding_coupling"
HEADINGS = ("Source", "Command", "Time", "Run here", "Expected")
PRESETS = {"multilingual": PUBLISHED_SHAPES[:10], "english": PUBLISHED_SHAPES[10:16], "rembert": PUBLISHED_SHAPES[16:]}


def settings_of(name):
    settings, _ = command_line.parse(STUDY.settings, STUDY.command, ["--config", str(CONFIGS / f"{name}.yaml")])
    return settings.resolved()


@pytest.mark.parametrize("file", sorted(CONFIGS.glob("*.yaml")), ids=lambda file: file.stem)
def test_configurations_are_valid_and_documented(file):
    settings = settings_of(file.stem)
    assert settings.out == f"runs/embedding_coupling/{file.stem}"
    header = [line for line in file.read_text().splitlines() if line.startswith("# ")]
    assert [heading for heading in HEADINGS if any(line.startswith(f"# {heading}: ") for line in header)] == list(HEADINGS)


@pytest.mark.parametrize("name", PRESETS)
def test_configurations_have_the_published_shapes(name):
    settings = settings_of(name)
    assert list(settings.every_shape.values()) == [published.shape for published in PRESETS[name]]
    assert {published.vocabulary for published in PRESETS[name]} == {settings.vocab_size}


@pytest.mark.slow
@pytest.mark.parametrize("platform", ["cuda", "tpu"])
@pytest.mark.parametrize("published", [PUBLISHED_SHAPES[i] for i in (5, 6, 16)], ids=lambda published: published.name)
def test_published_shapes_lower_for_accelerators(published, platform):
    """The gradient of the loss lowers from shapes alone, in bfloat16 and rematerialised; E_out 3,072, factorised, RemBERT."""
    rows, slots = 2, 164
    model = bert.build(published.shape, published.vocabulary, rematerialise=True, dtype=jnp.bfloat16)
    objective = MaskedLM(model, published.shape.coupled)
    number = {
        "tokens": (rows, 512),
        "segments": (rows, 512),
        "row": (rows,),
        "slot": (slots,),
        "target": (slots,),
        "overflow": (),
    }
    leaves = {name: jax.ShapeDtypeStruct((1, *shape), jnp.int32) for name, shape in number.items()}
    masked = MaskedRows(**leaves, weight=jax.ShapeDtypeStruct((1, slots), jnp.float32))

    def gradient(stored, masked):
        def loss(stored):
            return jnp.sum(jax.vmap(lambda one: objective.loss(stored, one, None)[0], axis_name="data")(masked))

        return jax.grad(loss)(stored)

    stored = jax.eval_shape(objective.init, jax.random.key(0))
    lowered = jax.jit(gradient).trace(stored, masked).lower(lowering_platforms=(platform,))
    assert f"{published.vocabulary}x{published.shape.embed_out}" in lowered.as_text()
