"""A synthetic second language: the first language with every ordinary token replaced by a new one.

Each sentence is written entirely in one of the two languages, so that they have the same grammar but share no ordinary token.
Anything that a model transfers between them comes from structure alone.
Source: K. Karthikeyan et al., Cross-Lingual Ability of Multilingual BERT, ICLR 2020 (their "fake" language).
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from tiejax.text.twins import Twins


def cipher(tokens: Sequence[str], special: Sequence[int], probability: float = 0.5) -> Twins:
    """Return twins of all tokens of a vocabulary except the special ones, which both languages share.

    probability: the probability that a sentence is written in the second language (see `Masking.whole_sentences`).
    """
    ids = [token for token in range(len(tokens)) if token not in set(special)]
    return Twins(len(tokens), tuple(tokens[token] for token in ids), tuple(ids), (probability,) * len(ids))


def write(twins: Twins, tokens: Int[np.ndarray, "*shape"]) -> Int[np.ndarray, "*shape"]:
    """Translate tokens of the first language into the second."""
    return np.asarray(twins.tables()[0][tokens])
