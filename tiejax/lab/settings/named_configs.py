"""Configurations that come with tiejax, by name: `exor/lstm_small` is `configs/exor/lstm_small.yaml`."""

import re
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

PACKAGE = Path(__file__).parents[2]
NAME = re.compile(r"(?:configs/)?(\w+)/(\w+)(?:\.yaml)?")


def folder() -> Traversable:
    """Return the folder of the configurations: in the checkout that this code is part of, or in the installed package."""
    checkout = PACKAGE.parent
    # The installed package may be in a zip archive.
    return checkout / "configs" if (checkout / "pyproject.toml").is_file() else resources.files("tiejax") / "configs"


def find(name: str) -> Traversable | None:
    """Return the file with path `name`, or else the configuration with that name; None if there is neither."""
    path = Path(name)
    if path.exists() and not path.is_dir():
        return path
    if match := NAME.fullmatch(name):
        study, configuration = match.groups()
        file = folder() / study / f"{configuration}.yaml"
        if file.is_file():
            return file
    return path if path.exists() else None


def names(study: str) -> list[str]:
    """Return the names of the configurations of a study, sorted."""
    of_study = folder() / study
    files = [file.name for file in of_study.iterdir()] if of_study.is_dir() else []
    return sorted(f"{study}/{name.removesuffix('.yaml')}" for name in files if name.endswith(".yaml"))
