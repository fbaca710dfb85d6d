"""Pages of results are short: what only some readers need is on a page of details, to which they link."""

import re
from pathlib import Path

import pytest

RESULTS = Path(__file__).parents[2] / "docs" / "results"
DETAILS = sorted(page.name for page in RESULTS.glob("*_details.md"))


@pytest.mark.parametrize("details", DETAILS)
def test_a_page_with_details_has_at_most_2000_words_and_links_to_them(details):
    text = (RESULTS / details.replace("_details", "")).read_text()
    assert f"]({details}" in text
    assert len(re.sub("<!--.*?-->", "", text, flags=re.DOTALL).split()) <= 2000


@pytest.mark.parametrize("details", DETAILS)
def test_details_begin_with_links_to_their_page_and_to_their_sections(details):
    opening = (RESULTS / details).read_text().partition("\n## ")[0]
    assert f"]({details.replace('_details', '')})" in opening
    assert "](#" in opening
