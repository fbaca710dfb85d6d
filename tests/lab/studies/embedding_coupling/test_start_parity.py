"""Checkpoints of the transformers library as the start of a run."""

import jax.numpy as jnp
import pytest

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from library_models import saved  # noqa: E402

from tiejax.lab.settings.command_line import BadInput  # noqa: E402
from tiejax.lab.studies.embedding_coupling.encoders import load_start  # noqa: E402
from tiejax.lab.studies.embedding_coupling.settings import Settings  # noqa: E402

pytestmark = pytest.mark.parity


def start(folder, **more):
    return load_start(Settings(start=str(folder), max_length=8, **more).resolved())


def test_shared_layers_are_refused(tmp_path):
    sizes = {"vocab_size": 40, "embedding_size": 8, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16}
    transformers.AlbertForMaskedLM(transformers.AlbertConfig(**sizes, num_hidden_layers=3)).save_pretrained(tmp_path / "c")
    with pytest.raises(BadInput, match="its layers share weights, which fine-tuning would separate"):
        start(tmp_path / "c")


def test_the_dtype_of_the_run_is_that_of_the_model(tmp_path):
    model = start(saved("bert", True, tmp_path / "c"), compute_dtype="bfloat16", rematerialise=True).model
    assert (model.dtype, model.encoder.dtype, model.encoder.rematerialise) == (jnp.bfloat16, jnp.bfloat16, True)
