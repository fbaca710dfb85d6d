"""The command `tiejax share`, on a small run. The oracle computes weights in numpy and applies a model without ties to them."""

import json
import re
import shlex
import shutil

import jax
import numpy as np
import pytest
import safetensors
import yaml
from directories import make_run
from flax import traverse_util
from processes import tree
from stream_runs import corpus_folder, metrics
from trained_layers import train

from tiejax.lab.commands import share as command
from tiejax.lab.runs import manifest
from tiejax.lab.runs.console import Console
from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.studies.layer_tying import text
from tiejax.lab.studies.layer_tying.model import build_model, read_weights
from tiejax.lab.studies.layer_tying.settings import Settings

pytestmark = pytest.mark.slow
METHODS = shlex.split("""
  --steps 24 --methods [untied,all-one]
  --variants '{low-rank: {map: [0,0,2], lora_rank: 2}, wide: {map: untied, width: 16, residual_scale: 1/N}}'
""")
MAP = [0, 0, 2]
ONLY = "--map", "[0,0,2]"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return corpus_folder(tmp_path_factory)


def trained(data, out, *flags):
    """Train a small run in this process; return its directory."""
    assert train(data, out, *flags) == 0
    return out


@pytest.fixture(scope="module")
def run(data):
    return trained(data, data / "run", *METHODS)


@pytest.fixture(scope="module")
def settings(run):
    return Settings(**yaml.safe_load((run / "config.yaml").read_text()))


def share(run, capsys, *flags):
    """Run the command; return the losses before and after, and the output."""
    assert command.main([str(run), *map(str, flags)]) == 0
    printed = "".join(capsys.readouterr())
    before, after = re.search(r"test loss: (\S+) nats per token before, (\S+) after", printed).groups()
    return float(before), float(after), printed


def tensors(path):
    """Return the metadata of a file of weights, and its arrays, as numpy reads them."""
    with safetensors.safe_open(path, "numpy") as file:
        facts = {name: json.loads(value) for name, value in file.metadata().items()}
        return facts, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def layers_of(saved):
    return {name: leaf for name, leaf in saved.items() if name.startswith("encoder/layers/")}


def plain_loss(settings, saved):
    """Return the loss on the test blocks of a model without ties, from its logits."""
    params = traverse_util.unflatten_dict(saved, sep="/")
    params["head"] = {"embedding": params["embed"]["embedding"]}
    prepared = text.prepare(settings, Console(quiet=True), resume=True)
    blocks = prepared.blocks["test"]
    chosen = blocks[np.arange(10) * len(blocks) // 10].astype(np.int32)
    model = build_model(settings, prepared.streams.vocabulary)
    logits = np.asarray(jax.jit(model.apply)({"params": params}, chosen), np.float64)[:, :-1]
    logits = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return -np.take_along_axis(logits, chosen[:, 1:, None], -1).mean()


@pytest.mark.parametrize(
    ("rank", "model", "map_of"),
    [("full", "untied-seed0", ONLY), (999, "untied-seed0", ("--map", "all-one")), ("full", "wide-seed0", ONLY)],
)
def test_full_rank_has_the_loss_of_the_untied_model(run, capsys, rank, model, map_of):
    """Also of a variant with another width, whose residual scale must not change when layers begin to share weights."""
    before, after, printed = share(run, capsys, "--model", model, *map_of, "--lora_rank", rank)
    found = metrics(run)
    recorded = found["test_loss"][found["methods"].tolist().index(model.removesuffix("-seed0")), 0]
    assert before == pytest.approx(recorded, abs=1e-6)
    assert after == pytest.approx(recorded, abs=1e-5)
    assert "left out: 0.0000% of" in printed
    assert "warning: the converted model takes no fewer bytes" in printed


def test_without_adaptations_layers_are_the_means(run, settings, tmp_path, capsys):
    out = tmp_path / "means.safetensors"
    before, after, printed = share(run, capsys, *ONLY, "--out", out)
    _, saved = tensors(run / "models" / "untied-seed0.safetensors")
    facts, shared = tensors(out)
    assert facts == {"owner": MAP, "places": [0, 0, 1], "tied": ["embed/embedding", "head/embedding"]}
    assert set(shared) == set(saved)
    means = {name: np.stack([(leaf[0] + leaf[1]) / 2, leaf[2]]) for name, leaf in layers_of(saved).items()}
    for name, leaf in shared.items():
        np.testing.assert_allclose(leaf, means.get(name, saved[name]), rtol=1e-6, atol=1e-7)
    assert before == pytest.approx(plain_loss(settings, saved), abs=1e-5)
    used = {name: leaf[[0, 0, 1]] for name, leaf in means.items()}
    assert after == pytest.approx(plain_loss(settings, saved | used), abs=1e-5)
    assert abs(after - before) > 1e-3
    assert "left out: 100.0000% of" in printed
    sizes = [sum(leaf.nbytes for leaf in leaves.values()) for leaves in (saved, shared)]
    assert f"weights: {sizes[0]:,} bytes before, {sizes[1]:,} after ({sizes[1] / sizes[0]:.3f} x)" in printed


def test_adapted_model_is_one_of_the_variant_with_this_map_and_rank(run, settings, tmp_path, capsys):
    out = tmp_path / "adapted.safetensors"
    _, after, printed = share(run, capsys, *ONLY, "--lora_rank", 2, "--out", out)
    facts, converted = tensors(out)
    wanted, of_variant = tensors(run / "models" / "low-rank-seed0.safetensors")
    assert facts == wanted
    assert {name: (leaf.shape, leaf.dtype) for name, leaf in converted.items()} == {
        name: (leaf.shape, leaf.dtype) for name, leaf in of_variant.items()
    }
    params, reads = read_weights(out)
    assert reads.tolist() == [0, 0, 1]
    whole = converted | {"head/embedding": converted["embed/embedding"]}
    jax.tree.map(np.testing.assert_array_equal, params, traverse_util.unflatten_dict(whole, sep="/"))

    # The weights with which each layer computes, and what the singular values say is left out.
    _, saved = tensors(run / "models" / "untied-seed0.safetensors")
    used, lost, apart, norm = {}, 0.0, 0.0, 0.0
    for name, leaf in layers_of(saved).items():
        own = leaf.astype(np.float64)
        left = own - np.stack([(own[0] + own[1]) / 2] * 2 + [own[2]])
        change = name.replace("layers", "lora")
        adaptation = converted[f"{change}/a"] @ converted[f"{change}/b"] if leaf.ndim == 3 else converted[change]
        used[name] = converted[name][[0, 0, 1]] + adaptation
        lost += np.sum(np.linalg.svd(left)[1][:, 2:] ** 2) if leaf.ndim == 3 else 0
        apart, norm = apart + np.sum(left**2), norm + np.sum(own**2)
    assert after == pytest.approx(plain_loss(settings, saved | used), abs=1e-5)
    shares = [float(number) for number in re.search(r"left out: ([\d.]+)% .* \(([\d.]+)% of", printed).groups()]
    assert shares == pytest.approx([100 * lost / apart, 100 * lost / norm], abs=1e-3)
    assert 0 < lost < apart


def test_run_is_read_wherever_it_is_and_stays_as_it_was(run, tmp_path, capsys):
    moved = tmp_path / "moved"
    shutil.copytree(run, moved)
    before = tree(moved)
    assert share(moved, capsys, "--map", "sequence", "--distinct", 2)[:2] == share(run, capsys, *ONLY)[:2]
    assert tree(moved) == before


def test_masked_bert_in_bfloat16_with_full_storage(data, capsys):
    flags = "--steps 4 --architecture bert --objective masked --dtype bfloat16 --storage full --methods [untied]"
    run = trained(data, data / "bert", *flags.split())
    before, after, _ = share(run, capsys, "--map", "all-one", "--lora_rank", "full", "--out", data / "bert.safetensors")
    assert before == pytest.approx(metrics(run)["test_loss"][0, 0], abs=1e-5)
    assert after == pytest.approx(before, abs=0.03)  # 8 bits
    params, _ = read_weights(data / "bert.safetensors")
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(params)} == {"bfloat16"}


def refused(words, *argv):
    with pytest.raises(BadInput, match=words) as error:
        command.main([*map(str, argv)])
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("", "--map: expected one of untied, all-one, .* or a list of layers"),
        ("--map spiral", "--map: expected one of .*, got 'spiral'"),
        ("--map [0,0]", "--map: expected a list of 3 owners, one per layer, got 2 entries"),
        ("--map [0,2,2]", "--map: owner: layer 1 cannot copy layer 2"),
        ("--map [0,0,1]", "--map: owner: layer 2 copies layer 1, which is itself a copy"),
        ("--map [0,0,two]", "--map: expected one of .* or a list of layers .*, got '.0,0,two.'"),
        ("--map {a: 1}", "--map: expected"),
        ("--map [0,0,2] --distinct 2", "--distinct: --map determines the distinct layers"),
        ("--map sandwich --distinct 2", "--distinct: --map determines the distinct layers"),
        ("--map cycle --distinct 4", "--distinct: expected 1 to 3"),
        ("--map cycle --distinct 0", "--distinct: expected 1 to 3"),
        ("--map cycle --lora_rank -1", "--lora_rank: expected full or an integer from 0"),
        ("--map cycle --lora_rank most", "--lora_rank: expected an integer or one of full"),
        ("--map cycle --model untied-seed1", "--model: expected a trained model of .*untied-seed0.*, got 'untied-seed1'"),
        ("--map cycle --model ../run/models/untied-seed0", "--model: expected a trained model of"),
        ("--map cycle --model all-one-seed0", r"--model all-one-seed0: .* share weights already \(1 of 3 are distinct\)"),
        ("--map cycle --model low-rank-seed0", "--model low-rank-seed0: has low-rank adaptations"),
        ("--map cycle --out ''", "--out: expected the path of a file"),
        ("--map cycle --out EXISTING", "--out .*: already exists; name a new file"),
        ("--map cycle --out LINK", "--out .*: already exists; name a new file"),
        ("--map cycle --out RUN/models/new.safetensors", "--out .*: lies in .*, which is only read"),
        ("--map cycle --out FOLDER/none/new", "--out .*: .*none is not a directory"),
        ("--map cycle --out EXISTING/new", "--out .*: cannot be created: Not a directory"),
    ],
)
def test_refused_options(run, tmp_path, flags, words):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    places = {"EXISTING": tmp_path / "file", "LINK": tmp_path / "link", "RUN": run, "FOLDER": tmp_path}
    before = tree(tmp_path), tree(run)
    argv = [re.sub("|".join(places), lambda place: str(places[place[0]]), flag) for flag in shlex.split(flags)]
    refused(words, run, *argv, *(() if "--out" in argv else ("--out", tmp_path / "new")))
    assert (tree(tmp_path), tree(run)) == before


def test_refused_runs(run, data, tmp_path):
    refused("run: name the directory of a layer-tying run")
    refused("run.json is missing", tmp_path, *ONLY)
    refused("run.json is missing", tmp_path / "nowhere", *ONLY)
    make_run(tmp_path / "exor")
    refused("is a run of exor; only runs of layer_tying can be converted", tmp_path / "exor", *ONLY)

    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    weights = copy / "models" / "untied-seed0.safetensors"
    content = weights.read_bytes()
    remedy = "damaged or missing; remove .*finished/untied-seed0.npz and resume the run"
    for damaged in (content[:100], content[:-1] + bytes([content[-1] ^ 1])):
        weights.write_bytes(damaged)
        refused(remedy, copy, *ONLY)
    weights.unlink()
    refused(remedy, copy, *ONLY)
    weights.write_bytes(content)

    listed = manifest.read(copy)
    del listed.files["models/untied-seed0.safetensors"]  # as before the model has finished
    listed.write(copy)
    refused(r"--model: expected a trained model of .* \(those are all-one-seed0, .*\), got 'untied-seed0'", copy, *ONLY)

    shutil.copytree(run, tmp_path / "edited")
    config = tmp_path / "edited" / "config.yaml"
    config.write_text(config.read_text().replace("\nk: 2\n", "\nk: 3\n"))
    refused("was edited since the run was started", tmp_path / "edited", *ONLY)

    corpus = data / "corpus.txt"
    words = corpus.read_text()
    try:
        corpus.write_text(words.replace("the", "teh"))
        refused("was trained on another text", run, *ONLY)
        corpus.unlink()
        refused(r"config.yaml: --corpus .*corpus.txt: not found", run, *ONLY)
    finally:
        corpus.write_text(words)
