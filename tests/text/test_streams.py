"""Streams: every character of a corpus once, in its stream, however the corpus is split or cut."""

import collections
import dataclasses
import gzip
import json
import random
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from corpora import SHARED

from tiejax.text import streams
from tiejax.text import tokenizer as tokenization
from tiejax.text.errors import CorpusError
from tiejax.text.sequences import SPLITS

WIKITEXT, GPT2 = SHARED / "wikitext-2", SHARED / "gpt2"
END = "<|endoftext|>"


def sentence_of(generator: random.Random) -> str:
    return " " + " ".join("".join(generator.choices("abcé", k=generator.randint(1, 5))) for _ in range(9)) + ". \n"


def text_of(seed: int, lines: int) -> str:
    generator = random.Random(seed)
    return "".join(sentence_of(generator) if generator.random() < 0.8 else " \n" for _ in range(lines))


@pytest.fixture
def split_corpus(tmp_path) -> Path:
    """A folder like that of WikiText-2: three streams, and a note that belongs to none."""
    folder = tmp_path / "split"
    folder.mkdir()
    (folder / "train.txt.gz").write_bytes(gzip.compress(text_of(0, 400).encode()))
    (folder / "valid.txt").write_text(text_of(1, 40))
    (folder / "test.txt").write_text(text_of(2, 50))
    (folder / "NOTE.txt").write_text("Zzz zzz.")
    return folder


def prepare(corpus, folder: Path, validation=(), test=(), tokenizer=None, vocab_size=300, **more) -> streams.Streams:
    asked = {"tokenizer": tokenizer, "vocab_size": vocab_size, "folder": folder}
    return streams.prepare(list(map(str, corpus)), list(validation), list(test), **asked, **more)


def decoded(found: streams.Streams, split: str) -> list[str]:
    """The documents of a stream, decoded by the tokenizers library."""
    model = tokenizers.Tokenizer.from_file(str(found.tokenizer_file))
    ids = found.split(split)
    ends = np.flatnonzero(ids == model.token_to_id(END))
    return [model.decode(part.tolist()) for part in np.split(ids, ends)]  # the end of text is skipped as a special token


def words_of_wikitext(text: str) -> int:
    return len(text.replace("\n", " <eos> ").split())


def test_folder_with_a_file_per_stream(split_corpus, tmp_path):
    found = prepare([split_corpus], tmp_path / "data")
    texts = dict(zip(SPLITS, (text_of(0, 400), text_of(1, 40), text_of(2, 50)), strict=True))
    for name, text in texts.items():
        assert decoded(found, name) == [text]
        counts = {"documents": 1, "tokens": len(found.split(name)), "words": words_of_wikitext(text), "characters": len(text)}
        assert found.facts["splits"][name] == counts
        assert found.split(name).dtype == np.uint16
    assert found.facts["validation"] == [str(split_corpus / "valid.txt")]
    assert (found.vocabulary, found.begin, found.facts["documents"]) == (300, 0, 3)
    assert json.loads(json.dumps(found.facts)) == found.facts
    # The same set if the files are named one by one, and under other names.
    moved = split_corpus.rename(tmp_path / "moved")
    for file, name in (("valid.txt", "dev.md"), ("test.txt", "test.text")):
        (moved / file).rename(moved / name)
    messages: list[str] = []
    one_by_one = prepare(
        [moved / "train.txt.gz"], tmp_path / "data", [str(moved / "dev.md")], [str(moved / "test.text")], say=messages.append
    )
    assert one_by_one.fingerprint == prepare([moved], tmp_path / "data", say=messages.append).fingerprint == found.fingerprint
    assert messages == []
    # The same set under the names of the published archives of WikiText.
    names = {"train.txt.gz": "wiki.train.tokens.gz", "dev.md": "wiki.valid.tokens", "test.text": "wiki.test.raw"}
    for file, name in names.items():
        (moved / file).rename(moved / name)
    assert prepare([moved], tmp_path / "data").fingerprint == found.fingerprint
    for file, name in names.items():
        (moved / name).rename(moved / file)
    (moved / "dev.md").rename(moved / "val.txt")
    assert prepare([moved], tmp_path / "data").fingerprint == found.fingerprint
    (moved / "val.txt").rename(moved / "dev.md")
    # Two files for a stream are ambiguous; with files of one name for two of the three splits, the third is missing.
    (moved / "valid.txt").write_text("More.")
    with pytest.raises(CorpusError, match=r"^corpus .*: contains dev\.md and valid\.txt, but only one can be the validation"):
        prepare([moved], tmp_path / "data")
    (moved / "valid.txt").unlink()
    (moved / "dev.md").unlink()
    words = r"^corpus .*: contains train\.txt\.gz and test\.text, but no validation file; name three files with "
    with pytest.raises(CorpusError, match=words):
        prepare([moved], tmp_path / "data")
    (moved / "test.text").rename(moved / "the.test.txt")  # of another name than the other file: perhaps a corpus of texts
    with pytest.raises(CorpusError, match=r"contains the\.test\.txt and train\.txt\.gz, which would be joined"):
        prepare([moved], tmp_path / "data")
    assert prepare([*moved.iterdir()], tmp_path / "data").facts["ends"] == [8, 9, 10]


def test_corpus_is_cut_between_words_without_loss(tmp_path):
    texts = [text_of(seed, lines) for seed, lines in enumerate((30, 3, 200, 1, 2, 20))]
    for index, text in enumerate(texts):
        (tmp_path / f"{index}.txt").write_text(text)
    found = prepare([tmp_path / f"{index}.txt" for index in range(6)], tmp_path / "data")
    # By hand: cut the joined text at the first white space at or after the end of a stream.
    joined = "".join(texts)
    begins = set(np.cumsum([0, *map(len, texts)]).tolist())
    places = sorted({match.start() for match in re.finditer(r"\s", joined)} | begins)
    ends = [next(place for place in places if place >= len(joined) * tenths // 10) for tenths in (8, 9)]
    for name, start, end in zip(SPLITS, (0, *ends), (*ends, len(joined)), strict=True):
        inner = sorted(place for place in begins if start < place < end)
        expected = [joined[a:b] for a, b in zip([start, *inner], [*inner, end], strict=True)]
        assert decoded(found, name) == expected
        assert found.facts["splits"][name]["documents"] == len(expected)
    assert found.facts["documents"] == len([text for text in texts if text.strip()])
    assert sum(counts["words"] for counts in found.facts["splits"].values()) == sum(map(words_of_wikitext, texts))


def test_tokenizer_is_trained_on_the_training_stream_alone(split_corpus, tmp_path):
    """Frequent words of the other streams, or of the last fifth of a corpus, do not become tokens."""
    train, other = " abab cdcd" * 200, " zqzq xkxk" * 50
    (tmp_path / "one.txt").write_text(train + other)
    (tmp_path / "train.txt").write_text(train)
    (tmp_path / "other.txt").write_text(other)
    cut = prepare([tmp_path / "one.txt"], tmp_path / "data", vocab_size=270)
    given = prepare(
        [tmp_path / "train.txt"],
        tmp_path / "data",
        [str(tmp_path / "other.txt")],
        [str(tmp_path / "other.txt")],
        vocab_size=270,
    )
    for found in (cut, given):
        tokens = json.loads(found.tokenizer_file.read_text())["model"]["vocab"]
        longer = {token for token in tokens if len(token) > 1 and token != END}
        assert {"abab", "cd"} <= {token.lstrip("Ġ") for token in longer}
        assert not {letter for token in longer for letter in token} & set("zqxk")
    # Trained once per training stream and size; the prepared streams differ.
    again = prepare(
        [tmp_path / "train.txt"], tmp_path / "data", [str(tmp_path / "one.txt")], [str(tmp_path / "other.txt")], vocab_size=270
    )
    assert len(list((tmp_path / "data").glob("tokenizer-*.json"))) == 2
    assert again.tokenizer_file.read_bytes() == given.tokenizer_file.read_bytes()
    assert again.fingerprint != given.fingerprint


def test_progress_is_monotonic_and_complete(split_corpus, tmp_path):
    whole, cut = collections.defaultdict(list), collections.defaultdict(list)
    prepare([split_corpus], tmp_path / "data", progress=lambda phase, *done: whole[phase].append(done))
    text = [split_corpus / "valid.txt", split_corpus / "test.txt"]
    prepare(text, tmp_path / "data", progress=lambda phase, *done: cut[phase].append(done))
    assert list(whole) == ["reading", "training the tokenizer", "tokenising", "writing"]
    assert list(cut) == ["reading", "counting the characters", "training the tokenizer", "tokenising", "writing"]
    for steps in (*whole.values(), *cut.values()):
        assert steps == sorted(steps)
        assert steps[-1][0] == steps[-1][1]


def test_special_tokens_in_a_text_are_text(tmp_path):
    (tmp_path / "text.txt").write_text(f"ab {END}{END} cd\r\n\t" * 40)
    found = prepare([tmp_path / "text.txt"], tmp_path / "data")
    assert "".join("".join(decoded(found, name)) for name in SPLITS) == f"ab {END}{END} cd\r\n\t" * 40
    assert not any(np.any(found.split(name) == found.begin) for name in SPLITS)


def test_damage_and_changed_text(split_corpus, tmp_path):
    def progress(phase: str, *_: object) -> None:
        if phase == "tokenising":
            (split_corpus / "valid.txt").write_text(text_of(3, 40))

    with pytest.raises(CorpusError, match=r"^validation: changed while it was being read"):
        prepare([split_corpus], tmp_path / "data", progress=progress)
    assert not list((tmp_path / "data").glob("streams-*"))
    found = prepare([split_corpus], tmp_path / "data")
    file = found.folder / "test.ids.npy"
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(CorpusError, match=f"^data_dir .*{file.name}.* is damaged; remove the folder {found.folder}"):
        prepare([split_corpus], tmp_path / "data")
    shutil.rmtree(found.folder)
    assert prepare([split_corpus], tmp_path / "data").fingerprint == found.fingerprint


def test_errors_name_the_setting(split_corpus, tmp_path):
    def refused(words: str, corpus=(split_corpus / "train.txt.gz",), **more):
        with pytest.raises(CorpusError) as error:
            prepare(corpus, tmp_path / "data", **more)
        assert str(error.value).startswith(words)
        assert len(str(error.value).splitlines()) == 1
        assert not list((tmp_path / "data").glob("streams-*"))

    there, empty = str(split_corpus / "test.txt"), str(tmp_path / "empty.txt")
    Path(empty).write_text(" \n")
    (tmp_path / "few.txt").write_text("abc def")
    (tmp_path / "vocab.txt").write_text("[UNK]\na\n")
    refused("test: required, since validation is given", validation=[there])
    refused("validation: required, since test is given", test=[there])
    refused(f"validation {tmp_path}/no.txt: not found", validation=[f"{tmp_path}/no.txt"], test=[there])
    refused(f"test {empty}: contains no text", validation=[there], test=[empty])
    refused(f"corpus {empty}: contains no text", [empty])
    refused("corpus: 7 characters have too few words: the validation stream would have none", [tmp_path / "few.txt"])
    refused("text_feature body: only a corpus tfds:NAME has features", text_feature="body")
    refused("vocab_size 256: expected at least 257", vocab_size=256)
    refused("tokenizer: the vocabulary has no end-of-text token", tokenizer=str(tmp_path / "vocab.txt"))


@pytest.mark.slow
@pytest.mark.skipif(not (WIKITEXT.is_dir() and GPT2.is_dir()), reason="shared/data/wikitext-2 or gpt2 is missing")
def test_wikitext_2_with_the_tokens_of_gpt2(tmp_path):
    """Against the number of words given by the authors of WikiText, and the tokens of the whole text encoded at once."""
    few, other = (str(tmp_path / f"{name}.txt") for name in ("few", "other"))
    for name in (few, other):
        Path(name).write_text("Any words.")
    found = prepare([few], tmp_path / "data", [other], [str(WIKITEXT / "test.txt")], tokenizer=str(GPT2))
    assert found.facts["splits"]["test"]["words"] == 245_569
    assert (found.vocabulary, found.begin) == (50_257, 50_256)
    whole = tokenization.load(str(GPT2)).encode((WIKITEXT / "test.txt").read_text("utf-8"))
    assert found.split("test").tolist() == whole.ids


def test_bytes_of_tokens_are_those_of_their_text(split_corpus, tmp_path):
    """Byte-level tokens: also of a slice that begins within a character; the end of text has none. Others are decoded."""
    found = prepare([split_corpus], tmp_path / "prepared")
    ids = found.split("validation")
    text = (split_corpus / "valid.txt").read_text()
    assert found.bytes_of(ids) == len(text.encode())
    assert found.bytes_of(ids[:7]) + found.bytes_of(ids[7:]) == len(text.encode())
    assert found.bytes_of(np.append(ids, found.begin)) == len(text.encode())
    # Where the end of a text is a token of the vocabulary alone, it has no bytes either.
    content = json.loads(found.tokenizer.to_str()) | {"added_tokens": []}
    plain = dataclasses.replace(found, tokenizer=tokenizers.Tokenizer.from_str(json.dumps(content)))
    assert plain.bytes_of(np.append(ids, found.begin)) == len(text.encode())
    found.tokenizer.add_tokens([tokenizers.AddedToken("  é", special=False)])
    more = dataclasses.replace(found, tokenizer=found.tokenizer)
    assert more.bytes_of(np.array([more.vocabulary - 1, found.begin])) == len("  é".encode())
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"é": 0, "ab": 1, "?": 2}, unk_token="?"))
    assert dataclasses.replace(found, tokenizer=words).bytes_of(np.array([[0, 1], [1, 1]])) == len("é ab".encode()) + len(
        "ab ab"
    )
