"""Prepared sets on disk: built once and atomically, even if interrupted, and verified when opened."""

import collections
import hashlib
import importlib.metadata
import json
import shutil
import signal
from pathlib import Path

import filelock
import numpy as np
import pytest
from prepared_text import SETTINGS, by_loop, child, listed
from processes import end, tree

from tiejax.text import corpus, sentences
from tiejax.text.errors import CorpusError
from tiejax.text.sequences import SPLITS
from tiejax.text.tokenizer import SPECIAL

# Preparation.


def test_prepared_text_is_found_again_under_another_name(text, tmp_path):
    messages: list[str] = []
    first = sentences.prepare([str(text)], folder=tmp_path / "data", say=messages.append, **SETTINGS)
    assert messages == [f"preparing the text in {first.folder}"]
    before = tree(tmp_path / "data")
    renamed = text.rename(tmp_path / "renamed.md")
    again = sentences.prepare([str(renamed)], folder=tmp_path / "data", say=messages.append, **SETTINGS)
    assert len(messages) == 1
    assert tree(tmp_path / "data") == before
    assert (again.folder, again.fingerprint) == (first.folder, first.fingerprint)
    assert again.facts == first.facts | {"corpus": [str(renamed)]}


def test_fingerprint_of_a_set(text, tmp_path):
    folder = tmp_path / "data"

    def fingerprint(**changed):
        return sentences.prepare([str(text)], folder=folder, **(SETTINGS | changed)).fingerprint

    found = [fingerprint(), fingerprint(max_length=13), fingerprint(min_length=7), fingerprint(vocab_size=130)]
    # A vocabulary is trained once for each size.
    assert len(list(folder.glob("tokenizer-*.json"))) == 2
    (trained,) = folder.glob("tokenizer-*-120-*.json")
    assert fingerprint(tokenizer=str(trained)) == found[0]
    text.write_text(text.read_text() + " One sentence more is here, at the very end.")
    found.append(fingerprint())
    found.append(fingerprint(rows_are_sentences=True))
    assert len(set(found)) == 6
    assert len(list(folder.glob("tokenizer-*.json"))) == 3


def test_fingerprint_of_sets_prepared_before(text, tmp_path):
    """The key of a set, written out: a later setting is part of it only if used, so that older sets are still found."""
    found = sentences.prepare([str(text)], folder=tmp_path / "data", **SETTINGS)
    key = {
        "format": 3,
        "nupunkt": importlib.metadata.version("nupunkt"),
        "text_sha256": corpus.fingerprint(corpus.sources([str(text)])),
        "max_length": 12,
        "min_length": 6,
        "tokenizer_sha256": hashlib.sha256(found.tokenizer_file.read_bytes()).hexdigest(),
    }
    assert found.fingerprint == hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()


def test_progress_is_monotonic_and_complete(text, tmp_path):
    reports: dict[str, list[tuple[int, int | None]]] = collections.defaultdict(list)
    sentences.prepare(
        [str(text)], folder=tmp_path / "data", progress=lambda phase, *done: reports[phase].append(done), **SETTINGS
    )
    assert list(reports) == ["reading", "finding the letters", "training the tokenizer", "tokenising", "writing"]
    for phase, steps in reports.items():
        assert steps == sorted(steps), phase
        assert steps[-1][0] == steps[-1][1], phase


# Processes.


def test_a_process_prints_only_messages_needs_no_tensorflow_and_leaves_no_temporary_files(text, tmp_path):
    (empty := tmp_path / "temporary").mkdir()
    ended = end(child(text, tmp_path / "data", env={"TMPDIR": str(empty)}))
    assert ended.err == ""
    assert ended.status == 0
    found = sentences.prepare([str(text)], folder=tmp_path / "data", **SETTINGS)
    total = sum(found.split("test").ids.tolist())
    assert ended.out == f"preparing the text in {found.folder}\n{found.folder} {total}\n"
    assert list(empty.iterdir()) == []


@pytest.mark.slow
def test_a_second_process_waits_for_the_first(text, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    waiting = f"another process is preparing text in {folder}; waiting for it\n"
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


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["reading", "training the tokenizer", "tokenising", "writing"])
def test_killed_processes(text, tmp_path, phase):
    folder = tmp_path / "data"
    # In the last split, when files have been written.
    killed = end(child(text, folder, f"if phase == {phase!r} and done > total * .75: os.kill(os.getpid(), signal.SIGKILL)"))
    assert killed.status == -signal.SIGKILL
    assert not list(folder.glob("sentences-*"))
    assert bool(list(folder.glob("incomplete-*"))) == (phase in ("tokenising", "writing"))
    # An incomplete tokenizer as well.
    (folder / "incomplete-tokenizer-0-120-0.json").write_text("{")
    found = sentences.prepare([str(text)], folder=folder, **SETTINGS)
    assert not list(folder.glob("incomplete-*"))
    assert [ids for name in SPLITS for ids in listed(found.split(name))] == by_loop(text, found, 12, 6)[0]


def test_interrupt_by_the_user_leaves_nothing(text, tmp_path):
    ended = end(child(text, tmp_path / "data", "if phase == 'writing': signal.raise_signal(signal.SIGINT)"))
    assert ended.status == -signal.SIGINT
    assert sorted(path.name.partition("-")[0] for path in (tmp_path / "data").iterdir()) == [".lock", "tokenizer"]


# Sizes at which the tokenizer (2,243 bytes) or the ids of the training split (4,038 bytes) no longer fit.
@pytest.mark.parametrize("limit", [1_000, 3_000])
def test_full_disk_leaves_nothing_incomplete(text, tmp_path, limit):
    folder = tmp_path / "data"
    limited = f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))"
    ended = end(child(text, folder, limited))
    assert ended.err == ""
    assert ended.status == 0
    line = ended.out.splitlines()[-1]
    assert line.startswith(f"refused: {folder}")
    assert line.endswith(": File too large")  # by its number, so that the command says what to do
    assert not list(folder.glob("sentences-*"))
    assert not list(folder.glob("incomplete-*"))
    found = sentences.prepare([str(text)], folder=folder, **SETTINGS)
    assert listed(found.split("train"))


def test_folder_that_cannot_be_created(text, tmp_path):
    with pytest.raises(CorpusError, match=f"^data_dir {text}/data: Not a directory$"):
        sentences.prepare([str(text)], folder=text / "data", **SETTINGS)


# Damage.


def damages(path: Path) -> dict[str, bytes | None]:
    content = path.read_bytes()
    middle = len(content) // 2
    flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    return {"missing": None, "cut": content[:-1], "empty": b"", "flipped": flipped}


def test_damaged_files_are_named(text, tmp_path):
    found = sentences.prepare([str(text)], folder=tmp_path / "data", **SETTINGS)
    files = [path for path in sorted(found.folder.rglob("*")) if path.is_file()]
    assert len(files) == 8
    for path in files:
        whole = path.read_bytes()
        for kind, content in damages(path).items():
            path.unlink()
            if content is not None:
                path.write_bytes(content)
            with pytest.raises(CorpusError) as error:
                sentences.prepare([str(text)], folder=tmp_path / "data", **SETTINGS)
            line = str(error.value)
            assert len(line.splitlines()) == 1, kind
            assert line.startswith("data_dir ")
            assert str(path.relative_to(found.folder)) in line, kind
            assert f"remove the folder {found.folder} to prepare it again" in line
            path.write_bytes(whole)
    sentences.prepare([str(text)], folder=tmp_path / "data", **SETTINGS)


def test_manifest_of_another_set(text, tmp_path):
    sets = [
        sentences.prepare([str(text)], folder=tmp_path / "data", **SETTINGS | {"max_length": length}).folder
        for length in (12, 13)
    ]
    shutil.rmtree(sets[0])
    sets[1].rename(sets[0])
    with pytest.raises(CorpusError, match=r"manifest\.json in .* is damaged"):
        sentences.prepare([str(text)], folder=tmp_path / "data", **SETTINGS)


def test_damaged_trained_tokenizer(text, tmp_path):
    sentences.prepare([str(text)], folder=tmp_path / "data", **SETTINGS)
    (trained,) = (tmp_path / "data").glob("tokenizer-*.json")
    trained.write_text(trained.read_text().replace('"[MASK]"', '"[mask]"'))
    with pytest.raises(CorpusError, match=f"^data_dir .*: {trained.name} is damaged; remove it"):
        sentences.prepare([str(text)], folder=tmp_path / "data", **SETTINGS)


def test_a_tokenizer_of_another_language_is_reported(tmp_path):
    greek = "\u03ad\u03bd\u03b1 \u03b4\u03cd\u03bf. " * 40
    (tmp_path / "text.txt").write_text(f"{greek}\n" * 20)
    (tmp_path / "vocab.txt").write_text("".join(f"{token}\n" for token in [*SPECIAL, "one", "two", "."]))
    messages: list[str] = []
    asked = {"tokenizer": str(tmp_path / "vocab.txt"), "vocab_size": 8, "folder": tmp_path / "data", "say": messages.append}
    found = sentences.prepare([str(tmp_path / "text.txt")], 16, 3, **asked)
    tokens = np.concatenate([found.split(name).ids for name in SPLITS])
    share = np.mean(tokens == 1)
    assert share > 0.3
    assert messages[-1] == f"{share:.1%} of the tokens of this text are unknown ones; use a tokenizer made for its language"
