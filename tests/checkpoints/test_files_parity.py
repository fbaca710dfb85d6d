"""Folders whose files are damaged: what `check` says of them, and what the transformers library loads from them."""

import json

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from library_models import saved  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

from tiejax.checkpoints.check import check_folder  # noqa: E402
from tiejax.checkpoints.hub.checkpoint import INDEX, WEIGHTS, open_checkpoint  # noqa: E402
from tiejax.checkpoints.hub.stored import stored_tables  # noqa: E402

pytestmark = pytest.mark.parity
EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
FIRST, SECOND = (f"model-0000{number}-of-00002.safetensors" for number in (1, 2))


def sharded(folder, tied=False, omit=(), **listed):
    """Save a small Llama in two shards, and an index without some tensors and with others; return its tensors."""
    tensors = load_file(saved("llama", tied, folder) / WEIGHTS)
    (folder / WEIGHTS).unlink()
    shards = {FIRST: sorted(tensors)[::2], SECOND: sorted(tensors)[1::2]}
    for file, names in shards.items():
        save_file({name: tensors[name] for name in names}, folder / file, metadata={"format": "pt"})
    places = {name: file for file, names in shards.items() for name in names if name not in omit} | listed
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": 0}, "weight_map": places}))
    return tensors


def loaded(folder):
    model, info = transformers.LlamaForCausalLM.from_pretrained(folder, output_loading_info=True)
    return model.get_input_embeddings().weight, model.get_output_embeddings().weight, info


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("omit", [EMBED, HEAD])
def test_tensors_that_the_index_omits(tmp_path, tied, omit):
    """Version 5 of the library loads them from the shards that the index lists."""
    tensors = sharded(tmp_path / "c", tied, (omit,))
    first, second, info = loaded(tmp_path / "c")
    assert not any(info.values()), info
    ours = stored_tables(open_checkpoint(tmp_path / "c"))
    assert torch.equal(first, tensors[ours.input.name])
    assert torch.equal(second, tensors[(ours.output or ours.input).name])
    one = check_folder(tmp_path / "c")
    assert (one.answer == "agrees") == (omit not in tensors)
    assert omit not in tensors or f"omits {omit}" in one.reason


def test_index_that_lists_what_no_shard_contains(tmp_path):
    sharded(tmp_path / "c", True, (), **{HEAD: FIRST})
    assert check_folder(tmp_path / "c").reason == f"{INDEX} lists {HEAD}, which no shard contains"
    first, second, _ = loaded(tmp_path / "c")
    assert first.data_ptr() == second.data_ptr()


def test_index_without_metadata(tmp_path):
    sharded(tmp_path / "c")
    index = json.loads((tmp_path / "c" / INDEX).read_text())
    (tmp_path / "c" / INDEX).write_text(json.dumps({"weight_map": index["weight_map"]}))
    assert "has no metadata" in check_folder(tmp_path / "c").reason
    with pytest.raises(KeyError, match="metadata"):
        loaded(tmp_path / "c")
    (tmp_path / "c" / INDEX).unlink()
    assert "is missing, without which loaders find no weights" in check_folder(tmp_path / "c").reason
    with pytest.raises(OSError, match="no file named"):
        loaded(tmp_path / "c")


def test_set_of_weights_that_is_read(tmp_path):
    """The single file, although the index lists newer shards; of a tensor in two shards, that of the last."""
    tensors = sharded(tmp_path / "c")
    twice = {**load_file(tmp_path / "c" / SECOND), EMBED: tensors[EMBED] + 1, HEAD: tensors[HEAD] + 1}
    save_file(twice, tmp_path / "c" / SECOND, metadata={"format": "pt"})
    opened = open_checkpoint(tmp_path / "c")
    assert opened.tensors[EMBED].file.name == SECOND
    assert torch.equal(loaded(tmp_path / "c")[0], tensors[EMBED] + 1)
    save_file({name: tensor + 2 for name, tensor in tensors.items()}, tmp_path / "c" / WEIGHTS, metadata={"format": "pt"})
    opened = open_checkpoint(tmp_path / "c")
    assert opened.tensors[EMBED].file.name == WEIGHTS
    assert torch.equal(loaded(tmp_path / "c")[0], tensors[EMBED] + 2)


@pytest.mark.parametrize("prefix", ["_orig_mod.", "module.", "base_model.model.", "_fsdp_wrapped_module."])
def test_tensors_under_a_prefix_are_not_found(tmp_path, prefix):
    folder = saved("llama", True, tmp_path / "c")
    tensors = {prefix + name: tensor for name, tensor in load_file(folder / WEIGHTS).items()}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    _, _, info = loaded(folder)
    assert set(info["unexpected_keys"]) == set(tensors)
    one = check_folder(folder)
    assert one.answer == "disagrees"
    assert one.reason.startswith(f"loaders find no tensor under the prefix {prefix} ")
    assert one.edit == "remove that prefix from all names"


@pytest.mark.parametrize("empty", [EMBED, HEAD])
def test_empty_tables_cannot_be_loaded(tmp_path, empty):
    folder = saved("llama", False, tmp_path / "c")
    save_file(load_file(folder / WEIGHTS) | {empty: torch.zeros(0)}, folder / WEIGHTS, metadata={"format": "pt"})
    with pytest.raises(RuntimeError, match="mismatched_sizes"):
        loaded(folder)
    assert "were not gathered" in check_folder(folder).reason
