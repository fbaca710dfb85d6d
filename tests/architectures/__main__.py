"""Write the map of tied tables of the transformers library: python tests/architectures ROWS.jsonl, then --merge ROWS.jsonl ...

The first form builds every architecture of the installed version and appends a row for each to a file; it resumes where it was
interrupted. The second merges the files of several versions into tiejax/checkpoints/hub/architectures.json, which is part of
the package, and writes the list of classes in docs/checkpoints_details.md. `test_architectures_parity.py` compares that file
with the installed version.
"""

# ruff: noqa: E402
import argparse
import collections
import contextlib
import importlib
import json
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "critical")
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # some classes ask for a configuration of another library

from architectures.merge import described, in_page, merged

DATA = ROOT / "tiejax" / "checkpoints" / "hub" / "architectures.json"
PAGE = ROOT / "docs" / "checkpoints_details.md"


def write_rows(file: Path) -> None:
    """Append a row for each architecture that the file does not have yet."""
    import transformers
    from architectures.rows import row_of
    from architectures.small_models import architectures

    transformers.utils.logging.disable_progress_bar()
    done = {json.loads(line)["class"] for line in file.read_text().splitlines()} if file.exists() else set()
    with file.open("a") as opened:
        for kind in architectures():
            if kind.__name__ in done:
                continue
            with tempfile.TemporaryDirectory() as folder:
                row = row_of(kind, Path(folder))
            opened.write(json.dumps({"version": transformers.__version__, **row}) + "\n")
            opened.flush()
            print(len(done), row.get("failed", ""), kind.__name__, flush=True)
            done.add(kind.__name__)


def count(file: Path, study: str) -> None:
    """Append the outcomes of each architecture that the file does not have yet; print how often each was seen.

    study: "sweep" or "logits", the module whose `outcomes` are counted.
    """
    from architectures.small_models import architectures

    module = importlib.import_module(f"architectures.{study}")
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    done = {row["class"] for row in rows}
    with file.open("a") as opened:
        for kind in architectures():
            if kind.__name__ in done:
                continue
            with tempfile.TemporaryDirectory() as folder, contextlib.suppress(Exception):  # a class that cannot be built
                rows.append({"class": kind.__name__, "found": list(module.outcomes(kind, Path(folder)))})
                opened.write(json.dumps(rows[-1]) + "\n")
                opened.flush()
                bad = [found for found in rows[-1]["found"] if found[1] in module.OUTCOMES[2:]]
                print(len(rows), kind.__name__, bad, flush=True)
    counts = collections.Counter((what, outcome) for row in rows for what, outcome, *_ in row["found"])
    print("  ".join(f"{column:>10}" for column in module.OUTCOMES))
    for what in sorted({what for what, _ in counts}):
        print("  ".join(f"{counts[what, outcome]:>10}" for outcome in module.OUTCOMES), what)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--merge", action="store_true", help="merge the files of several versions, the newest first")
    parser.add_argument("--sweep", action="store_true", help="append what `check` says of every class to a file, and count it")
    parser.add_argument("--logits", action="store_true", help="the same for logits before and after `untie` and `tie`")
    parser.add_argument("files", nargs="+", type=Path)
    given = parser.parse_args()
    if given.merge:
        rows = [[json.loads(line) for line in file.read_text().splitlines()] for file in given.files]
        content = merged(rows)
        DATA.write_text(json.dumps(content, separators=(",", ":"), sort_keys=True) + "\n")
        PAGE.write_text(in_page(PAGE.read_text(), described(content)))
    elif given.sweep or given.logits:
        count(given.files[0], "sweep" if given.sweep else "logits")
    else:
        write_rows(given.files[0])


if __name__ == "__main__":
    main()
