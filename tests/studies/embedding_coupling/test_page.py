"""The page and the plots of a run of the study of shapes, from bodies that were made by hand."""

import numpy as np
import pytest
from coupling_bodies import body_of
from pictures import is_a_picture

from tiejax.reporting import figures
from tiejax.reporting.page import RunOnPage
from tiejax.statistics.claims import assess
from tiejax.studies.embedding_coupling import page, plots
from tiejax.studies.embedding_coupling.claims import claims
from tiejax.studies.embedding_coupling.settings import DEFAULT_SHAPES, Settings

VALUES = {name: 0.55 + 0.01 * place for place, name in enumerate(DEFAULT_SHAPES)}
FACTS = {
    "command": "python experiments/embedding_coupling.py",
    "versions": {"jax": "0"},
    "python": "3",
    "devices": ["cpu"],
    "git_commit": "abc",
}
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
        "gate": {"baseline": "coupled", "nats_below_unigram": 0.95, "development_gain": 0.25, "passed": True},
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


def test_every_plot_is_a_picture_with_a_caption(body, metrics, tmp_path):
    drawn = plots.plot_all(body, DEFAULT_SHAPES, metrics)
    assert {plot.name for plot in drawn} == EVERY
    for plot in drawn:
        assert is_a_picture(figures.save(plot.figure, tmp_path, plot.name)), plot.name
        assert plot.caption.endswith(".")


def test_scores_over_parameters_show_every_shape_and_its_control(body, metrics):
    figure = plots.plot_parameters(body).figure
    (axes,) = figure.axes
    assert {text.get_text() for text in axes.texts} == set(DEFAULT_SHAPES)
    places = sorted({float(line.get_xdata()[0]) for line in axes.lines})
    assert places == sorted(fields["fine_tuning_parameters"] for fields in body["shapes"].values())
    assert len(axes.lines) == 4 * len(DEFAULT_SHAPES)  # a point and a range, for shape and control


def test_only_shapes_that_differ_in_the_output_stand_over_its_width(body):
    figure = plots.plot_output_width(body, DEFAULT_SHAPES).figure
    score, masked, probe = figure.axes
    for panel in (score, masked, probe):
        assert [text.get_text() for text in panel.get_xticklabels()] == ["16", "64", "256"]
    medians = [
        np.median(body["scores"]["tags"][name]["pretrained"]["test_accuracy"]) for name in ("out-16", "out-64", "out-256")
    ]
    thick = next(line for line in score.lines if line.get_label() == "pre-trained")
    np.testing.assert_allclose(thick.get_ydata(), medians)


def test_what_was_not_measured_is_not_plotted(body, metrics):
    bare = body | {"retrieval": {}, "similarity": {}, "dropped": {}, "layer_mix": {}}
    names = {plot.name for plot in plots.plot_all(bare, DEFAULT_SHAPES, metrics)}
    assert names == {"score_parameters", "output_width", "pretraining"}
    assert plots.plot_all(body | {"seeds": []}, DEFAULT_SHAPES, metrics) == []


def rendered(body, **changes):
    settings = Settings().resolved()
    return page.page(RunOnPage(body | changes, vars(settings), "steps: 300", FACTS, []))


def test_the_page_answers_shows_claims_and_the_gate(body):
    html = rendered(body)
    assert "wider output embedding fine-tunes better although it is discarded" in html
    assert "re-training is worth" in html
    assert "passed: coupled ends 0.95 nats below" in html
    for row in body["claims"]:
        assert row["id"] in html
    for name, fields in body["shapes"].items():
        assert name in html
        assert f"{fields['fine_tuning_parameters']:,}" in html
    assert "17 labels cut off in test" in html


def test_a_gate_that_was_not_passed_is_said(body):
    assert "pre-training was too short" in rendered(body, gate=body["gate"] | {"passed": False})


def test_without_a_seed_there_are_no_numbers(body):
    html = rendered(body, seeds=[], excluded_seeds=[0], non_finite=[{"arm": "x", "seed": 0, "step": 3}], claims=[])
    assert "x seed 0 (at step 3)" in html
    assert "Numbers" not in html


def test_the_page_of_a_checkpoint_says_which(body):
    """It has no shape, no text and no gate."""
    scores = {"tags": {"checkpoint": body["scores"]["tags"]["coupled"]}}
    rates = {"tags": {"checkpoint": body["rates"]["tags"]["coupled"]}}
    of_checkpoint = {
        "pretraining": {},
        "shapes": {"checkpoint": {"layers": 12, "fine_tuning_parameters": 85_000_000}},
        "scores": scores,
        "rates": rates,
        "claims": assess(claims(body | {"scores": scores, "layer_mix": {}, "retrieval": {}, "similarity": {}}, {})),
    }
    made = {name: value for name, value in (body | of_checkpoint).items() if name not in ("gate", "unigram_entropy")}
    settings = vars(Settings(start="my-bert").resolved())
    html = page.page(RunOnPage(made, settings, "start: my-bert", FACTS, []))
    assert "my-bert" in html
    assert "85,000,000" in html
    assert "unigram" not in html
    assert [row["id"] for row in made["claims"]] == ["pretraining/score"]
