"""Planted twins: new ids that act as synonyms, each replacing one word of the vocabulary with a known probability.

Source: Bertolotti and Cazzola, ICML 2024, large-scale experiments, where every probability is .5.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jaxtyping import Float32, Int32

from tiejax.system.visible import cut
from tiejax.text.errors import CorpusError

# The most common words of English, for which the published experiment plants twins.
COMMON_WORDS = tuple(
    """the be to of and a in that have I it for not on with he as you do at this but his by from they we say her she or an
    will my one all would there their what so up out if about who get which go me when make can like time no just him know
    take people into year your good some could them see other than then now look only come its over think also back after
    use two how our work first well way even new want because any these give day most us""".split()  # noqa: SIM905
)


@dataclasses.dataclass(frozen=True)
class Twins:
    """The twins of a vocabulary of `size` original tokens: twin k has the id size + k.

    words, ids: the word of each twin and its original id. probability: how often each word is replaced by its twin.
    """

    size: int
    words: tuple[str, ...]
    ids: tuple[int, ...]
    probability: tuple[float, ...]

    @property
    def vocabulary(self) -> int:
        """The number of ids, twins included."""
        return self.size + len(self.ids)

    def tables(self) -> tuple[Int32[np.ndarray, "vocabulary"], Float32[np.ndarray, "vocabulary"]]:
        """Return two tables by original id: the id of its twin (the id itself if it has none), and the twin's probability."""
        twin, probability = np.arange(self.size, dtype=np.int32), np.zeros(self.size, np.float32)
        twin[list(self.ids)] = self.size + np.arange(len(self.ids))
        probability[list(self.ids)] = self.probability
        return twin, probability


def plant(
    sets: Mapping[float, Sequence[str]], size: int, id_of: Callable[[str], int | None], unknown: int | None = None
) -> tuple[Twins, list[str]]:
    """Create a twin for every word of `sets`, {probability: words}; also return the words that are not tokens.

    id_of: word -> its id, or None. unknown: id that gets the twin of a word that is not a token; None leaves such words out.
    Raises CorpusError, beginning with `twins`, if a probability is outside (0, 1), a token would have two twins, or no word is
    a token.
    """
    words, missing = list[str](), list[str]()
    ids, probabilities = list[int](), list[float]()
    for probability, own_words in sets.items():
        if not 0 < probability < 1:
            raise CorpusError(f"twins: expected a probability between 0 and 1, got {probability:g}")
        for word in own_words:
            token = id_of(word)
            if token is None:
                missing.append(word)
                token = unknown
            if token is None:
                continue
            if token in ids:
                raise CorpusError(
                    f"twins: {cut(words[ids.index(token)])!r} and {cut(word)!r} are the same token, "
                    "which can have only one twin; remove one"
                )
            words.append(word)
            ids.append(token)
            probabilities.append(float(probability))
    if sets and not ids:
        shown = ", ".join(repr(cut(word)) for word in missing[:5]) + (", ..." if len(missing) > 5 else "")
        raise CorpusError(f"twins: none of {shown} is a token of the vocabulary; use more frequent words")
    return Twins(size, tuple(words), tuple(ids), tuple(probabilities)), missing


def cipher(tokens: Sequence[str], special: Sequence[int], probability: float = 0.5) -> Twins:
    """Return twins of all tokens of a vocabulary except the special ones: a synthetic second language.

    Each sentence is written entirely in one of the two languages (see `Masking.whole_sentences`), in the second with this
    probability, so that they have the same grammar but share no ordinary token. Anything that a model transfers between them
    comes from structure alone.
    Source: K. Karthikeyan et al., Cross-Lingual Ability of Multilingual BERT, ICLR 2020 (their "fake" language).
    """
    ids = [token for token in range(len(tokens)) if token not in set(special)]
    return Twins(len(tokens), tuple(tokens[token] for token in ids), tuple(ids), (probability,) * len(ids))


def unrelated(words: int, number: int) -> list[tuple[int, int]]:
    """Draw `number` distinct pairs of different indices below `words`, or all pairs if there are fewer."""
    first, second = np.triu_indices(words, 1)
    chosen = np.random.default_rng(0).choice(len(first), min(number, len(first)), replace=False)
    return list(zip(first[chosen].tolist(), second[chosen].tolist(), strict=True))
