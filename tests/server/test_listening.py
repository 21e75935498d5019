"""Unix sockets, and a server behind a proxy's path with a template and sampling defaults of its options."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from inflight.server.listening import AddressError, listen
from inflight.server.settings import ServerSettings

TEMPLATE = "{{ mood }}:{% for one in messages %}{{ one.content }}{% endfor %}"


def test_a_socket_is_for_its_owner_and_group(tmp_path: Path) -> None:
    path = tmp_path / "server.sock"
    before = os.umask(0)
    os.umask(before)
    with listen(ServerSettings(uds=path)):
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        assert os.umask(before) == before
        with pytest.raises(AddressError, match="another server listens there"):
            listen(ServerSettings(uds=path))


def test_a_socket_that_a_server_has_left_is_replaced_and_no_other_file(tmp_path: Path) -> None:
    path = tmp_path / "server.sock"
    listen(ServerSettings(uds=path)).close()  # as a server that was killed
    with listen(ServerSettings(uds=path)), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    path.unlink()
    path.write_text("notes")
    with pytest.raises(AddressError, match="there is another file"):
        listen(ServerSettings(uds=path))
    assert path.read_text() == "notes"
    with pytest.raises(AddressError, match=r"--uds .*too long"):
        listen(ServerSettings(uds=tmp_path / ("x" * 120)))


def test_a_server_at_a_socket_and_under_a_path(tmp_path: Path) -> None:
    path, template = tmp_path / "server.sock", tmp_path / "chat.jinja"
    template.write_text(TEMPLATE)
    options = ["--uds", str(path), "--root-path", "/llm", "--api-processes", "2", "--chat-template", str(template)]
    options += ["--chat-template-kwargs", '{"mood": "calm"}', "--served-model-name", "one", "--api-key", "secret"]
    command = [sys.executable, "-m", "inflight.cli", "serve", *options, "--log-format", "text"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        log = ""
        while "Ready" not in log:
            line = process.stderr.readline()
            assert line, log
            log += line
        assert f"Ready at unix:{path}" in log
        headers = {"Authorization": "Bearer secret"}
        body = {"messages": [{"role": "user", "content": "Hi"}], "return_token_strs": True}
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://inflight") as client:
            assert client.get("/health").status_code == client.get("/llm/health").status_code == 200
            assert client.get("/llm/v1/models").status_code == client.get("/v1/models").status_code == 401
            assert client.get("/llmx/health", headers=headers).status_code == 404
            assert client.get("/llm/openapi.json").json()["servers"] == [{"url": "/llm"}]
            answer = client.post("/llm/tokenize", json=body, headers=headers).json()
            assert "".join(answer["token_strs"]).startswith("calm:Hi")
            body["chat_template_kwargs"] = {"mood": "glad"}
            answer = client.post("/tokenize", json=body, headers=headers).json()
            assert "".join(answer["token_strs"]).startswith("glad:Hi")
        process.terminate()
        process.stderr.read()
    assert process.returncode == 0 and not path.exists()
