"""The cipher: a one-to-one map of ordinary tokens that is applied to whole sentences."""

import jax
import jax.numpy as jnp
import numpy as np

from tiejax.text.masking import Masking
from tiejax.text.twins import cipher

SPECIAL = (0, 1, 2, 3, 4)  # pad, unknown, cls, sep, mask
TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c")


def test_every_ordinary_token_has_its_own_twin():
    twins = cipher(TOKENS, SPECIAL)
    assert twins.vocabulary == 11
    assert twins.tables()[0][np.array([[2, 5, 7, 1, 3, 0]])].tolist() == [[2, 8, 10, 1, 3, 0]]


def test_sentences_are_in_one_language():
    """Of two sentences in a row each is in the cipher with probability 1/2, independently."""
    twins = cipher(TOKENS, SPECIAL)
    masking = Masking(twins, SPECIAL, mask=4, slots=40_000, whole_sentences=True)
    row, segments = [2, 5, 6, 3, 2, 7, 5, 6, 3, 0], [1] * 4 + [2] * 5 + [0]
    rows = 2000
    visit = jax.jit(masking.visit)(jnp.array([row] * rows), jnp.array([segments] * rows), jnp.arange(rows), jax.random.key(1))
    tokens = np.array(visit.tokens).ravel()
    used = np.asarray(visit.weight) > 0
    slot, target = np.asarray(visit.slot)[used], np.asarray(visit.target)[used]
    tokens[slot] = target  # undo the masks
    tokens = tokens.reshape(rows, -1)
    plain = np.array(row)
    ciphered = twins.tables()[0][plain]
    in_cipher = []
    for here in (slice(0, 4), slice(4, 9)):
        as_plain, as_cipher = (tokens[:, here] == one[here] for one in (plain, ciphered))
        assert (as_plain.all(1) | as_cipher.all(1)).all()
        in_cipher.append(as_cipher.all(1))
    # Within four standard deviations of 1/2, and of 1/4 for both sentences.
    assert all(abs(share.mean() - 0.5) < 0.045 for share in in_cipher)
    assert abs((in_cipher[0] & in_cipher[1]).mean() - 0.25) < 0.04


def test_random_tokens_are_from_both_languages():
    twins = cipher(TOKENS, SPECIAL)
    masking = Masking(twins, SPECIAL, mask=4, slots=20_000, whole_sentences=True)
    tokens = jnp.full((400, 60), 5)
    visit = jax.jit(masking.visit)(tokens, jnp.ones_like(tokens), jnp.arange(400), jax.random.key(2))
    shown = np.unique(visit.tokens)
    assert set(range(11)) == set(shown.tolist())
