"""The library and laboratory for weight tying in JAX.

tying      what a tie is: shared leaves, switched leaves, owner vectors over stacked layers
models     Flax Linen masked-LM models, written untied
data       EXor: strings, spellings, masks, exact contexts; text: corpora, tokenizers, twins, packed rows
training   optimizer and schedules, the step, the seed ensemble, checkpoints
analysis   geometry of embeddings, paired statistics over seeds, the paper's claims as tests
reporting  run directory, console, figures, HTML report
launch     how an experiment begins, alone or as one of several processes, and is resumed

Importing this package imports none of them (nor jax).
"""
