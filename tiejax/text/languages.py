"""Sampling of sentences in several languages, with small languages oversampled."""

import dataclasses

import numpy as np
from jaxtyping import Int, Int64


@dataclasses.dataclass(frozen=True)
class Languages:
    """The language of every sentence, and the exponent with which languages are sampled.

    names: names of the languages. sentence_language: index of the language of each sentence. exponent: a; language l, with
    n_l sentences, is sampled with probability n_l^a / sum_k n_k^a: a = 1 samples sentences uniformly, a = 0 samples
    languages uniformly.
    Source: multilingual BERT; .5 for RemBERT (Chung et al., ICLR 2021, table 14).
    """

    names: tuple[str, ...]
    sentence_language: Int[np.ndarray, " sentences"]
    exponent: float

    def numbers(self) -> Int64[np.ndarray, " languages"]:
        """Return the number of sentences of each language in an epoch.

        The numbers add up to the number of all sentences, except for rounding; a language with sentences has at least one.
        """
        count = np.bincount(self.sentence_language, minlength=len(self.names)).astype(float)
        powers = np.where(count > 0, count**self.exponent, 0)  # 0^0 is 1
        share = powers / np.sum(powers)
        return np.where(count > 0, np.maximum(1, np.rint(share * len(self.sentence_language))), 0).astype(np.int64)

    def sample(self, order: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return the shuffled sentences of an epoch, from `order`, a random permutation of all sentences.

        An undersampled language contributes only its first sentences in `order`. An oversampled one repeats its sentences in
        that order, so that the first of them may occur once more than the others.
        """
        chosen = []
        for language, number in enumerate(self.numbers().tolist()):
            own = order[self.sentence_language[order] == language]
            chosen.append(np.resize(own, number))
        together = np.concatenate(chosen)
        return np.asarray(together[rng.permutation(len(together))])
