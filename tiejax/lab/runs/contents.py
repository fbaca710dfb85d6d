"""What may lie in a run directory before a run begins there: folders where folders are kept, files where files are."""

from pathlib import Path

from tiejax.lab.runs.run_directory import CONTENTS
from tiejax.lab.settings.command_line import BadInput


def check(path: Path, overwrite: bool) -> None:
    """Raise BadInput if something in a run directory has the name of a folder of a run and is none, or of a file and is none.

    A run would otherwise end there, once it is trained. overwrite: what is there will be removed; a link to a folder is not.
    """
    for name in (".lock", *CONTENTS):
        entry = path / name
        is_folder = "." not in name
        if is_folder and _is_there(entry) and not entry.is_dir():
            raise BadInput(f"--out {path}: {name} in it is no folder, and a run keeps its {name} there; name another directory")
        if not is_folder and _is_there(entry) and entry.exists() and not entry.is_file():
            raise BadInput(f"--out {path}: {name} in it is no file, as which a run writes it; name another directory")
        if is_folder and overwrite and entry.is_symlink():
            raise BadInput(f"--overwrite: {entry} is a link, and what it leads to is not removed; remove the link")


def _is_there(entry: Path) -> bool:
    try:
        return entry.is_symlink() or entry.exists()
    except OSError:  # a directory that cannot be read, of which whoever reads it says what is wrong
        return False
