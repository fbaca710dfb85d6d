"""Training: the step, the seed ensemble, optimizer and schedules, phases of ties, checkpoints, devices and processes."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
