"""Public names that are imported when they are first used, listed in the stub `__init__.pyi` of their package.

Also the errors of imports for which an extra is missing.
"""

import sys
from collections.abc import Callable, Sequence
from importlib import resources
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import FrameType, ModuleType
from typing import Any

import lazy_loader

# Modules of the extra `tfds`; every other dependency that can be missing is one of the extra `lab`.
OF_TFDS = ("tensorflow_datasets", "array_record", "importlib_resources")

# Errors of public names whose dependency is missing. `from package import name` drops the message of an AttributeError and then
# looks for a module of that name, so `Missing` raises these.
_MISSING: dict[str, ModuleNotFoundError] = {}


def attach(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package whose stub lists its public names.

    A name whose import fails for want of a dependency raises AttributeError, and in a statement `from package import name`
    ModuleNotFoundError; both name the extra to install.
    """
    with resources.as_file(resources.files(package) / "__init__.pyi") as stub:  # which may be in a zip archive
        load, names, public = lazy_loader.attach_stub(package, str(stub))

    def load_or_explain(name: str) -> Any:
        try:
            return load(name)
        except ModuleNotFoundError as error:
            missing = ModuleNotFoundError(f"{package}.{name} {needs(error)}", name=error.name)
        _MISSING[f"{package}.{name}"] = missing
        raise AttributeError(str(missing))

    return load_or_explain, names, public


def needs(error: ModuleNotFoundError) -> str:
    """Return "needs the extra `lab` ..." for a missing dependency; raises the error itself if a module of tiejax is missing."""
    package = (error.name or "").partition(".")[0]
    if package in ("", "tiejax"):
        raise error
    extra = "tfds" if package in OF_TFDS else "lab"
    return f"needs the extra `{extra}`: pip install 'tiejax[{extra}]' ({package} is not installed)"


class Missing(MetaPathFinder):
    """Raise the error of a public name whose dependency is missing, for `from package import name`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return None, so that other finders look for the module."""
        if missing := _MISSING.get(fullname):
            raise missing
        return None


class MissingDependency(MetaPathFinder):
    """Raise an error that names the extra if a module of tiejax imports, outside of functions, a package that nothing finds."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return None if something else imports the package, or only looks whether it is installed."""
        frame: FrameType | None = sys._getframe(1)
        while frame and frame.f_globals.get("__name__", "").partition(".")[0] == "importlib":
            frame = frame.f_back
        if path is None and frame and frame.f_code.co_name == "<module>":
            importer = frame.f_globals.get("__name__", "")
            if importer.startswith("tiejax."):
                error = ModuleNotFoundError(name=fullname)
                raise ModuleNotFoundError(f"{importer} {needs(error)}", name=fullname)
        return None


def find_missing() -> None:
    """Let imports of names whose dependency is missing say so."""
    if not any(isinstance(finder, Missing) for finder in sys.meta_path):
        sys.meta_path.insert(0, Missing())
        sys.meta_path.append(MissingDependency())
