"""Tables as products: the optimum against numpy's SVD, the budget against files, what is written, kept, and refused."""

import errno
import json

import numpy as np
import pytest
from hub_checkpoints import checkpoint, values
from killed_rewrite import kill_while_it_writes
from pictures import is_a_picture
from processes import end, start_python, tree
from safetensors.numpy import load_file

from tiejax.checkpoints.hub.checkpoint import open_checkpoint
from tiejax.checkpoints.hub.errors import CheckpointError
from tiejax.checkpoints.hub.families import find_tables
from tiejax.checkpoints.rewrite import budget as budgets
from tiejax.checkpoints.rewrite import spectrum as spectra
from tiejax.checkpoints.rewrite.factors import factors
from tiejax.checkpoints.rewrite.spectrum import energies_by_table, energy_kept, factor_rows, maps, rank_for, spectrum
from tiejax.checkpoints.rewrite.token_weights import token_weights
from tiejax.lab.commands import factorise as command
from tiejax.lab.commands.check import checked
from tiejax.lab.commands.untie import untie
from tiejax.lab.settings.command_line import BadInput

EMBED, HEAD, NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"
OPT = "model.decoder."
OPT_EMBED = f"{OPT}embed_tokens.weight"
TIED = {"model_type": "llama", "tie_word_embeddings": True, "vocab_size": 40}
UNTIED = TIED | {"tie_word_embeddings": False}
ROWS, WIDTH = 40, 6


def table(seed=0, rows=ROWS, width=WIDTH):
    """Singular values that fall, so that no two ranks keep the same."""
    return (values(rows, width, seed) * 0.6 ** np.arange(width)).astype(np.float32)


def tied(folder, **more):
    return checkpoint(folder, {EMBED: table(), NORM: values(WIDTH, 1)[:, 0], **more}, TIED)


def untied(folder, config=UNTIED, **more):
    return checkpoint(folder, {EMBED: table(), HEAD: 7 * table(1), NORM: values(WIDTH, 1)[:, 0], **more}, config)


def opt(folder, config=None, **more):
    config = {"model_type": "opt", "hidden_size": WIDTH, "tie_word_embeddings": True, "word_embed_proj_dim": WIDTH} | (
        config or {}
    )
    return checkpoint(folder, {OPT_EMBED: table(), **more}, config)


def run(folder, out, *flags):
    """Run the command, and return the tensors and the configuration that it has written."""
    assert command.main([str(folder), str(out), *map(str, flags)]) == 0
    return load_file(out / "model.safetensors"), json.loads((out / "config.json").read_text())


def truncated(matrix, rank):
    u, s, v = np.linalg.svd(matrix.astype(np.float64), full_matrices=False)
    return (u[:, :rank] * s[:rank]) @ v[:rank]


def products(tables, found, rank):
    rows = np.concatenate(list(factor_rows(tables, found, rank)))
    return [rows @ one for one in maps(found, rank)]


def residual(matrix, approximation):
    return np.sum((matrix.astype(np.float64) - approximation) ** 2) / np.sum(matrix.astype(np.float64) ** 2)


# The optimum.


@pytest.mark.parametrize("rank", [1, 3, 6])
def test_one_table_is_the_truncated_svd(rank):
    one = table()
    found = spectrum([one])
    (product,) = products([one], found, rank)
    np.testing.assert_allclose(product, truncated(one, rank), atol=2e-6)
    assert energy_kept(found)[rank - 1] == pytest.approx(1 - residual(one, product), abs=1e-6)
    squares = np.linalg.svd(one, compute_uv=False) ** 2
    np.testing.assert_allclose(energy_kept(found), np.cumsum(squares) / squares.sum(), atol=1e-6)


def test_the_map_of_one_table_is_orthonormal():
    (b,) = maps(spectrum([100 * table()]), 3)
    np.testing.assert_allclose(b @ b.T, np.eye(3), atol=1e-5)


@pytest.mark.parametrize("rank", [1, 2, 5])
def test_weighted_rows_are_the_svd_of_rows_times_the_root_of_their_weight(rank):
    one, weights = table(), np.random.default_rng(3).uniform(0.1, 50, ROWS)
    root = np.sqrt(weights)[:, None]
    found = spectrum([one], weights)
    (product,) = products([one], found, rank)
    best = truncated(root * one, rank) / root
    np.testing.assert_allclose(product, best, atol=1e-5)
    assert energy_kept(found)[rank - 1] == pytest.approx(1 - residual(root * one, root * product), abs=1e-6)
    assert np.abs(best - truncated(one, rank)).max() > 1e-2  # so that weights left away would be seen


@pytest.mark.parametrize("rank", [1, 4, 7, 12])
def test_two_tables_are_the_svd_of_both_side_by_side_at_one_scale(rank):
    first, second = table(), 7 * table(1)
    norms = [np.linalg.norm(one) for one in (first, second)]
    joint = truncated(np.concatenate([first / norms[0], second / norms[1]], axis=1), rank)
    found = spectrum([first, second])
    one, other = products([first, second], found, rank)
    np.testing.assert_allclose(one, norms[0] * joint[:, :WIDTH], atol=1e-5)
    np.testing.assert_allclose(other, norms[1] * joint[:, WIDTH:], atol=1e-4)
    alone = [1 - residual(first, one), 1 - residual(second, other)]
    np.testing.assert_allclose([energies[rank - 1] for energies in energies_by_table(found)], alone, atol=1e-6)
    assert energy_kept(found)[rank - 1] == pytest.approx(np.mean(alone), abs=1e-6)


def test_two_tables_that_are_one_up_to_a_map_need_the_width_of_one():
    first = table()
    second = first @ values(WIDTH, WIDTH, seed=5)
    found = spectrum([first, second])
    assert energy_kept(found)[WIDTH - 1] == pytest.approx(1, abs=1e-6)
    assert energy_kept(found)[WIDTH - 2] < 1 - 1e-5
    one, other = products([first, second], found, WIDTH)
    np.testing.assert_allclose(one, first, atol=1e-5)
    np.testing.assert_allclose(other, second, atol=1e-5)


def test_blocks_of_rows_change_nothing(monkeypatch):
    tables, weights = [table(), table(1)], np.arange(1.0, ROWS + 1)
    whole = spectrum(tables, weights)
    expected = products(tables, whole, 4)
    monkeypatch.setattr(spectra, "BLOCK_BYTES", 7 * 4 * 2 * WIDTH)
    cut = spectrum(tables, weights)
    assert [len(block) for block in factor_rows(tables, cut, 4)] == [7, 7, 7, 7, 7, 5]
    np.testing.assert_allclose(cut.values, whole.values, atol=1e-6)
    np.testing.assert_allclose(products(tables, cut, 4), expected, atol=1e-5)


def test_the_lowest_rank_that_keeps_an_energy():
    energies = np.array([0.5, 0.9, 0.99, 1 - 1e-16])
    assert [rank_for(energies, wanted) for wanted in (0.1, 0.5, 0.51, 0.9, 0.991, 1.0)] == [1, 1, 2, 2, 4, 4]


def test_exact_ranks_are_found_to_the_last_energy():
    """Products summed in float32 made 15 of 3."""
    one = (values(300, 3) @ values(3, 64, seed=2)).astype(np.float32)
    for tables in ([one], [one, one]):
        energies = energy_kept(spectrum(tables))
        assert [rank_for(energies, wanted) for wanted in (0.9999, 0.9999999, 1.0)] == [3, 3, 3]


@pytest.mark.parametrize(("most", "error"), [(64, 1e-13), (63, 1e-6)], ids=["float64", "float32"])
def test_energies_hold_to_their_precision_where_all_rows_have_much_in_common(monkeypatch, most, error):
    monkeypatch.setattr(spectra, "MOST_EXACT", most)
    one = values(2000, 64) + 10
    squares = np.linalg.svd(one.astype(np.float64), compute_uv=False) ** 2
    found = spectrum([one])
    np.testing.assert_allclose(energy_kept(found), np.cumsum(squares) / squares.sum(), rtol=0, atol=error)
    assert found.precision < error


@pytest.mark.parametrize("rows", [1, 3, 11])
def test_fewer_rows_than_columns(tmp_path, rows):
    """Two tables of 6 columns: there are as many ranks as rows."""
    first, second = table(rows=rows), 7 * table(1, rows)
    weights = np.arange(1.0, rows + 1)
    found = spectrum([first, second], weights)
    root = np.sqrt(weights)[:, None]
    norms = [np.linalg.norm(root * one) for one in (first, second)]
    joint = np.concatenate([root * first / norms[0], root * second / norms[1]], axis=1)
    squares = np.linalg.svd(joint, compute_uv=False) ** 2
    np.testing.assert_allclose(energy_kept(found), np.cumsum(squares) / 2, atol=1e-6)
    one, other = products([first, second], found, rows)
    np.testing.assert_allclose(one, first, atol=1e-5)
    np.testing.assert_allclose(other, second, atol=1e-4)
    folder = checkpoint(tmp_path / "c", {EMBED: first, HEAD: second}, UNTIED)
    with pytest.raises(BadInput, match=f"--rank: must be from 1 to {rows}, as many as the table has rows, got {rows + 1}"):
        command.main([str(folder), str(tmp_path / "out"), "--rank", str(rows + 1)])
    new, _ = run(folder, tmp_path / "out", "--rank", rows)
    assert new[f"{EMBED}.rows"].shape == (rows, rows)


def test_a_wide_table_of_one_row_takes_no_gram_matrix(tmp_path):
    """That would be 8 GiB; what is allowed here is a fourth."""
    folder = checkpoint(tmp_path / "c", {EMBED: values(1, 2**15)}, TIED | {"vocab_size": 1})
    code = (
        "import resource, sys; from tiejax.lab.commands.factorise import main; "
        "resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31)); main(sys.argv[1:])"
    )
    ended = end(start_python("-c", code, folder, "--report", tmp_path / "said", env={"OPENBLAS_NUM_THREADS": "1"}))
    assert (ended.status, ended.err) == (0, "")
    assert json.loads((tmp_path / "said" / "budget.json").read_text())["curve"][0]["energy"] == 1


def test_a_width_that_the_memory_cannot_hold_is_refused(tmp_path, monkeypatch):
    folder = untied(tmp_path / "c")
    monkeypatch.setattr(command, "machine_memory", lambda: 3 * 8 * 12 * 12 - 1)
    with pytest.raises(BadInput, match="to factorise a width of 12 takes 3,456 bytes; the memory has 3,455"):
        command.main([str(folder), str(tmp_path / "out"), "--rank", "2"])
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_a_budget_that_is_written_over_is_named(tmp_path, capsys):
    folder = tied(tmp_path / "c")
    (tmp_path / "out-budget").mkdir()
    (tmp_path / "out-budget" / "budget.json").write_text("mine")
    run(folder, tmp_path / "out", "--rank", "2")
    assert f"{tmp_path}/out-budget/budget.json: was there already, and is written over" in capsys.readouterr().out


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_squares_that_float64_alone_can_hold(tmp_path, scale):
    (one,) = products([np.float32(scale) * table()], spectrum([np.float32(scale) * table()]), 3)
    np.testing.assert_allclose(one / scale, truncated(table(), 3), atol=2e-6)


@pytest.mark.parametrize("scale", [0, 1e-30, 1e30])
def test_squares_that_are_none(tmp_path, monkeypatch, scale):
    monkeypatch.setattr(spectra, "MOST_EXACT", 0)  # as for wide tables
    folder = checkpoint(tmp_path / "c", {EMBED: np.float32(scale) * table()}, TIED)
    with pytest.raises(BadInput, match=f"{EMBED}: squares do not add up to a finite number above 0"):
        command.main([str(folder), str(tmp_path / "out"), "--rank", "2"])
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


# What is written.


def test_a_table_is_replaced_by_its_factors_and_nothing_else_changes(tmp_path):
    folder = tied(tmp_path / "c")
    (folder / "tokenizer.json").write_text("{}")
    (folder / "extra").mkdir()
    (folder / "extra" / "notes.txt").write_text("mine")
    before = tree(folder)
    new, config = run(folder, tmp_path / "out", "--rank", 3)
    assert tree(folder) == before
    assert {name: array.shape for name, array in new.items()} == {
        f"{EMBED}.rows": (ROWS, 3),
        f"{EMBED}.map": (3, WIDTH),
        NORM: (WIDTH,),
    }
    assert new[NORM].tobytes() == values(WIDTH, 1)[:, 0].tobytes()
    np.testing.assert_allclose(new[f"{EMBED}.rows"] @ new[f"{EMBED}.map"], truncated(table(), 3), atol=1e-5)
    entry = config.pop("factorised")
    assert config == TIED
    assert (entry["tables"], entry["rank"]) == ("input", 3)
    assert entry["energy"] == pytest.approx(1 - residual(table(), truncated(table(), 3)), abs=1e-6)
    for file in ("tokenizer.json", "extra/notes.txt"):
        assert (tmp_path / "out" / file).read_bytes() == (folder / file).read_bytes()
    (role, read), *others = factors(tmp_path / "out").items()
    assert (role, others) == ("input", [])
    np.testing.assert_allclose(read.rows[:] @ read.map, truncated(table(), 3), atol=1e-5)


def test_two_tables_share_the_factor(tmp_path):
    new, config = run(untied(tmp_path / "c"), tmp_path / "out", "--rank", 12)
    assert set(new) == {f"{EMBED}.rows", f"{EMBED}.map", f"{HEAD}.map", NORM}
    assert config["factorised"]["tables"] == "both"
    assert config["tie_word_embeddings"] is False
    read = factors(tmp_path / "out")
    np.testing.assert_allclose(read["input"].rows[:] @ read["input"].map, table(), atol=1e-5)
    np.testing.assert_allclose(read["output"].rows[:] @ read["output"].map, 7 * table(1), atol=1e-4)


def test_two_equal_tables_need_the_width_of_one(tmp_path):
    run(checkpoint(tmp_path / "c", {EMBED: table(), HEAD: table()}, UNTIED), tmp_path / "out", "--rank", WIDTH)
    for one in factors(tmp_path / "out").values():
        np.testing.assert_allclose(one.rows[:] @ one.map, table(), atol=1e-5)


@pytest.mark.parametrize(("role", "name", "other"), [("input", EMBED, HEAD), ("output", HEAD, EMBED)])
def test_one_of_two_tables_leaves_the_other(tmp_path, role, name, other):
    folder = untied(tmp_path / "c")
    old = load_file(folder / "model.safetensors")
    new, _ = run(folder, tmp_path / "out", "--tables", role, "--rank", 2)
    assert set(new) == {f"{name}.rows", f"{name}.map", other, NORM}
    assert new[other].tobytes() == old[other].tobytes()
    assert list(factors(tmp_path / "out")) == [role]
    np.testing.assert_allclose(new[f"{name}.rows"] @ new[f"{name}.map"], truncated(old[name], 2), atol=1e-4)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float16", 2e-3), ("bfloat16", 2e-2), ("float64", 1e-5)])
def test_factors_are_stored_as_the_table_is(tmp_path, dtype, tolerance):
    folder = checkpoint(tmp_path / "c", {EMBED: table().astype(dtype)}, TIED)
    run(folder, tmp_path / "out", "--rank", WIDTH)
    read = factors(tmp_path / "out")["input"]
    assert {tensor.dtype for tensor in open_checkpoint(tmp_path / "out").tensors.values()} == {
        tensor.dtype for tensor in open_checkpoint(folder).tensors.values()
    }
    np.testing.assert_allclose(read.rows[:] @ read.map, table(), atol=3 * tolerance)


def test_a_factor_too_large_for_its_dtype_leaves_no_folder(tmp_path):
    folder = checkpoint(tmp_path / "c", {EMBED: np.full((3, 4), 6e4, np.float16)}, TIED)
    with pytest.raises(BadInput, match=f"{EMBED}.rows: would hold a value that is too large for float16"):
        command.main([str(folder), str(tmp_path / "out"), "--rank", "1"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c", "out-budget"]


def test_shards(tmp_path):
    folder = checkpoint(tmp_path / "c", {EMBED: table(), "w": values(2, 2)}, UNTIED, file="a.safetensors")
    checkpoint(folder, {HEAD: 7 * table(1)}, UNTIED, file="b.safetensors")
    checkpoint(folder, {NORM: values(2, 2, 4)}, UNTIED, file="c.safetensors")
    places = {EMBED: "a.safetensors", "w": "a.safetensors", HEAD: "b.safetensors", NORM: "c.safetensors"}
    size = 4 * (2 * ROWS * WIDTH + 8)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": size}, "weight_map": places}))
    assert command.main([str(folder), str(tmp_path / "out"), "--rank", "2"]) == 0
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    parts = (f"{EMBED}.rows", f"{EMBED}.map", f"{HEAD}.map")
    assert index["weight_map"] == dict.fromkeys(parts, "a.safetensors") | {"w": "a.safetensors", NORM: "c.safetensors"}
    assert index["metadata"]["total_size"] == 4 * (2 * ROWS + 2 * 2 * WIDTH + 8)
    assert not (tmp_path / "out" / "b.safetensors").exists()
    assert (tmp_path / "out" / "c.safetensors").read_bytes() == (folder / "c.safetensors").read_bytes()
    np.testing.assert_array_equal(load_file(tmp_path / "out" / "a.safetensors")["w"], values(2, 2))
    assert set(factors(tmp_path / "out")) == {"input", "output"}


# As OPT has it.


def test_a_tied_opt_has_one_map_at_both_ends(tmp_path):
    new, config = run(opt(tmp_path / "c"), tmp_path / "out", "--rank", 3)
    w_in, w_out = (new[f"{OPT}project_{way}.weight"] for way in ("in", "out"))
    assert (new[OPT_EMBED].shape, w_in.shape, w_out.shape) == ((ROWS, 3), (WIDTH, 3), (3, WIDTH))
    np.testing.assert_allclose(new[OPT_EMBED] @ w_in.T, truncated(table(), 3), atol=1e-5)
    np.testing.assert_allclose(new[OPT_EMBED] @ w_out, truncated(table(), 3), atol=1e-5)
    assert (config["word_embed_proj_dim"], config["tie_word_embeddings"]) == (3, True)
    assert "factorised" not in config


def test_an_untied_opt_becomes_a_tied_one_with_two_maps(tmp_path):
    folder = opt(tmp_path / "c", {"tie_word_embeddings": False}, **{HEAD: 7 * table(1)})
    new, config = run(folder, tmp_path / "out", "--rank", 2 * WIDTH)
    assert set(new) == {OPT_EMBED, f"{OPT}project_in.weight", f"{OPT}project_out.weight"}
    np.testing.assert_allclose(new[OPT_EMBED] @ new[f"{OPT}project_in.weight"].T, table(), atol=1e-5)
    np.testing.assert_allclose(new[OPT_EMBED] @ new[f"{OPT}project_out.weight"], 7 * table(1), atol=1e-4)
    assert (config["word_embed_proj_dim"], config["tie_word_embeddings"]) == (2 * WIDTH, True)
    assert checked(tmp_path / "out").answer == "agrees"


def test_an_opt_that_has_maps_already_is_narrowed_through_them(tmp_path):
    hidden = 9
    w_in, w_out = values(hidden, WIDTH, 3), values(WIDTH, hidden, 4)
    maps_now = {f"{OPT}project_in.weight": w_in, f"{OPT}project_out.weight": w_out}
    new, config = run(opt(tmp_path / "c", {"hidden_size": hidden}, **maps_now), tmp_path / "out", "--rank", 2)
    narrow = truncated(table(), 2)
    np.testing.assert_allclose(new[OPT_EMBED] @ new[f"{OPT}project_in.weight"].T, narrow @ w_in.T, atol=1e-5)
    np.testing.assert_allclose(new[OPT_EMBED] @ new[f"{OPT}project_out.weight"], narrow @ w_out, atol=1e-5)
    assert config["word_embed_proj_dim"] == 2


@pytest.mark.parametrize(
    ("config", "tensors", "flags"),
    [
        ({"tie_word_embeddings": False}, {HEAD: table(1)}, ["--rank", 2, "--tables", "input"]),
        ({"tie_word_embeddings": False}, {}, ["--rank", 2]),
        ({}, {}, ["--rank", WIDTH]),
        ({"architectures": ["OPTModel"]}, {}, ["--rank", 2]),
        ({}, {"lm_head.qweight": values(2, 2)}, ["--rank", 2]),
        ({"hidden_size": 9}, {}, ["--rank", 2]),
        (
            {"hidden_size": 9},
            {f"{OPT}project_in.weight": values(9, 5), f"{OPT}project_out.weight": values(6, 9)},
            ["--rank", 2],
        ),
    ],
    ids=["input alone", "no head", "rank of the hidden size", "no tokens", "quantised head", "no maps", "maps that do not fit"],
)
def test_what_opt_cannot_say_is_of_our_own_form(tmp_path, config, tensors, flags):
    new, written = run(opt(tmp_path / "c", config, **tensors), tmp_path / "out", *flags)
    assert {f"{OPT_EMBED}.rows", f"{OPT_EMBED}.map", *tensors} == set(new)
    assert written["word_embed_proj_dim"] == WIDTH
    assert written["factorised"]["rank"] == flags[1]


# The budget.


def test_the_budget_is_what_the_files_hold(tmp_path):
    def stored(folder):
        return sum(array.nbytes for array in load_file(folder / "model.safetensors").values())

    for name, folder in (("one", tied(tmp_path / "one")), ("two", untied(tmp_path / "two"))):
        for rank in (1, 4):
            out = tmp_path / f"{name}-{rank}"
            run(folder, out, "--rank", rank)
            said = json.loads((tmp_path / f"{name}-{rank}-budget" / "budget.json").read_text())
            assert said["chosen"]["rank"] == rank
            assert stored(folder) - stored(out) == said["bytes"]["now"] - said["chosen"]["bytes"]
            assert said["chosen"]["bytes"] == 4 * said["chosen"]["parameters"]
            assert said["chosen"] in said["curve"]
    assert said["bytes"] == {"now": 8 * ROWS * WIDTH, "tied": 4 * ROWS * WIDTH, "untied": 8 * ROWS * WIDTH}
    assert said["tied_up_to_a_map"]["rank"] == WIDTH
    assert said["curve"][-1]["rank"] == 2 * WIDTH


def test_the_budget_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    untied(tmp_path / "c")
    assert command.main(["c"]) == 0
    folder = tmp_path / "runs" / "factorise" / "c"
    assert is_a_picture(folder / "budget.png")
    said = json.loads((folder / "budget.json").read_text())
    joint = np.concatenate([one / np.linalg.norm(one) for one in (table(), table(1))], axis=1)
    squares = np.linalg.svd(joint, compute_uv=False) ** 2
    energies = np.cumsum(squares) / 2
    np.testing.assert_allclose([row["energy"] for row in said["curve"]], energies, atol=1e-6)
    rank = int(np.argmax(energies >= 0.95)) + 1
    assert said["ranks"]["0.95"]["rank"] == rank
    assert said["chosen"] is None
    assert said["weights"] is None
    lines = capsys.readouterr().out.splitlines()
    size = 4 * rank * (ROWS + 2 * WIDTH)
    assert f"95.0% of the energy: rank {rank}, " in lines[2]
    assert lines[2].endswith(f"{size:,} bytes ({size / (8 * ROWS * WIDTH):.3f} x)")
    assert lines[-1] == "budget: runs/factorise/c/budget.json"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c", "runs"]


def test_an_energy_chooses_the_lowest_rank(tmp_path):
    squares = np.linalg.svd(table(), compute_uv=False) ** 2
    rank = int(np.argmax(np.cumsum(squares) / squares.sum() >= 0.9)) + 1
    _, config = run(tied(tmp_path / "c"), tmp_path / "out", "--energy", ".9", "--report", tmp_path / "said")
    assert config["factorised"]["rank"] == rank
    assert json.loads((tmp_path / "said" / "budget.json").read_text())["chosen"]["rank"] == rank


def test_a_long_curve_is_thinned_from_the_first_rank_to_the_full_one():
    ranks = budgets.ranks_of_curve(5000)
    assert (len(ranks), ranks[0], ranks[-1]) == (256, 1, 5000)
    assert np.ptp(np.diff(ranks)) <= 1
    assert budgets.ranks_of_curve(3) == [1, 2, 3]


def test_a_rank_that_saves_nothing_is_told(tmp_path, capsys):
    run(tied(tmp_path / "c"), tmp_path / "a", "--rank", 5)
    assert "warning" not in capsys.readouterr().out
    run(tmp_path / "c", tmp_path / "b", "--rank", 6)
    assert "warning: rank 6 takes no fewer bytes than the tables do now" in capsys.readouterr().out


# Tokens by frequency.


def with_vocabulary(folder):
    (folder / "vocab.json").write_text(json.dumps({letter: place for place, letter in enumerate("abcdef")}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    return folder


def test_tokens_of_a_corpus_weigh_the_rows(tmp_path):
    folder = with_vocabulary(tied(tmp_path / "c"))
    text = tmp_path / "text.txt"
    text.write_text("a" * 300 + "b" * 40 + "d")
    new, _ = run(folder, tmp_path / "out", "--rank", 2, "--corpus", text)
    counts = np.ones(ROWS)
    counts[[0, 1, 3]] = 301, 41, 2
    root = np.sqrt(counts)[:, None]
    best = truncated(root * table(), 2) / root
    assert np.abs(best - truncated(table(), 2)).max() > 1e-2
    np.testing.assert_allclose(new[f"{EMBED}.rows"] @ new[f"{EMBED}.map"], best, atol=1e-5)
    said = json.loads((tmp_path / "out-budget" / "budget.json").read_text())["weights"]
    assert said == {"corpus": str(text), "tokenizer": "vocab.json", "tokens": 341, "different": 3, "added": 1}
    weights, _ = token_weights(str(text), folder, ROWS, lambda phase, done, total: None)
    np.testing.assert_allclose(weights, counts / counts.mean())


# What fails, and what is refused.


def test_the_budget_is_told_before_a_write_that_fails(tmp_path, monkeypatch):
    folder = tied(tmp_path / "c")
    before = tree(folder)

    def rows(*_):
        yield np.zeros((7, 3), np.float32)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(command, "factor_rows", rows)
    with pytest.raises(OSError, match="No space left"):
        command.main([str(folder), str(tmp_path / "out"), "--rank", "3"])
    assert tree(folder) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c", "out-budget"]
    assert (tmp_path / "out-budget" / "budget.json").exists()


def test_killed_while_it_writes_it_leaves_no_half_folder(tmp_path):
    folder = tied(tmp_path / "c", big=np.zeros((6000, 6000), np.float32))
    more = ("--rank", 2, "--report", tmp_path / "said")
    kill_while_it_writes(folder, tmp_path / "out", "factorise", *more, expected=["said"])
    new, _ = run(folder, tmp_path / "out", "--rank", 2, "--report", tmp_path / "said")
    assert set(new) == {f"{EMBED}.rows", f"{EMBED}.map", NORM, "big"}
    # What was left stays: it might be somebody's own.
    assert len([path for path in tmp_path.iterdir() if path.name.startswith("incomplete-")]) == 1


@pytest.mark.parametrize(
    ("make", "flags", "words"),
    [
        (tied, [], "--rank, --energy: give one of the two, or leave OUT away"),
        (tied, ["--rank", "2", "--energy", ".9"], "--rank, --energy: give one of the two"),
        (tied, ["--rank", "0"], "--rank: must be from 1 to 6, the width of the table, got 0"),
        (tied, ["--rank", "7"], "--rank: must be from 1 to 6, the width of the table, got 7"),
        (untied, ["--rank", "13"], "--rank: must be from 1 to 12, the width of both tables together, got 13"),
        (tied, ["--energy", "0"], "--energy: must be above 0 and at most 1, got 0"),
        (tied, ["--energy", "nan"], "--energy: must be"),
        (tied, ["--energy", "1.5"], "--energy: must be above 0 and at most 1, got 1.5"),
        (tied, ["--rank", "2", "--corpus", ""], "--corpus: must name a text file or a folder of them, got nothing"),
        (tied, ["--rank", "2", "--report", ""], "--report: must name a folder, got nothing"),
        (tied, ["--rank", "2", "--tables", "both"], "--tables both: .* has one table"),
        (tied, ["--rank", "2", "--tables", "output"], "--tables output: .* has one table"),
        (tied, ["--rank", "2", "--tables", "middle"], "--tables: must be one of input, output, both"),
        (tied, ["--rank", "2", "--corpus", "nowhere"], "--corpus: .*/c has no tokenizer.json"),
    ],
)
def test_settings_that_make_no_sense(tmp_path, make, flags, words):
    folder = make(tmp_path / "c")
    with pytest.raises(BadInput, match=words):
        command.main([str(folder), str(tmp_path / "out"), *flags])
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


@pytest.mark.parametrize(
    ("tensors", "config", "words"),
    [
        (
            {EMBED: table(), HEAD: table(1, ROWS + 3)},
            UNTIED,
            r"--tables: a shared factor needs one shape and dtype, not .*\[43, 6\]",
        ),
        ({EMBED: table(), HEAD: table(1).astype(np.float16)}, UNTIED, "--tables: a shared factor needs .* F32 and .* F16"),
        ({"x": table()}, TIED, "has no table by a known name"),
        ({EMBED: np.ones((4, 4), np.int8)}, TIED, "is stored as I8; a table must be one of float64"),
        ({EMBED: np.ones((0, 4), np.float32)}, TIED, "there is nothing in it"),
        ({EMBED: np.ones((1, 2**15 + 1), np.float32)}, TIED, "a width of 32,769 are not factorised, 32,768 at most"),
        ({EMBED: np.where(np.eye(ROWS, WIDTH), np.nan, table())}, TIED, "row 0 of .* not finite"),
        ({EMBED: table()}, TIED | {"factorised": {"rank": 2}}, "its tables are factorised"),
    ],
    ids=["padding", "dtypes", "no table", "quantised", "empty", "wide", "nan", "factorised"],
)
def test_checkpoints_that_will_not_do(tmp_path, tensors, config, words):
    folder = checkpoint(tmp_path / "c", tensors, config)
    with pytest.raises(BadInput, match=words) as error:
        command.main([str(folder), str(tmp_path / "out"), "--rank", "2"])
    assert len(str(error.value).splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


@pytest.mark.parametrize("role", ["input", "output"])
def test_one_of_two_equal_tables_is_refused(tmp_path, role):
    folder = checkpoint(tmp_path / "c", {EMBED: table(), HEAD: table()}, UNTIED)
    with pytest.raises(BadInput, match=f"--tables {role}: .* has two equal tables; take both"):
        command.main([str(folder), str(tmp_path / "out"), "--rank", "2", "--tables", role])


def test_places_that_will_not_do(tmp_path):
    folder = tied(tmp_path / "c")
    before = tree(folder)
    (tmp_path / "there").mkdir()
    for flags, words in (
        ([tmp_path / "there", "--rank", 2], "there: is there already"),
        ([folder / "out", "--rank", 2, "--report", tmp_path / "said"], "lies in .*/c, which is not written to"),
        ([tmp_path / "out", "--rank", 2, "--report", folder / "said"], "--report .*: lies in .*/c, which is not written to"),
        (
            [tmp_path / "out", "--rank", 2, "--report", tmp_path / "out" / "said"],
            "--report .*: lies in .*/out, which is to be new",
        ),
    ):
        with pytest.raises(BadInput, match=words):
            command.main([str(folder), *map(str, flags)])
    for argv, words in (([], "folder: name the folder"), ([str(folder), ""], "out: must name"), (["none"], "no such folder")):
        with pytest.raises(BadInput, match=words):
            command.main(argv)
    assert tree(folder) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c", "there"]


def test_other_commands_say_that_tables_are_factorised(tmp_path):
    run(untied(tmp_path / "c"), tmp_path / "out", "--rank", 2, "--tables", "input")
    opened = open_checkpoint(tmp_path / "out")
    one = checked(tmp_path / "out")
    assert (one.answer, one.stored) == ("cannot say", "")
    assert "its tables are factorised" in one.reason
    for call in (lambda: untie(tmp_path / "out", tmp_path / "u"), lambda: find_tables(opened)):
        with pytest.raises(CheckpointError, match="its tables are factorised"):
            call()
    assert find_tables(opened, HEAD).input.name == HEAD


@pytest.mark.parametrize(
    "entry",
    [
        None,
        [],
        {},
        {"input": None},
        {"input": {"rows": ["x"], "map": "y"}},
        {"input": {"rows": "a", "map": "none"}},
        {"input": {"rows": "b", "map": "a"}},
        {"input": {"rows": "a", "map": "vector"}},
    ],
    ids=str,
)
def test_factors_that_a_configuration_names_wrongly(tmp_path, entry):
    tensors = {"a": values(5, 2), "b": values(2, 3), "vector": values(2, 1)[:, 0]}
    folder = checkpoint(tmp_path / "c", tensors, {"factorised": entry})
    with pytest.raises(CheckpointError, match="`factorised`"):
        factors(folder)
    checkpoint(folder, tensors, {"factorised": {"input": {"rows": "a", "map": "b"}}})
    np.testing.assert_array_equal(factors(folder)["input"].map, values(2, 3))
