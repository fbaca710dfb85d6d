"""Tying a checkpoint: the table for both roles, the measures of the report, and refused checkpoints."""

import json
from contextlib import nullcontext

import ml_dtypes
import numpy as np
import pytest
from hub_checkpoints import checkpoint, values
from processes import tree
from safetensors.numpy import load_file, save_file

from tiejax.checkpoints.check import check_folder
from tiejax.checkpoints.hub.checkpoint import open_checkpoint
from tiejax.checkpoints.hub.errors import CheckpointError
from tiejax.checkpoints.hub.tables import HubTable
from tiejax.checkpoints.rewrite import tie_report
from tiejax.checkpoints.rewrite.one_table import distances, one_table
from tiejax.checkpoints.rewrite.tie import plan, tie
from tiejax.checkpoints.rewrite.tie_report import moved

EMBED, HEAD, NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"
UNTIED = {"model_type": "llama", "tie_word_embeddings": False, "vocab_size": 23}
WEIGHT = np.array([1.0, 2.0, 0.5, 1.5], np.float32)


def untied(folder, second=None, config=UNTIED, **tensors):
    second = values() + 1e-4 * values(seed=1) if second is None else second
    return checkpoint(folder, {EMBED: values(), HEAD: second, NORM: WEIGHT, "w": values(3, 3, seed=5), **tensors}, config)


def tables(tmp_path, first, second):
    folder = checkpoint(tmp_path / "tables", {EMBED: first, HEAD: second}, UNTIED)
    tensors = open_checkpoint(folder).tensors
    return HubTable(tensors[EMBED]), HubTable(tensors[HEAD])


def report(folder, hidden=None):
    """The report of tying to the input table."""
    return plan(folder, None, "input", None, hidden, 256, 0).report


def read(folder):
    return load_file(folder / "model.safetensors")


def kl(p, q):
    """KL(softmax(p) || softmax(q)) of two rows of logits, summed term by term."""
    p, q = (np.exp(row) / np.exp(row).sum() for row in (p, q))
    return sum(float(a) * float(np.log(a / b)) for a, b in zip(p, q, strict=True))


@pytest.mark.parametrize("keep", ["input", "output", "mean"])
def test_only_the_table_changes(tmp_path, keep):
    folder = untied(tmp_path / "c")
    before = tree(folder)
    tie(folder, tmp_path / "out", keep, force=True)
    assert tree(folder) == before
    old, new = read(folder), read(tmp_path / "out")
    expected = {"input": old[EMBED], "output": old[HEAD], "mean": (old[EMBED] + old[HEAD]) / 2}[keep]
    assert new.pop(EMBED).tobytes() == expected.tobytes()
    assert {name: array.tobytes() for name, array in new.items()} == {name: old[name].tobytes() for name in (NORM, "w")}
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == UNTIED | {"tie_word_embeddings": True}
    assert (check_folder(tmp_path / "out").stored, check_folder(tmp_path / "out").answer) == ("one table", "agrees")


def test_scaled_columns_are_aligned_exactly(tmp_path):
    scale = np.array([0.5, -2.0, 1.25, 4.0], np.float32)
    folder = untied(tmp_path / "c", values() * scale)
    tie(folder, tmp_path / "out", "aligned")
    new = read(tmp_path / "out")
    np.testing.assert_allclose(new[EMBED], values(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(new[NORM], WEIGHT * scale, rtol=1e-5)
    assert sorted(new) == sorted([EMBED, NORM, "w"])


def test_aligned_table_and_scale_are_the_least_squares_solution(tmp_path):
    """Column by column, the best rank-one fit of both tables, from numpy's SVD."""
    x, y = values(200, 4), 3 * values(200, 4) * WEIGHT + values(200, 4, seed=7)
    first, second = tables(tmp_path, x, y)
    found = one_table(first, second, "aligned")
    ratio = np.linalg.norm(y) / np.linalg.norm(x)
    for column in range(4):
        left, size, right = np.linalg.svd(
            np.stack([x[:, column], y[:, column] / ratio], axis=1).astype(float), full_matrices=False
        )
        fitted = size[0] * np.outer(left[:, 0], right[0])
        np.testing.assert_allclose(found.rows(slice(0, 200))[:, column], fitted[:, 0], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found.scale[column], ratio * right[0, 1] / right[0, 0], rtol=1e-5)


def test_gemma_norm_multiplies_by_weight_plus_one(tmp_path):
    config = UNTIED | {"model_type": "gemma"}
    folder = untied(tmp_path / "c", values() * 3, config)
    tie(folder, tmp_path / "out", "aligned")
    np.testing.assert_allclose(read(tmp_path / "out")[NORM], 3 * (WEIGHT + 1) - 1, rtol=1e-5)


EVERY = {"logit_scale": 1e-6, "logits_scaling": 1e6, "final_logit_softcapping": 1e-6}
# How the library transforms logits, from the configuration or its defaults. Other families ignore these keys.
BENT = {
    "cohere": ({"logit_scale": 0.5, "final_logit_softcapping": 1e-6}, lambda x: x / 2),
    "cohere2": ({"logits_scaling": 9.0}, lambda x: x / 16),
    "gemma": (EVERY, lambda x: x),
    "gemma2": ({"final_logit_softcapping": 1.5, "logit_scale": 9.0}, lambda x: 1.5 * np.tanh(x / 1.5)),
    "gemma3n_text": ({}, lambda x: 30 * np.tanh(x / 30)),
    "gemma3_text": ({}, lambda x: x),
    "gemma3n": ({"text_config": {"final_logit_softcapping": 2.0}}, lambda x: 2 * np.tanh(x / 2)),
    "llama": (EVERY, lambda x: x),
    "vaultgemma": ({}, lambda x: 30 * np.tanh(x / 30)),
    "granite": ({"logits_scaling": 8.0}, lambda x: x / 8),
    "hyperclovax": ({"logits_scaling": 8.0}, lambda x: x * 8),
    "falcon_h1": ({"lm_head_multiplier": 0.25}, lambda x: x / 4),
    "gemma4_text": ({}, lambda x: x),
    "gemma4": ({"text_config": {"final_logit_softcapping": 2.0}}, lambda x: 2 * np.tanh(x / 2)),
    "granite_docling": ({}, lambda x: x / 4),
    "t5gemma": ({"decoder": {"final_logit_softcapping": 2.0}}, lambda x: 2 * np.tanh(x / 2)),
    "paligemma": ({"text_config": {"model_type": "gemma2"}}, lambda x: 30 * np.tanh(x / 30)),
    "recurrent_gemma": ({"logits_soft_cap": 2.0}, lambda x: 2 * np.tanh(x / 2)),
    "muse_glimmer": (
        {"text_config": {"output_multiplier": 0.5, "final_logit_softcapping": 2.0}},
        lambda x: 2 * np.tanh(x / 2 / 2),
    ),
}


@pytest.mark.parametrize("together", [7 * 40, 2**22], ids=["blocks", "one block"])
@pytest.mark.parametrize("kind", BENT)
def test_logits_and_losses_by_hand(tmp_path, monkeypatch, kind, together):
    """Logits with a bias and a factor or a cap, and different states before and after."""
    monkeypatch.setattr(tie_report, "TOGETHER", together)
    first, second = tables(tmp_path, values(), values(seed=1))
    before, after = values(40, 4, seed=2), values(40, 4, seed=3)
    bias, targets = values(23, 1, seed=4)[:, 0], np.arange(40) % 23
    config, bend = BENT[kind]
    found = moved(one_table(first, second, "input"), before, after, bias, {"model_type": kind} | config, targets)
    old, new = (
        bend((states @ table.T + bias).astype(float)) for states, table in ((before, values(seed=1)), (after, values()))
    )
    np.testing.assert_allclose(found.kl, np.mean([kl(p, q) for p, q in zip(old, new, strict=True)]), rtol=1e-5)
    assert found.top1 == np.mean(old.argmax(1) == new.argmax(1))
    for loss, logits in ((found.loss_before, old), (found.loss_after, new)):
        chosen = logits[np.arange(40), targets]
        np.testing.assert_allclose(loss, np.mean(np.log(np.exp(logits).sum(axis=1)) - chosen), rtol=1e-5)


def test_large_logits_do_not_overflow(tmp_path):
    x, y = np.array([[1e4], [0.0], [-1e4]], np.float32), np.array([[0.0], [1e4], [-1e4]], np.float32)
    found = moved(one_table(*tables(tmp_path, x, y), "input"), *[np.ones((1, 1), np.float32)] * 2, None, {}, np.array([2]))
    assert found == (1e4, 0.0, 2e4, 2e4)


def test_distances(tmp_path):
    x, y = values(), values(seed=1)
    found = distances(one_table(*tables(tmp_path, x, y), "mean"))
    np.testing.assert_allclose(found.input, np.linalg.norm((y - x) / 2) / np.linalg.norm(x), rtol=1e-6)
    np.testing.assert_allclose(found.output, np.linalg.norm((x - y) / 2) / np.linalg.norm(y), rtol=1e-6)


def test_mean_is_measured_as_stored(tmp_path):
    """In bfloat16 the mean is rounded, and the rounded mean is measured."""
    x, y = (values(seed=seed).astype(ml_dtypes.bfloat16) for seed in (0, 1))
    table = one_table(*tables(tmp_path, x, y), "mean")
    wide = (x.astype(np.float32) + y.astype(np.float32)) / 2
    np.testing.assert_array_equal(table.rows(slice(0, 23)), wide.astype(ml_dtypes.bfloat16).astype(np.float32))
    assert not np.array_equal(table.rows(slice(0, 23)), wide)


def test_given_states_are_used(tmp_path):
    """Tables that differ in one column only have equal logits on states that are 0 there."""
    second = values()
    second[:, 3] *= 3
    folder = untied(tmp_path / "c", second)
    states = values(100, 4, seed=8)
    states[:, 3] = 0
    np.save(tmp_path / "h.npy", states)
    given = report(folder, str(tmp_path / "h.npy"))
    assert (given.moved.kl, given.moved.top1, given.obstacle(), given.states) == (0.0, 1.0, None, 100)
    assert report(folder).moved.kl > 0.1


def test_drawn_states_are_scaled_by_the_norm(tmp_path):
    """A norm whose weight is 0 in all but one column hides the columns in which the tables differ."""
    second = values(seed=1)
    second[:, 0] = values()[:, 0]
    weight = np.array([1, 0, 0, 0], np.float32)
    folder = untied(tmp_path / "c", second, **{NORM: weight})
    assert report(folder).moved.kl < 1e-12


def test_decoder_bias_moves_one_level_up(tmp_path):
    """An untied BERT adds the bias of its decoder, not the shared one."""
    own, shared = np.arange(23, dtype=np.float32), np.zeros(23, np.float32)
    tensors = {
        "bert.embeddings.word_embeddings.weight": values(),
        "cls.predictions.decoder.weight": values(),
        "cls.predictions.decoder.bias": own,
        "cls.predictions.bias": shared,
    }
    folder = checkpoint(tmp_path / "c", tensors, {"model_type": "bert", "tie_word_embeddings": False})
    tie(folder, tmp_path / "out")
    new = read(tmp_path / "out")
    assert sorted(new) == ["bert.embeddings.word_embeddings.weight", "cls.predictions.bias"]
    np.testing.assert_array_equal(new["cls.predictions.bias"], own)


@pytest.mark.parametrize("equal", [True, False])
def test_inner_tables_must_equal_the_shared_one(tmp_path, equal):
    """An untied BART stores three input tables; of a tied one, the library reads only the shared table."""
    names = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")
    tensors = {"model.shared.weight": values(), HEAD: values()} | dict.fromkeys(names, values(seed=0 if equal else 3))
    folder = checkpoint(tmp_path / "c", tensors, {"model_type": "bart", "tie_word_embeddings": False})
    if equal:
        tie(folder, tmp_path / "out")
        assert list(read(tmp_path / "out")) == ["model.shared.weight"]
    else:
        with pytest.raises(CheckpointError, match=r"encoder\.embed_tokens\.weight differs from model\.shared\.weight"):
            tie(folder, tmp_path / "out")


FURTHER = {
    "SeamlessM4TModel": ("shared.weight", HEAD, ("t2u_model.model.decoder.embed_tokens.weight", "t2u_model.lm_head.weight")),
    "NeoMMEForMaskedLM": (
        "model.embed_tokens.word_embeddings.weight",
        HEAD,
        ("model.embed_tokens.embedding_projection.weight", "unembedding_projection.weight"),
    ),
    # The untied model does not use `shared`, under which the library stores the one table of a tied model.
    "SeamlessM4TForSpeechToSpeech": (
        "text_decoder.embed_tokens.weight",
        HEAD,
        ("text_decoder.embed_tokens.weight", "shared.weight"),
    ),
}


@pytest.mark.parametrize("equal", [True, False])
@pytest.mark.parametrize("name", FURTHER)
def test_further_tensors_that_the_flag_makes_one(tmp_path, name, equal):
    """Equal ones are left out but for one; of different ones, a tied model would read one only."""
    first, second, (kept, other) = FURTHER[name]
    tensors = {kept: values(seed=3), first: values(), second: values(), "w": values(2, 2)}
    tensors[other] = tensors[kept] if equal else values(seed=4)
    folder = checkpoint(tmp_path / "c", tensors, {"architectures": [name], "tie_word_embeddings": False})
    if equal:
        tie(folder, tmp_path / "out", force=True)
        assert set(read(tmp_path / "out")) == ({other, "w"} if first == kept else {first, kept, "w"})
        assert check_folder(tmp_path / "out").answer == "agrees"
        return
    for out in (None, tmp_path / "out"):
        differing = f"({other} differs from {kept}|{kept} differs from {other})"
        with pytest.raises(CheckpointError, match=f"c: cannot be tied: {differing}, and a flag"):
            plan(folder, out, "input", None, None, 256, 0)
    assert not (tmp_path / "out").exists()


def test_shards(tmp_path):
    folder = checkpoint(tmp_path / "c", {EMBED: values(), "w": values(2, 2)}, UNTIED, file="a.safetensors")
    save_file({HEAD: values()}, folder / "b.safetensors")
    index = {
        "metadata": {"total_size": 752},
        "weight_map": {EMBED: "a.safetensors", "w": "a.safetensors", HEAD: "b.safetensors"},
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    tie(folder, tmp_path / "out")
    written = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert written == {"metadata": {"total_size": 384}, "weight_map": {EMBED: "a.safetensors", "w": "a.safetensors"}}
    assert not (tmp_path / "out" / "b.safetensors").exists()
    assert check_folder(tmp_path / "out").answer == "agrees"


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "rembert"}, "never ties RemBERT"),
        ({"model_type": "new"}, "the model_type 'new' is not known"),
        ({"model_type": "llama", "architectures": ["LlamaModel"]}, "predicts no tokens"),
    ],
)
def test_refused_families(tmp_path, config, words):
    tensors = {EMBED: values(), HEAD: values()}
    if config["model_type"] == "rembert":
        tensors = {"rembert.embeddings.word_embeddings.weight": values(), "cls.predictions.decoder.weight": values()}
    with pytest.raises(CheckpointError, match=words):
        tie(checkpoint(tmp_path / "c", tensors, config), tmp_path / "out")


@pytest.mark.parametrize(("other", "refused"), [("multiple_choice_head.summary.weight", True), ("v_head.summary.weight", True),
                                                ("model.layers.0.w", False)])  # fmt: skip
def test_a_norm_that_another_head_reads_is_not_changed(tmp_path, other, refused):
    """The scale of an aligned table goes into the layer normalisation before the head."""
    folder = untied(tmp_path / "c", values() * 2, **{other: np.ones((1, 4), np.float32)})
    with pytest.raises(CheckpointError, match=f"aligned: {other} .*; keep another table") if refused else nullcontext():
        tie(folder, tmp_path / "out", "aligned")
    assert (tmp_path / "out").exists() == (not refused)


def test_few_states_are_no_reason_to_write(tmp_path):
    """Tables that differ in one row, which one of three states may not show."""
    changed = values()
    changed[0] += 0.01
    folder = untied(tmp_path / "c", changed)
    with pytest.raises(CheckpointError, match=r"3 hidden states are too few .* at least 100: give more states, or a longer"):
        tie(folder, tmp_path / "out", states=3)
    assert not (tmp_path / "out").exists()
    tie(folder, tmp_path / "out", states=100)
