"""A hub on this machine: repositories of bytes over HTTP, as the hub's client asks for them."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha1, sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import unquote, urlparse

import pytest

COMMIT = "a" * 40
_LARGE = (".gguf", ".safetensors")


@dataclass
class FakeHub:
    """repositories: files by name, of each repository. gated: repositories that want consent. cut_after: bytes of a
    large file after which the connection ends, as often as `cuts` says. asked: method, path and range of each call."""

    url: str = ""
    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    cut_after: int = 0
    cuts: int = 0
    corrupt: bool = False
    asked: list[tuple[str, str, str]] = field(default_factory=list)

    def ranges(self, name: str) -> list[str]:
        """Return the requests for a file."""
        return [span for method, path, span in self.asked if method == "GET" and path.endswith(name)]

    def environment(self, cache: Path) -> dict[str, str]:
        """Variables for a process of its own."""
        return {"HF_ENDPOINT": self.url, "HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": "0"}

    def use(self, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
        """Have the hub's client in this process ask here, and keep files in `cache`."""
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", self.url)
        template = self.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)


@contextmanager
def fake_hub() -> Iterator[FakeHub]:
    hub = FakeHub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            _answer(self, hub, True)

        def do_HEAD(self) -> None:
            _answer(self, hub, False)

        def log_message(self, *_: Any) -> None:
            pass

        def handle(self) -> None:
            with suppress(ConnectionError):  # a client that has enough goes away
                super().handle()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


def _answer(call: BaseHTTPRequestHandler, hub: FakeHub, with_body: bool) -> None:
    path = unquote(urlparse(call.path).path)
    hub.asked.append((call.command, path, call.headers.get("Range", "")))
    listed = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/(.+))?", path)
    resolved = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
    found = listed or resolved
    if found is None or found[1] not in hub.repositories:
        return _error(call, 404, "RepoNotFound")
    files = hub.repositories[found[1]]
    if listed is not None:
        if listed[3] not in (None, "main", COMMIT):
            return _error(call, 404, "RevisionNotFound")
        as_tree = listed[2] == "tree"
        body = [_entry(name, content, as_tree) for name, content in files.items()]
        answer: Any = body if as_tree else {"id": found[1], "sha": COMMIT, "siblings": body}
        return _send(call, json.dumps(answer).encode(), {"Content-Type": "application/json"}, with_body)
    name = found[3]
    if found[1] in hub.gated:
        return _error(call, 403, "GatedRepo")
    if name not in files:
        return _error(call, 404, "EntryNotFound")
    content, headers = files[name], {"X-Repo-Commit": COMMIT, "ETag": f'"{_blob(name, files[name])}"'}
    if not with_body:
        return _send(call, content, headers, False)
    if hub.corrupt and name.endswith(_LARGE):
        content = bytes(len(content))
    _send_range(call, hub, name, content, headers)


def _send_range(call: BaseHTTPRequestHandler, hub: FakeHub, name: str, content: bytes, headers: dict[str, str]) -> None:
    begin = int(call.headers["Range"].removeprefix("bytes=").partition("-")[0]) if "Range" in call.headers else 0
    if begin:
        headers |= {"Content-Range": f"bytes {begin}-{len(content) - 1}/{len(content)}"}
    rest, cut = content[begin:], hub.cuts > 0 and name.endswith(_LARGE) and len(content) > begin + hub.cut_after
    call.send_response(206 if begin else 200)
    for key, value in {**headers, "Content-Length": str(len(rest))}.items():
        call.send_header(key, value)
    call.end_headers()
    if not cut:
        call.wfile.write(rest)
        return
    hub.cuts -= 1
    call.wfile.write(rest[: hub.cut_after])
    call.wfile.flush()
    call.connection.shutdown(socket.SHUT_RDWR)
    call.close_connection = True


def _entry(name: str, content: bytes, as_tree: bool) -> dict[str, Any]:
    large = name.endswith(_LARGE)
    digest, size = sha256(content).hexdigest(), len(content)
    if as_tree:
        lfs = {"lfs": {"oid": digest, "size": size, "pointerSize": 134}} if large else {}
        return {"type": "file", "path": name, "size": size, "oid": _git(content), **lfs}
    lfs = {"lfs": {"sha256": digest, "size": size, "pointerSize": 134}} if large else {}
    return {"rfilename": name, "size": size, "blobId": _git(content), **lfs}


def _blob(name: str, content: bytes) -> str:
    return sha256(content).hexdigest() if name.endswith(_LARGE) else _git(content)


def _git(content: bytes) -> str:
    return sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _send(call: BaseHTTPRequestHandler, body: bytes, headers: dict[str, str], with_body: bool) -> None:
    call.send_response(200)
    for key, value in {**headers, "Content-Length": str(len(body))}.items():
        call.send_header(key, value)
    call.end_headers()
    if with_body:
        call.wfile.write(body)


def _error(call: BaseHTTPRequestHandler, status: int, code: str) -> None:
    call.send_response(status)
    for key, value in {"X-Error-Code": code, "X-Error-Message": code, "Content-Length": "0"}.items():
        call.send_header(key, value)
    call.end_headers()
