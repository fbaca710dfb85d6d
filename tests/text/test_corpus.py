"""Corpora: their documents, fingerprints and sentences."""

import gzip
import json
import random
import re

import pytest
from corpora import NEEDS_TFDS, NOVELS, documents, python, without_tfds, write
from hypothesis import given, settings
from hypothesis import strategies as st

from tiejax.text import corpus
from tiejax.text.errors import CorpusError

# Sentences.


def test_sentences_of_a_page():
    page = (
        "CHAPTER I\r\n\r\nMr. Bennet was among\r\nthe   earliest of those who\r\nwaited. "
        "He\thad always intended to\r\nvisit him.\r\n"
        ' \t\r\n"You do not know what I suffer," said she. "Ah!" he cried; "no?"\r\n\r\n\r\n'
    )
    assert corpus.sentences(page) == [
        "CHAPTER I",
        "Mr. Bennet was among the earliest of those who waited.",
        "He had always intended to visit him.",
        '"You do not know what I suffer," said she.',
        '"Ah!" he cried; "no?"',
    ]
    assert corpus.sentences(" \n\n\t\n") == corpus.sentences("") == []


@given(st.text(alphabet=" \n\r\t.!?\"'abcMrUS1,\u00e9\u201c\u3042", max_size=60))
@settings(max_examples=200, deadline=None)
def test_sentences_contain_every_word(text):
    found = corpus.sentences(text)
    assert "".join("".join(found).split()) == "".join(text.split())
    assert all(sentence and sentence == " ".join(sentence.split()) for sentence in found)


def test_long_lines_without_spaces_are_cut_without_loss():
    """Without the cut this would take minutes: the time of nupunkt grows with the square of the length of the line."""
    letters = "".join(random.Random(0).choices("abcdefghij.,?!", k=2_000_000))
    found = corpus.sentences(f"One. Two.\n\n{letters}\n\nThree.")
    assert "".join(found).replace(" ", "") == f"One.Two.{letters}Three."
    assert max(len(word) for sentence in found for word in sentence.split()) <= 10_000
    assert corpus.sentences("a" * 10_000) == ["a" * 10_000]


@pytest.mark.skipif(not NOVELS.is_dir(), reason="shared/data/gutenberg-fiction is missing")
def test_sentences_of_a_novel():
    """Against an estimate for Alice: the number of full stops, exclamation and question marks before a capital letter."""
    (text,) = documents([str(NOVELS / "carroll_alice-in-wonderland.txt")])
    found = corpus.sentences(text)
    assert "".join("".join(found).split()) == "".join(text.split())
    paragraphs = [" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", text) if paragraph.strip()]
    ends = sum(
        1 + len(re.findall(r"[.!?][\"'\u2019\u201d_)]*\s+[\"'\u2018\u201c_(]*[A-Z]", paragraph)) for paragraph in paragraphs
    )
    assert 0.8 * ends < len(found) < 1.2 * ends


# Sources.


def test_text_feature_without_a_data_set():
    with pytest.raises(CorpusError, match=r"^text_feature body: only a corpus tfds:NAME has features; remove the setting$"):
        list(documents([], text_feature="body"))


def test_data_sets_without_their_extra(monkeypatch):
    without_tfds(monkeypatch)
    with pytest.raises(CorpusError, match=f"^corpus tfds:imdb: {re.escape(NEEDS_TFDS)}$"):
        list(documents(["tfds:imdb"]))


def test_fingerprint_depends_on_contents_and_order_but_not_names(tmp_path):
    write(tmp_path, {"a": "One.", "b": "Two.", "c": "One.", "ab": "One.Two.", "empty": ""})
    kind = corpus.sources([str(tmp_path / "a")])[0].kind
    write(tmp_path, {"as two": f"One.{kind}Two."})

    def of(*names):
        return corpus.fingerprint(corpus.sources([str(tmp_path / name) for name in names]))

    assert of("a", "b") == of("c", "b")
    assert len({of("a", "b"), of("b", "a"), of("ab"), of("as two"), of("a"), of("a", "b", "empty"), of("a", "a")}) == 7


def test_progress_ends_at_the_bytes_on_disk(tmp_path):
    write(tmp_path, {"a.txt": "One.", "b.txt": "", "c.txt.gz": gzip.compress(b"Three.")})
    found = corpus.sources([str(tmp_path)])
    size = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert sum(source.size for source in found) == size
    for pass_over in (lambda seen: list(corpus.read(found, seen)), lambda seen: corpus.fingerprint(found, seen)):
        reports: list[int] = []
        pass_over(reports.append)
        assert reports == sorted(reports)
        assert reports[-1] == size


@pytest.mark.slow
def test_default_corpus_is_prose_and_needs_no_network():
    ended = python(
        """
        import hashlib, json, socket, sys
        from tiejax.text import corpus
        def refuse(*_): raise AssertionError("the network was used")
        socket.socket.connect = socket.getaddrinfo = refuse
        texts = list(corpus.read(corpus.sources([])))
        assert texts == list(corpus.read(corpus.sources([])))
        print(json.dumps({"texts": texts, "modules": [name.partition(".")[0] for name in sys.modules]}))
        """
    )
    assert ended.err == ""
    assert ended.status == 0
    found = json.loads(ended.out)
    assert not {"tensorflow", "tensorflow_datasets", "jax"} & set(found["modules"])
    text = "\n\n".join(found["texts"])
    paragraphs = text.split("\n\n")
    assert len(text) > 500_000
    assert len(set(paragraphs)) == len(paragraphs)
    assert ">>>" not in text
    # From the docstring of a module, and from a topic.
    assert "Remove any common leading whitespace from every line in `text`." not in text, "markup is left"
    assert "Remove any common leading whitespace from every line in text." in text
    assert 'Assignments to "__debug__" are illegal.' in text
