"""Tests of the text study's report: its finding, settings, tables and warnings."""

import copy
import re

import pytest
from text_metrics import BOTH, DECAY, GATE, metrics_of

from tiejax.lab.reporting.finding import opening
from tiejax.lab.reporting.page import RunOnPage
from tiejax.lab.runs.gate import Gate
from tiejax.lab.studies.text_mlm.claims import analyse
from tiejax.lab.studies.text_mlm.page import finding, page, tables
from tiejax.system.json_values import plain


@pytest.fixture(scope="module")
def body():
    return analyse(metrics_of(), DECAY, GATE)[0]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    path = tmp_path_factory.mktemp("figures") / "figure.png"
    path.write_bytes(b"PNG")
    return [("Distances.", path), ("Losses.", path)]


def page_of(body, pictures, settings=None, **changed):
    results = {
        **body,
        "data": {
            "splits": {name: {"sentences": 123456, "tokens": 7654321} for name in ("train", "validation")},
            "dropped": 12, "cut": 3456, "fingerprint": "ab12cd",
        },
        "model": {"architecture": "transformer", "parameters_untied": 8434048, "parameters_tied": 4514432},
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
        "weight_decay": 0.01, "steps": 1900, **(settings or {}),
    }  # fmt: skip
    facts = {"command": "python x", "versions": {"jax": "1"}, "python": "3.11", "devices": ["cpu"], "git_commit": "abc"}
    return page(RunOnPage(plain(results), config, "steps: 1900\n", facts, pictures))


def test_report_shows_settings_claims_and_figures(body, pictures):
    html = page_of(body, pictures)
    assert html.count("data:image/png") == 2
    for text in (
        "books/a.txt, books/b.txt", "123,456 (7,654,321 tokens) for validation", "3,456 cut; fingerprint ab12cd",
        "vocabulary 8,192",
        "3 layers of width 128, 4 heads, feed-forward 512; parameters untied 8,434,048, parameters tied 4,514,432",
        "probability 0.5, as likely as its word: DH holds", "probability 0.1, not as likely as its word: DH fails",
        "unrelated: 40 pairs of different words", "10,123 real tokens per second, 1.8% padding, device idle 1.3% of the time",
        "learning rates sum to 1.5", "steps: 1900", "word35",
    ):  # fmt: skip
        assert text in html, text
    for row in body["claims"]:
        assert row["id"] in html
    assert html.count("Reported by the paper.") == 6
    assert 'class="note"' not in html
    assert ">-<" in html  # the empty bucket
    assert "nan" not in re.sub(r"data:image/png;base64,[^\"]+", "", html)


def test_report_opens_with_the_finding(body, pictures):
    """Openings of the leading claims in fixed words, then of the cost, then the number of claims."""
    twins, cost, counts = finding(body)
    rows = {row["id"]: row for row in body["claims"]}
    leading = ["converge/tied", "unrelated/tied", "conflict-converge/input", "conflict-apart/output", "conflict-apart/tied"]
    assert twins == " ".join(opening(rows[name]) for name in leading)
    estimate = rows["converge/tied"]["estimate"]
    lower = f"in the tied table is {-estimate:.3g} lower for twins for whom DH holds ["
    assert lower in twins
    estimate = rows["tying/validation-loss"]["estimate"]
    higher = f"the validation loss per masked token is {estimate:.3g} nats higher for tied ["
    assert f"conflict twins: {higher}" in cost
    assert cost.endswith("(10 seeds; supported).")
    assert counts == "Of 10 claims, 10 supported. 4 more claims are exploratory."
    html = page_of(body, pictures)
    assert html.index(cost) < html.index("data:image/png") < html.index("converge/input")


def test_finding_follows_the_sets_and_the_arms():
    twins, cost, _ = finding(analyse(metrics_of(sets=BOTH[:1]), DECAY, GATE)[0])
    assert "conflict twins" not in twins
    assert "nats higher for tied than for untied [0.0" in cost
    assert cost.endswith('" is contradicted.')  # the claim that tying costs less than the margin
    few = finding(analyse(metrics_of(seeds=2), DECAY, GATE)[0])
    assert 'conflict twins" is not decided with 2 seeds: the validation loss per masked token, tied - untied, is +' in few[1]
    *_, equal, counts = finding(analyse(metrics_of(equal=4.02), DECAY, GATE)[0])
    assert "nats higher for untied from equal tables than for untied from independent tables [" in equal
    assert "between untied and tied models: the fall of the validation loss per masked token is 0.0" in equal
    assert "nats higher for equal starting tables [" in equal
    assert counts.startswith("Of 13 claims")
    none = metrics_of()
    none["finite"][:, :, 5:] = False
    assert 'conflict twins" is not decided with' in finding(analyse(none, DECAY, GATE)[0])[1]


def test_models_are_compared_with_bigrams_after_the_answers():
    bigrams = {"left": 4.6, "right": 4.5, "both": 4.12}
    *_, compared, counts = finding(analyse(metrics_of(), DECAY, GATE)[0] | {"bigram": bigrams})
    assert compared.startswith("Bigram models of the sentences that one seed reads predict a masked token with a loss of 4.600")
    assert compared.endswith("and 4.120 from both; mean final losses: untied models 4.000, tied models 4.048.")
    assert counts.startswith("Of 10 claims")
    failed = finding(analyse(metrics_of(), DECAY, Gate(4.12, 0.1))[0] | {"bigram": bigrams})
    assert failed[0].startswith("No claim is tested, since the tied models end with 4.0")
    assert compared in failed
    diverged = metrics_of()
    diverged["finite"][1] = False
    diverged["validation_loss"][1] = float("nan")
    body = plain(analyse(diverged, DECAY, Gate(4.12, 0.1))[0] | {"bigram": bigrams})
    assert finding(body)[-2].endswith("untied models 4.000, tied models -.")
    assert finding(body)[0].startswith("No claim is tested, since the tied models end with inf nats")


def test_table_of_losses_has_the_bigrams(body):
    bigrams = {"left": 4.6, "right": 4.5, "both": 4.12}
    (title, (_, rows)), (_, (_, before)) = (next(iter(tables(part).items())) for part in (body | {"bigram": bigrams}, body))
    assert "losses" in title
    assert rows[: len(before)] == before
    assert rows[len(before) :] == [[f"bigram, {name}", f"{x:.4f}", f"{x:.4f}", "-"] for name, x in bigrams.items()]


def test_settings_name_the_rate_of_the_tables_and_the_bias(body, pictures):
    changed = {"table_rate": 2.0, "head_bias": True}
    assert "learning rate of the tables multiplied by 2" in page_of(body, pictures, settings=changed)
    assert "feed-forward 512, a bias of the logits;" in page_of(body, pictures, settings=changed)
    plainly = page_of(body, pictures)
    assert "multiplied" not in plainly
    assert "a bias of the logits" not in plainly


def test_tables_have_the_third_arm_by_seed():
    body = analyse(metrics_of(seeds=3, equal=4.02), DECAY, GATE)[0]
    columns, rows = tables(body)["Numbers: every seed, validation"]
    place = columns.index("loss: untied-equal")
    assert [row[place] for row in rows] == [f"{loss:.4f}" for loss in body["final"]["untied-equal"]["validation_loss"]]


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


def test_columns_of_ratios_match_their_tables(body):
    changed = copy.deepcopy(body)
    for number, (arm, table) in enumerate([("untied", "input"), ("untied", "output"), ("tied", "input")]):
        by_set = changed["final"][arm]["distance_ratio"][table]
        for name in by_set:
            by_set[name] = [number + 1.0] * len(changed["seeds"])
    columns, rows = tables(changed)["Numbers: distance at the end / at the start, mean over pairs and seeds"]
    assert columns == ["pairs", "untied input", "untied output", "tied"]
    assert [row[1:] for row in rows] == [["1.000", "2.000", "3.000"]] * len(changed["sets"])
