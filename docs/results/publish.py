"""Keep what is published of a run, and write the tables of the pages in this folder from what is kept.

python docs/results/publish.py                                        # write all tables anew
python docs/results/publish.py RUN NAME.json --command "python ..."   # keep this run under this name first
"""

import argparse
import importlib
import json
from pathlib import Path

from tiejax.lab.reporting import published

FOLDER = Path(__file__).parent
# Study, or doses of EXor -> the module whose `tables` are those of the report.
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
    parser.add_argument("name", nargs="?", help="the file to keep it in")
    parser.add_argument("--command", help="the command that makes the run, as a reader would type it")
    given = parser.parse_args()
    if given.run:
        if not (given.name and given.command):
            parser.error("a run needs NAME.json and --command")
        results, facts = (json.loads((given.run / f"{name}.json").read_text()) for name in ("results", "environment"))
        study = "doses" if "doses" in results else results["experiment"]
        tables = importlib.import_module(TABLES[study]).tables(results)
        kept = published.kept(results, facts, tables, given.command)
        (FOLDER / given.name).write_text(json.dumps(kept, indent=1) + "\n")
    before = {page: page.read_text() for page in FOLDER.glob("*.md")}
    try:
        after = {page: published.rendered(text, FOLDER) for page, text in before.items()}
    except ValueError as error:
        parser.error(str(error))
    for page, text in after.items():
        if text != before[page]:
            page.write_text(text)
            print(f"written anew: {page.name}")


if __name__ == "__main__":
    main()
