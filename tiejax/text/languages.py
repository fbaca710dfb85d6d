"""Sentences of several languages, of which the small ones are read more often than once an epoch."""

import dataclasses

import numpy as np
from jaxtyping import Int, Int64


@dataclasses.dataclass(frozen=True)
class Languages:
    """The language of every sentence, and with which exponent languages are sampled.

    names: of the languages. of_sentence: number of each sentence's language. exponent: language l, with n_l sentences, is
    sampled with probability n_l^a / sum_k n_k^a; a = 1 reads every sentence as often as any other, a = 0 every language.
    Source: multilingual BERT; .5 for RemBERT (Chung et al., ICLR 2021, table 14).
    """

    names: tuple[str, ...]
    of_sentence: Int[np.ndarray, "sentences"]
    exponent: float

    def numbers(self) -> Int64[np.ndarray, "languages"]:
        """Return how many sentences of each language an epoch reads: as many as there are in all, but for rounding.

        Every language is read: one sentence at least.
        """
        count = np.bincount(self.of_sentence, minlength=len(self.names)).astype(float)
        share = count**self.exponent / np.sum(count**self.exponent)
        return np.maximum(1, np.rint(share * len(self.of_sentence))).astype(np.int64)

    def sample(self, order: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return the sentences that an epoch reads, shuffled: `order`, a random permutation of all, thinned and repeated.

        Of a language that is read less often than once these are its first sentences in that order; of one that is read more
        often the first come once more than the others.
        """
        chosen = []
        for language, number in enumerate(self.numbers().tolist()):
            own = order[self.of_sentence[order] == language]
            chosen.append(np.resize(own, number))
        together = np.concatenate(chosen)
        return np.asarray(together[rng.permutation(len(together))])
