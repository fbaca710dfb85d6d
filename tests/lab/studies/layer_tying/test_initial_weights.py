"""Variants that start from given weights: the loss of these weights at step 0, a killed run, and refused files."""

import os
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
from trained_layers import SMALL, train

from tiejax.lab.commands import share
from tiejax.lab.settings.command_line import BadInput

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return corpus_folder(tmp_path_factory)


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
        f"{{on: {{map: untied, initial_weights: '{model}'}}, full: {{map: [0,0,2], lora_rank: 8, initial_weights: '{full}'}}, "
        f"means: {{map: [0,0,2], initial_weights: '{means}', not_worse_than: on}}}}"
    )


STARTED = ["--steps", "12", "--seeds", "2", "--methods", "[]", "--variants"]


@pytest.fixture(scope="module")
def continued(data, untied):
    """An uninterrupted run of the variants."""
    assert train(data, data / "on", *STARTED, variants(data, untied)) == 0
    return data / "on"


def test_training_starts_from_the_weights_of_the_file(untied, continued):
    """At step 0 of both seeds the model that goes on and the one of full rank have the loss at which the untied model ended."""
    before, after = metrics(untied), metrics(continued)
    ended = before["validation_loss"][0, 0].min()
    losses = dict(zip(after["methods"].tolist(), after["validation_loss"], strict=True))
    np.testing.assert_allclose(losses["on"][:, 0], ended, atol=1e-6)
    np.testing.assert_allclose(losses["full"][:, 0], ended, atol=1e-5)
    assert losses["means"][0, 0] == losses["means"][1, 0] != pytest.approx(ended, abs=1e-3)
    assert np.ptp(losses["means"][:, -1]) > 1e-4  # the seeds see other batches


def test_killed_run_resumes_without_the_file(data, untied, continued, tmp_path):
    """The run keeps a copy of the weights: after the original is gone, it resumes to the result of an uninterrupted run."""
    copies = tmp_path / "data"
    copies.mkdir()
    for name in ("full", "means"):
        shutil.copy(data / f"{name}.safetensors", copies)
    flags = [*text_of(data), *SMALL, *STARTED, variants(copies, untied)]
    flags += ["--checkpoint_every", ".001", "--out", str(tmp_path / "killed")]
    command = [sys.executable, str(EXPERIMENTS / "layer_tying.py"), *flags]
    env = os.environ | {"JAX_NUM_CPU_DEVICES": "1"}  # as the uninterrupted run in this process
    process = subprocess.Popen([*command, "--quiet"], start_new_session=True, env=env)
    try:
        while not list((tmp_path / "killed" / "checkpoints").glob("*/steps/*")):
            assert process.poll() is None
            time.sleep(0.05)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert not (tmp_path / "killed" / "results.json").exists()
    shutil.rmtree(copies)
    assert subprocess.run([*command, "--quiet", "--resume"], env=env).returncode == 0
    whole, killed = metrics(continued), metrics(tmp_path / "killed")
    for name in ("train_loss", "validation_loss", "test_loss"):
        np.testing.assert_array_equal(whole[name], killed[name])


@pytest.mark.parametrize(
    ("variant", "problem"),
    [
        ("{map: untied, initial_weights: 'NONE'}", "initial_weights: NONE: No such file or directory"),
        ("{map: untied, initial_weights: ''}", "initial_weights: expected the path of a file of weights, got ''"),
        ("{map: untied, initial_weights: 'TEXT'}", "initial_weights: TEXT: is not a model of layer tying"),
        ("{map: untied, initial_weights: 'OTHER'}", "initial_weights: OTHER: is not a model of layer tying"),
        ("{map: [0,0,0], initial_weights: 'MEANS'}", "MEANS: its layers read the slots [0, 0, 1], those of the variant's map"),
        ("{map: [0,0,2], lora_rank: 8, initial_weights: 'MEANS'}", "model: encoder/lora/"),
        ("{map: [0,0,2], initial_weights: 'FULL'}", ") instead of no array"),
        ("{map: [0,0,2], lora_rank: 4, initial_weights: 'FULL'}", "(3, 8, 8) instead of (3, "),
        ("{map: [0,0,2], width: 16, initial_weights: 'MEANS'}", "variant's model: embed/embedding: ("),
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
    assert str(error.value).startswith("--variants: mine: initial_weights: ")
    assert problem in str(error.value)
    assert not (tmp_path / "run").exists()


def test_overwriting_the_run_that_the_weights_come_from(data, untied, tmp_path):
    run = shutil.copytree(untied, tmp_path / "run")
    model = (run / "models" / "untied-seed0.safetensors").read_bytes()
    flags = "--steps", "12", "--methods", "[]", "--variants"
    variant = f"{{on: {{map: untied, initial_weights: '{run / 'models' / 'untied-seed0.safetensors'}'}}}}"
    assert train(data, run, *flags, variant, "--overwrite") == 0
    assert (run / "initial_weights" / "on.safetensors").read_bytes() == model


def test_copies_that_are_lost_or_damaged(data, untied, tmp_path):
    """A lost copy is written again from the original, and a changed original or a damaged copy is refused."""
    original = shutil.copy(data / "means.safetensors", tmp_path / "original.safetensors")
    flags = "--steps", "12", "--methods", "[]", "--variants", f"{{on: {{map: [0,0,2], initial_weights: '{original}'}}}}"
    run = tmp_path / "run"
    copy = run / "initial_weights" / "on.safetensors"
    assert train(data, run, *flags) == 0
    content = copy.read_bytes()
    copy.unlink()
    assert train(data, run, *flags, "--resume") == 0
    assert copy.read_bytes() == content
    copy.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(BadInput, match=r"on\.safetensors is damaged; remove it, and it is written again"):
        train(data, run, *flags, "--resume")
    copy.unlink()
    original.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(BadInput, match=r"original\.safetensors has changed since the run was started"):
        train(data, run, *flags, "--resume")
    assert not copy.exists()
