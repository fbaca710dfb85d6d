"""The command `tiejax factorise`: its budget, refusals and warnings, and a killed process."""

import errno
import json

import numpy as np
import pytest
from hub_checkpoints import checkpoint, values
from killed_rewrite import kill_while_it_writes
from pictures import is_a_picture
from processes import end, start_python, tree
from safetensors.numpy import load_file
from small_tables import EMBED, HEAD, NORM, ROWS, TIED, UNTIED, WIDTH, table, tied, untied, with_vocabulary

from tiejax.checkpoints.hub import reading
from tiejax.checkpoints.rewrite import factorise
from tiejax.lab.commands import factorise as command
from tiejax.lab.settings.command_line import BadInput


def run(folder, out, *flags):
    """Run the command, and return the tensors and the configuration that it wrote."""
    assert command.main([str(folder), str(out), *map(str, flags)]) == 0
    return load_file(out / "model.safetensors"), json.loads((out / "config.json").read_text())


def test_budget_matches_the_files(tmp_path, drawn):
    def stored(folder):
        return sum(array.nbytes for array in load_file(folder / "model.safetensors").values())

    for name, folder in (("one", tied(tmp_path / "one")), ("two", untied(tmp_path / "two"))):
        for rank in (1, 4):
            out = tmp_path / f"{name}-{rank}"
            run(folder, out, "--rank", rank)
            report = json.loads((tmp_path / f"{name}-{rank}-budget" / "budget.json").read_text())
            assert report["chosen"]["rank"] == rank
            assert stored(folder) - stored(out) == report["bytes"]["now"] - report["chosen"]["bytes"]
            assert report["chosen"]["bytes"] == 4 * report["chosen"]["parameters"]
            assert report["chosen"] in report["curve"]
    assert report["bytes"] == {"now": 8 * ROWS * WIDTH, "tied": 4 * ROWS * WIDTH, "untied": 8 * ROWS * WIDTH}
    assert report["tied_up_to_a_map"]["rank"] == WIDTH
    assert report["curve"][-1]["rank"] == 2 * WIDTH


def test_budget_without_out(tmp_path, monkeypatch, capsys, drawn):
    monkeypatch.chdir(tmp_path)
    untied(tmp_path / "c")
    assert command.main(["c"]) == 0
    folder = tmp_path / "runs" / "factorise" / "c"
    assert is_a_picture(folder / "budget.png")
    report = json.loads((folder / "budget.json").read_text())
    joint = np.concatenate([one / np.linalg.norm(one) for one in (table(), table(1))], axis=1)
    squares = np.linalg.svd(joint, compute_uv=False) ** 2
    energies = np.cumsum(squares) / 2
    np.testing.assert_allclose([row["energy"] for row in report["curve"]], energies, atol=1e-6)
    rank = int(np.argmax(energies >= 0.95)) + 1
    assert report["ranks"]["0.95"]["rank"] == rank
    assert report["chosen"] is None
    assert report["weights"] is None
    lines = capsys.readouterr().out.splitlines()
    size = 4 * rank * (ROWS + 2 * WIDTH)
    assert f"95.0% of the energy: rank {rank}, " in lines[2]
    assert lines[2].endswith(f"{size:,} bytes ({size / (8 * ROWS * WIDTH):.3f} x)")
    assert lines[-1] == "budget: runs/factorise/c/budget.json"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c", "runs"]


def test_overwritten_budget_is_reported(tmp_path, capsys):
    folder = tied(tmp_path / "c")
    (tmp_path / "out-budget").mkdir()
    (tmp_path / "out-budget" / "budget.json").write_text("mine")
    run(folder, tmp_path / "out", "--rank", "2")
    assert f"{tmp_path}/out-budget/budget.json: overwriting the existing file" in capsys.readouterr().out


def test_energy_chooses_the_rank(tmp_path):
    squares = np.linalg.svd(table(), compute_uv=False) ** 2
    rank = int(np.argmax(np.cumsum(squares) / squares.sum() >= 0.9)) + 1
    _, config = run(tied(tmp_path / "c"), tmp_path / "out", "--energy", ".9", "--report", tmp_path / "report")
    assert config["factorised"]["rank"] == rank
    assert json.loads((tmp_path / "report" / "budget.json").read_text())["chosen"]["rank"] == rank


def test_corpus_is_named_in_the_budget(tmp_path):
    (tmp_path / "text.txt").write_text("a" * 300 + "b" * 40 + "d")
    run(with_vocabulary(tied(tmp_path / "c")), tmp_path / "out", "--rank", 2, "--corpus", tmp_path / "text.txt")
    weights = json.loads((tmp_path / "out-budget" / "budget.json").read_text())["weights"]
    facts = {"tokenizer": "vocab.json", "tokens": 341, "different": 3, "added": 1}
    assert weights == {"corpus": str(tmp_path / "text.txt"), **facts}


@pytest.mark.parametrize("role", ["input", "output"])
def test_one_of_two_equal_tables_is_refused(tmp_path, role):
    folder = checkpoint(tmp_path / "c", {EMBED: table(), HEAD: table()}, UNTIED)
    with pytest.raises(BadInput, match=f"--tables {role}: .* has two equal tables, .*; factorise both"):
        command.main([str(folder), str(tmp_path / "out"), "--rank", "2", "--tables", role])


def test_overflowing_factor_leaves_only_the_budget(tmp_path):
    folder = checkpoint(tmp_path / "c", {EMBED: np.full((3, 4), 6e4, np.float16)}, TIED)
    with pytest.raises(BadInput, match=f"{EMBED}.rows: contains a value too large for float16"):
        command.main([str(folder), str(tmp_path / "out"), "--rank", "1"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c", "out-budget"]


def test_rank_that_saves_nothing_is_a_warning(tmp_path, capsys):
    run(tied(tmp_path / "c"), tmp_path / "a", "--rank", 5)
    assert capsys.readouterr().err == ""
    run(tmp_path / "c", tmp_path / "b", "--rank", 6)
    assert capsys.readouterr().err == "warning: rank 6 takes no fewer bytes than the tables do now\n"


@pytest.mark.slow
def test_wide_table_of_one_row_needs_no_gram_matrix(tmp_path):
    """A Gram matrix would take 8 GiB; the limit here is 2 GiB."""
    folder = checkpoint(tmp_path / "c", {EMBED: values(1, 2**15)}, TIED | {"vocab_size": 1})
    code = (
        "import resource, sys; from tiejax.lab.commands.factorise import main; "
        "resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31)); main(sys.argv[1:])"
    )
    ended = end(start_python("-c", code, folder, "--report", tmp_path / "report", env={"OPENBLAS_NUM_THREADS": "1"}))
    assert (ended.status, ended.err) == (0, "")
    assert json.loads((tmp_path / "report" / "budget.json").read_text())["curve"][0]["energy"] == 1


@pytest.mark.parametrize("rows", [1, 3, 11])
def test_rank_is_at_most_the_number_of_rows(tmp_path, rows):
    folder = checkpoint(tmp_path / "c", {EMBED: table(rows=rows), HEAD: 7 * table(1, rows)}, UNTIED)
    with pytest.raises(BadInput, match=f"--rank: expected 1 to {rows}, the number of rows, got {rows + 1}"):
        command.main([str(folder), str(tmp_path / "out"), "--rank", str(rows + 1)])
    new, _ = run(folder, tmp_path / "out", "--rank", rows)
    assert new[f"{EMBED}.rows"].shape == (rows, rows)


def test_width_that_exceeds_the_memory_is_refused(tmp_path, monkeypatch):
    folder = untied(tmp_path / "c")
    monkeypatch.setattr(reading, "machine_memory", lambda: 3 * 8 * 12 * 12 - 1)
    with pytest.raises(BadInput, match=r"factorising a width of 12: takes 3\.38 KiB in memory; this machine has 3\.37"):
        command.main([str(folder), str(tmp_path / "out"), "--rank", "2"])
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_budget_is_written_before_a_failing_write(tmp_path, monkeypatch):
    folder = tied(tmp_path / "c")
    before = tree(folder)

    def rows(*_):
        yield np.zeros((7, 3), np.float32)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(factorise, "factor_rows", rows)
    with pytest.raises(OSError, match="No space left"):
        command.main([str(folder), str(tmp_path / "out"), "--rank", "3"])
    assert tree(folder) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c", "out-budget"]
    assert (tmp_path / "out-budget" / "budget.json").exists()


@pytest.mark.slow
def test_killed_process_leaves_no_partial_folder(tmp_path):
    folder = tied(tmp_path / "c", big=np.zeros((6000, 6000), np.float32))
    more = ("--rank", 2, "--report", tmp_path / "report")
    kill_while_it_writes(folder, tmp_path / "out", "factorise", *more, expected=["report"])
    new, _ = run(folder, tmp_path / "out", "--rank", 2, "--report", tmp_path / "report")
    assert set(new) == {f"{EMBED}.rows", f"{EMBED}.map", NORM, "big"}
    # The leftover folder stays: it might belong to the user.
    assert len([path for path in tmp_path.iterdir() if path.name.startswith("incomplete-")]) == 1


@pytest.mark.parametrize(
    ("make", "flags", "words"),
    [
        (tied, [], "--rank, --energy: give one of the two, or leave out OUT"),
        (tied, ["--rank", "2", "--energy", ".9"], "--rank, --energy: give only one of the two"),
        (tied, ["--rank", "0"], "--rank: expected 1 to 6, the width of the table, got 0"),
        (tied, ["--rank", "7"], "--rank: expected 1 to 6, the width of the table, got 7"),
        (untied, ["--rank", "13"], "--rank: expected 1 to 12, the width of both tables together, got 13"),
        (tied, ["--energy", "0"], "--energy: expected a number above 0 and at most 1, got 0"),
        (tied, ["--energy", "nan"], "--energy: expected a number, got .nan"),
        (tied, ["--energy", "1.5"], "--energy: expected a number above 0 and at most 1, got 1.5"),
        (tied, ["--rank", "2", "--corpus", ""], "--corpus: expected the path of a text file or a folder of text files, got ''"),
        (tied, ["--rank", "2", "--report", ""], "--report: expected the path of a folder, got ''"),
        (tied, ["--rank", "2", "--tables", "both"], "--tables both: .* has one table"),
        (tied, ["--rank", "2", "--tables", "output"], "--tables output: .* has one table"),
        (tied, ["--rank", "2", "--tables", "middle"], "--tables: expected one of input, output, both, got .middle"),
        (tied, ["--rank", "2", "--corpus", "nowhere"], "--corpus: .*/c has no tokenizer.json"),
    ],
)
def test_refused_settings(tmp_path, make, flags, words):
    folder = make(tmp_path / "c")
    with pytest.raises(BadInput, match=words):
        command.main([str(folder), str(tmp_path / "out"), *flags])
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_refused_folders(tmp_path):
    folder = tied(tmp_path / "c")
    before = tree(folder)
    (tmp_path / "there").mkdir()
    for flags, words in (
        ([tmp_path / "there", "--rank", 2], "there: already exists"),
        ([folder / "out", "--rank", 2, "--report", tmp_path / "report"], "lies in .*/c, which is only read"),
        ([tmp_path / "out", "--rank", 2, "--report", folder / "report"], "--report .*: lies in .*/c, which is only read"),
        (
            [tmp_path / "out", "--rank", 2, "--report", tmp_path / "out" / "report"],
            "--report .*: lies in .*/out, which must be new",
        ),
    ):
        with pytest.raises(BadInput, match=words):
            command.main([str(folder), *map(str, flags)])
    for argv, words in (
        ([], "folder: name the folder"),
        ([str(folder), ""], "out: expected the path"),
        (["none"], "none: not found"),
    ):
        with pytest.raises(BadInput, match=words):
            command.main(argv)
    assert tree(folder) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c", "there"]
