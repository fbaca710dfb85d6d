"""Check of the content of a run directory before a run begins: its folders must be folders, and its files regular files."""

import os
from pathlib import Path

from tiejax.lab.runs.run_directory import CONTENTS
from tiejax.lab.settings.command_line import BadInput


def check(path: Path, overwrite: bool) -> None:
    """Raise BadInput if an entry of a run directory has the name of a folder or file of a run, but is something else.

    Otherwise the run would fail there, after it has trained. overwrite: whether the content will be removed, which is not
    possible through links to folders. An unreadable directory is reported when it is read.
    """
    for name in (".lock", *CONTENTS):
        entry = path / name
        is_folder = "." not in name
        if is_folder and os.path.lexists(entry) and not entry.is_dir():
            raise BadInput(f"--out {path}: it contains {name}, which is not a folder; name another directory")
        if not is_folder and os.path.exists(entry) and not entry.is_file():
            raise BadInput(f"--out {path}: it contains {name}, which is not a file; name another directory")
        if is_folder and overwrite and entry.is_symlink():
            raise BadInput(f"--overwrite: {entry} is a link, whose target is not removed; remove the link")
