"""Tests of the text study's report: its finding, settings, tables and warnings."""

import copy
import re

import pytest
from text_metrics import BOTH, DECAY, metrics_of

from tiejax.lab.reporting.page import RunOnPage
from tiejax.lab.reporting.sections import arrays_in_words
from tiejax.lab.studies.text_mlm.claims import analyse
from tiejax.lab.studies.text_mlm.page import finding, page, tables
from tiejax.system.json_values import plain


@pytest.fixture(scope="module")
def body():
    return analyse(metrics_of(), DECAY)[0]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    path = tmp_path_factory.mktemp("figures") / "figure.png"
    path.write_bytes(b"PNG")
    return [("Distances.", path), ("Losses.", path)]


def page_of(body, pictures, **changed):
    results = {
        **body,
        "data": {
            "splits": {name: {"sentences": 123456, "tokens": 7654321} for name in ("train", "validation")},
            "dropped": 12, "cut": 3456, "fingerprint": "ab12cd",
        },
        "model": {"layers": 3, "parameters": {"untied": 8434048, "tied": 4514432}},
        "steps": 1900,
        "timing": {
            "compile_s": 3.0, "train_s": 90.0, "model_steps_per_s": 42.0,
            "tokens_per_s": 10123.0, "idle_share": 0.013, "padding": 0.018,
        },
        "reach": {"per_coordinate": 1.5, "initial": 0.42},
        **changed,
    }  # fmt: skip
    config = {
        "corpus": ["books/a.txt", "books/b.txt"], "tokenizer": None, "vocab_size": 8192, "batch_size": 32, "layers": 3,
        "width": 128, "heads": 4, "feed_forward": 512, "optimizer": "adamw", "learning_rate": 1e-3, "schedule": "cosine",
        "weight_decay": 0.01, "steps": 1900,
    }  # fmt: skip
    facts = {"command": "python x", "versions": {"jax": "1"}, "python": "3.11", "devices": ["cpu"], "git_commit": "abc"}
    return page(RunOnPage(plain(results), config, "steps: 1900\n", facts, pictures))


def test_report_shows_settings_claims_and_figures(body, pictures):
    html = page_of(body, pictures)
    assert html.count("data:image/png") == 2
    for text in (
        "books/a.txt, books/b.txt", "123,456 (7,654,321 tokens) for validation", "3,456 cut; fingerprint ab12cd",
        "vocabulary 8,192",
        "3 layers of width 128, 4 heads, feed-forward 512; parameters untied 8,434,048, tied 4,514,432",
        "probability 0.5, as likely as its word: DH holds", "probability 0.1, not as likely as its word: DH fails",
        "unrelated: 40 pairs of different words", "10,123 real tokens per second, 1.8% padding, device idle 1.3% of the time",
        "learning rates sum to 1.5", "steps: 1900", "word35",
    ):  # fmt: skip
        assert text in html, text
    for row in body["claims"]:
        assert row["id"] in html
    assert html.count("Reported by the paper.") == 12
    assert 'class="note"' not in html
    assert ">-<" in html  # the empty bucket
    assert "nan" not in re.sub(r"data:image/png;base64,[^\"]+", "", html)


def test_report_opens_with_the_finding(body, pictures):
    """Twins that are as likely converge, conflict twins converge in the untied input table, and tying costs."""
    answer, cost, counts = finding(body)
    assert answer.startswith("In a tied table, twins that are as likely as their words approach them (supported")
    assert "twins that are not as likely as their words approach them in an untied input table (supported" in answer
    assert "a tied table keeps twins that are not as likely farther from their words (supported" in answer
    estimate = next(row["estimate"] for row in body["claims"] if row["id"] == "tying/validation-loss")
    assert cost.startswith(f"Tying costs {estimate:.3g} nats of validation loss per masked token (supported, 10 seeds")
    assert "20" in counts
    html = page_of(body, pictures)
    assert html.index(cost) < html.index("data:image/png") < html.index("converge/input/seeds")


def test_finding_follows_the_verdicts_and_the_sets():
    metrics = metrics_of(sets=BOTH[:1])
    metrics["validation_loss"] = metrics["validation_loss"][::-1]
    answer, cost, _ = finding(analyse(metrics, DECAY)[0])
    assert answer.startswith("In a tied table, twins that are as likely")
    assert "not as likely" not in answer
    assert cost.startswith("Tying saves 0.0")
    assert "(contradicted, 10 seeds)" in cost
    few = finding(analyse(metrics_of(seeds=2), DECAY)[0])
    assert few[1] == "It remains open whether tying costs validation loss (undecided, 2 seeds)."
    assert "whether a tied table keeps twins that are not as likely farther from their words (undecided, 2 seeds)." in few[0]
    none = metrics_of()
    none["finite"][0, :, 5:] = False
    assert finding(analyse(none, DECAY)[0]) == ["No claim could be tested."]


def test_report_warns_of_reach_overflow_and_excluded_seeds(body, pictures):
    html = page_of(
        body,
        pictures,
        reach={"per_coordinate": 0.2, "initial": 0.42},
        overflow={"untied": 0, "tied": 3},
        excluded_seeds=[9],
        non_finite=[{"arm": "tied", "seed": 9, "step": 800}],
        timing={"compile_s": 0.0, "train_s": 0.0},
    )
    assert "cannot meet in this run" in html
    assert "Up to 3 masked tokens" in html
    assert "tied seed 9 (at step 800)" in html
    assert "tokens per second" not in html


def test_tables_list_every_final_value_once(body):
    found = tables(body)
    scores, _, others = (found[title] for title in list(found)[:3])
    names = [row[0] for _, rows in (scores, others) for row in rows]
    assert sorted(names) == sorted(arrays_in_words(body["final"]["untied"]))
    assert {row[0].split(",")[0] for row in scores[1]} >= {"validation loss", "validation accuracy"}
    assert not [row[0] for row in others[1] if "loss" in row[0] or "accuracy" in row[0]]


def test_columns_of_ratios_match_their_tables(body):
    changed = copy.deepcopy(body)
    for number, (arm, table) in enumerate([("untied", "input"), ("untied", "output"), ("tied", "input")]):
        by_set = changed["final"][arm]["distance_ratio"][table]
        for name in by_set:
            by_set[name] = [number + 1.0] * len(changed["seeds"])
    columns, rows = tables(changed)["Numbers: distance at the end / at the start, median over seeds"]
    assert columns == ["pairs", "untied input", "untied output", "tied"]
    assert [row[1:] for row in rows] == [["1.000", "2.000", "3.000"]] * len(changed["sets"])
