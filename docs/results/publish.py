"""Render the pages from the published runs in this folder, optionally after adding a run.

python docs/results/publish.py                                        # render all pages
python docs/results/publish.py RUN NAME.json --command "python ..."   # first store the published part of RUN as NAME.json
python docs/results/publish.py --again NAME.json                      # first test the claims of NAME.json by the present rules

Rendered are the marked parts of README.md and of the pages in docs (see `docs.results.markers`), the counts of
docs/scorecard.md, docs/evidence.md, docs/evidence_details.md, and docs/finding.svg, the figure of the first page. The sentences
for a practitioner are listed in docs/evidence.json, the questions in docs/questions.json, and runs from which nothing is argued
in docs/withdrawn.json, with the reason.
"""

import argparse
import importlib
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # docs are not part of the installed package

from docs.results import evidence, first_page, markers, published, scorecard

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
WITHDRAWN, QUESTIONS = ROOT / "docs" / "withdrawn.json", ROOT / "docs" / "questions.json"
EVIDENCE, EVIDENCE_DETAILS = ROOT / "docs" / "evidence.md", ROOT / "docs" / evidence.DETAILS
SCORECARD = ROOT / "docs" / "scorecard.md"
FIGURE = ROOT / "docs" / "finding.svg"
# Study (`doses`, `variants`: EXor with --doses, --variants) -> the module whose `tables` returns the tables of the report.
TABLES = {
    "exor": "tiejax.lab.studies.exor.page",
    "doses": "tiejax.lab.studies.exor.dose_page",
    "variants": "tiejax.lab.studies.exor.variants_page",
    "untying": "tiejax.lab.reporting.untie_curve",
    "causal_untying": "tiejax.lab.studies.causal_untying.page",
    "text_mlm": "tiejax.lab.studies.text_mlm.page",
    "layer_tying": "tiejax.lab.studies.layer_tying.page",
    "embedding_coupling": "tiejax.lab.studies.embedding_coupling.page",
}


def runs() -> dict[str, dict[str, Any]]:
    """Return the content of the JSON files in this folder, by name."""
    return {file.name: json.loads(file.read_text()) for file in sorted(FOLDER.glob("*.json"))}


def pages() -> dict[Path, str]:
    """Return all pages and the figure as rendered; raises ValueError, which names the page, if one cannot be rendered."""
    rendered = {}
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        try:
            if page in (EVIDENCE, EVIDENCE_DETAILS):
                continue
            text = markers.render(page.read_text(), FOLDER)
            rendered[page] = scorecard.render(text) if page == SCORECARD else text
        except ValueError as error:
            raise ValueError(f"{page.relative_to(ROOT)}: {error}") from None
    lists = (EVIDENCE.with_suffix(".json"), QUESTIONS, WITHDRAWN)
    chosen, questions, withdrawn = (json.loads(file.read_text()) for file in lists)
    rendered[EVIDENCE] = evidence.page(runs(), chosen, questions, withdrawn)
    rendered[EVIDENCE_DETAILS] = evidence.details(runs(), questions, withdrawn)
    rendered[FIGURE] = first_page.figure(runs()[first_page.FILE])
    return rendered


def add(run: Path, name: str, command: str, figure: str | None) -> None:
    """Store the published part of a finished run in this folder."""
    results, facts = (json.loads((run / f"{name}.json").read_text()) for name in ("results", "environment"))
    study = next((name for name in ("doses", "variants") if name in results), results["experiment"])
    module = importlib.import_module(TABLES[study])
    entry = published.published_run(results, facts, module.tables(results), command, figure)
    (FOLDER / name).write_text(published.dumps(entry) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", type=Path, help="a finished run directory")
    parser.add_argument("name", nargs="?", help="the JSON file to store it in")
    parser.add_argument("--command", help="the command to type to repeat the run")
    parser.add_argument("--figure", help="path of the main figure of the run in the repository")
    parser.add_argument("--again", metavar="NAME.json", help="a published run whose claims are tested again, without looks")
    given = parser.parse_args()
    if given.again:
        file = FOLDER / given.again
        file.write_text(published.dumps(published.tested_again(json.loads(file.read_text()))) + "\n")
    if given.run:
        if not (given.name and given.command):
            parser.error("RUN requires NAME.json and --command")
        if given.figure and not (ROOT / given.figure).is_file():
            parser.error(f"--figure: expected a file in the repository, got {given.figure!r}")
        add(given.run, given.name, given.command, given.figure)
    try:
        after = pages()
    except ValueError as error:
        parser.error(str(error))
    for page, text in after.items():
        if not page.exists() or text != page.read_text():
            page.write_text(text)
            print(f"updated {page.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
