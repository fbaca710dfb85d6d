"""The variants of EXor, and all visits to its strings by a slow loop, an oracle of several tests."""

import itertools
import math

from tiejax.lab.studies.exor.task import VARIANTS, EXor


def variant(name, bits=7):
    return EXor(bits, *VARIANTS[name])


def every_visit(task, rows):
    """Return every (context, target) that visits to these strings can produce, with its probability."""
    used, probability = (task.used["zero"], task.used["one"]), task.probability
    for string in rows.tolist():
        parity = task.odd if sum(string) % 2 else task.even
        for spelled in itertools.product(*(used[bit] for bit in string)):
            weight = math.prod(probability[symbol] for symbol in spelled) / len(rows) / task.bits
            for position in range(task.bits):
                context = (*spelled[:position], task.mask, *spelled[position + 1 :], parity)
                yield context, position, spelled[position], weight
