"""Records as a TFDS data set of any size, written without side effects on the process or the temporary folder."""

import shutil

import numpy as np
import tensorflow_datasets as tfds
from prepared_text import SETTINGS, by_loop, listed
from tensorflow_datasets.core import shuffle
from tensorflow_datasets.core.utils import tqdm_utils

from tiejax.text import sentences, tokenizer
from tiejax.text.array_records import SPLITS


def test_records_can_be_read_by_tfds(text, tmp_path):
    found = sentences.prepare([str(text)], folder=tmp_path / "data", **SETTINGS)
    (info,) = found.folder.rglob("dataset_info.json")
    builder = tfds.builder_from_directory(info.parent)
    for name in SPLITS:
        assert [example["ids"].tolist() for example in builder.as_data_source(name)] == listed(found.split(name))


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


def test_splits_above_the_buffer_size_of_tfds(text, tmp_path, monkeypatch):
    expected = sentences.prepare([str(text)], folder=tmp_path / "data", **SETTINGS)
    monkeypatch.setattr(shuffle, "MAX_MEM_BUFFER_SIZE", 100)
    shutil.rmtree(expected.folder)
    found = sentences.prepare([str(text)], folder=tmp_path / "data", **SETTINGS)
    assert listed(found.split("train")) == by_loop(text, found, 12, 6)[0][: len(found.split("train").offsets) - 1]
    assert shuffle.MAX_MEM_BUFFER_SIZE == 100


def test_progress_bars_are_off_while_writing_only(text, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(tqdm_utils, "_active", True)
    sentences.prepare([str(text)], folder=tmp_path / "data", **SETTINGS)
    assert capfd.readouterr() == ("", "")
    assert tqdm_utils._active
