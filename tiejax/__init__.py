"""The library and laboratory for weight tying in JAX.

`pip install tiejax` installs the library of ties: `Tie`, `store`, `view`, `untie`, `retie`, `find_ties`, `assert_tied` (package
`tying`). Everything else needs `pip install 'tiejax[lab]'`; its commonest names are in `tiejax.lab`.

tying        ties on any pytree: stored once, switched during training, between the layers of a stack
models       Flax Linen language models, written untied
training     the training step, ensembles of seeds, optimizers, schedules, checkpoints, devices and processes
text         corpora, tokenizers, prepared text, packed rows, streams, masking
pretraining  masked and causal language modelling on packed rows or blocks
transfer     labelled tasks and fine-tuning
geometry     measures of embedding tables and models
statistics   paired tests, claims, curves over an arm
checkpoints  checkpoints in the hub's format: read, checked, diagnosed, tied, untied, factorised
lab          studies, their settings, run directories, pages, and the command `tiejax`
system       checked files, memory limits, temporary files, text that is safe to print

Public names are imported when they are first used: `import tiejax` itself does not import jax.
"""

from typing import Any

from tiejax import _lazy

_load, _, _names = _lazy.attach(__name__)
__all__ = ["__version__", *_names]
_lazy.find_missing()


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    return _version() if name == "__version__" else _load(name)


def _version() -> str:
    import importlib.metadata

    try:
        return importlib.metadata.version("tiejax")
    except importlib.metadata.PackageNotFoundError:  # a checkout on the path, not installed
        return "unknown"
