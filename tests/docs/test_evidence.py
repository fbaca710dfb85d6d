"""The evidence page: rows of present rules only, and sentences that are linked to decided rows."""

import json
import re
import shlex
from pathlib import Path

import pytest
from claim_rows import CLAIM, EXPLORATORY

from docs.results import evidence
from tiejax.lab.reporting.finding import opening

DOCS = Path(__file__).parents[2] / "docs"
UNDECIDED = CLAIM | {"id": "price/main", "unit": "nats", "verdict": "undecided"}
RUN = {"study": "exor", "command": "python x.py", "commit": "0123456789", "figure": "experiments/figures/main.png"}
ENTRIES = {
    "exor_main.json": RUN | {"format": 3, "claims": [EXPLORATORY, CLAIM, UNDECIDED]},
    "error_rates.json": {"tables": {}},
}
LINK = {"file": "exor_main.json", "claim": "output-conditional", "verdict": "supported"}


QUESTIONS = [
    {"question": "What does it cost?", "about": "Prices.", "claims": ["exor price/*"]},
    {"question": "What is near?", "about": "", "claims": ["*"], "details": True},
]
PLACES = re.compile(r'^\| <a id="([^"]+)"></a>', re.MULTILINE)


def test_sentences_are_linked_to_the_rows_that_license_them():
    own = LINK | {"sentence": "Keep tables apart: {estimate} ({interval}, {n} seeds, margin {margin})."}
    everything = [{"question": "What?", "about": "", "claims": ["exor *"]}]
    page = evidence.page(ENTRIES, [LINK, own], everything)
    assert f"\n1. {opening(CLAIM)} ([output-conditional](#exor-main-output-conditional))\n" in page
    assert "\n2. Keep tables apart: 0.333 (0.1 to 0.5, 8 seeds, margin 0.05). ([output-conditional](#" in page
    assert page.count('<a id="exor-main-output-conditional"></a>') == 1
    assert "([output-conditional](evidence_details.md#exor-main-output-conditional))" in evidence.page(
        ENTRIES, [LINK], QUESTIONS
    )


def test_every_registered_claim_of_the_present_rules_has_one_row_below_its_question():
    page, details = evidence.page(ENTRIES, [], QUESTIONS), evidence.details(ENTRIES, QUESTIONS)
    assert PLACES.findall(page) == ["exor-main-price-main"]
    assert PLACES.findall(details) == ["exor-main-output-conditional"]
    assert "## What does it cost?\n\nPrices.\n\n| claim |" in page
    assert (
        "## What is near?\n\n| claim | difference | run, seeds | estimate [adjusted interval] | verdict |\n"
        "| --- | --- | --- | --- | --- |\n"
        '| <a id="exor-main-output-conditional"></a>Zero <farther> than one. | zero - one | '
        "[exor-main](#exor_main), 8 | 0.333 [0.05, 0.55] | supported |\n"
    ) in details
    assert (
        "## exor_main\n\n    python x.py\n\n[results](results/exor_main.json), [figure](../experiments/figures/main.png), "
        in details
    )
    assert "exploratory |" not in page + details


def test_a_claim_without_a_question_has_a_row():
    details = evidence.details(ENTRIES, [])
    assert "## Other claims\n" in details
    assert PLACES.findall(details) == ["exor-main-output-conditional", "exor-main-price-main"]


def test_claims_of_few_seeds_have_no_row():
    few = RUN | {"format": 3, "claims": [CLAIM | {"n": 5}, UNDECIDED | {"n": 6}]}
    assert PLACES.findall(evidence.details({"exor_main.json": few}, [])) == ["exor-main-price-main"]


def test_runs_of_one_claim_are_below_each_other_and_state_it_once():
    runs = {name: RUN | {"format": 3, "claims": [CLAIM, UNDECIDED | {"statement": "Dear."}]} for name in ("a.json", "b.json")}
    details = evidence.details(runs, [])
    assert PLACES.findall(details) == ["a-output-conditional", "b-output-conditional", "a-price-main", "b-price-main"]
    assert details.count("Zero <farther> than one. | zero - one |") == details.count("Dear. | zero - one (nats) |") == 1
    assert '<a id="b-price-main"></a>the same |  | [b](#b), 8 |' in details


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"estimand": "the loss (tied - untied)", "unit": "nats"}, "tied - untied (nats)"),
        ({"estimand": "the loss, tied - untied"}, "tied - untied"),
        ({"estimand": "the slope of the loss (tied - never) over time, by least squares"}, "slope of tied - never"),
        ({"estimand": "ln of bytes (over steps), agent / untied"}, "agent / untied"),
        ({"estimand": "the distance (less 1)", "goal": "non-inferiority"}, "less 1; margin 0.05"),
        ({"estimand": "the slope"}, "the slope"),
    ],
)
def test_the_difference_is_that_of_the_estimand(changed, expected):
    assert evidence.difference(CLAIM | changed) == expected


def test_commits_that_resumed_a_run_are_shown_with_their_changes():
    resumed = RUN | {"later_commits": ["0123456789+", "abcdefghij"], "claims": [CLAIM], "format": 3}
    assert "commit `0123456`, `0123456+`, `abcdefg`\n" in evidence.details({"exor_main.json": resumed}, [])


def test_notes_of_verdicts_and_earlier_looks_are_shown():
    claims = [UNDECIDED | {"note": "a few seeds determine the mean"}, CLAIM | {"look": 6}]
    page = evidence.page({"exor_main.json": RUN | {"format": 3, "claims": claims}}, [], [QUESTIONS[1] | {"details": False}])
    assert "| undecided (1) |\n" in page
    assert "| supported, at 6 seeds |\n\n(1) A few seeds determine the mean.\n" in page


def test_withdrawn_runs_have_a_reason_and_no_rows():
    page = evidence.page(ENTRIES, [], QUESTIONS, {"exor_main.json": "its models are too small"})
    assert "* [exor_main.json](results/exor_main.json): its models are too small." in page
    assert PLACES.findall(page) == []
    assert "exor_main" not in evidence.details(ENTRIES, QUESTIONS, {"exor_main.json": "its models are too small"})
    with pytest.raises(ValueError, match="there is no such row"):
        evidence.page(ENTRIES, [LINK], QUESTIONS, {"exor_main.json": "its models are too small"})


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "docs/scorecard.md", "docs/scorecard_details.md"])
def test_no_page_argues_from_a_withdrawn_run(page):
    withdrawn = json.loads((DOCS / "withdrawn.json").read_text())
    assert withdrawn.keys() <= {file.name for file in (DOCS / "results").glob("*.json")}
    text = (DOCS.parent / page).read_text()
    assert [file for file in withdrawn if f"value: {file}" in text] == []


def test_long_commands_continue_on_the_next_line_as_a_shell_reads_them():
    command = f"python x.py --names '{{a: b-c, d: e}}' --long {'x' * 60} --more 1 2 3 --last .5"
    lines = evidence.shell(command).split("\n    ")  # those of a block of Markdown
    assert [line[:6] for line in lines[1:]] == ["    --"] * (len(lines) - 1)
    assert len(lines) > 1
    assert max(map(len, lines)) <= 90
    assert shlex.split("\n".join(lines).replace("\\\n", "")) == shlex.split(command)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"claim": "price/main"}, "needs a registered claim that is supported, but it is undecided"),
        ({"claim": "first-look"}, "needs a registered claim that is supported, but it is exploratory"),
        ({"verdict": "contradicted"}, "needs a registered claim that is contradicted, but it is supported"),
        ({"verdict": "undecided"}, "expected verdict supported or contradicted, got 'undecided'"),
        ({"claim": "absent"}, "exor_main.json, absent: a sentence needs a registered claim that is supported, but there is no"),
        ({"file": "none.json"}, "there is no such row of the present rules"),
    ],
)
def test_sentences_without_a_decided_row_are_refused(changed, message):
    with pytest.raises(ValueError, match=message):
        evidence.page(ENTRIES, [LINK | changed], QUESTIONS)


def test_the_page_opens_with_at_most_five_sentences_linked_to_decided_rows():
    """Read from the page and the published runs themselves."""
    text = (DOCS / "evidence.md").read_text()
    chosen = json.loads((DOCS / "evidence.json").read_text())
    sentences = re.findall(r"^\d\. .*\(\[([^\]]+)\]\(#([^)]+)\)\)$", text, re.MULTILINE)
    assert [claim for claim, _ in sentences] == [entry["claim"] for entry in chosen]
    assert len(sentences) <= 5
    for (claim, anchor), entry in zip(sentences, chosen, strict=True):
        assert anchor in PLACES.findall(text)
        run = json.loads((DOCS / "results" / entry["file"]).read_text())
        (row,) = [row for row in run["claims"] if row["id"] == claim]
        assert run["format"] >= 2
        assert (row["family"], row["verdict"]) in {("registered", "supported"), ("registered", "contradicted")}
