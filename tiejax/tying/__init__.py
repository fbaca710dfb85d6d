"""Ties as data, on any pytree: `store` and `view`, switched ties, `untie` and `retie`, owner vectors of layers."""

from tiejax import _lazy

__getattr__, __dir__, __all__ = _lazy.attach(__name__)
