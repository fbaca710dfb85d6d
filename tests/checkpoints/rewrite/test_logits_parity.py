"""What families do to their logits, against models of the transformers library."""

import inspect

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from library_models import SMALL  # noqa: E402
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING  # noqa: E402

from tiejax.checkpoints.rewrite import logits  # noqa: E402
from tiejax.checkpoints.rewrite.logits import logit_transform, states_factor  # noqa: E402

pytestmark = pytest.mark.parity
TABLES = {*logits.FACTORS, *logits.DIVISORS, *logits.CAPS, *logits.BASE_WIDTH}
KEYS = {logits.SCALE, logits.SCALING, logits.MULTIPLIER, logits.CAP, "logits_soft_cap", "output_multiplier", "dim_model_base"}
VALUES = {logits.SCALE: 0.5, logits.SCALING: 8.0, logits.MULTIPLIER: 0.25, logits.CAP: 1.5, "logits_soft_cap": 1.5}
OTHERS = {
    "cohere_compass_text",
    "gemma3n",
    "gemma3n_text",
    "gemma4",
    "gemma4_unified",
    "granitemoehybrid",
}  # need more than a few small settings
CAUSAL = {config.model_type: kind for config, kind in MODEL_FOR_CAUSAL_LM_MAPPING.items()}


def model_of(name, values):
    """A small random model of a family, with these settings of the scale of its logits."""
    usual = transformers.AutoConfig.for_model(name)
    small = {key: value for key, value in SMALL.items() if key in vars(usual)}
    values = {key: value for key, value in values.items() if key in vars(usual)}
    torch.manual_seed(0)
    return CAUSAL[name](transformers.AutoConfig.for_model(name, **small, **values)).eval()


@pytest.mark.parametrize("values", [{}, VALUES], ids=["defaults", "given"])
@pytest.mark.parametrize("name", sorted(TABLES & {*CAUSAL} - OTHERS))
def test_logits_are_those_of_the_library(name, values):
    model, seen = model_of(name, values), []
    with torch.no_grad():
        model.get_output_embeddings().weight.normal_()
        model.get_output_embeddings().register_forward_hook(lambda module, given, found: seen.append((given[0], found)))
        found = model(torch.arange(3, 15)[None], use_cache=False).logits
    ((before, raw),) = seen
    bent = logit_transform(model.config.to_dict())(raw.numpy().astype(float))
    np.testing.assert_allclose(bent, found.numpy(), rtol=1e-5, atol=1e-6)
    if name in logits.BASE_WIDTH:  # the last normalisation has weights of 1
        factor = states_factor(model.config.to_dict(), before.shape[-1])
        np.testing.assert_allclose(before.square().mean(-1).sqrt(), factor, rtol=1e-3)


def test_every_family_with_a_scale_of_logits_is_known():
    """A new family of the library that reads one of the keys in its head must be added to the tables."""
    found = set()
    for config, kind in MODEL_FOR_CAUSAL_LM_MAPPING.items():
        source = inspect.getsource(inspect.getmodule(kind))
        if any(hasattr(config, key) and f".{key}" in source for key in KEYS):
            found.add(config.model_type)
    assert found - TABLES == set()
