"""Variants that start from given weights: the loss of these weights at step 0, a killed run, and refused files."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import safetensors.numpy
from processes import EXPERIMENTS
from stream_runs import corpus_folder, metrics, text_of

from tiejax.lab.commands import share
from tiejax.lab.runs import environment, launch
from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.studies.layer_tying.settings import STUDY

pytestmark = pytest.mark.slow
SMALL = shlex.split("""
  --vocab_size 300 --layers 3 --width 8 --heads 2 --context 12 --batch_size 4 --k 2 --validate_every 12 --validation_blocks 8
  --test_blocks 10 --learning_rate .05
""")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return corpus_folder(tmp_path_factory)


def train(data, out, *flags):
    """Train a small run in this process; return its exit status."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tiejax.lab.runs.train.stop_flag", lambda: lambda: False)
        patch.setattr(environment, "one_device_a_core", lambda: None)  # jax is already initialised
        return launch.main(STUDY, [*text_of(data), *SMALL, *flags, "--out", str(out), "--quiet"])


@pytest.fixture(scope="module")
def untied(data):
    """A trained model without ties, and its conversions to two shared layers without adaptations and of full rank."""
    assert train(data, data / "untied", "--steps", "24", "--methods", "[untied]") == 0
    for name, rank in (("means", "0"), ("full", "full")):
        flags = ["--map", "[0,0,2]", "--lora_rank", rank, "--out", str(data / f"{name}.safetensors")]
        assert share.main([str(data / "untied"), *flags]) == 0
    return data / "untied"


def variants(files, untied):
    """Return three variants; files: the folder with the converted models."""
    model, full, means = untied / "models" / "untied-seed0.safetensors", files / "full.safetensors", files / "means.safetensors"
    return (
        f"{{on: {{map: untied, start: '{model}'}}, full: {{map: [0,0,2], lora_rank: 8, start: '{full}'}}, "
        f"means: {{map: [0,0,2], start: '{means}', not_worse_than: on}}}}"
    )


def test_training_starts_from_the_weights_of_the_file(data, untied):
    """At step 0 of both seeds the model that goes on and the one of full rank have the loss at which the untied model ended."""
    flags = "--steps", "12", "--seeds", "2", "--methods", "[]", "--variants", variants(data, untied)
    assert train(data, data / "on", *flags) == 0
    before, after = metrics(untied), metrics(data / "on")
    ended = before["validation_loss"][0, 0].min()
    losses = dict(zip(after["methods"].tolist(), after["validation_loss"], strict=True))
    np.testing.assert_allclose(losses["on"][:, 0], ended, atol=1e-6)
    np.testing.assert_allclose(losses["full"][:, 0], ended, atol=1e-5)
    assert losses["means"][0, 0] == losses["means"][1, 0] != pytest.approx(ended, abs=1e-3)
    assert np.ptp(losses["means"][:, -1]) > 1e-4  # the seeds see other batches


def test_killed_run_resumes_without_the_file(data, untied, tmp_path):
    """The run keeps a copy of the weights: after the original is gone, it resumes to the result of an uninterrupted run."""
    started = "--steps", "36", "--checkpoint_every", "0.1", "--methods", "[]", "--variants"
    assert train(data, tmp_path / "whole", *started, variants(data, untied)) == 0
    copies = tmp_path / "data"
    copies.mkdir()
    for name in ("full", "means"):
        shutil.copy(data / f"{name}.safetensors", copies)
    flags = [*text_of(data), *SMALL, *started, variants(copies, untied), "--out", str(tmp_path / "killed")]
    command = [sys.executable, str(EXPERIMENTS / "layer_tying.py"), *flags]
    process = subprocess.Popen([*command, "--quiet"], start_new_session=True, env=os.environ)
    try:
        while not list((tmp_path / "killed" / "checkpoints").glob("*/steps/*")):
            assert process.poll() is None
            time.sleep(0.05)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    shutil.rmtree(copies)
    assert subprocess.run([*command, "--quiet", "--resume"], env=os.environ).returncode == 0
    whole, killed = metrics(tmp_path / "whole"), metrics(tmp_path / "killed")
    for name in ("train_loss", "validation_loss", "test_loss"):
        np.testing.assert_array_equal(whole[name], killed[name])


@pytest.mark.parametrize(
    ("variant", "problem"),
    [
        ("{map: untied, start: 'NONE'}", "start: NONE: No such file or directory"),
        ("{map: untied, start: ''}", "start: expected the path of a file of weights, got ''"),
        ("{map: untied, start: 'TEXT'}", "start: TEXT: is not a model of layer tying"),
        ("{map: untied, start: 'OTHER'}", "start: OTHER: is not a model of layer tying"),
        ("{map: [0,0,0], start: 'MEANS'}", "start: MEANS: its layers read the slots [0, 0, 1], those of the variant's map [0"),
        ("{map: [0,0,2], lora_rank: 8, start: 'MEANS'}", "start: MEANS: has no encoder/lora/"),
        ("{map: [0,0,2], start: 'FULL'}", "start: FULL: has encoder/lora/"),
        ("{map: [0,0,2], lora_rank: 4, start: 'FULL'}", "has the shape (3, 8, 8), that of the variant's model (3, 8, 4)"),
        ("{map: [0,0,2], width: 16, start: 'MEANS'}", "MEANS: embed/embedding has the shape"),
    ],
)  # fmt: skip
def test_files_that_do_not_fit_are_refused_before_the_run(data, untied, tmp_path, variant, problem):
    text, other = tmp_path / "TEXT", tmp_path / "OTHER"
    text.write_text("no weights")
    safetensors.numpy.save_file({"a": np.zeros(3)}, other)
    names = {"MEANS": data / "means.safetensors", "FULL": data / "full.safetensors", "TEXT": text, "OTHER": other,
             "NONE": tmp_path / "NONE"}  # fmt: skip
    for name, path in names.items():
        variant = variant.replace(f"'{name}'", f"'{path}'")
        problem = problem.replace(f"{name}:", f"{path}:")
    flags = "--steps", "12", "--methods", "[]", "--variants", f"{{mine: {variant}}}"
    with pytest.raises(BadInput) as error:
        train(data, tmp_path / "run", *flags)
    assert str(error.value).startswith("--variants: mine: start: ")
    assert problem in str(error.value)
    assert not (tmp_path / "run").exists()
