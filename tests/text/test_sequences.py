"""Sequences of tokens in files that numpy reads."""

import numpy as np
import pytest
from prepared_text import SETTINGS, by_loop, listed

from tiejax.text import sentences, sequences, tokenizer
from tiejax.text.sequences import SPLITS, Sequences


def test_files_can_be_read_by_numpy(text, tmp_path):
    found = sentences.prepare([str(text)], folder=tmp_path / "data", **SETTINGS)
    for name in SPLITS:
        ids, offsets = (np.load(found.folder / f"{name}.{field}.npy", mmap_mode="r") for field in ("ids", "offsets"))
        assert [part.tolist() for part in np.split(ids, offsets[1:-1])] == listed(found.split(name))


def test_ids_of_large_vocabularies_take_four_bytes(text, tmp_path):
    letters = "abcdefghij."
    tokens = [*tokenizer.SPECIAL, *(f"unused{number}" for number in range(2**16)), *letters, *(f"##{c}" for c in letters)]
    (tmp_path / "vocab.txt").write_text("\n".join(tokens))
    settings = SETTINGS | {"tokenizer": str(tmp_path / "vocab.txt")}
    found = sentences.prepare([str(text)], folder=tmp_path / "data", **settings)
    train = found.split("train")
    assert train.ids.dtype == np.int32
    assert train.ids.max() > 2**16
    assert listed(train) == by_loop(text, found, 12, 6)[0][: len(train.offsets) - 1]


def test_a_disk_that_does_not_return_what_was_written(tmp_path, monkeypatch):
    read = sequences.read_split
    monkeypatch.setattr(sequences, "read_split", lambda *where: read(*where)._replace(ids=np.array([1, 2, 4], np.uint16)))
    with pytest.raises(OSError, match=r"^split train: the data read back differ from the data written"):
        sequences.write(tmp_path, {"train": Sequences(np.array([1, 2, 3], np.uint16), np.array([0, 3]))}, sequences.ignore)
