"""A factorised OPT in the transformers library: no missing tensors, and the same logits at a lossless rank."""

import json

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from library_models import SMALL, saved  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

from tiejax.checkpoints.check import check_folder  # noqa: E402
from tiejax.checkpoints.rewrite.factorise import factorise  # noqa: E402

pytestmark = pytest.mark.parity

WIDTH = SMALL["hidden_size"]
EMBED, HEAD = "model.decoder.embed_tokens.weight", "lm_head.weight"


def loaded(folder):
    model, info = transformers.OPTForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(info.values()), info
    return model.eval()


def logits(folder):
    with torch.no_grad():
        return loaded(folder)(torch.arange(3, 19).reshape(2, 8)).logits.numpy()


def with_table(folder, rank):
    """Replace the table of a tied OPT by its truncation to a rank."""
    tensors = load_file(folder / "model.safetensors")
    u, s, v = torch.linalg.svd(tensors[EMBED], full_matrices=False)
    tensors[EMBED] = ((u[:, :rank] * s[:rank]) @ v[:rank]).contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_two_tables_at_full_rank(tmp_path):
    folder = saved("opt", False, tmp_path / "c")
    factorise(folder, tmp_path / "out", rank=2 * WIDTH)
    np.testing.assert_allclose(logits(tmp_path / "out"), logits(folder), atol=1e-5)
    assert np.abs(logits(folder)).max() > 0.05
    assert check_folder(tmp_path / "out").answer == "agrees"


@pytest.mark.parametrize("shift", [True, False], ids=["layer norm before", "layer norm after"])
def test_tied_table_of_low_rank(tmp_path, shift):
    folder = with_table(saved("opt", True, tmp_path / "c"), 5)
    config = json.loads((folder / "config.json").read_text())
    if not shift:
        tensors = load_file(folder / "model.safetensors")
        last = {name: tensors.pop(name) for name in list(tensors) if name.startswith("model.decoder.final_layer_norm")}
        assert len(last) == 2
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config | {"do_layer_norm_before": shift}))
    factorise(folder, tmp_path / "out", rank=5)
    np.testing.assert_allclose(logits(tmp_path / "out"), logits(folder), atol=1e-5)
    factorise(folder, tmp_path / "lossy", rank=2)
    assert np.abs(logits(tmp_path / "lossy") - logits(folder)).max() > 1e-3


@pytest.mark.parametrize("rank", [1, 7])
def test_embeddings_through_the_map_are_the_truncated_svd(tmp_path, rank):
    folder = saved("opt", True, tmp_path / "c")
    factorise(folder, tmp_path / "out", rank=rank)
    decoder = loaded(tmp_path / "out").model.decoder
    with torch.no_grad():
        through = decoder.project_in(decoder.embed_tokens(torch.arange(SMALL["vocab_size"]))).numpy()
    u, s, v = np.linalg.svd(load_file(folder / "model.safetensors")[EMBED].numpy(), full_matrices=False)
    np.testing.assert_allclose(through, (u[:, :rank] * s[:rank]) @ v[:rank], atol=1e-5)


def test_losses_of_both_tables_match_the_budget(tmp_path):
    folder = saved("opt", False, tmp_path / "c")
    chosen = factorise(folder, tmp_path / "out", rank=9).budget.at(9)
    before, model = load_file(folder / "model.safetensors"), loaded(tmp_path / "out")
    decoder = model.model.decoder
    with torch.no_grad():
        through = {
            "input": (EMBED, decoder.project_in(decoder.embed_tokens.weight)),
            "output": (HEAD, model.lm_head.weight @ decoder.project_out.weight),
        }
    for role, (name, found) in through.items():
        lost = float(torch.sum((before[name] - found) ** 2) / torch.sum(before[name] ** 2))
        assert chosen[f"energy_{role}"] == pytest.approx(1 - lost, abs=1e-5)


def test_opt_with_maps_is_narrowed(tmp_path):
    """Factorised twice, both times without loss, the model keeps its logits."""
    folder = with_table(saved("opt", True, tmp_path / "c"), 4)
    factorise(folder, tmp_path / "narrow", rank=9)
    factorise(tmp_path / "narrow", tmp_path / "narrower", rank=4)
    assert loaded(tmp_path / "narrower").config.word_embed_proj_dim == 4
    np.testing.assert_allclose(logits(tmp_path / "narrower"), logits(folder), atol=1e-5)
