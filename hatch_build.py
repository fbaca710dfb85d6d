"""The README as description of the distribution: its relative links would lead nowhere on the page of a package index."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

RELATIVE = re.compile(r"(?<=\]\()(?!\w+:|#)[^)\s]+")
IMAGES = (".png", ".svg")


def absolute(readme: str, repository: str, version: str) -> str:
    """Return Markdown whose relative links lead to the files of this version in the repository."""

    def link(found: re.Match[str]) -> str:
        kind = "raw" if found[0].endswith(IMAGES) else "blob"
        return f"{repository}/{kind}/v{version}/{found[0]}"

    return RELATIVE.sub(link, readme)


class Readme(MetadataHookInterface):
    """Set the field `readme`, which pyproject.toml lists as dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the description to `metadata`, the table `project` of pyproject.toml."""
        readme = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        text = absolute(readme, metadata["urls"]["Repository"], metadata["version"])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
