"""The page of a checkpoint's diagnosis."""

from two_tables import NAMES, TOKENS, make, pair, results_of

from tiejax.lab.reporting.page import RunOnPage
from tiejax.lab.studies.diagnosis import checkpoint_page


def test_markup_in_a_token_is_escaped(here):
    first, second = pair(len(TOKENS))
    results, arrays = results_of(make(here / "c", dict(zip(NAMES, (first, second), strict=True)), tokens=TOKENS))
    assert "<b>" in {row["text"] for side in results["tokens"].values() for row in side}
    facts = {"command": "c", "versions": {}, "python": "3", "devices": [], "git_commit": "x"}
    page = checkpoint_page.page(RunOnPage(results, {}, "", facts, []))
    assert "&lt;b&gt;" in page
    assert "<b>" not in page
    assert arrays["rank"].tolist() == list(range(1, len(TOKENS) + 1))
