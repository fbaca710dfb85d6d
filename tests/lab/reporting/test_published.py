"""The published part of a run, the tables rendered from it, and whether the pages in docs/results are up to date."""

import json
from pathlib import Path

import pytest
from claim_rows import CLAIM, EARLIER

from tiejax.lab.reporting import published

PAGES = Path(__file__).parents[3] / "docs" / "results"
PAGE = """# A page

<!-- table: run.json claims -->
<!-- end of table -->

Words.

<!-- table: run.json Numbers: the shapes -->
old rows
<!-- end of table -->
"""


def entry():
    facts = {"git_commit": "abc", "date": "2026-11-22T10:00:00+00:00", "python": "3.11", "versions": {}, "devices": ["cpu"]}
    results = {
        "experiment": "exor",
        "seeds": [0, 1],
        "excluded_seeds": [],
        "timing": {"train_s": 1.0},
        "claims": [CLAIM, EARLIER],
    }
    tables = {
        "Numbers: the shapes": (["shape", "loss"], [["a|b", "1.5"]]),
        "Numbers: every seed (loss)": (["seed"], [["0"]]),
        "Numbers: every pair of words": (["pair"], [["the"]]),
    }
    return published.published_run(results, facts, tables, "python x.py")


def test_tables_are_rendered_from_the_file(tmp_path):
    (tmp_path / "run.json").write_text(json.dumps(entry()))
    page = published.render_tables(PAGE, tmp_path)
    row = "| Zero <farther> than one. | the relative distance, zero - one | 0.333 | 0.1 to 0.5 | 0.05 to 0.55 | 0.0123 | 8 |"
    assert f"{row} supported |" in page
    earlier = (
        "| Zero <farther> than one. | relative distance | 0.333 | 0.1 to 0.5 | - | 0.0123 | 8 | supported (earlier rules) |"
    )
    assert earlier in page
    assert "<!-- table: run.json Numbers: the shapes -->\n| shape | loss |\n| --- | --- |\n| a\\|b | 1.5 |\n<!-- end" in page
    assert "old rows" not in page
    assert page.startswith("# A page\n\n")
    assert "\nWords.\n" in page
    assert published.render_tables(page, tmp_path) == page


def test_published_part_of_a_run():
    found = entry()
    assert (found["seeds"], found["resumed"], found["date"], found["command"]) == (2, 0, "2026-11-22", "python x.py")
    assert found["claims"][0] == CLAIM
    assert "effect_size" not in found["claims"][1]
    assert list(found["tables"]) == ["Numbers: the shapes"]


def test_missing_tables_and_files_are_named(tmp_path):
    (tmp_path / "run.json").write_text(json.dumps(entry()))
    with pytest.raises(ValueError, match=r"run\.json: unknown table 'scores'; it has claims, 'Numbers: the shapes'"):
        published.render_tables("<!-- table: run.json scores -->\n<!-- end of table -->", tmp_path)
    with pytest.raises(ValueError, match=r"other\.json: not found, but a page refers to it"):
        published.render_tables("<!-- table: other.json claims -->\n<!-- end of table -->", tmp_path)


@pytest.mark.parametrize("page", sorted(PAGES.glob("*.md")), ids=lambda page: page.name)
def test_pages_are_up_to_date(page):
    """`python docs/results/publish.py` updates them."""
    assert published.render_tables(page.read_text(), PAGES) == page.read_text()
