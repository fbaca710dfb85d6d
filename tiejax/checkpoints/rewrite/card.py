"""The section of a rewritten checkpoint's model card that says what was changed."""

import importlib.metadata
import os
from pathlib import Path

from tiejax.checkpoints.rewrite.entries import other_formats
from tiejax.system.visible import visible_line

CARD = "README.md"


def section(folder: Path, command: str, changes: str) -> str:
    """Return the section in Markdown. folder: the checkpoint that was rewritten. changes: sentences."""
    version = importlib.metadata.version("tiejax")
    by = f"`tiejax {command}` (version {version}) wrote this checkpoint from {_name(folder)}."
    others = [f"`{file}`" for file in other_formats(Path(name) for name in sorted(os.listdir(folder)))]
    left = f" Weights in other formats were not copied, since they are unchanged: {', '.join(others)}." if others else ""
    return f"\n\n## Changed by tiejax\n\n{by} {changes}{left}\n"


def _name(folder: Path) -> str:
    """Return the name of a checkpoint: its id and revision if it is in the hub's cache, or else the name of its folder."""
    cached = folder.parent.parent.name
    if folder.parent.name == "snapshots" and cached.startswith("models--"):
        return f"`{cached.removeprefix('models--').replace('--', '/')}` at `{folder.name}`"
    return f"`{visible_line(Path(os.path.realpath(folder)).name)}`"
