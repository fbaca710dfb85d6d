"""Character maps of SentencePiece: a map that the check accepts is used by the library without a panic; others are refused."""

import base64
import json
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from tiejax.text.character_map import FIELD, check_map, check_maps
from tiejax.text.errors import CorpusError
from tiejax.text.tokenizer import load

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


def test_a_map_is_accepted_and_used():
    content = packed(trie())
    check_map(base64.b64encode(content).decode())
    tokenizer = Tokenizer.from_str(tokenizer_json(content))
    assert tokenizer.encode("aA\xc9\xe9x").ids == [1, 1, 2, 2, 0]


@pytest.mark.parametrize("content", DAMAGED.values(), ids=list(DAMAGED))
def test_damaged_maps_are_refused_before_the_library_reads_them(content, tmp_path):
    (tmp_path / "tokenizer.json").write_text(tokenizer_json(content))
    with pytest.raises(CorpusError, match=rf"^tokenizer .*: invalid tokenizer.json: {FIELD} is damaged: [^\n]*$"):
        load(str(tmp_path / "tokenizer.json"))


def test_maps_are_found_however_they_are_written():
    good, bad = (base64.b64encode(packed(units)).decode() for units in (trie(), []))
    with pytest.raises(ValueError, match="damaged"):
        check_maps(f'{{"{FIELD}": "{bad}", "{FIELD}": "{good}"}}')  # twice
    with pytest.raises(ValueError, match="damaged"):
        check_maps(json.dumps([{FIELD: bad}]).replace("pre", "\\u0070re"))  # with an escape
    check_maps("[" * 10**5)  # the library refuses what is not JSON
    check_maps("{")


@given(st.integers(0, UNITS - 1), st.integers(0, 2**32 - 1), st.text(max_size=5), st.sampled_from(["A", "\xc9", "\u0145"]))
@settings(max_examples=300, deadline=None)
def test_the_library_can_use_every_map_that_is_accepted(place, unit, text, letter):
    content = changed(place, unit)
    try:
        check_map(base64.b64encode(content).decode())
    except ValueError:
        return
    Tokenizer.from_str(tokenizer_json(content)).encode(text + letter)  # a panic is no Exception, and fails the test
