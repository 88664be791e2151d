"""A hub on the loopback: the part of the Hugging Face hub's API by which `huggingface_hub` publishes files.

It keeps what it is given, as commits of repositories, and takes large files by LFS, whose hashes it checks.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

OID = "0" * 40  # of every commit


@dataclass
class Repository:
    private: bool
    files: dict[str, bytes] = field(default_factory=dict)
    commits: int = 0


class Hub(ThreadingHTTPServer):
    """Repositories by "models/OWNER/NAME"; only requests with `token` are served."""

    daemon_threads = True

    def __init__(self, token: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.token, self.repositories = token, dict[str, Repository]()
        self.large: dict[str, bytes] = {}  # by sha256

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@contextmanager
def serving_hub(token: str) -> Iterator[Hub]:
    with Hub(token) as hub:
        thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield hub
        finally:
            hub.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self._serve(b"")

    def do_POST(self) -> None:
        self._serve(self.rfile.read(int(self.headers["Content-Length"])))

    def do_PUT(self) -> None:  # of a large file, to an address that needs no token
        data, name = self.rfile.read(int(self.headers["Content-Length"])), self.path.rpartition("/")[2]
        assert hashlib.sha256(data).hexdigest() == name
        self.server.large[name] = data
        self._answer(200, {})

    def _serve(self, body: bytes) -> None:
        if self.headers.get("Authorization") != f"Bearer {self.server.token}":
            self._answer(401, {"error": "Invalid username or password."})
        else:
            self._answer(*self._find_answer(urlsplit(self.path).path, body))

    def _find_answer(self, path: str, body: bytes) -> tuple[int, Any]:
        if path == "/api/validate-yaml":
            return 200, {"errors": [], "warnings": []}
        if path == "/api/repos/create":
            return self._create(json.loads(body))
        if path.endswith(".git/info/lfs/objects/batch"):
            objects = [self._offer_upload(each) for each in json.loads(body)["objects"]]
            return 200, {"transfer": "basic", "objects": objects}
        _, _, kind, owner, name, *rest = path.split("/")
        repository = self.server.repositories.get(f"{kind}/{owner}/{name}")
        return (
            (404, {"error": "no such repository"}) if repository is None else (200, self._ask(repository, rest, body))
        )

    def _ask(self, repository: Repository, rest: list[str], body: bytes) -> Any:
        match rest:
            case ["tree", _]:
                files = repository.files.items()
                return [{"type": "file", "path": path, "size": len(data), "oid": OID} for path, data in files]
            case ["preupload", _]:
                names = [each["path"] for each in json.loads(body)["files"]]
                modes = {name: "lfs" if name.endswith(".safetensors") else "regular" for name in names}
                return {"files": [{"path": n, "uploadMode": mode, "shouldIgnore": False} for n, mode in modes.items()]}
            case ["commit", _]:
                self._commit(repository, body)
                return {"commitUrl": f"{self.server.url}/any/name/commit/{OID}", "commitOid": OID}
        return {"id": "any/name", "private": repository.private, "sha": OID, "siblings": []}

    def _create(self, asked: dict[str, Any]) -> tuple[int, Any]:
        owner, kind = asked["organization"], asked.get("type", "model")
        place, url = f"{kind}s/{owner}/{asked['name']}", f"{'datasets/' * (kind == 'dataset')}{owner}/{asked['name']}"
        if place in self.server.repositories:
            return 409, {"error": "You already created this repository", "url": f"{self.server.url}/{url}"}
        self.server.repositories[place] = Repository(asked.get("visibility") == "private" or bool(asked.get("private")))
        return 200, {"url": f"{self.server.url}/{url}"}

    def _offer_upload(self, asked: dict[str, Any]) -> dict[str, Any]:
        return {**asked, "actions": {"upload": {"href": f"{self.server.url}/upload/{asked['oid']}"}}}

    def _commit(self, repository: Repository, body: bytes) -> None:
        repository.commits += 1
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                repository.files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                repository.files[value["path"]] = self.server.large[value["oid"]]

    def _answer(self, status: int, content: Any) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
