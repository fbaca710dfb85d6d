"""Closed-form memory estimates of the study of embedding shapes against the shapes of its members."""

import jax
import numpy as np
import pytest
from coupling_runs import arguments, write_files

from tiejax.checkpoints.hub.weights import Loaded
from tiejax.lab.runs import entry
from tiejax.lab.settings import sizes as shared
from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.studies.embedding_coupling import sizes
from tiejax.lab.studies.embedding_coupling.preparation import check_sizes
from tiejax.lab.studies.embedding_coupling.settings import DEFAULT_SHAPES, STUDY, Settings
from tiejax.lab.studies.embedding_coupling.text import Text
from tiejax.models import bert
from tiejax.pretraining.masked import MaskedLM
from tiejax.text.tokenizer import SPECIAL
from tiejax.text.twins import Twins


@pytest.mark.parametrize("name", DEFAULT_SHAPES)
def test_parameters(name):
    """Parameter counts equal those of the stored parameters in pre-training and in fine-tuning."""
    settings, shape = Settings().resolved(), DEFAULT_SHAPES[name]
    objective = MaskedLM(bert.build(shape, 300, settings.max_length), shape.coupled)
    stored = jax.eval_shape(objective.init, jax.random.key(0))
    fine_tuned = jax.eval_shape(lambda stored: bert.drop_layers(bert.discard_head(stored), shape.drop), stored)
    expected = tuple(sum(leaf.size for leaf in jax.tree.leaves(tree)) for tree in (stored, fine_tuned))
    assert sizes.parameters(shape, 300, settings.max_length) == expected


def test_estimate_is_the_largest_stage_of_the_largest_shape():
    """Computed by hand: members of both starts with their moments, and pre-trained and initial parameters."""
    fields = {"embed_in": 8, "embed_out": 8, "width": 8, "layers": 2, "heads": 2}
    others = {"seeds": 5, "fine_tuning_seeds": 3, "batch_rows": 1, "max_length": 16}
    settings = Settings(shapes={"a": fields, "b": fields | {"layers": 1}}, **others).resolved()
    before, after = sizes.parameters(settings.every_shape["a"], 300, settings.max_length)
    needed = sizes.need(settings, 300)
    # 15 scored members of both starts are more than 7 rates of 2 tuning seeds; parameters are kept for all 7 seeds.
    assert needed.state == 3 * 4 * after * 2 * 15 + 4 * 7 * (before + after)
    one = sizes.need(Settings(shapes={"a": fields}, **others).resolved(), 300)
    assert needed == one


def test_a_cipher_doubles_the_vocabulary_except_special_tokens():
    settings = Settings(cipher=True, vocab_size=300).resolved()
    assert len(SPECIAL) == sizes.SPECIAL
    assert sizes.least_vocabulary(settings) <= 2 * 300 - len(SPECIAL)
    assert sizes.least_vocabulary(settings) >= 2 * (300 - len(SPECIAL))


def test_too_many_epochs_are_refused_before_the_run_directory(tmp_path, monkeypatch):
    folder = write_files(tmp_path)
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "1")
    monkeypatch.setattr("tiejax.lab.runs.train.stop_flag", lambda: pytest.fail("the input was accepted"))
    line = arguments(folder, "--fine_tuning_epochs", "1e9", "--out", folder / "run", "--quiet")
    with pytest.raises(BadInput, match=r"^--fine_tuning_epochs: 1000000000.0 results in 2,000,000,000 steps, expected at most"):
        entry.main(STUDY, line)
    assert not (folder / "run").exists()


def test_memory_of_a_checkpoint_is_estimated_once_it_is_loaded(tmp_path, monkeypatch):
    """Its encoder without head and pooler: members of both starts with their moments, and the initial parameters."""
    settings = Settings(start=str(tmp_path), seeds=5, fine_tuning_seeds=3).resolved()
    params = {name: {"kernel": np.zeros((10, 10), np.float32)} for name in ("embed", "encoder", "head", "pooler")}
    start = Loaded(**dict.fromkeys(Loaded._fields) | {"params": params})
    text = Text(**dict.fromkeys(Text._fields) | {"twins": Twins(300, (), (), ())})
    needed = 3 * 4 * 200 * 2 * 15 + 4 * 7 * 200
    assert sizes.need(settings, 300, 1, 200).total == needed
    assert sizes.need(settings).total == 0
    monkeypatch.setattr(shared, "machine_memory", lambda: needed)
    check_sizes(settings, text, 1, [], start)
    monkeypatch.setattr(shared, "machine_memory", lambda: needed - 1)
    with pytest.raises(BadInput, match=r"^--.*the run needs at least .*this machine has"):
        check_sizes(settings, text, 1, [], start)
