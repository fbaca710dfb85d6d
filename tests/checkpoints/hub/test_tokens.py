"""Texts and counts of tokens with byte-level, SentencePiece and WordPiece vocabularies."""

import json
import os

import pytest
from tokenizers import Tokenizer, decoders, models
from tokenizers.pre_tokenizers import ByteLevel

from tiejax.checkpoints.hub import tokens as hub_tokens
from tiejax.checkpoints.hub.tokens import count_tokens, find_tokens, text_of


def test_texts_of_byte_level_tokens(tmp_path):
    tokens = ["Ġthe", "Ċ", "Ã©", "ĠÃ", "a"]
    (tmp_path / "vocab.json").write_text(json.dumps({token: place for place, token in enumerate(tokens)}))
    tokens = find_tokens(tmp_path)
    assert [text_of(tokens, place) for place in range(6)] == ["␣the", "\\n", "é", "ĠÃ", "a", ""]
    with pytest.raises(ValueError, match="merges"):
        count_tokens(tokens, ["a"], 5)


def test_texts_of_sentencepiece_tokens(tmp_path):
    tokenizer = Tokenizer(models.BPE({"▁the": 0, "cat": 1, "<unk>": 2}, [], unk_token="<unk>"))
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    tokens = find_tokens(tmp_path)
    assert [text_of(tokens, place) for place in range(2)] == ["␣the", "cat"]


def with_every_byte(*tokens):
    """Return the ids of a byte-level vocabulary: those of the tokens from 0 on, then of the bytes that are not among them."""
    return {token: place for place, token in enumerate([*tokens, *sorted(set(ByteLevel.alphabet()) - set(tokens))])}


def test_a_vocabulary_that_lacks_bytes_is_not_byte_level(tmp_path):
    """It would drop their text in silence, since a byte-level vocabulary has no unknown token."""
    (tmp_path / "vocab.json").write_text(json.dumps({"a": 0, "b</w>": 1, "ab</w>": 2}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b</w>\n")
    with pytest.raises(ValueError, match=r"merges.txt: does not fit vocab.json: 255 of 256 bytes have no token"):
        find_tokens(tmp_path)


def test_merges_and_long_documents_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(hub_tokens, "CHARACTERS", 5)
    monkeypatch.setattr(hub_tokens, "TOGETHER", 3)
    (tmp_path / "vocab.json").write_text(json.dumps(with_every_byte("a", "b", "ab", "Ċ")))
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    tokens = find_tokens(tmp_path)
    seen = []
    counts = count_tokens(tokens, ["ab\nb\nabab\naab\n" * 10, "", "b"], 300, seen.append)
    assert counts.tolist() == [10, 11, 40, 40] + 296 * [0]
    assert seen[-1] == 101


def test_cased_vocabulary(tmp_path):
    (tmp_path / "vocab.txt").write_text("".join(f"{token}\n" for token in ["[UNK]", "The", "the"]))
    for lower, expected in ((True, [0, 0, 2]), (False, [0, 1, 1])):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": lower}))
        assert count_tokens(find_tokens(tmp_path), ["The the"], 3).tolist() == expected


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, ["uber", "\u4e2d", "\u56fd"]),
        ({"strip_accents": False}, ["\u00fcber", "\u4e2d", "\u56fd"]),
        ({"do_lower_case": False, "strip_accents": True}, ["Uber", "\u4e2d", "\u56fd"]),
        ({"tokenize_chinese_chars": False}, ["uber", "\u4e2d\u56fd"]),
    ],
)
def test_settings_of_a_word_piece_vocabulary(tmp_path, settings, expected):
    """As transformers reads them."""
    tokens = ["[UNK]", "uber", "\u00fcber", "Uber", "\u4e2d", "\u56fd", "\u4e2d\u56fd"]
    (tmp_path / "vocab.txt").write_text("".join(f"{token}\n" for token in tokens))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    found = find_tokens(tmp_path).tokenizer.encode("\u00dcber \u4e2d\u56fd", add_special_tokens=False)
    assert found.tokens == expected


@pytest.mark.parametrize(("prefix", "expected"), [(True, ["\u0120a", "\u0120a"]), (False, ["a", "\u0120a"])])
def test_prefix_space_of_a_byte_level_vocabulary(tmp_path, prefix, expected):
    (tmp_path / "vocab.json").write_text(json.dumps(with_every_byte("a", "\u0120", "\u0120a")))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n\u0120 a\n")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"add_prefix_space": prefix}))
    assert find_tokens(tmp_path).tokenizer.encode("a a").tokens == expected


@pytest.mark.parametrize("name", ["tokenizer.json", "vocab.txt", "vocab.json", "merges.txt"])
def test_pipes_are_refused_without_blocking(tmp_path, name):
    (tmp_path / "vocab.json").write_text(json.dumps({"a": 0}))
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    with pytest.raises(ValueError, match=f"{name}: cannot be read: it is a named pipe, not a file"):
        find_tokens(tmp_path)
