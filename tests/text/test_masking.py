"""Masking: the frequencies of twins, masks and random tokens, and the slots."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from tiejax.text.masking import MASKED, Masking, slots_for
from tiejax.text.twins import Twins

SIZE, SPECIAL, MASK = 50, (0, 1, 2, 3, 4), 4
TWINS = Twins(SIZE, ("ten", "eleven", "unknown"), (10, 11, 1), (0.5, 0.1, 0.5))
ROWS, LENGTH = 40, 64


def rows(seed=0):
    """Rows with [CLS] (2), [SEP] (3) and 8 tokens of padding at the end; some tokens are unknown (1)."""
    rng = np.random.default_rng(seed)
    tokens = rng.choice([1, 10, 11, 12, 13, 20, 49], (ROWS, LENGTH)).astype(np.uint16)
    segments = np.ones((ROWS, LENGTH), np.uint8)
    tokens[:, 0], tokens[:, -9] = 2, 3
    tokens[:, -8:], segments[:, -8:] = 0, 0
    return jnp.asarray(tokens), jnp.asarray(segments)


@pytest.fixture(scope="module")
def visits():
    """400 visits of the same rows, with the original tokens and segments."""
    tokens, segments = rows()
    masking = Masking(TWINS, SPECIAL, MASK, slots=600)
    visit = jax.jit(jax.vmap(lambda key: masking.visit(tokens, segments, jnp.arange(ROWS), key)))
    batch = jax.tree.map(np.asarray, visit(jax.random.split(jax.random.key(0), 400)))
    return batch, np.asarray(tokens).astype(int), np.asarray(segments)


def binomial(count, number, probability):
    """The p-value of a count; the tests below require p > 1e-4 for fixed keys."""
    return stats.binomtest(int(count), int(number), probability).pvalue


def places(batch):
    """Whether each token is masked according to the slots: `[visit, rows, length]`."""
    masked = np.zeros((len(batch.tokens), ROWS * LENGTH), bool)
    for one, slots, weight in zip(masked, batch.slot, batch.weight, strict=True):
        used = slots[weight > 0]
        assert len(set(used)) == len(used)
        one[used] = True
    return masked.reshape(-1, ROWS, LENGTH)


def test_probabilities_of_twins(visits):
    batch, original, _ = visits
    masked = places(batch)
    for place, (own, probability) in enumerate(zip(TWINS.ids, TWINS.probability, strict=True)):
        here = (original == own)[None] & ~masked
        shown = batch.tokens[here]
        assert set(shown) == {own, SIZE + place}
        if own not in SPECIAL:  # special tokens are never masked but their twins are, which lowers the share of twins here
            assert binomial((shown == SIZE + place).sum(), here.sum(), probability) > 1e-4
    others = ~np.isin(original, TWINS.ids)[None] & ~masked
    np.testing.assert_array_equal(batch.tokens[others], np.broadcast_to(original, batch.tokens.shape)[others])


def test_targets_are_the_tokens_after_the_swap(visits):
    batch, original, _ = visits
    used = batch.weight > 0
    before = np.take_along_axis(np.broadcast_to(original.ravel(), (400, ROWS * LENGTH)), batch.slot, axis=1)[used]
    target = batch.target[used]
    twin = {own: SIZE + place for place, own in enumerate(TWINS.ids)}
    assert all(after in (own, twin.get(own)) for own, after in set(zip(before.tolist(), target.tolist(), strict=True)))
    assert binomial((target[before == 10] == SIZE).sum(), (before == 10).sum(), 0.5) > 1e-4
    assert binomial((target[before == 11] == SIZE + 1).sum(), (before == 11).sum(), 0.1) > 1e-4


def test_masks_as_in_bert(visits):
    batch, original, segments = visits
    masked = places(batch)
    ordinary = ~np.isin(original, SPECIAL) & (segments > 0)
    assert binomial(masked[:, ordinary].sum(), 400 * ordinary.sum(), 0.15) > 1e-4
    assert not masked[:, np.isin(original, (0, 2, 3))].any()
    # An unknown token is never a target; its twin can be, like any token.
    unknown = original == 1
    assert binomial(masked[:, unknown].sum(), 400 * unknown.sum(), 0.5 * 0.15) > 1e-4
    assert set(batch.target[batch.weight > 0]) & set(SPECIAL) == set()
    shown = np.take_along_axis(batch.tokens.reshape(400, -1), batch.slot, axis=1)[batch.weight > 0]
    target = batch.target[batch.weight > 0]
    by_mask, kept = shown == MASK, shown == target
    random = ~by_mask & ~kept
    assert binomial(by_mask.sum(), len(shown), 0.8 + 0.1 / SIZE) > 1e-4
    # A random token is uniform over the SIZE original tokens, including the mask and the token itself, but no twin.
    assert binomial(kept.sum(), len(shown), 0.1 + 0.1 * (target < SIZE).mean() / SIZE) > 1e-4
    assert shown[random].max() < SIZE
    seen = np.bincount(shown[random & ~np.isin(target, np.arange(SIZE))], minlength=SIZE)
    others = np.arange(SIZE) != MASK
    assert stats.chisquare(seen[others]).pvalue > 1e-4


def test_visits_differ(visits):
    batch, *_ = visits
    assert len({one.tobytes() for one in batch.tokens}) == 400


def test_draws_of_a_row_do_not_depend_on_the_other_rows():
    tokens, segments = rows()
    key, masking = jax.random.key(5), Masking(TWINS, SPECIAL, MASK, slots=600)
    visit = jax.jit(masking.visit)
    whole = visit(tokens, segments, jnp.arange(ROWS), key)
    for part in (slice(0, 10), slice(10, 40)):
        own = visit(tokens[part], segments[part], jnp.arange(ROWS)[part], key)
        np.testing.assert_array_equal(own.tokens, whole.tokens[part])
        wanted = np.flatnonzero(np.asarray(places(jax.tree.map(lambda leaf: np.asarray(leaf)[None], whole)))[0][part])
        np.testing.assert_array_equal(own.slot[own.weight > 0], wanted)


@pytest.mark.slow
def test_masked_tokens_without_a_slot_are_counted():
    tokens, segments = rows()
    key = jax.random.key(5)
    enough = Masking(TWINS, SPECIAL, MASK, slots=600).visit(tokens, segments, jnp.arange(ROWS), key)
    number = int(enough.weight.sum())
    assert int(enough.overflow) == 0
    few = Masking(TWINS, SPECIAL, MASK, slots=number - 7).visit(tokens, segments, jnp.arange(ROWS), key)
    assert int(few.overflow) == 7
    assert few.weight.all()
    np.testing.assert_array_equal(few.slot, enough.slot[: number - 7])


@pytest.mark.parametrize("number", [3, 40, 3_000])
def test_slots_suffice_except_once_in_a_trillion(number):
    assert stats.binom.sf(slots_for(number), number, MASKED) < 1e-12
    assert slots_for(number) <= number
    assert number < 1000 or slots_for(number) < 1.35 * MASKED * number
    assert slots_for(number, variance=400, most=number) <= number


def test_slots_for_a_varying_number_of_tokens():
    number = 3_000
    rng = np.random.default_rng(0)
    masked = rng.binomial(rng.normal(number, 300, 20_000).astype(int), MASKED)
    # Seven standard deviations; 20,000 draws reach about four.
    assert masked.max() < slots_for(number, 300**2) - 2 * masked.std()
    assert slots_for(number, 300**2) > slots_for(number) + 2 * masked.std()
