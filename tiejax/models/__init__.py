"""Flax Linen language models, written untied; every submodule has a name."""

from tiejax import _lazy

__getattr__, __dir__, __all__ = _lazy.attach(__name__)
