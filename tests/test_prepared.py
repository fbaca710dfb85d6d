"""Prepared sets: the right tokens in the right splits, made once, whole or not at all, whatever happens on the way."""

import collections
import json
import random
import shutil
import signal
import subprocess
from pathlib import Path

import filelock
import numpy as np
import pytest
import tensorflow_datasets as tfds
from processes import end, start_python, tree
from tensorflow_datasets.core import shuffle

from tiejax.text import corpus, tokenizer
from tiejax.text import sentences as prepared
from tiejax.text.corpus import CorpusError

ROOT = Path(__file__).parents[1]
NOVEL = ROOT.parent / "shared" / "data" / "gutenberg-fiction" / "carroll_alice-in-wonderland.txt"
BERT = ROOT.parent / "shared" / "data" / "bert-base-uncased" / "vocab.txt"
SETTINGS = {"tokenizer": None, "vocab_size": 120, "max_length": 12, "min_length": 6}
# Prepares argv[1] in argv[2], as the tests below do, and does argv[3] whenever progress is told.
CHILD = """
import json, os, resource, signal, sys
from pathlib import Path
from tiejax.data import prepared

def progress(phase, done, total):
    exec(sys.argv[3])

def say(line):
    print(line, flush=True)

settings = dict(tokenizer=None, vocab_size=120, max_length=12, min_length=6)
try:
    found = prepared.prepare([sys.argv[1]], folder=Path(sys.argv[2]), say=say, progress=progress, **settings)
    print(found.folder, sum(found.split("test").ids.tolist()))
except prepared.CorpusError as error:
    print("refused:", error)
assert not {"tensorflow", "jax"} & {name.partition(".")[0] for name in sys.modules}
"""


def child(text: Path, folder: Path, on_progress: str = "pass") -> subprocess.Popen[str]:
    return start_python("-W", "error", "-c", CHILD, text, folder, on_progress, env={"PYTHONPATH": str(ROOT)})


@pytest.fixture
def text(tmp_path) -> Path:
    """Some 300 sentences of 1 to 20 made-up words, in paragraphs."""
    generator = random.Random(0)
    words = ["".join(generator.choices("abcdefghij", k=generator.randint(1, 7))) for _ in range(60)]
    sentences = [" ".join(generator.choices(words, k=generator.randint(1, 20))).capitalize() + "." for _ in range(300)]
    path = tmp_path / "text.txt"
    path.write_text("\n\n".join(" ".join(sentences[start : start + 5]) for start in range(0, 300, 5)))
    return path


def by_loop(text: Path, found: prepared.Prepared, max_length: int, min_length: int) -> tuple[list[list[int]], int, int]:
    """Every sentence by itself: its tokens, framed by the tokenizer's own template; how many are too short and cut."""
    model = tokenizer.load(str(found.tokenizer_file))
    kept, dropped, cut = [], 0, 0
    for document in corpus.documents([str(text)]):
        for sentence in corpus.sentences(document):
            tokens = model.encode(sentence).ids
            cut += len(tokens) > max_length
            if len(tokens) > max_length:
                tokens = [*tokens[: max_length - 1], found.vocabulary.sep]
            if len(tokens) < min_length:
                dropped += 1
            else:
                kept.append(tokens)
    return kept, dropped, cut


def listed(sentences: prepared.Sentences) -> list[list[int]]:
    pairs = zip(sentences.offsets[:-1], sentences.offsets[1:], strict=True)
    return [sentences.ids[start:end].tolist() for start, end in pairs]


@pytest.mark.parametrize(("max_length", "min_length"), [(12, 6), (128, 0), (5, 5)])
def test_every_sentence_is_in_its_split(text, tmp_path, max_length, min_length):
    asked = SETTINGS | {"max_length": max_length, "min_length": min_length}
    found = prepared.prepare([str(text)], folder=tmp_path / "data", **asked)
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
        sentences = found.split(name)
        assert listed(sentences) == part
        assert sentences.ids.dtype == np.uint16
        assert sentences.offsets.dtype == np.int64
        assert found.facts["splits"][name]["sentences"] == len(part)
        assert found.facts["splits"][name]["tokens"] == sum(map(len, part))
    assert (found.facts["dropped"], found.facts["cut"]) == (dropped, cut)
    assert found.facts["characters"] == len(text.read_text())
    assert found.facts["bytes"] == sum(
        p.stat().st_size for p in found.folder.rglob("*") if p.is_file() and p.name != "manifest.json"
    )
    assert json.loads(json.dumps(found.facts)) == found.facts


@pytest.mark.skipif(not (NOVEL.is_file() and BERT.is_file()), reason="the novels and vocabulary of shared/data are not here")
def test_a_novel_with_the_vocabulary_of_bert(tmp_path):
    settings = SETTINGS | {"tokenizer": str(BERT), "max_length": 128, "min_length": 4}
    found = prepared.prepare([str(NOVEL)], folder=tmp_path, **settings)
    expected, dropped, cut = by_loop(NOVEL, found, 128, 4)
    assert [ids for name in prepared.SPLITS for ids in listed(found.split(name))] == expected
    assert (found.facts["dropped"], found.facts["cut"], found.facts["vocabulary"]) == (dropped, cut, 30_522)
    # Read as words again, it is the novel, lower-cased.
    model = tokenizer.load(str(found.tokenizer_file))
    first = model.decode_batch(listed(found.split("train"))[:6])
    text = "".join("".join(first).split())
    assert "".join(NOVEL.read_text("utf-8").lower().split()).startswith(text)
    assert len(text) > 500


def test_it_is_a_tfds_data_set_as_any_other(text, tmp_path):
    found = prepared.prepare([str(text)], folder=tmp_path / "data", **SETTINGS)
    (info,) = found.folder.rglob("dataset_info.json")
    builder = tfds.builder_from_directory(info.parent)
    for name in prepared.SPLITS:
        assert [example["ids"].tolist() for example in builder.as_data_source(name)] == listed(found.split(name))


def test_ids_of_large_vocabularies_take_four_bytes(text, tmp_path):
    letters = "abcdefghij."
    tokens = [*tokenizer.SPECIAL, *(f"unused{number}" for number in range(2**16)), *letters, *(f"##{c}" for c in letters)]
    (tmp_path / "vocab.txt").write_text("\n".join(tokens))
    settings = SETTINGS | {"tokenizer": str(tmp_path / "vocab.txt")}
    found = prepared.prepare([str(text)], folder=tmp_path / "data", **settings)
    train = found.split("train")
    assert train.ids.dtype == np.int32
    assert train.ids.max() > 2**16
    assert listed(train) == by_loop(text, found, 12, 6)[0][: len(train.offsets) - 1]


def test_splits_above_the_memory_that_tfds_allows_itself(text, tmp_path, monkeypatch):
    expected = prepared.prepare([str(text)], folder=tmp_path / "data", **SETTINGS)
    monkeypatch.setattr(shuffle, "MAX_MEM_BUFFER_SIZE", 100)
    shutil.rmtree(expected.folder)
    found = prepared.prepare([str(text)], folder=tmp_path / "data", **SETTINGS)
    assert listed(found.split("train")) == by_loop(text, found, 12, 6)[0][: len(found.split("train").offsets) - 1]
    assert shuffle.MAX_MEM_BUFFER_SIZE == 100


# Once.


def test_what_is_prepared_is_found_again_under_any_name(text, tmp_path):
    said: list[str] = []
    first = prepared.prepare([str(text)], folder=tmp_path / "data", say=said.append, **SETTINGS)
    assert said == [f"preparing the text in {first.folder}"]
    before = tree(tmp_path / "data")
    renamed = text.rename(tmp_path / "renamed.md")
    again = prepared.prepare([str(renamed)], folder=tmp_path / "data", say=said.append, **SETTINGS)
    assert len(said) == 1
    assert tree(tmp_path / "data") == before
    assert (again.folder, again.fingerprint) == (first.folder, first.fingerprint)
    assert again.facts == first.facts | {"corpus": [str(renamed)]}


def test_what_a_set_depends_on(text, tmp_path):
    folder = tmp_path / "data"

    def fingerprint(**changed):
        return prepared.prepare([str(text)], folder=folder, **(SETTINGS | changed)).fingerprint

    found = [fingerprint(), fingerprint(max_length=13), fingerprint(min_length=7), fingerprint(vocab_size=130)]
    # The vocabulary is trained once for its size, whatever else changes.
    assert len(list(folder.glob("tokenizer-*.json"))) == 2
    (trained,) = folder.glob("tokenizer-*-120-*.json")
    assert fingerprint(tokenizer=str(trained)) == found[0]
    text.write_text(text.read_text() + " One sentence more is here, at the very end.")
    found.append(fingerprint())
    assert len(set(found)) == 5
    assert len(list(folder.glob("tokenizer-*.json"))) == 3


def test_progress_never_goes_back_and_reaches_its_end(text, tmp_path):
    told: dict[str, list[tuple[int, int | None]]] = collections.defaultdict(list)
    prepared.prepare([str(text)], folder=tmp_path / "data", progress=lambda phase, *done: told[phase].append(done), **SETTINGS)
    assert list(told) == ["reading", "training the tokenizer", "tokenising", "writing"]
    for phase, steps in told.items():
        assert steps == sorted(steps), phase
        assert steps[-1][0] == steps[-1][1], phase


# Processes.


def test_a_process_prints_nothing_of_its_own_and_needs_no_tensorflow(text, tmp_path):
    ended = end(child(text, tmp_path / "data"))
    assert ended.err == ""
    assert ended.status == 0
    found = prepared.prepare([str(text)], folder=tmp_path / "data", **SETTINGS)
    total = sum(found.split("test").ids.tolist())
    assert ended.out == f"preparing the text in {found.folder}\n{found.folder} {total}\n"


def test_a_second_process_waits_and_takes_what_the_first_prepared(text, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    waiting = f"another process prepares text in {folder}; waiting for it\n"
    with filelock.FileLock(folder / ".lock"):
        second = child(text, folder)
        assert second.stdout is not None
        assert second.stdout.readline() == waiting
        assert [path.name for path in folder.iterdir()] == [".lock"]
    out, err = second.communicate(timeout=60)
    assert (second.returncode, err) == (0, "")
    assert out.startswith("preparing the text in ")

    shutil.rmtree(folder)
    both = [child(text, folder) for _ in range(2)]
    outs = [end(process) for process in both]
    assert [ended.status for ended in outs] == [0, 0]
    assert sum("preparing the text in " in ended.out for ended in outs) == 1
    assert outs[0].out.splitlines()[-1] == outs[1].out.splitlines()[-1]
    assert len(list(folder.glob("sentences-*"))) == 1


@pytest.mark.parametrize("phase", ["reading", "training the tokenizer", "tokenising", "writing"])
def test_killed_on_the_way_it_is_prepared_anew(text, tmp_path, phase):
    folder = tmp_path / "data"
    # In the last split, where something is on disk.
    killed = end(child(text, folder, f"if phase == {phase!r} and done > total * .75: os.kill(os.getpid(), signal.SIGKILL)"))
    assert killed.status == -signal.SIGKILL
    assert not list(folder.glob("sentences-*"))
    assert bool(list(folder.glob("incomplete-*"))) == (phase in ("tokenising", "writing"))
    # Of a tokenizer, too, that was being stored.
    (folder / "incomplete-tokenizer-0-120-0.json").write_text("{")
    found = prepared.prepare([str(text)], folder=folder, **SETTINGS)
    assert not list(folder.glob("incomplete-*"))
    assert [ids for name in prepared.SPLITS for ids in listed(found.split(name))] == by_loop(text, found, 12, 6)[0]


def test_stopped_by_the_user_nothing_is_left(text, tmp_path):
    ended = end(child(text, tmp_path / "data", "if phase == 'writing': signal.raise_signal(signal.SIGINT)"))
    assert ended.status == -signal.SIGINT
    assert sorted(path.name.partition("-")[0] for path in (tmp_path / "data").iterdir()) == [".lock", "tokenizer"]


# Sizes at which the tokenizer, a record file, and the last of the record files (all of at least 64 KiB) no longer fit.
@pytest.mark.parametrize("limit", [1_000, 20_000, 70_000])
def test_where_the_disk_is_full_nothing_half_written_stays(text, tmp_path, limit):
    folder = tmp_path / "data"
    limited = f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))"
    ended = end(child(text, folder, limited))
    assert ended.err == ""
    assert ended.status == 0
    line = ended.out.splitlines()[-1]
    assert line.startswith(f"refused: --data_dir {folder}: ")
    assert "File too large" in line
    assert not list(folder.glob("sentences-*"))
    assert not list(folder.glob("incomplete-*"))
    found = prepared.prepare([str(text)], folder=folder, **SETTINGS)
    assert listed(found.split("train"))


def test_a_folder_that_cannot_be_made(text, tmp_path):
    with pytest.raises(CorpusError, match=f"^--data_dir {text}/data: Not a directory$"):
        prepared.prepare([str(text)], folder=text / "data", **SETTINGS)


# Damage.


def damages(path: Path) -> dict[str, bytes | None]:
    content = path.read_bytes()
    middle = len(content) // 2
    flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    return {"missing": None, "cut": content[:-1], "empty": b"", "flipped": flipped}


def test_every_damaged_file_is_named(text, tmp_path):
    found = prepared.prepare([str(text)], folder=tmp_path / "data", **SETTINGS)
    files = [path for path in sorted(found.folder.rglob("*")) if path.is_file()]
    assert len(files) == 7
    for path in files:
        whole = path.read_bytes()
        for kind, content in damages(path).items():
            path.unlink()
            if content is not None:
                path.write_bytes(content)
            with pytest.raises(CorpusError) as error:
                prepared.prepare([str(text)], folder=tmp_path / "data", **SETTINGS)
            line = str(error.value)
            assert len(line.splitlines()) == 1, kind
            assert line.startswith("--data_dir ")
            assert str(path.relative_to(found.folder)) in line, kind
            assert f"remove the folder {found.folder} to prepare it anew" in line
            path.write_bytes(whole)
    prepared.prepare([str(text)], folder=tmp_path / "data", **SETTINGS)


def test_a_manifest_of_another_set_is_no_manifest(text, tmp_path):
    sets = [
        prepared.prepare([str(text)], folder=tmp_path / "data", **SETTINGS | {"max_length": length}).folder
        for length in (12, 13)
    ]
    shutil.rmtree(sets[0])
    sets[1].rename(sets[0])
    with pytest.raises(CorpusError, match=r"manifest\.json in .* is damaged"):
        prepared.prepare([str(text)], folder=tmp_path / "data", **SETTINGS)


def test_a_damaged_trained_tokenizer_is_named(text, tmp_path):
    prepared.prepare([str(text)], folder=tmp_path / "data", **SETTINGS)
    (trained,) = (tmp_path / "data").glob("tokenizer-*.json")
    trained.write_text(trained.read_text().replace('"[MASK]"', '"[mask]"'))
    with pytest.raises(CorpusError, match=f"^--data_dir .*: {trained.name} is damaged; remove it"):
        prepared.prepare([str(text)], folder=tmp_path / "data", **SETTINGS)


# Text that cannot be used.


def test_text_that_cannot_be_used(text, tmp_path):
    def refused(content: str, words: str, **changed):
        path = tmp_path / "bad.txt"
        path.write_text(content)
        with pytest.raises(CorpusError) as error:
            prepared.prepare([str(path)], folder=tmp_path / "data", **(SETTINGS | changed))
        assert str(error.value).startswith(words)
        assert not list((tmp_path / "data").glob("sentences-*"))
        assert not list((tmp_path / "data").glob("incomplete-*"))

    refused("", f"--corpus {tmp_path}/bad.txt: there is no text in it")
    refused(
        "Ab cd.\n\nEf gh.", "--corpus: no sentence long enough: none of 2 has 30 tokens or more", min_length=30, max_length=40
    )
    refused("Abc de.\n\n" * 3, "--corpus: 3 sentences of 3 tokens or more are too few to be split 70/10/20", min_length=3)
    refused(text.read_text(), "--max_length 2: must be 3 at least", max_length=2)
    refused(text.read_text(), "--min_length 13: is above --max_length 12", min_length=13)
    refused(text.read_text(), "--vocab_size 8: the letters of this corpus", vocab_size=8)
    (tmp_path / "vocab.txt").write_text("[UNK]\na\n")
    refused(text.read_text(), "--tokenizer: its vocabulary has no [PAD], [CLS]", tokenizer=str(tmp_path / "vocab.txt"))
    (tmp_path / "bad.txt").write_text("Abc de fg.\n\n" * 4)
    few = prepared.prepare([str(tmp_path / "bad.txt")], folder=tmp_path / "data", **SETTINGS | {"min_length": 3})
    assert [len(few.split(name).offsets) - 1 for name in prepared.SPLITS] == [2, 1, 1]


def test_text_that_changes_while_it_is_read(text, tmp_path):
    def progress(phase: str, *_: object) -> None:
        if phase == "writing":
            pytest.fail("a text that has changed was taken")
        if phase == "tokenising":
            text.write_text(text.read_text() + " More.")

    with pytest.raises(CorpusError, match=r"^--corpus: changed while it was read"):
        prepared.prepare([str(text)], folder=tmp_path / "data", progress=progress, **SETTINGS)
    assert not list((tmp_path / "data").glob("sentences-*"))


def test_sentences_without_a_token_are_dropped(tmp_path):
    """A zero-width space is a word to the corpus and nothing to the tokenizer."""
    (tmp_path / "text.txt").write_text("Abc de.\n\n\u200b\n\n" * 10)
    found = prepared.prepare([str(tmp_path / "text.txt")], folder=tmp_path / "data", **SETTINGS | {"min_length": 0})
    assert found.facts["dropped"] == 10
    assert sum(split["sentences"] for split in found.facts["splits"].values()) == 10
