"""Cuts of texts into three streams."""

import gzip

import pytest

from tiejax.text import sentences, splits
from tiejax.text.errors import CorpusError


@pytest.mark.parametrize(
    ("texts", "ends", "expected"),
    [
        (["abcdefgh", "ij"], [8, 9, 10], [("train", "abcdefgh", True), ("validation", "ij", True)]),
        (["ab cd ef gh"], [3, 6, 11], [("train", "ab cd", True), ("validation", " ef", False), ("test", " gh", False)]),
        (["a b"], [1, 1, 3], [("train", "a", True), ("test", " b", False)]),
        (["ab", "c d"], [2, 3, 5], [("train", "ab", True), ("validation", "c", True), ("test", " d", False)]),
    ],
)
def test_cuts_of_texts(texts, ends, expected):
    assert list(splits.cut(texts, ends)) == expected


@pytest.mark.parametrize(
    "names",
    [
        ["train/a.txt", "valid/a.txt", "test/a.txt"],
        ["train-00000.txt", "train-00001.txt.gz", "test-00000.txt"],
        ["wiki_train.txt", "wiki_dev.txt"],
        ["train_data.txt", "test_data.txt"],
    ],
)
def test_folders_that_are_split_in_another_way_are_refused(tmp_path, names):
    for name in names:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("some words\n")
    with pytest.raises(CorpusError, match="which would be joined and split again; name them with corpus, validation and test"):
        splits.split_names([str(tmp_path)], [], [])
    with pytest.raises(CorpusError, match=r"which would be joined and split again; name the texts to be split 70/10/20"):
        sentences.prepare([str(tmp_path)], 8, 3, tokenizer=None, vocab_size=100, folder=tmp_path / "data")


@pytest.mark.parametrize(
    "names", [["train.txt", "novel.txt"], ["a_test_of_time.txt", "the_train_home.txt"], ["trains.txt", "test.txt"]]
)
def test_other_folders_are_one_text(tmp_path, names):
    for name in names:
        (tmp_path / name).write_text("some words\n")
    assert splits.split_names([str(tmp_path)], [], []) == {"corpus": [str(tmp_path)], "validation": [], "test": []}


def open_texts(**names):
    return splits.open_texts({field: list(map(str, one)) for field, one in names.items()}, None, None, print, lambda *of: None)


def test_held_out_text_that_is_also_trained_on_is_refused(tmp_path):
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.txt").write_text("some words\n")
    a, b, c = (tmp_path / f"{name}.txt" for name in "abc")
    with pytest.raises(CorpusError, match=rf"^validation {b}: is part of the corpus, for training, as well; name"):
        open_texts(corpus=[tmp_path], validation=[b], test=[c])
    (tmp_path / "link.txt").symlink_to(c)
    with pytest.raises(CorpusError, match=rf"^test {tmp_path}/link.txt: is part of the corpus, for training, as well"):
        open_texts(corpus=[a, c], validation=[b], test=[tmp_path / "link.txt"])
    assert open_texts(corpus=[a], validation=[b], test=[b]).size == 33  # whoever has no other text judges by the same twice
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"some words\n"))
    with pytest.raises(CorpusError, match=rf"^corpus {a}.gz: is the same text as {a}; name every text once"):
        open_texts(corpus=[tmp_path / "a.txt", tmp_path / "a.txt.gz"])
