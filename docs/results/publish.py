"""Render the tables of the pages in this folder from its JSON files, optionally after adding a run.

python docs/results/publish.py                                        # render all tables
python docs/results/publish.py RUN NAME.json --command "python ..."   # first store the published part of RUN as NAME.json
"""

import argparse
import importlib
import json
from pathlib import Path

from tiejax.lab.reporting import published

FOLDER = Path(__file__).parent
# Study (`doses`: EXor with --doses) -> the module whose `tables` returns the tables of the report.
TABLES = {
    "exor": "tiejax.lab.studies.exor.page",
    "doses": "tiejax.lab.studies.exor.dose_page",
    "untying": "tiejax.lab.reporting.untie_curve",
    "text_mlm": "tiejax.lab.studies.text_mlm.page",
    "layer_tying": "tiejax.lab.studies.layer_tying.tables",
    "embedding_coupling": "tiejax.lab.studies.embedding_coupling.page",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", type=Path, help="a finished run directory")
    parser.add_argument("name", nargs="?", help="the JSON file to store it in")
    parser.add_argument("--command", help="the command to type to repeat the run")
    given = parser.parse_args()
    if given.run:
        if not (given.name and given.command):
            parser.error("RUN requires NAME.json and --command")
        results, facts = (json.loads((given.run / f"{name}.json").read_text()) for name in ("results", "environment"))
        study = "doses" if "doses" in results else results["experiment"]
        tables = importlib.import_module(TABLES[study]).tables(results)
        entry = published.published_run(results, facts, tables, given.command)
        (FOLDER / given.name).write_text(json.dumps(entry, indent=1) + "\n")
    before = {page: page.read_text() for page in FOLDER.glob("*.md")}
    try:
        after = {page: published.render_tables(text, FOLDER) for page, text in before.items()}
    except ValueError as error:
        parser.error(str(error))
    for page, text in after.items():
        if text != before[page]:
            page.write_text(text)
            print(f"updated {page.name}")


if __name__ == "__main__":
    main()
