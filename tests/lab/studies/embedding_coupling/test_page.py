"""Tests of the report and the figures of the study of embedding shapes, on synthetic results."""

import re

import numpy as np
import pytest
from coupling_bodies import body_of
from pictures import is_a_picture

from tiejax.lab.reporting.figures import save
from tiejax.lab.reporting.page import RunOnPage
from tiejax.lab.runs.gate import untested
from tiejax.lab.studies.embedding_coupling import figures, page
from tiejax.lab.studies.embedding_coupling.claims import claims
from tiejax.lab.studies.embedding_coupling.settings import DEFAULT_SHAPES, Settings
from tiejax.statistics.claims import assess

VALUES = {name: 0.55 + 0.01 * index for index, name in enumerate(DEFAULT_SHAPES)}
FACTS = {
    "command": "python experiments/embedding_coupling.py",
    "versions": {"jax": "0"},
    "python": "3",
    "devices": ["cpu"],
    "git_commit": "abc",
}
NOT_OF_A_CHECKPOINT = ("bigram", "gate", "transfer", "unigram_entropy")
EVERY = {"score_parameters", "output_width", "dropped_layers", "retrieval", "word_similarity", "pretraining"}


@pytest.fixture(scope="module")
def body():
    found = body_of(
        VALUES,
        similarity={name: {"input": 0.3} | ({} if name == "coupled" else {"output": 0.2}) for name in DEFAULT_SHAPES},
        retrieval={name: np.linspace(0.1, 0.4, 1 + shape.layers - shape.drop) for name, shape in DEFAULT_SHAPES.items()},
    )
    task = {"kind": "tagging", "labels": ["A", "B"], "sentences": dict.fromkeys(("train", "development", "test"), 1000)}
    more = {
        "tasks": {"tags": task | {"cut_off": {"test": 17}, "most_frequent_label": 0.51}},
        "data": {"vocabulary": 3072},
        "steps": 300,
        "transfer": {"baseline": "coupled", "development_gain": 0.25, "passed": True},
        "claims": assess(claims(found, DEFAULT_SHAPES)),
        "timing": {"compile_s": 3.0, "train_s": 60.0, "model_steps_per_s": 20.0},
    }
    return found | more


@pytest.fixture(scope="module")
def metrics():
    rng = np.random.default_rng(0)
    step = np.arange(0, 301, 50)
    losses = 8 - 2.5 * (step / 300) ** 0.5 + 0.05 * rng.standard_normal((len(DEFAULT_SHAPES), 10, len(step)))
    return {"shapes": np.array(list(DEFAULT_SHAPES)), "validation_step": step, "validation_loss": losses}


@pytest.mark.slow
@pytest.mark.usefixtures("drawn")
def test_all_figures_are_pictures_with_captions(body, metrics, tmp_path):
    drawn = figures.plot_all(body, DEFAULT_SHAPES, metrics)
    assert {plot.name for plot in drawn} == EVERY
    for plot in drawn:
        assert is_a_picture(save(plot.figure, tmp_path, plot.name)), plot.name
        assert plot.caption.endswith(".")


def test_score_figure_shows_shapes_seeds_and_controls(body, metrics):
    figure = figures.plot_parameters(body).figure
    (axes,) = figure.axes
    labels = [text.get_text().split(", ") for text in axes.get_yticklabels()]
    assert {name for name, _ in labels} == set(DEFAULT_SHAPES)
    parameters = [body["shapes"][name]["fine_tuning_parameters"] for name, _ in labels]
    assert parameters == sorted(parameters)
    assert [number for _, number in labels] == [f"{number / 1e3:.0f}k" for number in parameters]
    control, seeds, mean = (np.concatenate([line.get_xdata() for line in axes.lines[kind::3]]) for kind in range(3))
    scores = {
        start: [np.mean([task[name][start]["test_accuracy"] for task in body["scores"].values()], axis=0) for name, _ in labels]
        for start in ("pretrained", "control")
    }
    np.testing.assert_allclose(seeds, np.concatenate(scores["pretrained"]))
    np.testing.assert_allclose(mean, np.mean(scores["pretrained"], axis=1))
    np.testing.assert_allclose(control, np.mean(scores["control"], axis=1))


def test_probe_tables_show_means_over_seeds(body):
    results = {**body, "seeds": list(range(10)), "claims": []}
    shown = page.tables(results)
    columns, rows = shown[f"Numbers: accuracy of {body['drop_task']} on test with top layers dropped"]
    deepest = max(body["dropped"], key=lambda name: len(body["dropped"][name]))
    assert columns == ["shape", "none", *sorted(body["dropped"][deepest], key=int)]
    cells = dict(zip(columns, next(row for row in rows if row[0] == deepest), strict=True))
    whole = body["scores"][body["drop_task"]][deepest]["pretrained"]["test_accuracy"]
    assert cells["none"].startswith(f"{np.mean(whole):.4f} ± ")
    without_one = body["dropped"][deepest]["1"]["pretrained"]["test_accuracy"]
    assert cells["1"].startswith(f"{np.mean(without_one):.4f} ± ")
    _, rows = shown["Numbers: word similarity, correlation with human judgement"]
    for name, first, second in rows:
        assert first.startswith(f"{np.mean(body['similarity'][name]['input']):.4f}")
        assert (second == "-") == ("output" not in body["similarity"][name])
    columns, rows = shown["Numbers: share of sentences that are found by layer, their difference fitted on other pairs"]
    assert len(rows) == 2 * len(body["retrieval"])
    for name, *cells in rows:
        shape, start = name.split(", ")
        by_layer = np.mean(body["retrieval"][shape]["held_out"][start], axis=0)
        assert len(cells) == len(columns) - 1
        assert [cell for cell in cells if cell == "-"] == ["-"] * (len(cells) - len(by_layer))
        for cell, mean in zip(cells, by_layer, strict=False):
            assert cell.startswith(f"{mean:.4f}")
    _, rows = shown["Numbers: accuracy on test of a linear probe on a mix of frozen layers"]
    for name, pretrained, _ in rows:
        assert pretrained.startswith(f"{np.mean(body['layer_mix'][name]['pretrained']['test_accuracy']):.4f}")


def test_output_width_figure_has_only_shapes_that_differ_in_it(body):
    figure = figures.plot_output_width(body, DEFAULT_SHAPES).figure
    score, masked, probe = figure.axes
    for panel in (score, masked, probe):
        assert [text.get_text() for text in panel.get_xticklabels()] == ["16", "64", "256"]
    medians = [
        np.median(body["scores"]["tags"][name]["pretrained"]["test_accuracy"]) for name in ("out-16", "out-64", "out-256")
    ]
    thick = next(line for line in score.lines if line.get_label() == "pre-trained")
    np.testing.assert_allclose(thick.get_ydata(), medians)


def test_missing_measurements_have_no_figures(body, metrics):
    bare = body | {"retrieval": {}, "similarity": {}, "dropped": {}, "layer_mix": {}}
    names = {plot.name for plot in figures.plot_all(bare, DEFAULT_SHAPES, metrics)}
    assert names == {"score_parameters", "output_width", "pretraining"}
    assert figures.plot_all(body | {"seeds": []}, DEFAULT_SHAPES, metrics) == []


def rendered(body, **changes):
    settings = Settings().resolved()
    return page.page(RunOnPage(body | changes, vars(settings), "steps: 300", FACTS, []))


def test_report_shows_finding_claims_and_gate(body):
    html = rendered(body)
    higher = r"the mean score is [\d.]+ higher for out-256 \[[\d., ]+\] \(10 seeds; supported\)\."
    assert re.search(higher, html)
    assert re.search(r"the mean score of coupled - score of the control of coupled is [\d.]+ ", html)
    assert "seeds that are not reported (1000, 1001)" in html
    assert "passed: the models of every shape must end, on average, with at most 5.100 nats; the best bigram" in html
    assert "the accuracy of coupled on development, less that of its control, is 0.2500" in html
    assert "5.600 nats from the token on its left, 5.500 from that on its right, and 5.200 from both; mean final" in html
    assert "out-256 models 5.000" in html
    for row in body["claims"]:
        assert row["id"] in html
    for name, fields in body["shapes"].items():
        assert name in html
        assert f"{fields['fine_tuning_parameters']:,}" in html
    assert "17 labels cut off in test" in html


def test_report_begins_with_a_gate_that_is_not_passed(body):
    failed = "No claim is tested, since the out-16 models end with 5.300 nats."
    found = claims(body, DEFAULT_SHAPES)
    html = rendered(body, gate=body["gate"] | {"failed": failed}, claims=assess(untested(found)))
    assert html.index(failed) < html.index("exploratory, not tested") < html.index("Bigram models of the sentences")
    assert f"No claim could be tested. {len(found)} more claims are exploratory." in html
    assert "not passed: the models of every shape" in html
    assert "findings follows from the scores" not in html


def test_report_notes_that_pre_training_does_not_help(body):
    html = rendered(body, transfer=body["transfer"] | {"passed": False})
    assert "On development, coupled is not better with pre-training than without" in html
    assert "findings follows from the scores" in html


def test_losses_of_bigrams_stand_beside_those_of_shapes(body, metrics):
    """In the table of shapes and in the figure of pre-training; the table of a checkpoint has none."""
    before = {name: value for name, value in body.items() if name not in ("bigram", "gate", "transfer")}
    (columns, rows), (_, without) = (page.tables(part)["Numbers: the shapes"] for part in (body, before))
    assert rows[len(without) :] == [
        [f"bigram, {name}", *["-"] * 8, f"{loss:.4f}", "-"] for name, loss in body["bigram"].items()
    ]
    assert columns[9] == "loss"
    (panel,) = figures.plot_pretraining(body, metrics).figure.axes
    levels = {text.get_text(): line.get_ydata()[0] for text, line in zip(panel.texts, panel.lines[-2:], strict=True)}
    assert levels == {"unigram entropy": 6.3, "bigram": 5.2}
    assert all(panel.get_ylim()[0] < level < panel.get_ylim()[1] for level in levels.values())


def test_report_without_a_finite_seed_has_no_numbers(body):
    html = rendered(body, seeds=[], excluded_seeds=[0], non_finite=[{"arm": "x", "seed": 0, "step": 3}], claims=[])
    assert "x seed 0 (at step 3)" in html
    assert "Numbers" not in html


def test_report_of_a_checkpoint_names_it(body):
    """Such a report has no shapes, text or gate."""
    scores = {"tags": {"checkpoint": body["scores"]["tags"]["coupled"]}}
    rates = {"tags": {"checkpoint": body["rates"]["tags"]["coupled"]}}
    changes = {
        "pretraining": {},
        "shapes": {"checkpoint": {"layers": 12, "fine_tuning_parameters": 85_000_000}},
        "scores": scores,
        "rates": rates,
        **{key: {} for key in ("dropped", "layer_mix", "retrieval", "similarity")},
    }
    changes["claims"] = assess(claims(body | changes, {}))
    results = {name: value for name, value in (body | changes).items() if name not in NOT_OF_A_CHECKPOINT}
    settings = vars(Settings(start="my-bert").resolved())
    html = page.page(RunOnPage(results, settings, "start: my-bert", FACTS, []))
    assert "my-bert" in html
    assert "85,000,000" in html
    assert "igram" not in html
    assert [row["id"] for row in results["claims"]] == ["pretraining/score"]
