"""TFDS data sets: splits, choice of features, unknown names, and preparation without TensorFlow."""

import hashlib
import importlib.util
import tempfile
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import tensorflow_datasets as tfds
from corpora import ROOT, closed_port, documents, python, refused, serving, write
from prepared_text import listed
from processes import Ended
from tensorflow_datasets.core.utils import temporary_assignment, tqdm_utils

from tiejax.text import corpus, sentences, tokenizer
from tiejax.text.sequences import SPLITS
from tiejax.transfer import labelled_data_set


class LocalInfo(tfds.core.DatasetInfo):
    """Metadata of a data set that exists only on this machine."""

    def initialize_from_bucket(self):
        """Skip the look-up of published metadata, which leaves an empty temporary folder behind."""


class Fables(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """Two splits, not in alphabetical order, with a nested text feature and a feature that is not text."""

    VERSION = tfds.core.Version("1.0.0")
    name = "fables"
    texts: ClassVar[dict[str, list[str]]] = {"train": ["One.", "Two, café."], "test": ["Three."]}
    features: ClassVar[dict[str, object]] = {"story": {"body": tfds.features.Text(), "words": tfds.features.Scalar(np.int64)}}

    def _info(self):
        return LocalInfo(builder=self, features=tfds.features.FeaturesDict(self.features), disable_shuffling=True)

    def _split_generators(self, dl_manager):
        return {split: self._generate_examples(split) for split in self.texts}

    def _generate_examples(self, split):
        for index, text in enumerate(self.texts[split]):
            yield index, self.example(text)

    def example(self, text):
        return {"story": {"body": text, "words": len(text.split())}}

    def _log_download_bytes(self):
        pass

    _log_download_done = _log_download_bytes


class Titled(Fables):
    name = "titled"
    features: ClassVar[dict[str, object]] = {"title": tfds.features.Text(), "body": tfds.features.Text()}

    def example(self, text):
        return {"title": "A title.", "body": text}


class Numbers(Fables):
    name = "numbers"
    features: ClassVar[dict[str, object]] = {
        "number": tfds.features.Scalar(np.int64),
        "label": tfds.features.ClassLabel(num_classes=2),
    }

    def example(self, text):
        return {"number": 1, "label": 0}


class Labelled(Fables):
    name = "labelled"
    features: ClassVar[dict[str, object]] = {
        "text": tfds.features.Text(),
        "label": tfds.features.ClassLabel(names=["short", "long"]),
    }

    texts: ClassVar[dict[str, list[str]]] = {
        "train": ["One.", "?", "Two, café."],
        "test": ["Three.", "?"],
        "unlabelled": ["?", "?"],
    }

    def example(self, text):
        return {"text": text, "label": -1 if text == "?" else int(len(text) > 5)}


def prepared(builder: type[Fables], folder: Path) -> Path:
    data_set = builder(data_dir=folder, file_format="array_record")
    with temporary_assignment(tqdm_utils, "_active", False):
        data_set.download_and_prepare(file_format="array_record")
    return Path(data_set.data_dir)


@pytest.fixture(autouse=True)
def no_temporary_folders(tmp_path_factory, monkeypatch):
    """Assert that a test leaves nothing in the temporary folder, where TFDS creates one for every new builder."""
    folder = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield
    assert list(folder.iterdir()) == []


def test_labelled_sentences(tmp_path):
    """Rows without a label are dropped, and a split that has no other rows."""
    prepared(Labelled, tmp_path)
    found = labelled_data_set.read_splits("tfds:labelled", "text", "label", str(tmp_path))
    named = {split: [(row.text, row.labels) for row in rows] for split, rows in found.items()}
    assert named == {"train": [("One.", ("short",)), ("Two, café.", ("long",))], "test": [("Three.", ("long",))]}


def test_documents_of_every_split(tmp_path):
    prepared(Fables, tmp_path)
    expected = [
        text for split in tfds.builder_from_directory(tmp_path / "fables" / "1.0.0").info.splits for text in Fables.texts[split]
    ]
    assert sorted(expected) == ["One.", "Three.", "Two, café."]
    assert list(documents(["tfds:fables"], tfds_dir=str(tmp_path))) == expected
    assert list(documents(["tfds:fables"], "story/body", str(tmp_path))) == expected
    found = corpus.sources(["tfds:fables"], tfds_dir=str(tmp_path))
    assert corpus.fingerprint(found) == corpus.fingerprint(corpus.sources(["tfds:fables"], tfds_dir=str(tmp_path)))


class Verses(Fables):
    """Ten examples, some with several lines or sentences, one empty."""

    name = "verses"
    texts: ClassVar[dict[str, list[str]]] = {"train": ["One\ntwo. Three.", "", *(f"{word} one." for word in "abcdefgh")]}


def test_every_example_is_a_row(tmp_path):
    prepared(Verses, tmp_path)
    asked = {"vocab_size": 60, "max_length": 32, "min_length": 2, "rows_are_sentences": True}
    found = sentences.prepare(["tfds:verses"], tokenizer=None, folder=tmp_path / "data", tfds_dir=str(tmp_path), **asked)
    model = tokenizer.load(str(found.tokenizer_file))
    rows = [ids for split in SPLITS for ids in listed(found.split(split))]
    assert rows == [model.encode(text).ids for text in Verses.texts["train"]]
    assert [found.facts["splits"][split]["sentences"] for split in SPLITS] == [7, 1, 2]


def test_choice_of_the_text_feature(tmp_path):
    prepared(Titled, tmp_path)
    prepared(Numbers, tmp_path)
    there = {"tfds_dir": str(tmp_path)}
    refused(["tfds:titled"], "text_feature: required, since tfds:titled has the text features body, title", **there)
    refused(
        ["tfds:titled"],
        "text_feature text: unknown; tfds:titled has the text features body, title",
        text_feature="text",
        **there,
    )
    refused(["tfds:numbers"], "tfds:numbers: has no text feature; its features are label, number", **there)
    assert set(documents(["tfds:titled"], "title", str(tmp_path))) == {"A title."}
    body, title = (corpus.fingerprint(corpus.sources(["tfds:titled"], feature, str(tmp_path))) for feature in ("body", "title"))
    assert body != title


def test_unknown_names_suggest_the_nearest(tmp_path):
    there = {"tfds_dir": str(tmp_path)}
    refused(["tfds:imdb_review"], "tfds:imdb_review: unknown TFDS data set; did you mean 'imdb_reviews'?", **there)
    refused(["tfds:imdb_reviews/plain"], "imdb_reviews has no configuration 'plain'; did you mean 'plain_text'?", **there)
    prepared(Fables, tmp_path)
    refused(["tfds:fable"], "did you mean 'fables'?", **there)
    refused(["tfds:fables/long"], "tfds:fables/long: only prepared as fables/1.0.0", **there)


def test_damaged_data_set(tmp_path):
    (shard,) = prepared(Fables, tmp_path).glob("*-test.*")
    shard.write_bytes(shard.read_bytes()[:100])
    refused(["tfds:fables"], "corpus tfds:fables: split test cannot be read", tfds_dir=str(tmp_path))


def test_data_set_in_another_format(tmp_path):
    info = prepared(Fables, tmp_path) / "dataset_info.json"
    info.write_text(info.read_text().replace('"array_record"', '"tfrecord"'))
    refused(["tfds:fables"], "as tfrecord, which only TensorFlow can read", tfds_dir=str(tmp_path))


DOWNLOADED = """
import tensorflow_datasets as tfds

class Downloaded(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict({"text": tfds.features.Text()}))

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples(dl_manager.download("URL"))}

    def _generate_examples(self, path):
        NEEDED
        yield 0, {"text": path.read_text()}
"""
READ = """
    import sys, time
    import downloaded
    from tiejax.text import corpus
    from tiejax.text.errors import CorpusError
    begun = time.monotonic()
    try:
        print([*corpus.read(corpus.sources(["tfds:downloaded"], tfds_dir=sys.argv[1], say=print))])
    except CorpusError as error:
        print(error)
    assert time.monotonic() - begun < 5
    assert "tensorflow" not in sys.modules
"""


def catalogue(folder: Path, host: str, needed: str = "") -> dict[str, str]:
    """Write a data set of the catalogue that is downloaded from `host`; return the environment in which TFDS finds it."""
    url, content = f"{host}/prose.txt", b"One is here."
    checksum = f"{url}\t{len(content)}\t{hashlib.sha256(content).hexdigest()}\tprose.txt\n"
    code = DOWNLOADED.replace("URL", url).replace("NEEDED", needed)
    write(folder, {"site/prose.txt": content, "code/downloaded.py": code, "code/checksums.tsv": checksum})
    return {"PYTHONPATH": f"{folder / 'code'}:{ROOT}"}


@pytest.mark.slow
def test_download_and_preparation_without_tensorflow_or_temporary_files(tmp_path):
    (temporary := tmp_path / "temporary").mkdir()
    with serving(tmp_path / "site") as host:
        ended = python(READ, tmp_path / "data", env=catalogue(tmp_path, host) | {"TMPDIR": str(temporary)})
    message = f"downloading downloaded from {host.split('/')[2]} and preparing it in {tmp_path / 'data'}"
    assert ended == Ended(0, f"{message}\n['One is here.']\n", "")
    assert list(temporary.iterdir()) == []
    # Now from disk: the server has stopped.
    again = python(READ, tmp_path / "data", env={"PYTHONPATH": str(tmp_path / "code") + f":{ROOT}"})
    assert again == Ended(0, "['One is here.']\n", "")


def test_host_that_does_not_answer(tmp_path):
    host = f"127.0.0.1:{closed_port()}"
    ended = python(READ, tmp_path, env=catalogue(tmp_path, f"http://{host}"))
    assert ended.out == (
        f"corpus tfds:downloaded: not prepared in {tmp_path} yet, and {host} does not answer; check the network\n"
    )
    assert ended.status == 0
    assert ended.err == ""


def test_data_set_that_needs_tensorflow(tmp_path):
    if importlib.util.find_spec("tensorflow"):
        pytest.skip("TensorFlow is installed")
    with serving(tmp_path / "site") as host:
        needed = "from tensorflow_datasets.core.utils.lazy_imports_utils import tensorflow as tf; tf.io"
        ended = python(
            READ.replace("print))])", "lambda _: None))])"), tmp_path / "data", env=catalogue(tmp_path, host, needed)
        )
    assert ended == Ended(0, "corpus tfds:downloaded: preparing it needs TensorFlow, which is not installed\n", "")
