"""Tasks: splits, labels, and the choice of training sentences."""

import re

import pytest
from corpora import NEEDS_TFDS, without_tfds

from tiejax.transfer.read import Labelled, TaskError, read_labelled
from tiejax.transfer.tasks import SPLITS, TaskFiles, hashed, load_task, repeated

NUMBER = 400


@pytest.fixture
def sentences(tmp_path):
    """A table of numbered sentences labelled by parity; another file with the same sentences in reverse order."""
    rows = [f"{number % 2},sentence {number}" for number in range(NUMBER)]
    for name, those in (("a.csv", rows), ("b.csv", rows[::-1])):
        (tmp_path / name).write_text("label,text\n" + "\n".join(those) + "\n")
    return tmp_path


def test_data_sets_without_their_extra(monkeypatch):
    without_tfds(monkeypatch)
    with pytest.raises(TaskError, match=f"^tasks reviews: tfds:imdb: {re.escape(NEEDS_TFDS)}$"):
        load_task("reviews", TaskFiles(["tfds:imdb"]), NUMBER)


def test_split_by_hash(sentences):
    task = load_task("parity", TaskFiles([str(sentences / "a.csv")]), NUMBER)
    numbers = {split: len(task.splits[split]) for split in SPLITS}
    assert sum(numbers.values()) == NUMBER
    # Within three standard deviations of binomial counts.
    assert abs(numbers["train"] - 240) < 30
    assert abs(numbers["development"] - 80) < 24
    assert (task.kind, task.labels) == ("classification", ("0", "1"))
    texts = [sentence.text for rows in task.splits.values() for sentence in rows]
    assert len(set(texts)) == NUMBER


def test_splits_do_not_depend_on_the_order(sentences):
    first, second = (load_task("parity", TaskFiles([str(sentences / name)]), 50) for name in ("a.csv", "b.csv"))
    assert first.splits["train"] == second.splits["train"]
    assert set(first.splits["test"]) == set(second.splits["test"])
    assert len(first.splits["train"]) == 50


def test_repeated_sentences_are_in_one_split():
    twice = [Labelled((f"sentence {number % 50}",), (str(number),)) for number in range(100)]
    where = {}
    for split, rows in hashed(twice).items():
        for row in rows:
            where.setdefault(row.text, set()).add(split)
    assert all(len(splits) == 1 for splits in where.values())


def test_given_splits(sentences):
    (sentences / "test.csv").write_text("label,text\n1,kept\n")
    given = read_labelled([str(sentences / "a.csv")], "text", "label")
    task = load_task("parity", TaskFiles([str(sentences / "a.csv")], test=[str(sentences / "test.csv")]), len(given))
    assert task.splits["test"] == [Labelled(("kept",), ("1",))]
    assert len(task.splits["development"]) > 40
    assert sorted(task.splits["train"] + task.splits["development"]) == sorted(given)  # none is left out


def test_sentences_of_several_splits_are_counted(sentences):
    rows = [f"{number % 2},sentence {number}" for number in range(NUMBER)]
    for name, those in (("train", rows[:100]), ("development", rows[90:120]), ("test", [*rows[80:92], *rows[110:130]])):
        (sentences / f"{name}.csv").write_text("label,text\n" + "\n".join(those) + "\n")
    files = TaskFiles(*([str(sentences / f"{split}.csv")] for split in SPLITS))
    task = load_task("parity", files, NUMBER)
    assert repeated(task.splits) == {"development": 10, "test": 12 + 10}
    assert repeated(load_task("parity", TaskFiles([str(sentences / "a.csv")]), NUMBER).splits) == {"development": 0, "test": 0}


def test_label_missing_from_training(sentences):
    (sentences / "test.csv").write_text("label,text\n2,new\n")
    files = TaskFiles([str(sentences / "a.csv")], [str(sentences / "b.csv")], [str(sentences / "test.csv")])
    with pytest.raises(TaskError, match=r"^tasks parity: the label 2 in test occurs in none of the 20 training sentences$"):
        load_task("parity", files, 20)


def test_only_one_label(tmp_path):
    (tmp_path / "a.csv").write_text("label,text\n" + "".join(f"1,s {number}\n" for number in range(50)))
    with pytest.raises(TaskError, match=r"^tasks one: training has only the label 1; expected at least two labels$"):
        load_task("one", TaskFiles([str(tmp_path / "a.csv")]), 20)


def test_too_few_sentences(tmp_path):
    (tmp_path / "a.csv").write_text("label,text\n1,a\n0,b\n")
    with pytest.raises(
        TaskError,
        match=r"^tasks small: 2 sentences are too few: the (train|development|test) split would be empty; use more sentences$",
    ):
        load_task("small", TaskFiles([str(tmp_path / "a.csv")]), 20)


@pytest.mark.slow
def test_default_task():
    task = load_task("library", None, 200)
    assert task.kind == "classification"
    assert len(task.labels) == 8
    assert {"topics", "asyncio", "email"} <= set(task.labels)
    assert len(task.splits["train"]) == 200
