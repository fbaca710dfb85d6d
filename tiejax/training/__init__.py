"""Training: the step, ensembles of seeds, optimizers and schedules, phases of ties, checkpoints, devices and processes."""

from tiejax import _lazy

__getattr__, __dir__, __all__ = _lazy.attach(__name__)
