"""Ties as data, on any pytree: `store` and `view`, switched ties, `untie` and `retie`, owner vectors of layers."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
