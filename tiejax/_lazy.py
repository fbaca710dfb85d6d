"""Public names that are imported when they are first used, listed in the stub `__init__.pyi` of their package."""

import importlib
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import resources
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import lazy_loader

INSTALL_LAB = "pip install 'tiejax[lab]'"

# Public modules by their former names. An import of one warns; the table is emptied in 0.8.
MOVED = {
    "tiejax.hub": "tiejax.checkpoints.hub",
    "tiejax.studies": "tiejax.lab.studies",
}


def attach(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package whose stub lists its public names.

    A name whose import fails for want of a dependency raises ModuleNotFoundError, which names the extra to install.
    """
    with resources.as_file(resources.files(package) / "__init__.pyi") as stub:  # which may be in a zip archive
        load, names, public = lazy_loader.attach_stub(package, str(stub))

    def load_or_explain(name: str) -> Any:
        try:
            return load(name)
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(f"{package}.{name} {needs(error)}", name=error.name) from None

    return load_or_explain, names, public


def needs(error: ModuleNotFoundError) -> str:
    """Return "needs the extra `lab` ..." for a missing dependency; raises the error itself if a module of tiejax is missing."""
    package = (error.name or "").partition(".")[0]
    if package in ("", "tiejax"):
        raise error
    return f"needs the extra `lab`: {INSTALL_LAB} ({package} is not installed)"


class Moved(MetaPathFinder, Loader):
    """Import a module by a former name, as the same module object, with a DeprecationWarning."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a spec for former names, None for all others."""
        return ModuleSpec(fullname, self, is_package=True) if _new_name(fullname) else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module of the new name."""
        new = _new_name(spec.name)
        assert new is not None
        if spec.name in MOVED:  # one warning for a package and its modules
            message = f"{spec.name} has moved to {new}; the former name goes in 0.8"
            warnings.warn(message, DeprecationWarning, stacklevel=2)
        module = importlib.import_module(new)
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Give the module back its own spec, which the import system has replaced."""
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


def _new_name(name: str) -> str | None:
    for old, new in MOVED.items():
        if name == old or name.startswith(f"{old}."):
            return new + name.removeprefix(old)
    return None


def find_moved() -> None:
    """Let imports of former names succeed."""
    if not any(isinstance(finder, Moved) for finder in sys.meta_path):
        sys.meta_path.insert(0, Moved())  # before the finder of files, which would load submodules a second time
