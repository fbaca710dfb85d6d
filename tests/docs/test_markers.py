"""Tables, values and cells of pages, rendered from published runs, and whether all pages are up to date."""

import importlib
import importlib.util
import json
import re
from pathlib import Path

import pytest
from claim_rows import CLAIM, EXPLORATORY

from docs.results import markers
from tiejax.lab.reporting.finding import opening

ROOT = Path(__file__).parents[2]
PAGE = """# A page

<!-- table: run.json claims -->
<!-- end of table -->

Words.

<!-- table: run.json Numbers: the shapes -->
old rows
<!-- end of table -->
"""
UNDECIDED = CLAIM | {"id": "price/in main", "unit": "nats", "estimand": "|e1 - e2|", "verdict": "undecided", "interval": None}


@pytest.fixture
def folder(tmp_path):
    shapes = {"columns": ["shape", "loss"], "rows": [["a|b", "1.5"], ["c", "2.5"]]}
    tables = {"Numbers: the shapes": shapes, "Numbers: the losses": {"columns": ["x"], "rows": []}}
    claims = [CLAIM, CLAIM | {"id": "old"}, UNDECIDED, EXPLORATORY]
    (tmp_path / "run.json").write_text(json.dumps({"claims": claims, "tables": tables}))
    return tmp_path


def test_tables_are_rendered_from_the_file(folder):
    page = markers.render(PAGE, folder)
    row = "| Zero <farther> than one. | the relative distance, zero - one | 0.333 | 0.1 to 0.5 | 0.05 to 0.55 | 0.0123 | 8 |"
    assert f"{row} supported |" in page
    assert "<!-- table: run.json Numbers: the shapes -->\n| shape | loss |\n| --- | --- |\n| a\\|b | 1.5 |\n| c" in page
    assert "old rows" not in page
    assert page.startswith("# A page\n\n")
    assert "\nWords.\n" in page
    assert markers.render(page, folder) == page


@pytest.mark.parametrize(
    ("changed", "last"),
    [
        ({"n": 32, "skewness": 0.6}, "supported; skewness 0.6"),
        ({"n": 31, "skewness": -0.6}, r"supported; skewness -0.6\*"),
        ({"n": 255, "skewness": 2.5, "verdict": "contradicted"}, r"contradicted; skewness 2.5\*"),
        ({"n": 256, "skewness": 2.5}, "supported; skewness 2.5"),
        ({"n": 256, "skewness": None}, "supported"),
        ({"n": 8, "skewness": 2.5, "verdict": "undecided"}, "undecided"),
    ],
)
def test_tables_name_the_skewness_of_decided_claims(folder, changed, last):
    (folder / "run.json").write_text(json.dumps({"claims": [CLAIM | changed]}))
    for name in ("claims", "registered"):
        page = markers.render(f"<!-- table: run.json {name} -->\n<!-- end of table -->", folder)
        assert page.splitlines()[3].split(" | ")[-1] == f"{last} |"


def test_a_table_of_claims_of_which_none_is_tested_has_no_verdicts(folder):
    (folder / "run.json").write_text(json.dumps({"claims": [EXPLORATORY]}))
    _, columns, _, row, _ = markers.render("<!-- table: run.json claims -->\n<!-- end of table -->", folder).splitlines()
    assert columns == "| claim | estimand | estimate | 95 % interval | n |"
    assert row.count("|") == 6
    assert "exploratory |" not in row


def test_claims_about_a_margin_name_it(folder):
    claim = CLAIM | {"goal": "equivalence", "sign": 0, "unit": "nats"}
    (folder / "run.json").write_text(json.dumps({"claims": [claim]}))
    page = markers.render("<!-- table: run.json claims -->\n<!-- end of table -->", folder)
    assert "| the relative distance, zero - one (nats, margin 0.05) |" in page


def test_a_table_of_registered_claims_has_no_exploratory_ones_and_may_select_by_id(folder):
    everything = markers.render("<!-- table: run.json registered -->\n<!-- end of table -->", folder)
    assert "| Zero <farther> than one. | the relative distance, zero - one | 0.333 | 0.1 to 0.5 | 8 | supported |" in everything
    assert [everything.count(f"| {word} |") for word in ("supported", "undecided", "exploratory")] == [2, 1, 0]
    chosen = markers.render("<!-- table: run.json registered: price,\nold -->\n<!-- end of table -->", folder)
    assert [line.split(" | ")[-1] for line in chosen.splitlines()[4:6]] == ["undecided |", "supported |"]
    assert chosen.count("\n|") == 4


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("output-conditional estimate", "0.333"),
        ("output-conditional interval", "0.1 to 0.5"),
        ("output-conditional verdict", "supported"),
        ("price/in main estimate", "0.333 nats"),
        ("price/in main interval", "-"),
        ("price/in main smallest_detectable", "0.12 nats"),
        ("price/in main seeds_needed", "40"),
        ("price/in main sentence", opening(UNDECIDED).replace("|", r"\|")),
        ("first-look verdict", "exploratory"),
        ("first-look p_adjusted", "-"),
    ],
)
def test_values_are_rendered_inside_sentences(folder, name, expected):
    page = markers.render(f"It is <!-- value: run.json {name} -->as\nbefore<!-- end -->: so.", folder)
    assert page == f"It is <!-- value: run.json {name} -->{expected}<!-- end -->: so."
    broken_line = name.replace(" ", "\n", 1)
    assert f"-->{expected}<!--" in markers.render(f"<!-- value: run.json {broken_line}\n--><!-- end -->", folder)


def test_no_line_begins_with_a_value(folder):
    """It would end the paragraph or the list: it is moved to the line before, if that has text."""
    mark = "<!-- value: run.json old n -->8<!-- end -->"
    page = f"Each\n{mark} of\n\n* list:\n  {mark}\n  {mark}.\n* {mark}\n\n{mark}\n\n# Title\n{mark}\n\n| {mark} |\n{mark}"
    assert markers.render(page, folder) == (
        f"Each {mark} of\n\n* list: {mark} {mark}.\n* <span></span>{mark}\n\n<span></span>{mark}\n\n# Title\n"
        f"<span></span>{mark}\n\n| {mark} |\n<span></span>{mark}"
    )
    assert markers.render(markers.render(page, folder), folder) == markers.render(page, folder)


def test_every_field_of_a_claim_can_be_rendered(folder):
    for field in markers.FIELDS:
        assert "--><!--" not in markers.render(f"<!-- value: run.json output-conditional {field} --><!-- end -->", folder)


def test_cells_are_rendered_inside_sentences(folder):
    page = markers.render("Of <!-- cell: run.json Numbers: the s :: a|b :: loss -->9<!-- end --> nats", folder)
    assert page == "Of <!-- cell: run.json Numbers: the s :: a|b :: loss -->1.5<!-- end --> nats"


@pytest.mark.parametrize(
    ("page", "message"),
    [
        (
            "<!-- table: run.json scores -->\n<!-- end of table -->",
            "run.json: unknown table 'scores'; it has claims, registered, 'Numbers: the shapes', 'Numbers: the losses'",
        ),
        ("<!-- table: run.json Numbers -->\n<!-- end of table -->", "run.json: unknown table 'Numbers'; it has claims, reg"),
        (
            "<!-- table: run.json registered: old, pri -->\n<!-- end of table -->",
            "run.json: unknown registered claim 'pri'; it has output-conditional, old, price/in main",
        ),
        ("<!-- table: run.json registered: first-look -->\n<!-- end of table -->", "unknown registered claim 'first-look'"),
        ("<!-- table: other.json claims -->\n<!-- end of table -->", "other.json: not found, but a page refers to it"),
        (
            "<!-- value: run.json cost estimate --><!-- end -->",
            "run.json: unknown claim 'cost'; it has output-conditional, old",
        ),
        ("<!-- value: run.json old effect --><!-- end -->", "run.json: unknown field 'effect' of a claim; expected one of est"),
        (
            "<!-- cell: run.json Numbers: the shapes :: d :: loss --><!-- end -->",
            "the table has rows a|b, c and columns shape, l",
        ),
        ("<!-- cell: run.json Numbers: the shapes --><!-- end -->", "run.json: no cell 'Numbers: the shapes'; the table has"),
        ("<!-- value: run.json old estimate -->", "1 marked parts begin, but 0 are complete"),
        (
            "<!-- value: run.json old estimate -->1 <!-- value: run.json old n -->8<!-- end -->",
            "2 marked parts begin, but 1 are complete",
        ),
    ],
)
def test_marks_that_cannot_be_rendered_are_named(folder, page, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        markers.render(page, folder)


def publish():
    path = ROOT / "docs" / "results" / "publish.py"
    spec = importlib.util.spec_from_file_location("publish", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_all_pages_are_up_to_date():
    """`python docs/results/publish.py` updates them."""
    rendered = publish().pages()
    assert {ROOT / "README.md", ROOT / "docs" / "evidence.md", ROOT / "docs" / "results" / "exor.md"} <= set(rendered)
    assert [page.name for page, text in rendered.items() if text != page.read_text()] == []


def test_every_published_claim_has_a_sentence_with_its_numbers():
    """Of present rules: estimate and seeds, the verdict, and which claim it is about."""
    runs = [json.loads(file.read_text()) for file in (ROOT / "docs" / "results").glob("*.json")]
    rows = [row for run in runs for row in run.get("claims", []) if "goal" in row]
    assert {row["verdict"] for row in rows} == {"supported", "contradicted", "undecided", "exploratory"}
    for row in rows:
        sentence, statement = opening(row), row["statement"].removesuffix(".")
        verdict = "not decided" if row["verdict"] == "undecided" else row["verdict"]
        assert verdict in sentence
        estimate = abs(row["estimate"])
        assert (f"{estimate:.3g}" if estimate < 1000 else f"{float(f'{estimate:.3g}'):,.0f}") in sentence
        assert f"{row['n']} seed" in sentence
        assert (statement in sentence) == (verdict != "exploratory")
        if verdict in ("contradicted", "not decided"):
            assert f'"{statement}" is {verdict}' in sentence


def test_pages_of_results_with_a_verdict_say_what_it_means():
    """They link to the table of verdicts, which has all of them."""
    folder = ROOT / "docs" / "results"
    verdict = re.compile(r"<!-- (?:value: \S+ \S+ (?:sentence|verdict)|table: \S+ claims) -->")
    pages = {page.name: text for page in folder.glob("*.md") if verdict.search(text := page.read_text())}
    assert {"exor.md", "causal_untying.md"} <= set(pages)
    assert [name for name, text in pages.items() if "(README.md#verdicts)" not in text] == []
    table = (folder / "README.md").read_text().partition("## Verdicts")[2].partition("\n## ")[0]
    for word in ("supported", "contradicted", "undecided", "equivalent", "exploratory"):
        assert f"| {word}" in table


def test_every_study_that_is_published_has_tables():
    """Named in `publish.TABLES` by the module that makes them."""
    for study, module in publish().TABLES.items():
        assert callable(importlib.import_module(module).tables), study
