"""The text experiment as users run it: what a run leaves, resumption, devices and processes, bad input."""

import dataclasses
import gzip
import json
import os
import pydoc_data.topics
import shlex
import socket
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from processes import TEXT_SCRIPT, assert_refused, command_here, end, start, start_python, tree, wait_until

from tiejax.runs import launch
from tiejax.studies.diagnosis import run as diagnose_run
from tiejax.studies.diagnosis import study as diagnose
from tiejax.studies.text_mlm import study as experiment
from tiejax.studies.text_mlm.claims import analyse

ROOT = TEXT_SCRIPT.parents[1]
SHARED = ROOT.parent / "shared" / "data"
SMALL = shlex.split("""
  --vocab_size 400 --layers 1 --width 16 --heads 2 --feed_forward 32 --max_length 32 --batch_size 12 --validation_batches 2
  --record_every 10 --validate_every 25 --learning_rate .003
""")


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """English text in two files, and where runs prepare it."""
    folder = tmp_path_factory.mktemp("text")
    topics = [pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics)]
    (folder / "corpus").mkdir()
    (folder / "corpus" / "first.txt").write_text("\n\n".join(topics[:12]))
    (folder / "corpus" / "second.txt.gz").write_bytes(gzip.compress("\n\n".join(topics[12:24]).encode()))
    return folder


def settings(data, *more):
    return ["--corpus", str(data / "corpus"), "--data_dir", str(data / "prepared"), *SMALL, *map(str, more)]


def metrics(out):
    with np.load(out / "metrics.npz") as found:
        return dict(found)


@pytest.fixture(scope="session")
def run(data):
    """A run of two seeds with event files, in a process of its own that tells which modules it has loaded."""
    code = """
import sys
sys.argv = [sys.argv[1], *sys.argv[2:]]
from pathlib import Path
sys.path.insert(0, str(Path(sys.argv[0]).parents[1]))
from experiments import text_mlm
status = text_mlm.main(sys.argv[1:])
print("loaded:", sorted({"tensorflow", "jax"} & set(sys.modules)))
sys.exit(status)
"""
    out = data / "run"
    argv = settings(data, "--seeds", "[3,0]", "--steps", 50, "--tensorboard", "true", "--out", out)
    ended = end(start_python("-c", code, TEXT_SCRIPT, *argv))
    assert ended.status == 0, ended.err
    return out, ended.out


def test_a_run_leaves_what_it_says(run):
    out, said = run
    assert {"config.yaml", "data.json", "environment.json", "metrics.npz", "results.json", "report.html"} <= set(
        os.listdir(out)
    )
    pictures = {path.stem for path in (out / "figures").glob("*.png")}
    assert {"distance", "distance_published", "learning", "buckets", "norms"} <= pictures
    assert "loaded: ['jax']" in said  # no TensorFlow anywhere
    assert "reach: learning rates sum to" in said
    assert f"report: {out / 'report.html'}" in said
    found, recorded = json.loads((out / "results.json").read_text()), metrics(out)
    assert found["seeds"] == [3, 0]
    assert found["overflow"] == {"untied": 0, "tied": 0}
    assert found["timing"]["padding"] < 0.05
    assert recorded["step"].tolist() == [0, 10, 20, 30, 40, 50]
    assert recorded["validation_step"].tolist() == [0, 25, 50]
    pairs = len(recorded["pair_words"])
    assert recorded["distance_input"].shape == recorded["distance_output"].shape == (2, 2, 6, pairs)
    # Two tables are one where they are tied, to the bit; untied ones are not.
    np.testing.assert_array_equal(recorded["distance_input"][1], recorded["distance_output"][1])
    assert (recorded["distance_input"][0] != recorded["distance_output"][0]).any()
    assert (recorded["validation_loss"][..., -1] < recorded["validation_loss"][..., 0]).all()
    analysed = analyse(recorded, 0.01 * found["reach"]["per_coordinate"])[0]["claims"]
    assert [(row["id"], row["n"]) for row in found["claims"]] == [(row["id"], row["n"]) for row in analysed]


def test_validation_is_the_mean_over_its_buckets(run):
    recorded = metrics(run[0])
    count = recorded["validation_bucket_count"]
    for measure in ("loss", "accuracy"):
        by_bucket = np.nan_to_num(recorded[f"validation_bucket_{measure}"])
        np.testing.assert_allclose((by_bucket * count).sum(-1) / count.sum(-1), recorded[f"validation_{measure}"], rtol=1e-5)
    # Masks are drawn afresh at every validation, and are the same for tied and untied.
    assert len(np.unique(count.sum(-1)[0, 0])) > 1
    np.testing.assert_array_equal(count[0], count[1])


def test_distances_are_those_of_the_pairs(run, data):
    """At step 0, from the initial tables: each word to its twin, by name, and unrelated words to each other."""
    config = launch.read_command_line(experiment.STUDY, ["--resume", "--out", str(run[0])])[0]
    text, planned = experiment.prepare(config, experiment.Console(quiet=True))
    ensemble = experiment.build_ensemble(config, text, planned)
    recorded = metrics(run[0])
    names = recorded["pair_words"].tolist()
    table = np.asarray(ensemble.start([0]).state.params["embed"]["embedding"])[0, 0]
    place = text.twins.words.index("the")
    own = np.linalg.norm(table[text.vocabulary.id_of("the")] - table[text.vocabulary.size + place])
    np.testing.assert_allclose(recorded["distance_input"][0, 1, 0, names.index("the")], own, rtol=1e-6)
    unrelated = names[-1].split("/")
    first, second = (table[text.vocabulary.id_of(word)] for word in unrelated)
    np.testing.assert_allclose(recorded["distance_input"][0, 1, 0, -1], np.linalg.norm(first - second), rtol=1e-6)
    assert recorded["set_names"].tolist() == ["twins .5", "twins .1", "unrelated"]
    assert dict(zip(names, recorded["pair_set"].tolist(), strict=True))["be"] == 1


def test_event_files_show_the_same_numbers(run):
    out, _ = run
    assert sorted(os.listdir(out / "events")) == sorted(f"{arm}-seed-{seed}" for arm in ("untied", "tied") for seed in (3, 0))
    written = b"".join(path.read_bytes() for path in (out / "events" / "tied-seed-0").iterdir())
    for tag in (b"train_loss", b"validation_loss", b"norm_input", b"distance_output/twins .1"):
        assert tag in written
    wanted = np.float32(metrics(out)["train_loss"][1, 1, -1]).tobytes()
    assert wanted in written


def test_a_killed_run_goes_on_to_the_same_result(run, data):
    """Killed in training, after a checkpoint; the run of these seeds above was never interrupted."""
    out = data / "killed"
    argv = settings(
        data, "--seeds", "[3,0]", "--steps", 50, "--out", out, "--checkpoint_every", "0.01", "--tensorboard", "true"
    )
    process = start(*argv, script=TEXT_SCRIPT)
    assert wait_until(
        lambda: any(path.name.isdigit() and int(path.name) > 3 for path in (out / "checkpoints").glob("*")), process
    )
    process.kill()
    process.communicate()
    assert not (out / "results.json").exists()
    # The prepared text and its vocabulary, which training would not give again, may be gone as well.
    elsewhere = ("--data_dir", data / "prepared_anew")
    again = end(start("--resume", "--out", out, *elsewhere, script=TEXT_SCRIPT))
    assert again.status == 0, again.err
    assert "preparing the text in" in again.out
    assert "resuming at step" in again.out
    ours, wanted = metrics(out), metrics(run[0])
    assert ours.keys() == wanted.keys()
    for name, values in wanted.items():
        assert ours[name].tobytes() == values.tobytes(), name
    done = end(start("--resume", "--out", out, script=TEXT_SCRIPT))
    assert (done.status, "the run is finished" in done.out) == (0, True)


# 37 packed rows or so: no number of devices divides them.
EQUAL = ["--batch_size", "60", "--learning_rate", ".001"]
MEMBERS = """
import sys, numpy as np
sys.path.insert(0, sys.argv[1])
from experiments import text_mlm
from tiejax import launch, training
argv = sys.argv[3:]
config = launch.read_command_line(text_mlm.STUDY, argv)[0]
text, planned = text_mlm.prepare(config, text_mlm.Console(quiet=True))
import jax
jax.config.update("jax_default_matmul_precision", "highest")
ensemble = text_mlm.build_ensemble(config, text, planned)
trained = training.train(ensemble, config.seed_list)
table = np.asarray(trained.members.state.params["embed"]["embedding"])
placed = training.compile_ensemble(ensemble, config.seed_list, trained.members).place(trained.members).state.params["embed"]["embedding"]
held = placed.sharding.shard_shape(placed.shape)
arrays = text_mlm.named_arrays(trained.records, config, text)
np.savez(sys.argv[2], mesh=planned.mesh, rows=planned.rows, table=table, part=held, **arrays)
"""


def on_devices(data, devices, *more):
    out = data / f"on_{devices}_{'_'.join(map(str, more)).replace('-', '').replace('/', '')}.npz"
    argv = settings(data, "--steps", 50, *EQUAL, "--out", data / "nothing", *more)
    ended = end(start_python("-c", MEMBERS, ROOT, out, *argv, env={"JAX_NUM_CPU_DEVICES": str(devices)}))
    assert ended.status == 0, ended.err
    with np.load(out) as found:
        return dict(found)


@pytest.fixture(scope="session")
def on_one_device(data):
    return on_devices(data, 1, "--seeds", 1, "--mesh", 1)


def assert_close(ours, wanted):
    for name in ("train_loss", "validation_loss", "validation_accuracy", "distance_input", "distance_output", "table", "step"):
        np.testing.assert_allclose(ours[name], wanted[name], rtol=1e-5, atol=1e-5, err_msg=name)


def test_eight_devices_train_one_member_as_one_does(data, on_one_device):
    """Rows, parameters and optimizer state in eight parts: 50 steps to 1e-5."""
    one = on_one_device
    eight = on_devices(data, 8, "--seeds", 1)  # nobody asked for 8: the seeds leave no more to do
    assert (int(one["mesh"]), int(eight["mesh"])) == (1, 8)
    assert int(eight["rows"]) == int(one["rows"])
    assert np.prod(eight["part"]) * 8 == np.prod(one["part"])
    assert_close(eight, one)


def test_two_processes_work_as_one(data, on_one_device):
    """Each holds one device; together they train every member, half of its rows each, and the first writes the run."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    out = data / "together"
    argv = settings(data, "--seeds", 1, "--steps", 50, *EQUAL, "--out", out)

    def process(number):
        where = {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": str(number)}
        return start(*argv, script=TEXT_SCRIPT, env={**where, "JAX_NUM_CPU_DEVICES": "1"})

    ended = [end(one) for one in [process(0), process(1)]]
    assert [one.status for one in ended] == [0, 0], ended
    assert [line for line in ended[1].out.splitlines() if "Gloo" not in line] == []
    assert "2 a member" in ended[0].out
    one, ours = on_one_device, metrics(out)
    for name in ("train_loss", "validation_loss", "distance_input", "distance_output", "step"):
        np.testing.assert_allclose(ours[name], one[name], rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory with files that cannot be used; nothing else may appear in it."""
    monkeypatch.chdir(tmp_path)
    files = tmp_path / "files"
    files.mkdir()
    (files / "empty.txt").write_text("  \n\n ")
    (files / "binary.txt").write_bytes(b"some text\0and more")
    (files / "latin.txt").write_bytes("a caf\u00e9 is not UTF-8".encode("latin-1"))
    (files / "short.txt").write_text("Yes. No.\n")
    (files / "some.txt").write_text("The cat sat on the mat and looked at the dog. " * 40)
    (files / "nothing_special.txt").write_text("the\nof\nand\n")
    return tmp_path


BAD = {
    "--corpus files/missing.txt": ("--corpus files/missing.txt",),
    "--corpus files/empty.txt": ("--corpus", "empty.txt"),
    "--corpus files/binary.txt": ("files/binary.txt", "9"),
    "--corpus files/latin.txt": ("files/latin.txt", "5", "UTF-8"),
    "--corpus files/short.txt --min_length 8 --vocab_size 40": ("long enough",),
    "--corpus files/some.txt --tokenizer files/nothing_special.txt": ("--tokenizer", "[PAD]", "[MASK]"),
    "--corpus files/some.txt --tokenizer files/missing.json": ("--tokenizer", "files/missing.json"),
    "--twins {'0':[the]}": ("--twins", "between 0 and 1, got 0"),
    "--twins {'1.5':[the]}": ("--twins", "between 0 and 1, got 1.5"),
    "--twins {often:[the]}": ("--twins", "often"),
    "--twins {}": ("--twins", "at least one set"),
    "--twins {'.5':[]}": ("--twins", "the set at .5 has no word"),
    "--twins {'.5':[the],'0.50':[of]}": ("--twins", ".5 and 0.50"),
    "--out /dev/null/run": ("--out /dev/null/run",),
    "--twins {'.5':[on]}": ("--twins", "a list [...], each text", "got True"),
    "--corpus files/some.txt --vocab_size 60 --twins {'.5':[zebra,ye]}": ("--twins", "none of zebra, ye"),
    "--corpus files/some.txt --vocab_size 60 --twins {'.5':[the],'.1':[the]}": ("--twins", "one twin"),
    "--corpus tfds:no_such_set_of_text": ("tfds:no_such_set_of_text",),
    "--corpus tfds:huggingface:bookcorpus": ("tfds:huggingface:bookcorpus", "datasets"),
    "--corpus": ("--corpus", "at least one"),
    "--steps 5 --epochs 1": ("--steps and --epochs",),
    "--epochs 0": ("--epochs", "above 0"),
    "--heads 3": ("--heads", "3 heads do not divide the width 128"),
    "--min_length 200": ("--min_length", "--max_length 128"),
    "--max_length 2": ("--max_length",),
    "--dropout 1": ("--dropout",),
    "--mesh 3 --corpus files/some.txt --vocab_size 60": ("--mesh", "do not fit"),
    "--seeds [1,1]": ("--seeds", "1 is repeated"),
    "--packing tight": ("--packing", "packed, padded"),
    "--compute_dtype float8": ("--compute_dtype", "float32, bfloat16"),
    "--batch_sise 3": ("--batch_sise", "did you mean --batch_size"),
    "--resume --out nothing_here": ("--resume",),
    "--untie_at [2000]": ("--untie_at", "--steps 1500", "got 2000"),
    "--untie_at [.5,1.5]": ("--untie_at", "from 0. to 1.", "got 1.5"),
}


@pytest.mark.parametrize("line", BAD)
def test_bad_input(line, here, monkeypatch, capsys, tmp_path_factory):
    """One line that names the option or the file, status 2, and nothing written but what was prepared elsewhere."""
    argv = [*line.split(), "--data_dir", str(tmp_path_factory.mktemp("prepared"))]
    before = tree(here)
    ended = command_here(argv, monkeypatch, capsys, experiment)
    # What is wrong may show only once the text is read, which is said.
    assert all(said.startswith(("preparing the text", "warning: not in the vocabulary")) for said in ended.out.splitlines())
    assert_refused(ended._replace(out=""), *BAD[line], script=TEXT_SCRIPT)
    assert tree(here) == before


def test_words_that_are_missing_are_named_once(here):
    """In a process of its own, stopped as soon as it has said so."""
    argv = ["--corpus", "files/some.txt", "--vocab_size", 60, "--data_dir", here / "data", "--out", here / "run"]
    process = start(*argv, "--twins", "{'.5': [the, zebra], '.1': [sat, ye]}", "--steps", 100_000, script=TEXT_SCRIPT, cwd=here)
    assert wait_until((here / "run" / "environment.json").exists, process)
    process.kill()
    ended = end(process)
    assert ended.out.count("zebra") == ended.out.count("ye") - ended.out.count("yes") == 1
    assert "warning: not in the vocabulary, so left out: zebra, ye" in ended.out


def test_a_run_is_not_resumed_on_another_text(run, data, tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    corpus = tmp_path / "corpus.txt"
    corpus.write_text((data / "corpus" / "first.txt").read_text() + "\nOne more sentence that was not there before.\n")
    config = yaml.safe_load((run[0] / "config.yaml").read_text()) | {"out": str(out), "corpus": [str(corpus)]}
    (out / "config.yaml").write_text(yaml.safe_dump(config))
    (out / "data.json").write_text((run[0] / "data.json").read_text())
    ended = end(start("--resume", "--out", out, script=TEXT_SCRIPT))
    assert_refused(ended._replace(out=""), "--resume", "another text", script=TEXT_SCRIPT)


def test_the_published_setting():
    """Specification of the text experiment: vocabulary, twins, parameters, schedule."""
    config = launch.read_command_line(experiment.STUDY, ["--config", str(ROOT / "configs/text_mlm/published.yaml")])[0]
    assert list(config.sets) == [0.5]
    assert tuple(config.sets[0.5]) == experiment.planting.COMMON_WORDS
    assert (config.layers, config.width, config.heads, config.feed_forward, config.dropout) == (3, 128, 4, 512, 0)
    assert (config.learning_rate, config.minimum_learning_rate, config.half_period) == (1e-4, 1e-5, 10_000)
    assert (config.batch_size, config.max_length, config.epochs, config.packing) == (128, 128, 3, "padded")
    assert (config.weight_decay, config.eps, config.optimizer, config.schedule) == (0.01, 1e-12, "adamw", "cosine")
    assert (config.positions, config.layer_norm, config.identical_layers, config.embedding_std) == ("none", "post", True, 0.3)
    if not SHARED.is_dir():
        pytest.skip("shared data is missing: parameters are counted with its vocabulary")
    from tiejax.text import tokenizer

    vocabulary = tokenizer.vocabulary(tokenizer.load(str(SHARED / "bert-base-uncased" / "vocab.txt")))
    twins, missing = experiment.planting.plant(config.sets, vocabulary.size, vocabulary.id_of, vocabulary.unknown)
    assert missing == ["I"]
    assert twins.vocabulary == 30_622
    assert twins.ids[twins.words.index("I")] == vocabulary.unknown
    nothing = experiment.Text(vocabulary, twins, None, None, {}, b"")
    facts = experiment.pairs_of(nothing)[1]
    assert facts["set_names"].tolist() == ["twins .5", "twin of the unknown token", "unrelated"]
    assert np.bincount(facts["pair_set"]).tolist() == [99, 1, 100]
    assert facts["pair_words"][99] == "I"
    assert not any("I" in pair.split("/") for pair in facts["pair_words"][100:])
    model = experiment.build_model(config, nothing)
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), jnp.zeros((1, 8), jnp.int32)))["params"]
    number = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(shapes))
    table = int(np.prod(shapes["head"]["embedding"].shape))
    assert (number, number - table) == (8_434_048, 4_514_432)


@pytest.mark.parametrize("file", sorted((ROOT / "configs" / "text_mlm").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_configuration_is_one(file):
    """It resolves, holds nothing but what differs from the defaults, and its header names its source and command."""
    config = launch.read_command_line(experiment.STUDY, ["--config", str(file)])[0]
    given = yaml.safe_load(file.read_text())
    defaults = dataclasses.asdict(experiment.Config())
    same = {name for name, value in given.items() if value == defaults[name]}
    # What the protocol says is said in the published preset, also where our default is the same.
    assert not same or file.stem == "published", same
    assert Path(config.out).name == file.stem
    head = [line for line in file.read_text().splitlines() if line.startswith("#")]
    assert head[0].startswith("# Source: ")
    assert any(
        line.startswith("# Command: python experiments/text_mlm.py --config configs/text_mlm/" + file.name) for line in head
    )


def test_every_option_of_the_encoder_trains(data, tmp_path):
    """Learned positions, pre-LN, dropout, bfloat16, recomputed layers, constant rate, Adam, padded rows."""
    out = tmp_path / "run"
    encoder = "--positions learned --layer_norm pre --dropout .1 --compute_dtype bfloat16 --rematerialise true"
    training = "--schedule constant --optimizer adam --packing padded --identical_layers false --activation silu"
    options = shlex.split(f"{encoder} {training}")
    assert experiment.main(settings(data, *options, "--seeds", 1, "--steps", 60, "--out", out)) == 0
    recorded = metrics(out)
    assert recorded["finite"].all()
    assert (recorded["validation_loss"][..., -1] < recorded["validation_loss"][..., 0] - 0.3).all()


def test_a_run_on_text_is_diagnosed(run, tmp_path):
    """Contexts hold the planted twins and ask for pairs; every set of pairs is judged for both arms."""
    config = launch.read_command_line(experiment.STUDY, ["--resume", "--out", str(run[0])])[0]
    text, _ = experiment.prepare(config, experiment.Console(quiet=True))
    asked = diagnose_run.text_contexts(text, 32)
    assert (asked.tokens[np.arange(len(asked.position)), asked.position] == text.vocabulary.mask).all()
    assert (asked.tokens >= text.vocabulary.size).any()
    (own, twin), *_ = asked.pairs["twins .1"]
    assert asked.log_ratios[own, twin][0] == pytest.approx(np.log(9))
    out = tmp_path / "diagnosis"
    assert diagnose.main([str(run[0]), "--out", str(out), "--quiet"]) == 0
    found = json.loads((out / "results.json").read_text())
    assert found["kind"] == "text_mlm"
    assert [row["set"] for row in found["equivalence"]["untied"]] == ["twins .5", "twins .1", "unrelated"]
    assert [member["tied"] for name in ("untied", "tied") for member in found["alignment"][name]] == [False, False, True, True]


def test_members_untie_on_text(data, tmp_path):
    """Tied up to step 20 of 40: one table before, two after, and the curve over the untie step in results and page."""
    out = tmp_path / "run"
    untying = ["--untie_at", "[0., 20, 1.]", "--untie_policy", "split", "--record_every", 10, "--tensorboard", "true"]
    assert experiment.main(settings(data, *untying, "--seeds", 1, "--steps", 40, "--out", out)) == 0
    recorded, found = metrics(out), json.loads((out / "results.json").read_text())
    assert recorded["untie_step"].tolist() == [-1, 0, 40, 20]
    apart = np.abs(recorded["distance_input"] - recorded["distance_output"]).max(axis=(1, 3)) > 0
    assert recorded["step"].tolist() == [0, 10, 20, 30, 40]
    np.testing.assert_array_equal(
        apart, [[True] * 5, [False, True, True, True, True], [False] * 5, [False, False, False, True, True]]
    )
    (curve,) = found["curves"]
    assert (curve["curve"], curve["steps"]) == ("split", [0, 20, 40])
    np.testing.assert_allclose(curve["points"][1]["loss"], recorded["validation_loss"][3, :, -1], rtol=1e-6)
    assert {row["id"] for row in found["claims"]} == {
        f"untying-helps/{base}/split" for base in ("tied", "equal", "independent")
    }
    assert len(os.listdir(out / "events")) == 4
    page = (out / "report.html").read_text()
    assert "tied, then untied" in page
    assert page.count("data:image/png") == 3


def test_help_explains_every_setting(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["text_mlm.py"])
    with pytest.raises(SystemExit) as ended:
        experiment.main(["--help"])
    shown = capsys.readouterr().out
    assert ended.value.code == 0
    for field in dataclasses.fields(experiment.Config):
        assert f"--{field.name}" in shown
    assert "tfds:NAME" in shown
