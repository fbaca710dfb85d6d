"""A local server that answers as the Hugging Face hub does, as far as a snapshot needs, or in other ways."""

import contextlib
import dataclasses
import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"
ID = "some-org/some-model"


@dataclasses.dataclass
class Answers:
    """Answers of a hub about one model. Headers that are None are left out.

    commit: in the answer about a revision. headers: of files, in place of the right ones. name: returns the names of files that
    are listed. api: the text of all answers that are JSON, in place of the right one. status: of files.
    """

    commit: Any = COMMIT
    headers: dict[str, str | None] = dataclasses.field(default_factory=dict)
    name: Callable[[str], str] = lambda name: name
    api: str | None = None
    status: int = 200


class Hub(BaseHTTPRequestHandler):
    """The parts of the hub's protocol that a snapshot needs: revision, list of files, and files with their digests."""

    folder: Path
    models: dict[str, Answers]
    asked: list[str]  # files
    ranges: list[tuple[str, int, int]]  # files, and the first and last byte

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, body):
        path = self.path.split("?")[0]
        files = sorted(file for file in self.folder.iterdir() if file.is_file())
        name = next((name for name in self.models if f"/{name}/" in path), ID)
        how = self.models[name]
        if path == f"/api/models/{name}/revision/main":
            siblings = [{"rfilename": how.name(file.name)} for file in files]
            self.send_json({"id": name, "sha": how.commit, "siblings": siblings}, body, how)
        elif path.startswith(f"/api/models/{name}/tree/"):
            tree = [
                {"type": "file", "path": how.name(file.name), "size": file.stat().st_size, "oid": digest(file)}
                for file in files
            ]
            self.send_json(tree, body, how)
        elif (found := re.fullmatch(f"/{name}/resolve/.+/(.+)", path)) and (self.folder / found[1]).is_file():
            self.send_file(self.folder / found[1], body, how)
        elif path == "/":
            self.send(b"", body)
        else:
            self.send_error(404)

    def send_file(self, file, body, how):
        content = file.read_bytes()
        headers = {"ETag": f'"{digest(file)}"', "X-Repo-Commit": COMMIT} | how.headers
        if asked := re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", "")):
            first, last = int(asked[1]), min(int(asked[2]), len(content) - 1)
            self.ranges.append((file.name, first, last))
            self.send(content[first : last + 1], body, headers, 206)
            return
        if body:
            self.asked.append(file.name)
        self.send(content, body, headers, how.status)

    def send_json(self, content, body, how):
        self.send((json.dumps(content) if how.api is None else how.api).encode(), body)

    def send(self, content, body, headers=None, status=200):
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(content))} | (headers or {})).items():
            if value is not None:
                self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(content)

    def log_message(self, *words):
        pass


def digest(file):
    content = file.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@contextlib.contextmanager
def hub_of(folder: Path, home: Path, models: dict[str, Answers] | None = None) -> Iterator[tuple[type[Hub], dict[str, str]]]:
    """Serve a folder as models of a hub; yield the handler and the environment that leads to it, with its cache in `home`."""
    handler = type("Handler", (Hub,), {"folder": folder, "models": models or {ID: Answers()}, "asked": [], "ranges": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield handler, {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HOME": str(home)}
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
