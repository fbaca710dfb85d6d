"""End-to-end tests of the study of embedding shapes: its files, checkpoints, and resumption after kills."""

import json
import os
import shutil

import numpy as np
import pytest
import yaml
from coupling_runs import arguments, metrics, probes, write_files
from processes import EXPERIMENTS, end, start, wait_until

from tiejax.checkpoints.hub.weights import load
from tiejax.lab.runs.console import Console
from tiejax.lab.runs.resume import read
from tiejax.lab.studies.embedding_coupling.preparation import costs_of, prepare
from tiejax.lab.studies.embedding_coupling.settings import STUDY, Settings

pytestmark = pytest.mark.slow

SCRIPT = EXPERIMENTS / "embedding_coupling.py"
FIGURES = {"score_parameters", "output_width", "dropped_layers", "retrieval", "word_similarity", "pretraining"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("coupling"))


@pytest.fixture(scope="module")
def run(folder):
    """A finished run of two seeds with every probe; two tasks are those of `with_cipher`."""
    out = folder / "run"
    ended = end(start(*arguments(folder, "--out", out, *probes(folder), tasks=("tags",)), script=SCRIPT), timeout=900)
    assert (ended.status, ended.err) == (0, "")
    return out


def results_of(out):
    results = json.loads((out / "results.json").read_text())
    del results["timing"]
    return results


MIX = "mix of layers"


def rates_of(results):
    """Return what was tried and chosen, by task, shape and start."""
    found = results["rates"] | {MIX: {name: mix["rates"] for name, mix in results["layer_mix"].items()}}
    return {
        (task, shape, arm): tried
        for task, by_shape in found.items()
        for shape, by_start in by_shape.items()
        for arm, tried in by_start.items()
    }


def ends_of(found):
    rates = sorted(map(float, found["development"]))
    return rates[0], rates[-1]


def further_stages(out):
    """Return the stages that tried rates beyond those of the settings."""
    return sorted(
        path.stem for path in (out / "finished").glob("*rates.*.npz") if ".pretrained." in path.stem or ".control." in path.stem
    )


def test_run_writes_its_files(run):
    assert {path.stem for path in (run / "figures").glob("*.png")} == FIGURES
    assert not list((run / "checkpoints").iterdir())
    found, results = metrics(run), results_of(run)
    assert found["shapes"].tolist() == ["coupled", "out-4", "out-16"]
    assert found["validation_step"].tolist() == [0, 6, 12]
    assert found["validation_loss"].shape == (3, 2, 3)
    assert found["record_loss"].shape == (3, 2, 4)
    assert (results["seeds"], results["tuning_seeds"]) == ([0, 1], [1000, 1001])
    assert results["tasks"]["tags"]["labels"] == ["DET", "NOUN", "VERB"]
    assert list(results["dropped"]["coupled"]) == ["1"]
    scores = results["scores"]["tags"]["out-16"]
    assert set(scores) == {"pretrained", "control"}
    assert all(0 <= value <= 1 for values in scores["pretrained"].values() for value in values)
    assert np.shape(results["retrieval"]["out-16"]["held_out"]["pretrained"]) == (2, 3)
    assert set(results["similarity"]["coupled"]) == {"input"}
    assert "output" in results["similarity"]["out-4"]
    assert {row["id"] for row in results["claims"]} >= {"pretraining/score", "dropping/output-width", "similarity/output-width"}
    edges = {place for place, found in rates_of(results).items() if found["chosen"] in ends_of(found)}
    for row in results["claims"]:
        if row["id"] == "pretraining/score":
            for task, shape, arm in rates_of(results):
                at_edge = f"{shape} ({arm}) on {task}" in (row["note"] or "")
                assert at_edge == (shape == "coupled" and task != MIX and (task, shape, arm) in edges)
        if row["id"] == "similarity/output-width":
            assert "edge" not in (row["note"] or "")
    assert results["gate"]["bigram"] == min(results["bigram"].values())
    assert results["gate"]["failed"] == ""  # the small runs allow any loss
    last = found["validation_loss"][..., -1].mean(axis=1).tolist()
    assert results["gate"]["losses"] == dict(zip(found["shapes"].tolist(), map(pytest.approx, last), strict=True))
    page = (run / "report.html").read_text()
    assert f"and {results['bigram']['both']:.3f} from both; mean final losses: coupled models {last[0]:.3f}" in page
    assert "Shapes of input and output embeddings" in page
    assert "2 seeds: no difference can be decided" in page


def test_models_worse_than_a_bigram_end_the_run_before_fine_tuning(run, folder):
    """With one line. The same bigram is printed as in a run that passes, and another gate continues the run."""
    out, bigrams = folder / "worse", results_of(run)["bigram"]
    line = arguments(folder, "--out", out, *probes(folder), "--gate", 0.1, tasks=("tags",))
    ended = end(start(*line, script=SCRIPT), timeout=900)
    assert ended.status == 2
    (error,) = ended.err.splitlines()
    assert "--gate: the coupled models end with " in error
    assert f"where a bigram model has {min(bigrams.values()):.3f} and at least 0.1 less is expected; train for more" in error
    printed = ", ".join(f"{name} {loss:.4f}" for name, loss in bigrams.items())
    assert f"bigram models of the sentences that pre-training reads, in nats a masked token: {printed}" in ended.out
    with np.load(run / "finished" / "pretrain.coupled.npz") as arrays:
        of_tuning = arrays["validation_loss"][2:, -1].mean()
    beside = f"coupled: pre-trained to {of_tuning:.4f} nats (seeds for tuning); best bigram model: {min(bigrams.values()):.4f}"
    assert beside in ended.out
    assert [path.name for path in (out / "finished").iterdir()] == ["pretrain.coupled.npz"]
    again = read(STUDY, ["--resume", "--out", str(out), "--gate", "-9"])
    assert again.settings.gate == -9


def test_all_shapes_start_from_almost_uniform_predictions(run):
    """Before the first step all losses are close to that of uniform predictions, on the same batches."""
    first = metrics(run)["validation_loss"][:, :, 0]
    assert np.ptp(first) < 0.1
    np.testing.assert_allclose(first, np.log(300), atol=0.15)


def test_pretrained_models_are_saved_in_the_hubs_format(run):
    for name, family, tied in (("coupled", "BERT", True), ("out-4", "RemBERT", False)):
        loaded = load(run / "models" / name / "seed-1")
        assert (loaded.family, loaded.tied) == (family, tied)
        with np.load(run / "finished" / f"pretrain.{name}.npz") as arrays:
            table = arrays["params/embed/embedding"][1]
        np.testing.assert_array_equal(loaded.params["embed"]["embedding"], table)
        assert (run / "models" / name / "seed-1" / "tokenizer.json").is_file()


def test_costs_name_every_planned_stage(run):
    settings = Settings(**yaml.safe_load((run / "config.yaml").read_text()))
    costs = costs_of(settings, prepare(settings, Console(quiet=True)))
    done = {path.stem for path in (run / "finished").glob("*.npz")}
    assert sorted(costs) == sorted(done - set(further_stages(run)))


def test_rates_are_chosen_on_seeds_that_are_not_reported(run):
    """The tuning seeds are pre-trained like the others; no score, probe or saved model is theirs."""
    with np.load(run / "finished" / "pretrain.coupled.npz") as arrays:
        assert len(arrays["params/embed/embedding"]) == 4
    for stage in ("rates.coupled.tags", "mix_rates.coupled"):
        with np.load(run / "finished" / f"{stage}.npz") as arrays:
            assert arrays["development"].shape == (2, 2, 2)
    with np.load(run / "finished" / "scores.coupled.tags.npz") as arrays:
        assert arrays["test_accuracy"].shape == (2, 2, 1)
    assert sorted(path.name for path in (run / "models" / "coupled").iterdir()) == ["seed-0", "seed-1"]


def test_the_grid_of_rates_is_continued_while_its_end_wins(run):
    """The best of two rates is always an end: every grid is continued, each further rate in a stage of its own."""
    results, stages = results_of(run), []
    for (task, shape, arm), found in rates_of(results).items():
        rates, stage = sorted(map(float, found["development"])), f"rates.{shape}.{task}"
        best = max(found["development"].values())
        assert found["development"][str(found["chosen"])] == best
        further = [rate for rate in rates if rate not in (0.003, 0.01)]
        assert 1 <= len(further) <= 3
        assert found["chosen"] not in ends_of(found) or len(further) == 3
        assert all(rate * 2 in rates if rate < 0.003 else rate / 2 in rates for rate in further)
        for rate in further:
            stages.append(f"{f'mix_rates.{shape}' if task == MIX else stage}.{arm}.{rate:g}")
            with np.load(run / "finished" / f"{stages[-1]}.npz") as arrays:
                assert arrays["development"].mean() == found["development"][str(rate)]
    assert further_stages(run) == sorted(stages)
    assert ", the last that was tried" in (run / "report.html").read_text() or not any(
        found["chosen"] in ends_of(found) for found in rates_of(results).values()
    )


def test_a_checkpoint_is_fine_tuned_and_probed(run, folder):
    """A model pre-trained by the study is fine-tuned, at a single rate, and probed as a checkpoint."""
    out = folder / "started"
    line = arguments(folder, "--out", out, *probes(folder), "--start", run / "models" / "out-4" / "seed-1", tasks=("tags",))
    line += ["--fine_tuning_rates", "[.01]", "--drop_task", "none"]
    at = line.index("--shapes")
    ended = end(start(*line[2:at], *line[at + 4 :], script=SCRIPT), timeout=900)
    assert (ended.status, ended.err) == (0, "")
    results = results_of(out)
    assert list(results["shapes"]) == ["checkpoint"]
    assert set(results["scores"]["tags"]["checkpoint"]) == {"pretrained", "control"}
    assert not results["dropped"]["checkpoint"]
    before = results_of(run)["similarity"]["out-4"]
    # Words are filtered by their occurrences in the training text, which is unknown for a checkpoint.
    assert results["similarity"]["checkpoint"]["input"][0] == pytest.approx(results["similarity"]["checkpoint"]["input"][1])
    assert len(before["input"]) == 2
    assert not (out / "models").exists()
    assert {row["id"] for row in results["claims"]} == {"pretraining/score"}
    assert not {"gate", "bigram", "transfer"} & set(results)
    assert "report.html" in os.listdir(out)


def cipher_line(folder, out):
    """Return the arguments of a run of one shape, of which a layer is dropped, on text in two languages."""
    shapes = "{coupled: {embed_in: 8, embed_out: 8, width: 8, layers: 3, heads: 2, coupled: true, drop: 1}}"
    line = arguments(folder, "--out", out, "--cipher", "true", "--parallel", f"[{folder}/first.txt]", "--layer_mix", "false")
    line[line.index("--shapes") + 1] = shapes
    return [*line, "--checkpoint_every", ".001"]


@pytest.fixture(scope="module")
def with_cipher(folder):
    out = folder / "cipher"
    ended = end(start(*cipher_line(folder, out), script=SCRIPT), timeout=900)
    assert (ended.status, ended.err) == (0, "")
    return out


def test_run_with_a_cipher(with_cipher):
    results = results_of(with_cipher)
    assert set(results["scores"]) == {"tags", "verbs"}
    scores = results["scores"]["tags"]["coupled"]["pretrained"]
    assert {"test_accuracy", "test_cipher_accuracy", "development_cipher_macro_f1"} <= set(scores)
    assert {row["id"] for row in results["claims"]} == {"pretraining/score", "zero-shot/pretraining"}
    assert results["retrieval"]["coupled"]["all"]["pretrained"]
    assert results["shapes"]["coupled"]["drop"] == 1
    assert list(results["dropped"]["coupled"]) == ["1"]


def test_killed_run_resumes_bitwise(with_cipher, folder):
    """A run killed after a checkpoint of a stage: in pre-training, and at a rate beyond the given ones."""
    out = folder / "killed"
    line = cipher_line(folder, out)
    for stage in ("pretrain.coupled", further_stages(with_cipher)[-1]):
        process = start(*line, *(["--resume"] if out.exists() else []), script=SCRIPT)
        assert wait_until(lambda stage=stage: any((out / "checkpoints" / stage).glob("[0-9]*")), process, timeout=900)
        process.kill()
        process.communicate()
        assert not (out / "results.json").exists()
    ended = end(start(*line, "--resume", script=SCRIPT), timeout=900)
    assert (ended.status, ended.err) == (0, "")
    whole, resumed = metrics(with_cipher), metrics(out)
    assert whole.keys() == resumed.keys()
    for name, values in whole.items():
        np.testing.assert_array_equal(resumed[name], values, err_msg=name)
    assert results_of(out) == results_of(with_cipher)
    shutil.rmtree(out)
