"""Character maps of SentencePiece: the tokenizers library panics over a damaged one, which is an error in one line."""

import base64
import contextlib
import json
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiejax.text.errors import CorpusError
from tiejax.text.tokenizer import encoded, load

FIELD = "precompiled_charsmap"
UNITS = 512


def trie():
    """Return a trie that replaces A by the text at position 0 of the replacements, and E-acute (C3 89) by that at 2."""
    units = [0] * UNITS
    units[0] = 256 << 10  # the root's offset: its children are at 256 ^ byte
    units[256 ^ 65] = 1 << 10 | 1 << 8 | 65  # a leaf, at the next position
    units[256 ^ 65 ^ 1] = 0
    units[256 ^ 0xC3] = 3 << 10 | 0xC3
    units[256 ^ 0xC3 ^ 3 ^ 0x89] = 2 << 10 | 1 << 8 | 0x89
    units[256 ^ 0xC3 ^ 3 ^ 0x89 ^ 2] = 2
    return units


def packed(units, replacements=b"a\0\xc3\xa9\0", size=None):
    size = 4 * len(units) if size is None else size
    return struct.pack("<I", size) + struct.pack(f"<{len(units)}I", *units) + replacements


def tokenizer_json(content):
    text = base64.b64encode(content).decode() if isinstance(content, bytes) else content
    vocab = [["<unk>", 0.0], ["a", -1.0], ["\xe9", -1.0]]
    model = {"type": "Unigram", "unk_id": 0, "vocab": vocab, "byte_fallback": False}
    rest = dict.fromkeys(("truncation", "padding", "pre_tokenizer", "post_processor", "decoder"))
    normalizer = {"type": "Sequence", "normalizers": [{"type": "Precompiled", FIELD: text}]}
    return json.dumps({"version": "1.0", "added_tokens": [], "normalizer": normalizer, "model": model, **rest})


def changed(place, unit):
    units = trie()
    units[place] = unit
    return packed(units)


DAMAGED = {
    "not base64": "?",
    "empty": b"",
    "short": b"\1\0",
    "without a trie": packed([]),
    "shorter than its size": packed(trie(), b"", 4 * UNITS + 4),
    "8 GiB": packed(trie(), size=2**32 - 4),
    "replacements not in UTF-8": packed(trie(), b"\xff\xfe"),
    "root out of the trie": changed(0, 2**30),
    "child out of the trie": changed(256 ^ 65, 2**30 | 65),
    "leaf out of the trie": changed(256 ^ 65, 2**30 | 1 << 8 | 65),
    "replacement out of the map": changed(256 ^ 65 ^ 1, 999),
    "replacement within a character": changed(256 ^ 65 ^ 1, 3),
}


def encoded_with(content, text, folder):
    """Return the ids of a text, by a tokenizer whose file holds the map."""
    (folder / "tokenizer.json").write_text(tokenizer_json(content))
    return encoded(load(str(folder / "tokenizer.json")), [text])[0].ids


def test_a_map_is_used(tmp_path):
    assert encoded_with(packed(trie()), "aA\xc9\xe9x", tmp_path) == [1, 1, 2, 2, 0]


@pytest.mark.parametrize("content", DAMAGED.values(), ids=list(DAMAGED))
def test_a_damaged_map_is_an_error_in_one_line(content, tmp_path):
    with pytest.raises(CorpusError, match=r"^tokenizer.*: (invalid tokenizer.json|a text cannot be encoded): [^\n]+$"):
        encoded_with(content, "aA\u0301A\xc9\xe9x", tmp_path)


@given(st.integers(0, UNITS - 1), st.integers(0, 2**32 - 1), st.text(max_size=5), st.sampled_from(["A", "\xc9", "\u0145"]))
@settings(max_examples=100, deadline=None)
def test_no_map_ends_the_process(tmp_path_factory, place, unit, text, letter):
    with contextlib.suppress(CorpusError):  # a panic is no Exception, and fails the test
        encoded_with(changed(place, unit), text + letter, tmp_path_factory.getbasetemp())
