"""End-to-end tests of the text study: its files, resumption, separate epochs, untying, and encoder options."""

import dataclasses
import json
import os
import shlex

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from event_readers import points, texts
from processes import TEXT_SCRIPT, assert_refused, command_here, end, start, wait_until
from text_metrics import GATE
from text_runs import arguments, metrics

from tiejax.lab.runs import manifest, resume
from tiejax.lab.runs.console import Console
from tiejax.lab.studies.text_mlm import text
from tiejax.lab.studies.text_mlm.claims import analyse
from tiejax.lab.studies.text_mlm.ensemble import build_ensemble
from tiejax.lab.studies.text_mlm.settings import STUDY
from tiejax.text import masking
from tiejax.training import seed_keys
from tiejax.training.placement import DATA

pytestmark = pytest.mark.slow


def test_run_writes_its_files(run):
    out, output = run
    assert {"config.yaml", "data.json", "environment.json", "metrics.npz", "results.json", "report.html"} <= set(
        os.listdir(out)
    )
    pictures = {path.stem for path in (out / "figures").glob("*.png")}
    assert {"distance", "distance_published", "learning", "buckets"} <= pictures
    assert "reach: learning rates sum to" in output
    assert f"report: {out / 'report.html'}" in output
    found, recorded = json.loads((out / "results.json").read_text()), metrics(out)
    assert found["seeds"] == [3, 0]
    assert found["overflow"] == {"untied": 0, "tied": 0}
    assert found["timing"]["padding"] < 0.05
    assert recorded["step"].tolist() == [0, 10, 20, 30, 40, 50]
    assert recorded["validation_step"].tolist() == [0, 25, 50]
    pairs = len(recorded["pair_words"])
    assert recorded["distance_input"].shape == recorded["distance_output"].shape == (2, 2, 6, pairs)
    # Tied tables are bitwise equal; untied ones differ.
    np.testing.assert_array_equal(recorded["distance_input"][1], recorded["distance_output"][1])
    assert (recorded["distance_input"][0] != recorded["distance_output"][0]).any()
    assert (recorded["validation_loss"][..., -1] < recorded["validation_loss"][..., 0]).all()
    analysed = analyse(recorded, 0.01 * found["reach"]["per_coordinate"], GATE)[0]["claims"]
    assert [(row["id"], row["n"]) for row in found["claims"]] == [(row["id"], row["n"]) for row in analysed]


def test_validation_is_the_mean_over_its_buckets(run):
    recorded = metrics(run[0])
    count = recorded["validation_bucket_count"]
    for measure in ("loss", "accuracy"):
        by_bucket = np.nan_to_num(recorded[f"validation_bucket_{measure}"])
        np.testing.assert_allclose((by_bucket * count).sum(-1) / count.sum(-1), recorded[f"validation_{measure}"], rtol=1e-5)
    # Masks are redrawn at every validation, and shared by tied and untied.
    assert len(np.unique(count.sum(-1)[0, 0])) > 1
    np.testing.assert_array_equal(count[0], count[1])


def test_distances_are_those_of_the_pairs(run, data):
    """At step 0 recorded distances equal those in the initial tables, for a word and its twin and for unrelated words."""
    settings = resume.read(STUDY, ["--resume", "--out", str(run[0])]).settings
    prepared, plan = text.prepare(settings, Console(quiet=True))
    ensemble = build_ensemble(settings, prepared, plan)
    recorded = metrics(run[0])
    names = recorded["pair_words"].tolist()
    table = np.asarray(ensemble.start([0]).state.params["embed"]["embedding"])[0, 0]
    place = prepared.twins.words.index("the")
    apart = np.linalg.norm(table[prepared.vocabulary.id_of("the")] - table[prepared.vocabulary.size + place])
    np.testing.assert_allclose(recorded["distance_input"][0, 1, 0, names.index("the")], apart, rtol=1e-6)
    unrelated = names[-1].split("/")
    first, second = (table[prepared.vocabulary.id_of(word)] for word in unrelated)
    np.testing.assert_allclose(recorded["distance_input"][0, 1, 0, -1], np.linalg.norm(first - second), rtol=1e-6)
    assert recorded["set_names"].tolist() == ["twins .5", "twins .1", "unrelated"]
    assert dict(zip(names, recorded["pair_set"].tolist(), strict=True))["be"] == 1


def test_event_files_hold_the_recorded_numbers(run):
    """Means over seeds, single seeds, and mean distances of each set of pairs; the claims and settings as text."""
    out, _ = run
    found, recorded = points(out / "events"), metrics(out)
    twins = recorded["distance_output"][..., recorded["pair_set"] == 1].mean(-1)
    cases = {
        "train_loss/tied": (recorded["step"], recorded["train_loss"][1].mean(0)),
        "train_loss/untied/seed-3": (recorded["step"], recorded["train_loss"][0, 0]),
        "validation_loss/tied/seed-0": (recorded["validation_step"], recorded["validation_loss"][1, 1]),
        "distance_output/twins_.1/untied": (recorded["step"], twins[0].mean(0)),
    }
    for name, (steps, values) in cases.items():
        assert [step for step, _ in found[name]] == steps.tolist(), name
        np.testing.assert_allclose([value for _, value in found[name]], values, rtol=1e-6, err_msg=name)
    said = texts(out / "events")
    claims = json.loads((out / "results.json").read_text())["claims"]
    assert [line.split(":")[0] for line in said["claims"].splitlines()] == [f"* {row['id']}" for row in claims]
    assert "    steps: 50" in said["settings"].splitlines()


@pytest.mark.slow
def test_killed_run_resumes_to_the_same_result(run, data):
    """A run killed after a checkpoint resumes to the bitwise result of the uninterrupted `run`, also on one device."""
    out, one_device = data / "killed", {"JAX_NUM_CPU_DEVICES": "1"}
    argv = arguments(
        data, "--seeds", "[3,0]", "--steps", 50, "--out", out, "--checkpoint_every", "0.01", "--tracker", "tensorboard"
    )
    process = start(*argv, script=TEXT_SCRIPT, env=one_device)
    assert wait_until(
        lambda: any(path.name.isdigit() and int(path.name) > 3 for path in (out / "checkpoints").glob("*")), process
    )
    process.kill()
    process.communicate()
    assert not (out / "results.json").exists()
    # The prepared text may be gone too, with its vocabulary, which training it again would not reproduce.
    elsewhere = ("--data_dir", data / "prepared_again")
    again = end(start("--resume", "--out", out, *elsewhere, script=TEXT_SCRIPT, env=one_device))
    assert again.status == 0, again.err
    assert "preparing the text in" in again.out
    assert "resuming at step" in again.out
    ours, wanted = metrics(out), metrics(run[0])
    assert ours.keys() == wanted.keys()
    for name, values in wanted.items():
        assert ours[name].tobytes() == values.tobytes(), name
    found, expected = (json.loads((folder / "results.json").read_text()) for folder in (out, run[0]))
    assert found["data"] == expected["data"]  # includes the tokenizer, though --data_dir is new
    done = end(start("--resume", "--out", out, script=TEXT_SCRIPT))
    assert (done.status, "the run is finished" in done.out) == (0, True)


def test_resume_refuses_another_text(run, data, tmp_path, monkeypatch, capsys):
    out = tmp_path / "run"
    out.mkdir()
    corpus = tmp_path / "corpus.txt"
    corpus.write_text((data / "corpus" / "first.txt").read_text() + "\nOne more sentence that was not there before.\n")
    config = yaml.safe_load((run[0] / "config.yaml").read_text()) | {"out": str(out), "corpus": [str(corpus)]}
    (out / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    before = manifest.read(run[0])
    dataclasses.replace(before, settings=before.settings | {"corpus": [str(corpus)]}, files={}).write(out)
    ended = command_here(["--resume", "--out", str(out)], monkeypatch, capsys, STUDY)
    assert_refused(ended._replace(out=""), "--resume", "another text", script=TEXT_SCRIPT)


@pytest.mark.slow
def test_all_encoder_options_train(data, launched, tmp_path):
    """Learned positions, pre-LN, dropout, bfloat16, recomputed layers, constant rate, Adam, padded rows."""
    out = tmp_path / "run"
    encoder = "--positions learned --layer_norm pre --dropout .1 --compute_dtype bfloat16 --rematerialise true"
    training = "--schedule constant --optimizer adam --packing padded --identical_layers false --activation silu"
    options = shlex.split(f"{encoder} {training}")
    assert launched(arguments(data, *options, "--seeds", 1, "--steps", 60, "--out", out)) == 0
    recorded = metrics(out)
    assert recorded["finite"].all()
    assert (recorded["validation_loss"][..., -1] < recorded["validation_loss"][..., 0] - 0.3).all()


@pytest.mark.slow
def test_separate_epochs_on_rows(epochs_run):
    """Record steps count from the start of each epoch, and each epoch ends with a validation on the whole split."""
    recorded, found = metrics(epochs_run), json.loads((epochs_run / "results.json").read_text())
    counts = {name: split["sentences"] for name, split in found["data"]["splits"].items()}
    assert counts == {"train": 28, "validation": 4, "test": 8}
    assert found["steps"] == 6
    assert recorded["step"].tolist() == [0, 2, 3, 5, 6]
    assert recorded["validation_step"].tolist() == [0, 3, 6]


@pytest.fixture
def rebuilt(epochs_run):
    """The parts of `epochs_run`: settings, text, plan, ensemble, initial untied parameters, and the keys of its seed."""
    settings = resume.read(STUDY, ["--resume", "--out", str(epochs_run)]).settings
    prepared, plan = text.prepare(settings, Console(quiet=True))
    ensemble = build_ensemble(settings, prepared, plan)
    params = jax.tree.map(lambda leaf: leaf[0, 0], ensemble.start([0]).state.params)
    return settings, prepared, plan, ensemble, params, jax.tree.map(lambda leaf: leaf[0], seed_keys([0]))


def on_one_device(function):
    """Call a function that sums over the devices of a member, with one device."""
    return jax.tree.map(lambda leaf: leaf[0], jax.jit(jax.vmap(lambda _: function(), axis_name=DATA))(jnp.arange(1)))


@pytest.mark.slow
def test_loss_of_the_last_batch_is_the_mean_over_its_own_sentences(rebuilt):
    """With sentences in four of twelve rows, the loss equals that of the four alone, and that computed from logits."""
    settings, _, _, ensemble, params, seed_key = rebuilt
    rows = jax.tree.map(lambda leaf: jnp.asarray(leaf[0, 2]), next(ensemble.source.open([(0, 0)], range(1), 1, 0)))
    assert rows.segments.any(axis=1).tolist() == [True] * 4 + [False] * 8
    sample = jax.jit(lambda rows: ensemble.sample(seed_key, jnp.int32(2), rows))
    whole, alone = sample(rows), sample(jax.tree.map(lambda leaf: leaf[:4], rows))
    loss = jax.value_and_grad(lambda params, masked: ensemble.loss(params, masked, None)[0])
    padded, exact = (on_one_device(lambda masked=masked: loss(params, masked)) for masked in (whole, alone))
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6), padded, exact)
    used = np.asarray(alone.weight) > 0
    assert used.sum() > 1
    encode = ensemble.loss.__self__.encode
    states = jax.jit(lambda: encode(params, alone, None).reshape(-1, settings.width))()
    logits = np.asarray(states, np.float64)[alone.slot[used]] @ np.asarray(params["head"]["embedding"], np.float64).T
    nats = np.log(np.exp(logits).sum(-1)) - logits[np.arange(used.sum()), alone.target[used]]
    np.testing.assert_allclose(padded[0], nats.mean(), rtol=1e-5)


@pytest.mark.slow
def test_validation_covers_the_whole_split(monkeypatch, request):
    """With every token masked, a validation counts all tokens of the split except special ones."""
    monkeypatch.setattr(masking, "MASKED", 1.0)
    _, prepared, _, ensemble, params, seed_key = request.getfixturevalue("rebuilt")
    validate, step = ensemble.recorders["validation"].measure, jnp.int32(0)
    rows = jax.tree.map(lambda leaf: jnp.asarray(leaf[0, 0]), next(ensemble.source.open([(0, 0)], range(1), 1, 0)))
    batch = ensemble.sample(seed_key, step, rows)  # validation ignores it
    measured = on_one_device(lambda: validate(params, batch, seed_key, step))
    ordinary = ~np.isin(prepared.validation.ids, prepared.vocabulary.special)
    assert measured["bucket_count"].sum() == ordinary.sum() > 0


@pytest.mark.slow
def test_untied_models_from_equal_tables_join_the_run(run, data, launched, tmp_path):
    """The two arms of `run` are trained as before; the third starts as the tied one, and its tables then part."""
    out = tmp_path / "run"
    argv = arguments(
        data, "--seeds", "[3,0]", "--steps", 50, "--equal_tables_arm", "true", "--tracker", "tensorboard", "--out", out
    )
    assert launched(argv) == 0
    recorded, wanted = metrics(out), metrics(run[0])
    assert recorded["arms"].tolist() == ["untied", "tied", "untied-equal"]
    for name in ("train_loss", "validation_loss", "distance_input", "distance_output"):
        np.testing.assert_allclose(recorded[name][:2], wanted[name], rtol=1e-4, err_msg=name)
        np.testing.assert_array_equal(recorded[name][2, :, 0], recorded[name][1, :, 0])
    apart = recorded["distance_input"][2] != recorded["distance_output"][2]
    assert not apart[:, 0].any()
    assert apart[:, 1:].any(axis=2).all()
    found = json.loads((out / "results.json").read_text())
    loss = recorded["validation_loss"][:, :, -1].astype(float)
    rows = {row["id"]: row for row in found["claims"]}
    np.testing.assert_allclose(rows["equal-tables/tie"]["differences"], loss[1] - loss[2], rtol=1e-6)
    assert (out / "figures" / "equal_tables.png").exists()
    assert "a third time untied from equal tables" in (out / "report.html").read_text()
    assert {"train_loss/untied-equal/seed-0", "validation_loss/untied-equal"} <= points(out / "events").keys()


@pytest.mark.slow
def test_members_untie_during_training(data, launched, tmp_path):
    """A member tied until step 20 of 40 has one table before and two after; results and report show the untie curve."""
    out = tmp_path / "run"
    untying = ["--untie_at", "[0., 20, 1.]", "--untie_policy", "split", "--record_every", 10, "--tracker", "tensorboard"]
    untying += ["--head_bias", "true", "--table_rate", 2, "--gate", 0.1]
    assert launched(arguments(data, *untying, "--seeds", 1, "--steps", 40, "--out", out)) == 0
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
    assert len([name for name in points(out / "events") if name.startswith("train_loss/") and name.endswith("/seed-0")]) == 4
    page = (out / "report.html").read_text()
    assert "tied, then untied" in page
    assert page.count("data:image/png") == 2
    # Models of 40 steps are worse than a bigram model.
    loss = recorded["validation_loss"][[0, 2], 0, -1].tolist()
    assert found["gate"]["losses"] == {"untied": pytest.approx(loss[0]), "tied": pytest.approx(loss[1])}
    assert found["gate"]["bigram"] == min(found["bigram"].values())
    assert {row["verdict"] for row in found["claims"]} == {"exploratory"}
    assert page.index("No claim is tested, since the untied models") < page.index("untied in mid-training")
    assert "bigram model" in page
