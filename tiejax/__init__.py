"""The library and laboratory for weight tying in JAX.

tying        what a tie is: shared leaves, switched leaves, owner vectors over stacked layers
models       Flax Linen language models, written untied
training     the step, the seed ensemble, optimizer and schedule, phases, checkpoints, devices and processes
text         corpora, tokenizers, prepared text, packed rows, streams, masking
hub          checkpoints in the hub's format
geometry     what is measured of tables and models
statistics   paired tests, claims, resampling, curves over an arm
reporting    page, figures, tables
settings     settings that studies share, the command line
runs         run directory, launch, console, environment
pretraining  masked and causal language models on rows or blocks
studies      one folder a study
bench        how fast this machine trains, and how far that is from what its arithmetic would allow

What is named here is loaded when it is first used: importing this package loads no jax.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
