"""Labelled sentences from files, with the spaces of their text, and errors about unusable files."""

import gzip
import os

import pytest

from tiejax.transfer.read import Labelled, TaskError, read_labelled, read_sentences

SPACED = """# text = Don't go, Anna!
1-2\tDon't\t_\t_\t_\t_\t_\t_\t_\t_
1\tDo\tdo\tAUX\tVB\t_\t0\troot\t_\t_
2\tn't\tnot\tPART\tRB\t_\t1\tadvmod\t_\t_
3\tgo\tgo\tVERB\tVB\t_\t1\txcomp\t_\tSpaceAfter=No
3.1\tnothing\t_\tNOUN\t_\t_\t_\t_\t_\t_
4\t,\t,\tPUNCT\t,\t_\t1\tpunct\t_\t_
5\tAnna\tAnna\tPROPN\tNNP\t_\t1\tvocative\t_\tSpaceAfter=No
6\t!\t!\tPUNCT\t.\t_\t1\tpunct\t_\t_

1\tYes\tyes\tINTJ\tUH\t_\t0\troot\t_\t_

"""


def table(*words):
    lines = [f"{number}\t{word}\t_\tX\t_\t_\t_\t_\t_\t_" for number, word in enumerate(words, 1)]
    return "\n".join(lines) + "\n\n"


@pytest.fixture
def write(tmp_path):
    def to(name, content):
        path = tmp_path / name
        raw = content.encode()
        path.write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
        return str(path)

    return to


@pytest.mark.parametrize("name", ["a.conllu", "a.conllu.gz"])
def test_conllu(write, name):
    """The clitic is joined to its word, as in the multi-word token; multi-word tokens and empty nodes are not words."""
    first, second = read_labelled([write(name, SPACED)], "text", "label")
    assert first.words == ("Do", "n't ", "go", ", ", "Anna", "!")
    assert first.text == "Don't go, Anna!"
    assert first.labels == ("AUX", "PART", "VERB", "PUNCT", "PROPN", "PUNCT")
    assert second == Labelled(("Yes",), ("INTJ",))


def test_conllu_without_marks_of_missing_spaces(write):
    file = write("a.conllu", table("Do", "n't", "(", "ever", ")", "go", ",", "Anna", "'s", "cat", "!"))
    assert read_sentences(file) == ["Don't (ever) go, Anna's cat!"]


def test_multi_word_token_with_another_spelling_does_not_join_its_words(write):
    """The space after it is that after its last word."""
    rows = "1-2\tvámonos\t_\t_\t_\t_\t_\t_\t_\tSpaceAfter=No\n" + table("vamos", "nos", "!")
    assert read_sentences(write("a.conllu", rows)) == ["vamos nos!"]


def test_lines_end_with_any_line_end(write):
    assert read_sentences(write("a.txt", "a b\rc d\r\ne\n")) == ["a b", "c d", "e"]
    files = [write("film.neg", "dull\rlong\r"), write("film.pos", "fine\n")]
    assert [row.words for row in read_labelled(files, "text", "label")] == [("dull",), ("long",), ("fine",)]


def test_tables_and_json_lines(write):
    expected = [Labelled(("good, really",), ("1",)), Labelled(("bad",), ("0",))]
    assert read_labelled([write("a.csv", 'label,sentence\n1,"good, really"\n0,bad\n')], "sentence", "label") == expected
    assert read_labelled([write("a.tsv", "sentence\tlabel\ngood, really\t1\nbad\t0\n")], "sentence", "label") == expected
    lines = '{"sentence": "good, really", "label": 1}\n\n{"sentence": "bad", "label": 0}\n'
    assert read_labelled([write("a.jsonl.gz", lines)], "sentence", "label") == expected


def test_quotation_marks_in_tsv(write):
    file = write("a.tsv", 'text\tlabel\na "word\t1\nb\t0\n')
    assert [row.words[0] for row in read_labelled([file], "text", "label")] == ['a "word', "b"]


def test_one_file_per_class(write):
    files = [write("film.neg", "dull .\n\nlong\n"), write("film.pos", "fine\n")]
    assert read_labelled(files, "text", "label") == [
        Labelled(("dull .",), ("film.neg",)),
        Labelled(("long",), ("film.neg",)),
        Labelled(("fine",), ("film.pos",)),
    ]


def test_several_tables_are_read_one_after_the_other(write):
    tables = [write("a.csv", "text,label\na,1\n"), write("b.tsv.gz", "label\ttext\n0\tb\n")]
    assert read_labelled(tables, "text", "label") == [Labelled(("a",), ("1",)), Labelled(("b",), ("0",))]
    lines = [write(f"{name}.jsonl", f'{{"text": "{name}", "label": "x"}}\n') for name in "ab"]
    assert [row.words for row in read_labelled(lines, "text", "label")] == [("a",), ("b",)]
    with pytest.raises(TaskError, match=r"a\.csv, .*film\.pos: expected files of one format"):
        read_labelled([tables[0], write("film.pos", "fine\n")], "text", "label")


def test_text_files_of_one_name_are_no_two_classes(write, tmp_path):
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
    files = [write("x/a.txt", "one\n"), write("y/a.txt", "two\n")]
    with pytest.raises(TaskError, match="the names of text files, which are labels, must differ"):
        read_labelled(files, "text", "label")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "text,label\nNice, really good,pos\n", "row 1 has more than 2 values; quote values with separators"),
        ("a.tsv", "text\tlabel\nhello\tworld\tpos\n", "row 1 has more than 2 values"),
        ("a.csv", 'text,label\n"He said,pos\nother,neg\n"Fourth",neg\n', "cannot be read as a table"),
        ("a.csv", "text,label,text\na,1,b\n", "has several columns 'text'"),
        ("a.csv", "text,label\n", "contains no sentence"),
        ("a.jsonl", "\n", "contains no sentence"),
        (
            "a.jsonl",
            '{"text": "a", "label": ""}\n',
            "line 1: expected an object with 'text', a text, and 'label', text or integer",
        ),
        ("a.jsonl", '{"text": "a", "label": [1]}\n', "line 1: expected an object"),
        ("a.jsonl", '{"text": 1.5, "label": 1}\n', "line 1: expected an object"),
        ("a.csv", "text,labels\na,1\n", "has no column 'label'; its columns are text, labels"),
        ("a.tsv", "text\tlabel\na\t\n", "row 1 has no value for 'label'"),
        ("a.jsonl", '{"text": "a"}\n', "line 1: expected an object with 'text', a text, and 'label'"),
        ("a.jsonl", "{\n", "line 1 is not JSON"),
        ("a.conllu", "1\tgo\tVERB\n\n", "line 1 has 3 columns; expected the 10 of CoNLL-U"),
        ("a.conllu", "# nothing\n\n", "contains no sentence"),
        ("a.conllu", table("go").replace("1\t", "2\t"), "ending at line 2 does not number its words"),
        ("a.conllu", "1-4\tx" + "\t_" * 8 + "\n" + table("go"), "ending at line 3 does not number its words"),
        ("a.conllu", table("a").strip() + "\n" + table("b"), "ending at line 3 does not number its words"),
        ("a.csv", 'text,label\n"a,1\n' + "b" * 140_000, "cannot be read as a table"),
        ("a.conllu", "1-99999999999\tx" + "\t_" * 8 + "\n" + table("go"), "ending at line 3 does not number its words"),
        ("a.conllu", table("stay", "here").replace("\tX\t", "\t_\t", 1), "a word of 'stay here' has no UPOS"),
        ("a.jsonl", "[" * 100_000, "line 1 is not JSON"),
        ("a.jsonl", '{"text": "\\ud800", "label": 1}\n', "line 1 contains a lone surrogate"),
        ("a.txt", "a\n", "unknown format; expected a file ending in .conllu"),
    ],
)
def test_unusable_files_are_named(write, name, content, message):
    file = write(name, content)
    with pytest.raises(TaskError) as error:
        read_labelled([file], "text", "label")
    assert str(error.value).startswith(f"{file}: ")
    assert message in str(error.value)


def test_unreadable_files_are_named(write, tmp_path):
    with pytest.raises(TaskError, match=r"not found$"):
        read_labelled([str(tmp_path / "none.csv")], "text", "label")
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(TaskError, match=r"pipe\.csv: cannot be read: it is a named pipe, not a file"):
        read_labelled([str(tmp_path / "pipe.csv")], "text", "label")
    cut = tmp_path / "cut.csv.gz"
    cut.write_bytes(gzip.compress(b"text,label\n" * 100)[:-20])
    with pytest.raises(TaskError, match=r"is not a complete \.gz file"):
        read_labelled([str(cut)], "text", "label")
    latin = tmp_path / "latin.csv"
    latin.write_bytes("text,label\nf\xfcr,1\n".encode("latin-1"))
    with pytest.raises(TaskError, match="byte 12 is not UTF-8"):
        read_labelled([str(latin)], "text", "label")


def test_sentences_need_no_tags(write):
    assert read_sentences(write("a.conllu", table("go").replace("\tX\t", "\t_\t"))) == ["go"]


def test_several_tagged_files(write):
    files = [write("a.conllu", table("go")), write("b.conllu", table("stay"))]
    assert [row.text for row in read_labelled(files, "text", "label")] == ["go", "stay"]


def test_empty_line_between_parallel_sentences(write):
    """If it were dropped, the later sentences would not match the other file."""
    assert read_sentences(write("a.txt", "one\ntwo words\n\n")) == ["one", "two words"]
    with pytest.raises(TaskError, match=r"b\.txt: line 2 is empty; expected one sentence per line"):
        read_sentences(write("b.txt", "one\n\ntwo\n"))
