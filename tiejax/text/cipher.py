"""A second language without data: the first one, with another token for every token of it.

A sentence is written in the one or the other, whole, so that two languages have one grammar and share no ordinary token. What a
model then knows of both it knows from their structure alone.
Source: K. Karthikeyan et al., Cross-Lingual Ability of Multilingual BERT, ICLR 2020 (their "fake" language).
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from tiejax.text.twins import Twins


def cipher(tokens: Sequence[str], special: Sequence[int], probability: float = 0.5) -> Twins:
    """Return the twins of all tokens of a vocabulary but the special ones, which both languages share.

    probability: of writing a sentence in twins (`Masking.whole_sentences`).
    """
    ids = [token for token in range(len(tokens)) if token not in set(special)]
    return Twins(len(tokens), tuple(tokens[token] for token in ids), tuple(ids), (probability,) * len(ids))


def write(twins: Twins, tokens: Int[np.ndarray, "*shape"]) -> Int[np.ndarray, "*shape"]:
    """Return tokens of the first language as those of the second."""
    return np.asarray(twins.tables()[0][tokens])
