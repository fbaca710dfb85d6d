"""What a run needs, in closed form, beside the shapes of its members; and what its tasks decide."""

import jax
import pytest
from coupling_runs import arguments, write_files

from tiejax.models import bert
from tiejax.pretraining.masked_lm import MaskedLM
from tiejax.runs import launch
from tiejax.settings.command_line import BadInput
from tiejax.studies.embedding_coupling import sizes
from tiejax.studies.embedding_coupling.settings import DEFAULT_SHAPES, STUDY, Settings
from tiejax.text.tokenizer import SPECIAL


@pytest.mark.parametrize("name", DEFAULT_SHAPES)
def test_parameters(name):
    """As they are stored in pre-training and in fine-tuning."""
    settings, shape = Settings().resolved(), DEFAULT_SHAPES[name]
    objective = MaskedLM(bert.build(shape, 300, settings.max_length), shape.coupled)
    stored = jax.eval_shape(objective.init, jax.random.key(0))
    kept = jax.eval_shape(lambda stored: bert.drop_layers(bert.discard_head(stored), shape.drop), stored)
    expected = tuple(sum(leaf.size for leaf in jax.tree.leaves(tree)) for tree in (stored, kept))
    assert sizes.parameters(settings, shape, 300) == expected


def test_the_largest_stage_of_the_largest_shape_is_counted():
    """By hand: members of both starts with their moments, beside pre-trained parameters and those of the start."""
    fields = {"embed_in": 8, "embed_out": 8, "width": 8, "layers": 2, "heads": 2}
    others = {"seeds": 5, "fine_tuning_seeds": 3, "batch_rows": 1, "max_length": 16}
    settings = Settings(shapes={"a": fields, "b": fields | {"layers": 1}}, **others).resolved()
    before, after = sizes.parameters(settings, settings.every_shape["a"], 300)
    needed = sizes.need(settings, sizes.Decided(300))
    assert needed.state == 3 * 4 * after * 2 * 15 + 4 * 5 * (before + after)
    one = sizes.need(Settings(shapes={"a": fields}, **others).resolved(), sizes.Decided(300))
    assert needed == one


def test_a_cipher_doubles_the_vocabulary_but_for_special_tokens():
    settings = Settings(cipher=True, vocab_size=300).resolved()
    assert len(SPECIAL) == sizes.SPECIAL
    assert sizes.before_text(settings).vocabulary <= 2 * 300 - len(SPECIAL)
    assert sizes.before_text(settings).vocabulary >= 2 * (300 - len(SPECIAL))


def test_epochs_that_never_end_are_refused_before_the_run_directory(tmp_path, monkeypatch):
    folder = write_files(tmp_path)
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "1")
    monkeypatch.setattr("tiejax.runs.train.stop_flag", lambda: pytest.fail("was taken for good input"))
    line = arguments(folder, "--fine_tuning_epochs", "1e9", "--out", folder / "run", "--quiet")
    with pytest.raises(BadInput, match=r"^--fine_tuning_epochs: 1000000000.0 make 2,000,000,000 steps, must be at most"):
        launch.main(STUDY, line)
    assert not (folder / "run").exists()
