"""Presets of published models, against the table that the parity tests write out from the specification."""

import subprocess
import sys

import pytest
from published import COUNTS
from published import PUBLISHED as SPECIFIED

from tiejax.models.presets import ARCHITECTURE_SETTINGS, PUBLISHED_MODELS, STEPS


@pytest.mark.parametrize("name", SPECIFIED)
def test_sizes_match_the_specification(name):
    architecture, size = name.split("_")
    fields = {key: value for key, value in PUBLISHED_MODELS[architecture, size].items() if key != "learning_rate"}
    assert fields == SPECIFIED[name].settings
    assert size in STEPS
    assert name in COUNTS


def test_every_size_sets_all_fields_of_its_architecture():
    for (architecture, _), fields in PUBLISHED_MODELS.items():
        assert {name for name, value in ARCHITECTURE_SETTINGS[architecture].items() if value is None} <= set(fields)


def test_presets_load_neither_jax_nor_a_model():
    code = "import sys, tiejax.models.presets; sys.exit('jax' in sys.modules or 'flax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
