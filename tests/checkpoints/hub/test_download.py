"""Checkpoints named by their id, downloaded from a local server that answers as the hub does."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hub_checkpoints import checkpoint, values
from hub_server import COMMIT, ID, hub_of
from safetensors.numpy import load_file, save_file

from tiejax.checkpoints.hub.architectures import known
from tiejax.checkpoints.hub.checkpoint import INDEX
from tiejax.checkpoints.hub.download import is_id, shards_of_tables

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@pytest.fixture
def served(tmp_path):
    """A hub with one untied model in three shards: its folder, the environment that leads to it, and what it was asked for."""
    folder = checkpoint(tmp_path / "there", {EMBED: values()}, file="a.safetensors")
    checkpoint(folder, {HEAD: values(seed=1)}, file="b.safetensors")
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 23, "tie_word_embeddings": False}
    checkpoint(folder, {"model.norm.weight": values(4, 1)[:, 0]}, config, file="c.safetensors")
    places = {EMBED: "a.safetensors", HEAD: "b.safetensors", "model.norm.weight": "c.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    (folder / "README.md").write_text("# A model\n")
    (folder / "pytorch_model.bin").write_bytes(b"never downloaded")
    with hub_of(folder, tmp_path / "cache") as (handler, environment):
        yield folder, environment, handler


@pytest.fixture
def hub(served):
    """The same, with the files asked for."""
    folder, environment, handler = served
    return folder, environment, handler.asked


def tiejax(environment, *argv, cwd):
    """Run a command in a separate process, since the hub's library reads its variables when it is imported."""
    command = [sys.executable, "-m", "tiejax", *map(str, argv)]
    path = {"PYTHONPATH": str(Path(__file__).parents[3])}
    return subprocess.run(command, env=os.environ | path | environment, cwd=cwd, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_check_downloads_the_tables_only(hub, tmp_path):
    _, environment, asked = hub
    ended = tiejax(environment, "check", ID, "--json", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    (one,) = json.loads(ended.stdout)["checkpoints"]
    assert (one["folder"], one["answer"], one["stored"]) == (ID, "agrees", "two different tables")
    assert sorted(name for name in asked if name.endswith((".safetensors", ".bin"))) == ["a.safetensors", "b.safetensors"]
    asked.clear()
    again = tiejax(environment | {"HF_HUB_OFFLINE": "1"}, "check", ID, "--json", cwd=tmp_path)
    assert asked == []  # the tables are in the cache
    assert again.returncode in (0, 2)


def test_head_that_the_index_omits_is_found_by_headers(hub, tmp_path):
    folder, environment, asked = hub
    index = json.loads((folder / INDEX).read_text())
    del index["weight_map"][HEAD]
    save_file({HEAD: values(seed=1), "x": values()}, folder / "b.safetensors")
    (folder / INDEX).write_text(json.dumps(index | {"weight_map": index["weight_map"] | {"x": "b.safetensors"}}))
    ended = tiejax(environment, "check", ID, "--json", cwd=tmp_path)
    (one,) = json.loads(ended.stdout)["checkpoints"]
    assert (ended.returncode, one["answer"], one["stored"]) == (1, "disagrees", "two different tables")
    assert one["reason"].startswith(f"{INDEX} omits {HEAD}")
    assert "c.safetensors" not in asked


def test_single_file_is_preferred_to_shards(hub, tmp_path):
    folder, environment, asked = hub
    save_file({EMBED: values(), HEAD: values()}, folder / "model.safetensors")
    ended = tiejax(environment, "check", ID, "--json", cwd=tmp_path)
    assert json.loads(ended.stdout)["checkpoints"][0]["stored"] == "two equal tables"
    assert shards(asked) == ["model.safetensors"]


def test_tie_writes_a_model_card(hub, tmp_path):
    _, environment, asked = hub
    ended = tiejax(environment, "tie", ID, "tied", "--keep", "input", "--force", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "pytorch_model.bin" not in asked
    index = json.loads((tmp_path / "tied" / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == {EMBED, "model.norm.weight"}
    assert (load_file(tmp_path / "tied" / "a.safetensors")[EMBED] == values()).all()
    card = (tmp_path / "tied" / "README.md").read_text()
    assert card.startswith("# A model\n")
    assert "`tiejax tie --keep input` (version" in card
    assert f"wrote this checkpoint from `{ID}` at `{COMMIT}`." in card
    assert f"these tensors are no longer stored: `{HEAD}`" in card


@pytest.mark.slow
def test_no_such_model_and_no_network(hub, tmp_path):
    _, environment, _ = hub
    for name, more in (("some-org/none", {}), (ID, {"HF_ENDPOINT": "http://127.0.0.1:9"})):
        ended = tiejax(environment | more, "untie", name, "out", cwd=tmp_path)
        assert ended.returncode == 2
        assert ended.stdout == ""
        assert len(ended.stderr.splitlines()) == 1
        assert f"{name}: is not a folder, and no checkpoint of that name could be downloaded" in ended.stderr
    assert not (tmp_path / "out").exists()


def test_ids(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert is_id("openai-community/gpt2")
    assert is_id("a/b@refs/pr/1")
    for name in ("gpt2", "a/b/c", "./a/b", "/a/b", "~/b", "a/", ""):
        assert not is_id(name)
    (tmp_path / "a" / "b").mkdir(parents=True)
    assert not is_id("a/b")  # a folder


def test_shards_of_tables():
    places = {"lm_head.qweight": "2", "lm_head.scales": "3", "model.embed_tokens.weight": "1", "model.layers.0.x.weight": "4"}
    assert shards_of_tables(known()["LlamaForCausalLM"], places) == ["1", "2", "3"]
    codes = {"t2u_model.lm_head.weight": "3", "t2u_model.model.decoder.embed_tokens.weight": "4", "x": "5"}
    assert shards_of_tables(known()["SeamlessM4TModel"], codes | {"lm_head.weight": "1"}) == ["1", "3", "4"]
    assert shards_of_tables(known()["GPT2LMHeadModel"], {"wte.weight": "1", "h.0.w": "2"}) == ["1"]


WIDE = 200_000  # values of a vector in the third shard, so that its bytes exceed those of any header


def shards(names):
    return sorted(name for name in names if name.endswith(".safetensors"))


def diagnosed(environment, cwd, out, name=ID, *more):
    """Diagnose a checkpoint in a separate process; return results.json and the page."""
    ended = tiejax(environment, "diagnose", name, "--out", out, "--quiet", *more, cwd=cwd)
    assert ended.returncode == 0, ended.stderr
    return json.loads((cwd / out / "results.json").read_text()), (cwd / out / "report.html").read_text()


def with_wide_shard(folder):
    """Make the third shard larger, and give the output table a bias in it; return the number of parameters."""
    tensors = {"model.norm.weight": np.ones(WIDE, np.float32), "lm_head.bias": np.ones(23, np.float32)}
    save_file(tensors, folder / "c.safetensors")
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"]["lm_head.bias"] = "c.safetensors"
    (folder / INDEX).write_text(json.dumps(index))
    return WIDE + 23 + 2 * values().size


@pytest.mark.slow
def test_diagnose_downloads_the_tables_only(served, tmp_path):
    """The other shard's header alone is read: what a diagnosis of the whole folder finds, and far fewer bytes."""
    folder, environment, handler = served
    number = with_wide_shard(folder)
    found, page = diagnosed(environment, tmp_path, "by-id")
    assert shards(handler.asked) == ["a.safetensors", "b.safetensors"]
    assert {name for name, _, _ in handler.ranges} == {"c.safetensors"}
    assert sum(last + 1 - first for _, first, last in handler.ranges) < WIDE
    assert (found["parameters"], found["bias"]) == (number, "lm_head.bias")
    assert f"{number:,}" in page
    whole, _ = diagnosed(environment, tmp_path, "by-folder", folder)
    for other in ("seconds", "checkpoint"):
        del found[other], whole[other]
    assert found == whole


@pytest.mark.slow
@pytest.mark.parametrize("stated", [None, 123_456])
def test_diagnose_without_a_network_counts_by_the_index(served, tmp_path, stated):
    """Tables in the cache, and no header of the other shard: the index's number of parameters, or none."""
    folder, environment, handler = served
    index = json.loads((folder / INDEX).read_text())
    index["metadata"] = {"total_size": 999} | ({} if stated is None else {"total_parameters": stated})
    (folder / INDEX).write_text(json.dumps(index))
    tiejax(environment, "check", ID, cwd=tmp_path)
    handler.asked.clear()
    handler.ranges.clear()
    found, page = diagnosed(environment | {"HF_HUB_OFFLINE": "1"}, tmp_path, "found")
    assert (handler.asked, handler.ranges) == ([], [])
    assert found["parameters"] == stated
    assert found["memory"]["share"] == (None if stated is None else values().size / stated)
    assert ("unknown: some shards were not downloaded" in page) == (stated is None)


@pytest.mark.slow
def test_diagnose_an_unknown_architecture_by_named_tables(served, tmp_path):
    folder, environment, handler = served
    config = {"architectures": ["NewForCausalLM"], "vocab_size": 23}
    (folder / "config.json").write_text(json.dumps(config))
    quiet = {"HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    ended = tiejax(environment | quiet, "diagnose", ID, "--out", "none", cwd=tmp_path)
    assert ended.returncode == 2
    assert "NewForCausalLM is not known; tensors that may be tables: " in ended.stderr
    assert f"{HEAD} [23, 4]" in ended.stderr
    assert "name its tables with --input_table and --output_table" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
    assert shards(handler.asked) == []
    diagnosed(environment, tmp_path, "found", ID, "--input_table", EMBED, "--output_table", HEAD)
    assert shards(handler.asked) == ["a.safetensors", "b.safetensors"]


@pytest.mark.slow
def test_table_that_is_not_in_the_cache(served, tmp_path):
    """The configuration and the index alone are in the cache."""
    folder, environment, _ = served
    (folder / "a.safetensors").rename(tmp_path / "a.safetensors")
    (folder / "b.safetensors").unlink()
    tiejax(environment, "check", ID, cwd=tmp_path)
    for command in ("check", "diagnose"):
        ended = tiejax(environment | {"HF_HUB_OFFLINE": "1"}, command, ID, cwd=tmp_path)
        assert ended.returncode == 2
        assert (
            "a.safetensors, which holds a table, is neither in the cache nor could be downloaded" in ended.stdout + ended.stderr
        )
