"""Answers of a hostile hub: refused in one line, with no file outside the hub's cache, nor with an invalid name in it."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from hub_checkpoints import checkpoint, values
from hub_server import COMMIT, ID, Answers, hub_of
from processes import end, start_python

ROOT = Path(__file__).parents[3]
TAG, LINKED, REPO_COMMIT = "ETag", "X-Linked-Etag", "X-Repo-Commit"
MISSING = {"X-Error-Code": "EntryNotFound"}  # what the hub's library records in a folder with the commit's name
UP = "../../../../../outside"
INVALID = (UP, "{outside}", "..", r"..\outside", "a" * 300)


def hostile(outside):
    """Return answers that would each make the library write a file elsewhere, or fail, and words of the error."""
    texts = [text.format(outside=outside) for text in INVALID]
    cases = [(Answers(commit=text), "answered with the commit") for text in (*texts, "main", COMMIT[1:], COMMIT + "0", 7, [])]
    cases += [(Answers(commit=None), "answered with no commit")]
    cases += [(Answers(headers={REPO_COMMIT: text}), "answered with the commit") for text in texts]
    cases += [(Answers(headers={REPO_COMMIT: None}), "answered with no commit")]
    cases += [(Answers(headers={REPO_COMMIT: text, **MISSING}, status=404), "answered with the commit") for text in texts]
    cases += [(Answers(headers={name: f'"{text}"'}), "answered with the ETag") for text in texts for name in (TAG, LINKED)]
    cases += [(Answers(headers={TAG: None}), "answered with no ETag")]
    cases += [
        (Answers(name=lambda name, before=before: before + name), "answered with the file name")
        for before in ("../", f"{outside}/", "a/../../", "a\\", "a\0", "\ud800", "a" * 300, "./", "a//")
    ]
    cases += [(Answers(api=text), "") for text in ("", "{", "[]", "7", "{}", '{"sha": null}', '{"id": 1, "siblings": 1}')]
    return {f"some-org/case-{number}": case for number, case in enumerate(cases)}


@pytest.fixture
def cases(tmp_path):
    """Hostile answers, the environment that leads to them, and the folder that holds the cache."""
    config = {"architectures": ["LlamaForCausalLM"], "tie_word_embeddings": True}
    folder = checkpoint(tmp_path / "there", {"model.embed_tokens.weight": values()}, config)
    found = hostile(tmp_path / "outside")
    home = tmp_path / "a" / "b" / "c" / "cache"
    with hub_of(folder, home, {name: answers for name, (answers, _) in found.items()} | {ID: Answers()}) as (_, environment):
        yield found, environment | {"PYTHONPATH": str(ROOT), "HF_HUB_DISABLE_XET": "1"}, home


def run(environment, cwd, *argv):
    return end(start_python("-m", "tiejax", *argv, env=environment, cwd=cwd))


@pytest.mark.slow
def test_check_refuses_invalid_answers(cases, tmp_path):
    found, environment, home = cases
    ended = run(environment, tmp_path, "check", *found, ID)
    assert ended.err == ""
    lines = ended.out.splitlines()
    for line, (name, (_, words)) in zip(lines, found.items(), strict=False):
        assert line.startswith(f"{name}: is not a folder, and no checkpoint of that name could be downloaded: "), line
        assert words in line
    assert lines[len(found)].startswith(f"{ID}: agrees")  # the same hub with valid answers
    assert lines[-1] == f"1 agrees, {len(found)} cannot say"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "there"]
    names = {path.name for path in home.rglob("*") if path.is_file() or path.is_symlink()}
    written = {path for path in (tmp_path / "a").rglob("*") if not path.is_dir()}
    assert written == {path for path in home.rglob("*") if not path.is_dir()}
    assert not any(name.startswith(("outside", "aaa")) or "\\" in name for name in names)


@pytest.mark.slow
@pytest.mark.parametrize("number", ["0", "9"])
def test_commands_refuse_in_one_line(cases, tmp_path, number):
    _, environment, _ = cases
    name = f"some-org/case-{number}"
    for argv in (["untie", name, "out"], ["diagnose", name, "--out", "out"]):
        ended = run(environment, tmp_path, *argv)
        assert (ended.status, ended.out) == (2, "")
        assert len(ended.err.splitlines()) == 1, ended.err
        assert f"error: {name}: is not a folder" in ended.err
    assert not (tmp_path / "out").exists()


def test_a_tokenizer_of_a_hostile_hub_is_refused(cases):
    found, environment, _ = cases
    code = (
        "import sys\n"
        "from tiejax.text.errors import CorpusError\n"
        "from tiejax.text.tokenizer import load\n"
        "for name in sys.argv[1:]:\n"
        "    try:\n"
        "        load(name)\n"
        "    except CorpusError as error:\n"
        "        print(error)\n"
    )
    ended = end(start_python("-c", code, *found, env=environment))
    assert ended.err == ""
    assert len(ended.out.splitlines()) == len(found)
    assert all(line.startswith("tokenizer some-org/case-") for line in ended.out.splitlines())


def screen(written):
    """Return the rows that a terminal shows, without those that are empty; it knows line ends, returns and ESC [ A (up)."""
    rows, row, column = {}, 0, 0
    for part in re.findall(r"\x1b\[A|[\r\n]|[^\r\n\x1b]+|\x1b", written):
        if part == "\n":
            row += 1
        elif part == "\r":
            column = 0
        elif part == "\x1b[A":
            row -= 1
        else:
            before = rows.get(row, "").ljust(column)
            rows[row] = before[:column] + part + before[column + len(part) :]
            column += len(part)
    return [text for _, text in sorted(rows.items()) if text.strip()]


def test_no_bars_remain_on_a_terminal(cases, tmp_path):
    """Of a download that is refused at the first file: the message is the only text that stays on the screen."""
    found, environment, _ = cases
    name = next(name for name, (answers, _) in found.items() if TAG in answers.headers)
    master, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "tiejax", "untie", name, "out"],
        env=os.environ | environment, cwd=tmp_path, stdout=terminal, stderr=terminal, stdin=terminal,
    )  # fmt: skip
    os.close(terminal)
    written = b""
    try:
        while block := os.read(master, 2**16):
            written += block
    except OSError:  # the process has ended
        pass
    os.close(master)
    assert process.wait() == 2
    shown = screen(written.decode())
    assert "Fetching" in written.decode()  # there was a bar
    assert len(shown) == 1, shown
    assert "answered with the ETag" in shown[0]
