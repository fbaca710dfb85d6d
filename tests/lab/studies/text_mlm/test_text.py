"""Tests of a run's text: vocabulary, twins, pairs and parameter counts of the published settings."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from corpora import ROOT, SHARED
from processes import command_here

from tiejax.lab.runs import resume
from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.studies.text_mlm.ensemble import build_model
from tiejax.lab.studies.text_mlm.settings import STUDY, Settings
from tiejax.lab.studies.text_mlm.text import Text, pairs_of, plan
from tiejax.text import tokenizer
from tiejax.text.sequences import Sequences
from tiejax.text.twins import COMMON_WORDS, plant


@pytest.fixture
def published():
    return resume.read(STUDY, ["--config", str(ROOT / "configs/text_mlm/published.yaml")]).settings


def test_the_published_setting(published):
    """The published configuration matches the paper's protocol: rows, epochs, records, twins, encoder, schedule."""
    rows = (published.rows_are_sentences, published.min_length, published.missing_words)
    assert rows == (True, 2, "as_unknown")
    epochs = (published.epochs_apart, published.record_every, published.validate_every, published.validation_batches)
    assert epochs == (True, 10_000, "epoch", "all")
    assert list(published.sets) == [0.5]
    assert tuple(published.sets[0.5]) == COMMON_WORDS
    encoder = (published.layers, published.width, published.heads, published.feed_forward, published.dropout)
    assert encoder == (3, 128, 4, 512, 0)
    assert (published.learning_rate, published.minimum_learning_rate, published.half_period) == (1e-4, 1e-5, 10_000)
    assert (published.batch_size, published.max_length, published.epochs, published.packing) == (128, 128, 3, "padded")
    optimizer = (published.weight_decay, published.eps, published.optimizer, published.schedule)
    assert optimizer == (0.01, 1e-12, "adamw", "cosine")
    start = (published.positions, published.layer_norm, published.identical_layers, published.embedding_std)
    assert start == ("none", "post", True, 0.3)


def test_all_unrelated_pairs_can_be_drawn():
    """Three words and one that is not in the vocabulary: all six pairs, and a separate set for the unknown token's twin."""
    tokens = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "be", "of", "the")
    vocabulary = tokenizer.Vocabulary(size=8, pad=0, unknown=1, cls=2, sep=3, mask=4, tokens=tokens)
    twins, missing = plant({0.5: ["be", "I", "of", "the"]}, vocabulary.size, vocabulary.id_of, vocabulary.unknown)
    assert missing == ["I"]
    pairs, facts = pairs_of(Text(vocabulary, twins, None, None, {}, b""))
    assert pairs[:4] == [(5, 8), (6, 10), (7, 11), (1, 9)]
    assert facts["pair_set"].tolist() == [0, 0, 0, 1, 2, 2, 2, 2, 2, 2]
    drawn = {tuple(sorted(pair)) for pair in pairs[4:]}
    assert drawn == {(5, 6), (5, 7), (6, 7), (1, 5), (1, 6), (1, 7)}


@pytest.mark.skipif(not SHARED.is_dir(), reason="shared data is missing: parameters are counted with its vocabulary")
def test_the_published_twins_and_parameters(published):
    vocabulary = tokenizer.vocabulary(tokenizer.load(str(SHARED / "bert-base-uncased" / "vocab.txt")))
    twins, missing = plant(published.sets, vocabulary.size, vocabulary.id_of, vocabulary.unknown)
    assert missing == ["I"]
    assert twins.vocabulary == 30_622
    assert twins.ids[twins.words.index("I")] == vocabulary.unknown
    text = Text(vocabulary, twins, None, None, {}, b"")
    pairs, facts = pairs_of(text)
    assert facts["set_names"].tolist() == ["twins .5", "twin of the unknown token", "unrelated"]
    assert np.bincount(facts["pair_set"]).tolist() == [99, 1, 100]
    assert facts["pair_words"][99] == "I"
    assert pairs[99] == (vocabulary.unknown, 30_522 + twins.words.index("I"))
    # Pairs with "I" are drawn like all others of the 4,950 pairs of the 100 words.
    assert "I" in "/".join(facts["pair_words"][100:]).split("/")
    model = build_model(published, text)
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), jnp.zeros((1, 8), jnp.int32)))["params"]
    number = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(shapes))
    table = int(np.prod(shapes["head"]["embedding"].shape))
    assert (number, number - table) == (8_434_048, 4_514_432)


@pytest.mark.parametrize(("packing", "rows"), [("padded", 200_000), ("packed", 150_000)])
def test_a_step_too_large(packing, rows):
    """Sentences of 96 tokens in rows of 128; packed, three rows hold four of them."""
    train = Sequences(np.zeros(96 * 4, np.int32), 96 * np.arange(5))
    text = Text(None, None, train, train, {}, b"")
    message = rf"^--batch_size: {rows} rows of 128 tokens are {128 * rows:,} tokens, expected at most 16,777,216$"
    with pytest.raises(BadInput, match=message):
        plan(Settings(batch_size=200_000, packing=packing), text, 1, 1, "cpu")


def test_equal_untie_steps_are_refused_once_epochs_are_known_in_steps(tmp_path, monkeypatch, capsys):
    (tmp_path / "text.txt").write_text("".join(f"The cat number {number} sat there.\n\n" for number in range(40)))
    argv = ["--corpus", tmp_path / "text.txt", "--data_dir", tmp_path / "data", "--out", tmp_path / "run", "--vocab_size", "60"]
    asked = [*map(str, argv), "--epochs", "1", "--batch_size", "8", "--untie_at", "[.5,.51]", "--twins", "{'.5': [cat]}"]
    ended = command_here([*asked, "--quiet"], monkeypatch, capsys, STUDY)
    assert ended.status == 2
    assert "--untie_at: expected distinct steps, but 0.5 and 0.51 both fall on step " in ended.err.splitlines()[-1]
    assert not (tmp_path / "run").exists()
