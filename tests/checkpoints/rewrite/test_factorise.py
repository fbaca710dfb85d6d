"""Factorising a checkpoint: the written tensors, the form of OPT, the rank, row weights, and refused checkpoints."""

import json

import numpy as np
import pytest
from hub_checkpoints import checkpoint, values
from processes import tree
from safetensors.numpy import load_file
from small_tables import EMBED, HEAD, NORM, ROWS, TIED, UNTIED, WIDTH, residual, table, tied, truncated, untied, with_vocabulary

from tiejax.checkpoints.check import check_folder
from tiejax.checkpoints.diagnose.tables import find_tables
from tiejax.checkpoints.hub.checkpoint import open_checkpoint
from tiejax.checkpoints.hub.errors import CheckpointError
from tiejax.checkpoints.rewrite import budget as budgets
from tiejax.checkpoints.rewrite import spectrum as spectra
from tiejax.checkpoints.rewrite.factorise import factorise, token_weights
from tiejax.checkpoints.rewrite.factors import factors
from tiejax.checkpoints.rewrite.untie import untie

OPT = "model.decoder."
OPT_EMBED = f"{OPT}embed_tokens.weight"


def opt(folder, config=None, **more):
    config = {"model_type": "opt", "hidden_size": WIDTH, "tie_word_embeddings": True, "word_embed_proj_dim": WIDTH} | (
        config or {}
    )
    return checkpoint(folder, {OPT_EMBED: table(), **more}, config)


def run(folder, out, **options):
    """Factorise, and return the tensors and the configuration that were written; check the bytes of the budget by the files."""
    planned = factorise(folder, out, **options)
    if (folder / "model.safetensors").exists():
        old, new = (load_file(path / "model.safetensors") for path in (folder, out))
        same = {name for name in old.keys() & new.keys() if np.array_equal(old[name], new[name])}
        bytes_of = [sum(array.nbytes for name, array in tensors.items() if name not in same) for tensors in (old, new)]
        assert bytes_of == [planned.budget.bytes_now, planned.budget.bytes_at(planned.rank)]
    return load_file(out / "model.safetensors"), json.loads((out / "config.json").read_text())


def test_only_the_table_changes(tmp_path):
    folder = tied(tmp_path / "c")
    (folder / "tokenizer.json").write_text("{}")
    (folder / "extra").mkdir()
    (folder / "extra" / "notes.txt").write_text("mine")
    before = tree(folder)
    new, config = run(folder, tmp_path / "out", rank=3)
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


def test_two_tables_share_a_factor(tmp_path):
    new, config = run(untied(tmp_path / "c"), tmp_path / "out", rank=12)
    assert set(new) == {f"{EMBED}.rows", f"{EMBED}.map", f"{HEAD}.map", NORM}
    assert config["factorised"]["tables"] == "both"
    assert config["tie_word_embeddings"] is False
    read = factors(tmp_path / "out")
    np.testing.assert_allclose(read["input"].rows[:] @ read["input"].map, table(), atol=1e-5)
    np.testing.assert_allclose(read["output"].rows[:] @ read["output"].map, 7 * table(1), atol=1e-4)


def test_two_equal_tables_need_the_width_of_one(tmp_path):
    run(checkpoint(tmp_path / "c", {EMBED: table(), HEAD: table()}, UNTIED), tmp_path / "out", rank=WIDTH)
    for one in factors(tmp_path / "out").values():
        np.testing.assert_allclose(one.rows[:] @ one.map, table(), atol=1e-5)


@pytest.mark.parametrize(("role", "name", "other"), [("input", EMBED, HEAD), ("output", HEAD, EMBED)])
def test_one_of_two_tables_leaves_the_other(tmp_path, role, name, other):
    folder = untied(tmp_path / "c")
    old = load_file(folder / "model.safetensors")
    new, _ = run(folder, tmp_path / "out", tables=role, rank=2)
    assert set(new) == {f"{name}.rows", f"{name}.map", other, NORM}
    assert new[other].tobytes() == old[other].tobytes()
    assert list(factors(tmp_path / "out")) == [role]
    np.testing.assert_allclose(new[f"{name}.rows"] @ new[f"{name}.map"], truncated(old[name], 2), atol=1e-4)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float16", 2e-3), ("bfloat16", 2e-2), ("float64", 1e-5)])
def test_factors_have_the_dtype_of_the_table(tmp_path, dtype, tolerance):
    folder = checkpoint(tmp_path / "c", {EMBED: table().astype(dtype)}, TIED)
    run(folder, tmp_path / "out", rank=WIDTH)
    read = factors(tmp_path / "out")["input"]
    assert {tensor.dtype for tensor in open_checkpoint(tmp_path / "out").tensors.values()} == {
        tensor.dtype for tensor in open_checkpoint(folder).tensors.values()
    }
    np.testing.assert_allclose(read.rows[:] @ read.map, table(), atol=3 * tolerance)


def test_overflowing_factor_leaves_no_folder(tmp_path):
    folder = checkpoint(tmp_path / "c", {EMBED: np.full((3, 4), 6e4, np.float16)}, TIED)
    with pytest.raises(CheckpointError, match=f"{EMBED}.rows: contains a value too large for float16"):
        factorise(folder, tmp_path / "out", rank=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c"]


def test_shards(tmp_path):
    folder = checkpoint(tmp_path / "c", {EMBED: table(), "w": values(2, 2)}, UNTIED, file="a.safetensors")
    checkpoint(folder, {HEAD: 7 * table(1)}, UNTIED, file="b.safetensors")
    checkpoint(folder, {NORM: values(2, 2, 4)}, UNTIED, file="c.safetensors")
    places = {EMBED: "a.safetensors", "w": "a.safetensors", HEAD: "b.safetensors", NORM: "c.safetensors"}
    size = 4 * (2 * ROWS * WIDTH + 8)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": size}, "weight_map": places}))
    factorise(folder, tmp_path / "out", rank=2)
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    parts = (f"{EMBED}.rows", f"{EMBED}.map", f"{HEAD}.map")
    assert index["weight_map"] == dict.fromkeys(parts, "a.safetensors") | {"w": "a.safetensors", NORM: "c.safetensors"}
    assert index["metadata"]["total_size"] == 4 * (2 * ROWS + 2 * 2 * WIDTH + 8)
    assert not (tmp_path / "out" / "b.safetensors").exists()
    assert (tmp_path / "out" / "c.safetensors").read_bytes() == (folder / "c.safetensors").read_bytes()
    np.testing.assert_array_equal(load_file(tmp_path / "out" / "a.safetensors")["w"], values(2, 2))
    assert set(factors(tmp_path / "out")) == {"input", "output"}


# The form of OPT.


def test_tied_opt_has_one_map_at_both_ends(tmp_path):
    new, config = run(opt(tmp_path / "c"), tmp_path / "out", rank=3)
    w_in, w_out = (new[f"{OPT}project_{way}.weight"] for way in ("in", "out"))
    assert (new[OPT_EMBED].shape, w_in.shape, w_out.shape) == ((ROWS, 3), (WIDTH, 3), (3, WIDTH))
    np.testing.assert_allclose(new[OPT_EMBED] @ w_in.T, truncated(table(), 3), atol=1e-5)
    np.testing.assert_allclose(new[OPT_EMBED] @ w_out, truncated(table(), 3), atol=1e-5)
    assert (config["word_embed_proj_dim"], config["tie_word_embeddings"]) == (3, True)
    assert "factorised" not in config


def test_untied_opt_becomes_tied_with_two_maps(tmp_path):
    folder = opt(tmp_path / "c", {"tie_word_embeddings": False}, **{HEAD: 7 * table(1)})
    new, config = run(folder, tmp_path / "out", rank=2 * WIDTH)
    assert set(new) == {OPT_EMBED, f"{OPT}project_in.weight", f"{OPT}project_out.weight"}
    np.testing.assert_allclose(new[OPT_EMBED] @ new[f"{OPT}project_in.weight"].T, table(), atol=1e-5)
    np.testing.assert_allclose(new[OPT_EMBED] @ new[f"{OPT}project_out.weight"], 7 * table(1), atol=1e-4)
    assert (config["word_embed_proj_dim"], config["tie_word_embeddings"]) == (2 * WIDTH, True)
    assert check_folder(tmp_path / "out").answer == "agrees"


def test_opt_with_maps_is_narrowed_through_them(tmp_path):
    hidden = 9
    w_in, w_out = values(hidden, WIDTH, 3), values(WIDTH, hidden, 4)
    maps_now = {f"{OPT}project_in.weight": w_in, f"{OPT}project_out.weight": w_out}
    new, config = run(opt(tmp_path / "c", {"hidden_size": hidden}, **maps_now), tmp_path / "out", rank=2)
    narrow = truncated(table(), 2)
    np.testing.assert_allclose(new[OPT_EMBED] @ new[f"{OPT}project_in.weight"].T, narrow @ w_in.T, atol=1e-5)
    np.testing.assert_allclose(new[OPT_EMBED] @ new[f"{OPT}project_out.weight"], narrow @ w_out, atol=1e-5)
    assert config["word_embed_proj_dim"] == 2


@pytest.mark.parametrize(
    ("config", "tensors", "options"),
    [
        ({"tie_word_embeddings": False}, {HEAD: table(1)}, {"rank": 2, "tables": "input"}),
        ({"tie_word_embeddings": False}, {}, {"rank": 2}),
        ({}, {}, {"rank": WIDTH}),
        ({"architectures": ["OPTModel"]}, {}, {"rank": 2}),
        ({"hidden_size": 9}, {}, {"rank": 2}),
        (
            {"hidden_size": 9},
            {f"{OPT}project_in.weight": values(9, 5), f"{OPT}project_out.weight": values(6, 9)},
            {"rank": 2},
        ),
    ],
    ids=["input alone", "no head", "rank of the hidden size", "no tokens", "no maps", "maps that do not fit"],
)
def test_opt_that_falls_back_to_our_own_form(tmp_path, config, tensors, options):
    new, written = run(opt(tmp_path / "c", config, **tensors), tmp_path / "out", **options)
    assert {f"{OPT_EMBED}.rows", f"{OPT_EMBED}.map", *tensors} == set(new)
    assert written["word_embed_proj_dim"] == WIDTH
    assert written["factorised"]["rank"] == options["rank"]


# Ranks, weights and refusals.


@pytest.mark.parametrize("most", [0, 1024])
def test_zero_squares_are_refused(tmp_path, monkeypatch, most):
    monkeypatch.setattr(spectra, "MOST_EXACT", most)  # 0: the path of wide tables
    folder = checkpoint(tmp_path / "c", {EMBED: np.float32(0) * table()}, TIED)
    with pytest.raises(CheckpointError, match=f"{EMBED}: the sum of squares is not a finite number above 0"):
        factorise(folder, tmp_path / "out", rank=2)
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_energy_chooses_the_lowest_rank(tmp_path):
    squares = np.linalg.svd(table(), compute_uv=False) ** 2
    rank = int(np.argmax(np.cumsum(squares) / squares.sum() >= 0.9)) + 1
    assert factorise(tied(tmp_path / "c"), tmp_path / "out", energy=0.9).rank == rank
    assert json.loads((tmp_path / "out" / "config.json").read_text())["factorised"]["rank"] == rank
    for options in ({}, {"rank": 2, "energy": 0.9}):
        with pytest.raises(CheckpointError, match="rank, energy: give one of the two"):
            factorise(tmp_path / "c", tmp_path / "other", **options)


def test_long_curve_is_thinned():
    ranks = budgets.ranks_of_curve(5000)
    assert (len(ranks), ranks[0], ranks[-1]) == (256, 1, 5000)
    assert np.ptp(np.diff(ranks)) <= 1
    assert budgets.ranks_of_curve(3) == [1, 2, 3]


def test_corpus_weighs_the_rows(tmp_path):
    folder = with_vocabulary(tied(tmp_path / "c"))
    text = tmp_path / "text.txt"
    text.write_text("a" * 300 + "b" * 40 + "d")
    planned = factorise(folder, tmp_path / "out", rank=2, corpus=str(text))
    new = load_file(tmp_path / "out" / "model.safetensors")
    counts = np.ones(ROWS)
    counts[[0, 1, 3]] = 301, 41, 2
    root = np.sqrt(counts)[:, None]
    best = truncated(root * table(), 2) / root
    assert np.abs(best - truncated(table(), 2)).max() > 1e-2
    np.testing.assert_allclose(new[f"{EMBED}.rows"] @ new[f"{EMBED}.map"], best, atol=1e-5)
    facts = {"corpus": str(text), "tokenizer": "vocab.json", "tokens": 341, "different": 3, "added": 1}
    assert planned.weights == facts
    weights, _ = token_weights(str(text), folder, ROWS, lambda phase, done, total: None)
    np.testing.assert_allclose(weights, counts / counts.mean())


@pytest.mark.parametrize(
    ("tensors", "config", "words"),
    [
        (
            {EMBED: table(), HEAD: table(1, ROWS + 3)},
            UNTIED,
            r"tables: a shared factor needs one shape and dtype, not .*\[43, 6\]",
        ),
        ({EMBED: table(), HEAD: table(1).astype(np.float16)}, UNTIED, "tables: a shared factor needs .* F32 and .* F16"),
        ({"x": table()}, TIED, "has no table by a known name"),
        ({EMBED: np.ones((4, 4), np.int8)}, TIED, "has a table stored as I8"),
        ({EMBED: np.ones((0, 4), np.float32)}, TIED, "were not gathered"),
        (
            {EMBED: np.ones((1, 2**15 + 1), np.float32)},
            TIED,
            "are 32,769 wide in all; at most 32,768 can be factorised",
        ),
        ({EMBED: np.where(np.eye(ROWS, WIDTH), np.nan, table())}, TIED, "row 0 of .* not finite"),
        ({EMBED: table()}, TIED | {"factorised": {"rank": 2}}, "its tables are factorised"),
    ],
    ids=["padding", "dtypes", "no table", "quantised", "empty", "wide", "nan", "factorised"],
)
def test_refused_checkpoints(tmp_path, tensors, config, words):
    folder = checkpoint(tmp_path / "c", tensors, config)
    with pytest.raises(CheckpointError, match=words) as error:
        factorise(folder, tmp_path / "out", rank=2)
    assert len(str(error.value).splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


@pytest.mark.parametrize("role", ["input", "output"])
def test_one_of_two_equal_tables_is_refused(tmp_path, role):
    folder = checkpoint(tmp_path / "c", {EMBED: table(), HEAD: table()}, UNTIED)
    with pytest.raises(CheckpointError, match=f"tables {role}: .* has two equal tables, .*; factorise both"):
        factorise(folder, tmp_path / "out", rank=2, tables=role)


def test_factorised_tables_are_refused_elsewhere(tmp_path):
    run(untied(tmp_path / "c"), tmp_path / "out", rank=2, tables="input")
    opened = open_checkpoint(tmp_path / "out")
    result = check_folder(tmp_path / "out")
    assert (result.answer, result.stored) == ("cannot say", "")
    assert "its tables are factorised" in result.reason
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
def test_invalid_entries_for_factors(tmp_path, entry):
    tensors = {"a": values(5, 2), "b": values(2, 3), "vector": values(2, 1)[:, 0]}
    folder = checkpoint(tmp_path / "c", tensors, {"factorised": entry})
    with pytest.raises(CheckpointError, match="`factorised`"):
        factors(folder)
    checkpoint(folder, tensors, {"factorised": {"input": {"rows": "a", "map": "b"}}})
    np.testing.assert_array_equal(factors(folder)["input"].map, values(2, 3))
