"""Prepared sentences: tokens and splits, and errors about unusable text."""

import json

import numpy as np
import pytest
import tensorflow_datasets as tfds
from corpora import NOVELS, SHARED
from prepared_text import SETTINGS, by_loop, listed

from tiejax.text import sentences, tokenizer
from tiejax.text.errors import CorpusError
from tiejax.text.sequences import SPLITS

NOVEL = NOVELS / "carroll_alice-in-wonderland.txt"
BERT = SHARED / "bert-base-uncased" / "vocab.txt"


@pytest.mark.parametrize(("max_length", "min_length"), [(12, 6), (128, 0), (5, 5)])
def test_sentences_of_each_split(text, tmp_path, max_length, min_length):
    asked = SETTINGS | {"max_length": max_length, "min_length": min_length}
    found = sentences.prepare([str(text)], folder=tmp_path / "data", **asked)
    expected, dropped, cut = by_loop(text, found, max_length, min_length)
    number = len(expected)
    assert min_length == 0 or dropped > 0
    assert max_length == 128 or cut > 0
    parts = {
        "train": expected[: number * 7 // 10],
        "validation": expected[number * 7 // 10 : number * 8 // 10],
        "test": expected[number * 8 // 10 :],
    }
    for name, part in parts.items():
        in_split = found.split(name)
        assert listed(in_split) == part
        assert in_split.ids.dtype == np.uint16
        assert in_split.offsets.dtype == np.int64
        assert found.facts["splits"][name]["sentences"] == len(part)
        assert found.facts["splits"][name]["tokens"] == sum(map(len, part))
    assert (found.facts["dropped"], found.facts["cut"]) == (dropped, cut)
    assert found.facts["characters"] == len(text.read_text())
    assert found.facts["bytes"] == sum(
        p.stat().st_size for p in found.folder.rglob("*") if p.is_file() and p.name != "manifest.json"
    )
    assert json.loads(json.dumps(found.facts)) == found.facts


@pytest.mark.skipif(not (NOVEL.is_file() and BERT.is_file()), reason="the novels or the vocabulary in shared/data are missing")
def test_a_novel_with_the_vocabulary_of_bert(tmp_path):
    settings = SETTINGS | {"tokenizer": str(BERT), "max_length": 128, "min_length": 4}
    found = sentences.prepare([str(NOVEL)], folder=tmp_path, **settings)
    expected, dropped, cut = by_loop(NOVEL, found, 128, 4)
    assert [ids for name in SPLITS for ids in listed(found.split(name))] == expected
    assert (found.facts["dropped"], found.facts["cut"], found.facts["vocabulary"]) == (dropped, cut, 30_522)
    # Decoded, it is the novel, lower-cased.
    model = tokenizer.load(str(found.tokenizer_file))
    first = model.decode_batch(listed(found.split("train"))[:6])
    text = "".join("".join(first).split())
    assert "".join(NOVEL.read_text("utf-8").lower().split()).startswith(text)
    assert len(text) > 500


ROWS = [
    "Abc de. Fg hi.",  # two sentences, one row
    "abc de fg",
    "hij ab, and so",  # with the next row one sentence
    "  on.",
    "",
    *(f"{letter} abc" for letter in "abcdefghijkl"),
]


def test_rows_are_sentences(tmp_path):
    """Every line is one sentence, even if blank or without a full stop; the splits of 17 rows end at 11.9 and 13.6."""
    (tmp_path / "text.txt").write_bytes("\n".join(ROWS).replace("fg\n", "fg\r\n").encode())
    asked = SETTINGS | {"min_length": 2, "max_length": 7}
    found = sentences.prepare([str(tmp_path / "text.txt")], folder=tmp_path / "data", rows_are_sentences=True, **asked)
    model, end = tokenizer.load(str(found.tokenizer_file)), found.vocabulary.sep
    whole = [model.encode(row).ids for row in ROWS]
    expected = [ids if len(ids) <= 7 else [*ids[:6], end] for ids in whole]
    assert len(expected[4]) == 2
    assert found.facts["cut"] == sum(len(ids) > 7 for ids in whole) > 0
    assert found.facts["dropped"] == 0
    splits = {name: listed(found.split(name)) for name in SPLITS}
    assert splits == {"train": expected[:12], "validation": expected[12:14], "test": expected[14:]}
    # Split into sentences, the same text has other ones, and blank lines are not sentences.
    again = sentences.prepare([str(tmp_path / "text.txt")], folder=tmp_path / "data", **asked)
    assert again.fingerprint != found.fingerprint
    assert sum(split["sentences"] for split in again.facts["splits"].values()) != len(ROWS)
    # min_length applies to rows as well.
    asked |= {"min_length": 4}
    longer = sentences.prepare([str(tmp_path / "text.txt")], folder=tmp_path / "data", rows_are_sentences=True, **asked)
    assert longer.facts["dropped"] == sum(len(ids) < 4 for ids in whole) > 0


def test_ends_in_splits():
    """Rounded down; or as TFDS slices by percent, to the nearest, of 74,004,228 rows at 51,802,959.6 and 59,203,382.4."""
    assert sentences.split_ends(17, nearest=False) == [11, 13, 17]
    assert sentences.split_ends(74_004_228, nearest=True) == [51_802_960, 59_203_382, 74_004_228]
    for number in [*range(3, 200), 74_004_227, 74_004_229]:
        instruction = tfds.core.ReadInstruction("train", to=70, unit="%") + tfds.core.ReadInstruction(
            "train", from_=70, to=80, unit="%"
        )
        info = tfds.core.SplitInfo(name="train", shard_lengths=[number], num_bytes=0)
        slices = instruction.to_absolute({"train": info})
        assert [piece.to for piece in slices] == sentences.split_ends(number, nearest=True)[:2], number


def test_unusable_text(text, tmp_path):
    def refused(content: str, words: str, **changed):
        path = tmp_path / "bad.txt"
        path.write_text(content)
        with pytest.raises(CorpusError) as error:
            sentences.prepare([str(path)], folder=tmp_path / "data", **(SETTINGS | changed))
        assert str(error.value).startswith(words)
        assert not list((tmp_path / "data").glob("sentences-*"))
        assert not list((tmp_path / "data").glob("incomplete-*"))

    refused("", f"corpus {tmp_path}/bad.txt: contains no text")
    refused(
        "Ab cd.\n\nEf gh.", "corpus: no sentence is long enough: none of 2 has 30 tokens or more", min_length=30, max_length=40
    )
    few = "corpus: 3 sentences of 3 tokens or more are too few to split 70/10/20; use more text"
    refused("Abc de.\n\n" * 3, few, min_length=3)
    refused(text.read_text(), "max_length 2: expected at least 3", max_length=2)
    refused(text.read_text(), "min_length 13: expected at most max_length, 12", min_length=13)
    refused(text.read_text(), "vocab_size 8: expected at least ", vocab_size=8)
    (tmp_path / "vocab.txt").write_text("[UNK]\na\n")
    refused(text.read_text(), "tokenizer: the vocabulary has no [PAD], [CLS]", tokenizer=str(tmp_path / "vocab.txt"))
    (tmp_path / "split").mkdir()
    for name in ("train", "valid", "test"):
        (tmp_path / "split" / f"{name}.txt").write_text("Abc de.")
    with pytest.raises(CorpusError, match=r"has separate files for training and test, .*; name one of the files$"):
        sentences.prepare([str(tmp_path / "split")], folder=tmp_path / "data", **SETTINGS)
    (tmp_path / "bad.txt").write_text("Abc de fg.\n\n" * 4)
    few = sentences.prepare([str(tmp_path / "bad.txt")], folder=tmp_path / "data", **SETTINGS | {"min_length": 3})
    assert [len(few.split(name).offsets) - 1 for name in SPLITS] == [2, 1, 1]


def test_text_that_changes_while_it_is_being_read(text, tmp_path):
    def progress(phase: str, *_: object) -> None:
        if phase == "writing":
            pytest.fail("a text that has changed was accepted")
        if phase == "tokenising":
            text.write_text(text.read_text() + " More.")

    with pytest.raises(CorpusError, match=r"^corpus: changed while it was being read"):
        sentences.prepare([str(text)], folder=tmp_path / "data", progress=progress, **SETTINGS)
    assert not list((tmp_path / "data").glob("sentences-*"))


def test_sentences_without_a_token_are_dropped(tmp_path):
    """A zero-width space is a sentence of the corpus but has no tokens."""
    (tmp_path / "text.txt").write_text("Abc de.\n\n\u200b\n\n" * 10)
    found = sentences.prepare([str(tmp_path / "text.txt")], folder=tmp_path / "data", **SETTINGS | {"min_length": 0})
    assert found.facts["dropped"] == 10
    assert sum(split["sentences"] for split in found.facts["splits"].values()) == 10
