"""Check that a tag can be released, and write its release notes: python .ci/release.py v1.0.0 --notes NOTES.md.

The tag must be "v" and the version, the first entry of CHANGELOG.md must be that of the version, and no URL of the project may
be a placeholder. RELEASING.md has the steps around it.
"""

import argparse
import re
import runpy
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
ENTRY = re.compile(r"^## (\S+)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)


def is_placeholder(address: str) -> bool:
    """Return whether an address in pyproject.toml is a placeholder, which it is while there is no public repository."""
    return "://example." in address


def problems(tag: str, pyproject: dict, changes: str) -> list[str]:
    """Return what has to change before the tag can be released."""
    version, urls = pyproject["project"]["version"], pyproject["project"]["urls"]
    latest = ENTRY.search(changes)
    found = []
    if tag != f"v{version}":
        found.append(f"the tag is {tag}, the version in pyproject.toml {version}")
    if latest is None or latest[1] != version or not latest[2].strip():
        found.append(f"CHANGELOG.md does not begin with an entry of {version}")
    found += [f"the URL {name} in pyproject.toml is the placeholder {url}" for name, url in urls.items() if is_placeholder(url)]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("tag")
    parser.add_argument("--notes", type=Path, help="file to write the entry of CHANGELOG.md to")
    given = parser.parse_args()
    changes, pyproject = (ROOT / "CHANGELOG.md").read_text(), tomllib.loads((ROOT / "pyproject.toml").read_text())
    if found := problems(given.tag, pyproject, changes):
        sys.exit("\n".join(f"not released: {one}" for one in found))
    if given.notes:
        given.notes.parent.mkdir(parents=True, exist_ok=True)
        absolute = runpy.run_path(str(ROOT / "hatch_build.py"))["absolute"]
        address = pyproject["project"]["urls"]["Repository"]
        given.notes.write_text(absolute(ENTRY.search(changes)[2].strip(), address, given.tag.removeprefix("v")) + "\n")


if __name__ == "__main__":
    main()
