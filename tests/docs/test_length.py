"""Pages for readers have at most 2,000 words, and code in short lines.

What is more goes to a page of details, whose name says so.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
MOST = 2_000
LONGEST = 95  # characters of a line of code: a window of 1,280 px shows them without scrolling
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


def long_lines(page: str) -> list[str]:
    """Return the lines of code that are too long; what a command prints (`console`) is wrapped by extra.css."""
    blocks = [token for token in MarkdownIt("commonmark").parse(page) if token.type in ("fence", "code_block")]
    lines = [line for block in blocks if block.info != "console" for line in block.content.splitlines()]
    return [line for line in lines if len(line) > LONGEST]


def test_long_lines_of_code_are_found():
    long = "x" * (LONGEST + 1)
    blocks = [long, f"    {long}a\n    {long[1:]}", f"```\n{long}b\n```", f"```console\n{long}c\n```", f"* d\n\n      {long}e"]
    assert long_lines("\n\n".join(blocks)) == [f"{long}a", f"{long}b", f"{long}e"]


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs"])
def test_lines_of_code_are_short(page):
    pages = sorted((ROOT / page).rglob("*.md")) or [ROOT / page]
    assert {path.name: found for path in pages if (found := long_lines(path.read_text()))} == {}


def test_python_on_pages_is_formatted():
    """With shorter lines than modules."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    command = [sys.executable, "-m", "ruff", "format", "--check", "--isolated", "--line-length", "90", *map(str, pages)]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout
