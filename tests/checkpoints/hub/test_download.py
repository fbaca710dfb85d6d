"""Checkpoints named by their id, downloaded from a local server that answers as the hub does."""

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hub_checkpoints import checkpoint, values
from safetensors.numpy import load_file

from tiejax.checkpoints.hub.architectures import known
from tiejax.checkpoints.hub.download import is_id, shards_of_tables

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
ID = "some-org/some-model"


class Hub(BaseHTTPRequestHandler):
    """The parts of the hub's protocol that a snapshot needs: revision, list of files, and files with their digests."""

    folder: Path
    asked: list[str]

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, body):
        path = self.path.split("?")[0]
        files = sorted(file for file in self.folder.iterdir() if file.is_file())
        if path == f"/api/models/{ID}/revision/main":
            self.send_json({"id": ID, "sha": COMMIT, "siblings": [{"rfilename": file.name} for file in files]}, body)
        elif path == f"/api/models/{ID}/tree/{COMMIT}":
            tree = [{"type": "file", "path": file.name, "size": file.stat().st_size, "oid": digest(file)} for file in files]
            self.send_json(tree, body)
        elif (found := re.fullmatch(f"/{ID}/resolve/{COMMIT}/(.+)", path)) and (self.folder / found[1]).is_file():
            if body:
                self.asked.append(found[1])
            self.send(self.folder.joinpath(found[1]).read_bytes(), body, digest(self.folder / found[1]))
        elif path == "/":
            self.send(b"", body)
        else:
            self.send_error(404)

    def send_json(self, content, body):
        self.send(json.dumps(content).encode(), body)

    def send(self, content, body, tag=None):
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        if tag:
            self.send_header("ETag", f'"{tag}"')
            self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if body:
            self.wfile.write(content)

    def log_message(self, *words):
        pass


def digest(file):
    content = file.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@pytest.fixture
def hub(tmp_path):
    """A hub with one untied model in three shards: its folder, the environment that leads to it, and the files asked for."""
    folder = checkpoint(tmp_path / "there", {EMBED: values()}, file="a.safetensors")
    checkpoint(folder, {HEAD: values(seed=1)}, file="b.safetensors")
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 23, "tie_word_embeddings": False}
    checkpoint(folder, {"model.norm.weight": values(4, 1)[:, 0]}, config, file="c.safetensors")
    places = {EMBED: "a.safetensors", HEAD: "b.safetensors", "model.norm.weight": "c.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    (folder / "README.md").write_text("# A model\n")
    (folder / "pytorch_model.bin").write_bytes(b"never downloaded")
    handler = type("Handler", (Hub,), {"folder": folder, "asked": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    environment = {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HOME": str(tmp_path / "cache")}
    yield folder, environment, handler.asked
    server.shutdown()
    server.server_close()
    thread.join()


def tiejax(environment, *argv, cwd):
    """Run a command in a separate process, since the hub's library reads its variables when it is imported."""
    command = [sys.executable, "-m", "tiejax", *map(str, argv)]
    path = {"PYTHONPATH": str(Path(__file__).parents[3])}
    return subprocess.run(command, env=os.environ | path | environment, cwd=cwd, capture_output=True, text=True, timeout=300)


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
    assert shards_of_tables(known()["GPT2LMHeadModel"], {"wte.weight": "1", "h.0.w": "2"}) == ["1"]
