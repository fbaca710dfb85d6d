"""The laboratory: ensembles of seeds, studies and their settings, run directories, pages, and the command `tiejax`."""

from tiejax import _lazy

__getattr__, __dir__, __all__ = _lazy.attach(__name__)
