"""The evidence page: rows of present rules only, and sentences that are linked to decided rows."""

import json
import re
from pathlib import Path

import pytest
from claim_rows import CLAIM, EARLIER, EXPLORATORY

from docs.results import evidence
from tiejax.lab.reporting.finding import opening

DOCS = Path(__file__).parents[2] / "docs"
UNDECIDED = CLAIM | {"id": "price/main", "unit": "nats", "verdict": "undecided"}
RUN = {"command": "python x.py", "commit": "0123456789", "figure": "experiments/figures/main.png"}
ENTRIES = {
    "exor_main.json": RUN | {"format": 3, "claims": [EXPLORATORY, CLAIM, UNDECIDED]},
    "exor_old.json": RUN | {"claims": [EARLIER]},
    "error_rates.json": {"tables": {}},
}
LINK = {"file": "exor_main.json", "claim": "output-conditional", "verdict": "supported"}


def test_sentences_are_linked_to_the_rows_that_license_them():
    own = LINK | {"sentence": "Keep tables apart: {estimate} ({interval}, {n} seeds, margin {margin})."}
    page = evidence.page(ENTRIES, [LINK, own])
    assert f"\n1. {opening(CLAIM)} ([output-conditional](#exor-main-output-conditional))\n" in page
    assert "\n2. Keep tables apart: 0.333 (0.1 to 0.5, 8 seeds, margin 0.05). ([output-conditional](#" in page
    assert page.count('<a id="exor-main-output-conditional"></a>') == 1


def test_every_claim_of_the_present_rules_has_a_row():
    page = evidence.page(ENTRIES, [])
    rows = [line for line in page.splitlines() if line.startswith("| <a id=")]
    assert [re.findall("`([^`]+)`", row)[0] for row in rows] == ["output-conditional", "price/main", "first-look"]
    assert rows[0].endswith(
        " Zero <farther> than one. | the relative distance, zero - one | 0.333 | 0.1 to 0.5 | 0.05 to 0.55 | 8 | 8 | "
        "supported | [figure](../experiments/figures/main.png) | [command](#exor_main) | `0123456` |"
    )
    assert "| undecided; the seeds would have shown 0.12 nats in four of five studies |" in rows[1]
    assert "| - | 8 | 8 | exploratory |" in rows[2]
    assert "## exor_main\n\n    python x.py\n" in page


def test_commits_that_resumed_a_run_are_shown_with_their_changes():
    resumed = RUN | {"later_commits": ["0123456789+", "abcdefghij"], "claims": [CLAIM], "format": 3}
    assert "| `0123456`, `0123456+`, `abcdefg` |" in evidence.page({"exor_main.json": resumed}, [])


def test_a_claim_that_few_seeds_cannot_decide_says_so():
    few = UNDECIDED | {"note": "2 seeds cannot decide this claim"}
    page = evidence.page({"exor_main.json": RUN | {"format": 3, "claims": [few]}}, [])
    assert "| undecided; 2 seeds cannot decide this claim |" in page


def test_withdrawn_runs_have_a_reason_and_no_rows():
    page = evidence.page(ENTRIES, [], {"exor_main.json": "its models are too small"})
    assert "* [exor_main.json](results/exor_main.json): its models are too small." in page
    assert "## exor_main" not in page
    with pytest.raises(ValueError, match="there is no such row"):
        evidence.page(ENTRIES, [LINK], {"exor_main.json": "its models are too small"})


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "docs/scorecard.md"])
def test_no_page_argues_from_a_withdrawn_run(page):
    withdrawn = json.loads((DOCS / "withdrawn.json").read_text())
    assert withdrawn.keys() <= {file.name for file in (DOCS / "results").glob("*.json")}
    text = (DOCS.parent / page).read_text()
    assert [file for file in withdrawn if f"value: {file}" in text] == []


def test_runs_by_earlier_rules_have_no_rows():
    assert evidence.missing(ENTRIES) == ["exor_old.json"]
    page = evidence.page(ENTRIES, [])
    assert "have no rows: [exor_old.json](results/exor_old.json)." in page
    assert "## exor_old" not in page


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"claim": "price/main"}, "needs a registered claim that is supported, but it is undecided"),
        ({"claim": "first-look"}, "needs a registered claim that is supported, but it is exploratory"),
        ({"verdict": "contradicted"}, "needs a registered claim that is contradicted, but it is supported"),
        ({"verdict": "undecided"}, "expected verdict supported or contradicted, got 'undecided'"),
        ({"claim": "absent"}, "exor_main.json, absent: a sentence needs a registered claim that is supported, but there is no"),
        ({"file": "exor_old.json"}, "there is no such row of the present rules"),
        ({"file": "none.json"}, "there is no such row of the present rules"),
    ],
)
def test_sentences_without_a_decided_row_are_refused(changed, message):
    with pytest.raises(ValueError, match=message):
        evidence.page(ENTRIES, [LINK | changed])


def test_the_page_opens_with_at_most_five_sentences_linked_to_decided_rows():
    """Read from the page and the published runs themselves."""
    text = (DOCS / "evidence.md").read_text()
    chosen = json.loads((DOCS / "evidence.json").read_text())
    sentences = re.findall(r"^\d\. .*\(\[([^\]]+)\]\(#([^)]+)\)\)$", text, re.MULTILINE)
    assert [claim for claim, _ in sentences] == [entry["claim"] for entry in chosen]
    assert len(sentences) <= 5
    for (claim, anchor), entry in zip(sentences, chosen, strict=True):
        assert f'<a id="{anchor}"></a>`{claim}`' in text
        run = json.loads((DOCS / "results" / entry["file"]).read_text())
        (row,) = [row for row in run["claims"] if row["id"] == claim]
        assert run["format"] >= 2
        assert (row["family"], row["verdict"]) in {("registered", "supported"), ("registered", "contradicted")}
