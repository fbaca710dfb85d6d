"""Configurations that come with tiejax, by name: `exor/lstm_small` is `configs/exor/lstm_small.yaml`."""

import re
from pathlib import Path

PACKAGE = Path(__file__).parents[2]
NAME = re.compile(r"(?:configs/)?(\w+)/(\w+)(?:\.yaml)?")


def folder() -> Path:
    """Return where the configurations are: in the checkout that this code is part of, or else in the installed package."""
    checkout = PACKAGE.parent
    return checkout / "configs" if (checkout / "pyproject.toml").is_file() else PACKAGE / "configs"


def find(name: str) -> Path | None:
    """Return the file that `name` is the path of, or else the configuration of that name; None if there is neither."""
    path = Path(name)
    if path.exists() and not path.is_dir():
        return path
    if match := NAME.fullmatch(name):
        of_study, configuration = match.groups()
        file = folder() / of_study / f"{configuration}.yaml"
        if file.is_file():
            return file
    return path if path.exists() else None


def names(study: str) -> list[str]:
    """Return the names of the configurations of a study."""
    return sorted(f"{study}/{file.stem}" for file in (folder() / study).glob("*.yaml"))
