"""Pages for readers have at most 2,000 words; what is more goes to a page of details, whose name says so."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOST = 2_000
NOT_READ = re.compile(
    r"<!--.*?-->|^```.*?^```|(?<=\n\n)(?:(?:    [^\n]*)?\n)+|<[^>]*>|(?<=\])\([^)]*\)", re.DOTALL | re.MULTILINE
)
NAV = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
GENERATED = re.compile(r"reference/")
RESULTS = ROOT / "docs" / "results"
DETAILS = sorted(page.name for page in RESULTS.glob("*_details.md"))
PAGES = [page for page in re.findall(r"(\S+\.md)$", NAV, re.MULTILINE) if "details" not in page and not GENERATED.match(page)]


def words(page: str) -> int:
    """Count the words of a page in Markdown, without comments, code blocks, tags and the targets of links."""
    return len(re.findall(r"\S*\w\S*", NOT_READ.sub(" ", page)))


def test_words_of_code_comments_tags_and_targets_do_not_count():
    page = "\n".join(
        [
            "# One <!-- not\nthis -->",
            "",
            "    python not_this.py",
            "",
            "    nor this",
            "two | `three` | - | .4",
            "```python\nnot this\n```",
            "[five](not this)<a id='not'></a>",
            "* six",
            "  seven",
        ]
    )
    assert words(page) == 7


@pytest.mark.parametrize("page", sorted({"index.md", *PAGES}))
def test_a_page_for_readers_is_short(page):
    assert words((ROOT / "docs" / page).read_text()) <= MOST


@pytest.mark.parametrize("details", DETAILS)
def test_a_page_and_its_details_link_to_each_other(details):
    """And details begin with links to their sections."""
    page = details.replace("_details", "")
    opening = (RESULTS / details).read_text().partition("\n## ")[0]
    assert f"]({details}" in (RESULTS / page).read_text()
    assert f"]({page})" in opening
    assert "](#" in opening
