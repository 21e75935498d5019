"""nginx and Caddy with the files of `deploy/proxies` before a real server, where they are installed."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from ..conftest import Server
from .raw import Answer, Raw, head, request

PROXIES = Path(__file__).parents[3] / "deploy" / "proxies"
ENDLESS = {"prompt": "Once", "max_tokens": 900, "ignore_eos": True, "stream": True}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


def nginx_config(text: str, folder: Path, port: int) -> str:
    kept = [line for line in text.splitlines() if not line.strip().startswith(("ssl_certificate", "server_name"))]
    paths = "".join(f"{kind}_temp_path {folder};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    text = "\n".join(kept).replace("listen 443 ssl", f"listen 127.0.0.1:{port}")
    return f"daemon off; pid {folder}/pid;\n" + text.replace("http {", "http {" + paths + "access_log off;", 1)


def caddy_config(text: str, folder: Path, port: int) -> str:
    text = text.replace("llm.example.com {", f"http://127.0.0.1:{port} {{")
    return text.replace("{\n\tservers {", "{\n\tadmin off\n\tauto_https off\n\tservers {", 1)


@pytest.fixture
def before(tmp_path: Path) -> Iterator[Callable[[str, Server, dict[str, str]], Server]]:
    """Start a proxy before a server, with some words of its file replaced; return the server by the proxy's address."""
    with contextlib.ExitStack() as running:

        def start_one(proxy: str, server: Server, changes: dict[str, str]) -> Server:
            program = shutil.which(proxy)
            if program is None:
                pytest.skip(f"{proxy} is not installed")
            port, name = free_port(), "nginx.conf" if proxy == "nginx" else "Caddyfile"
            text = (PROXIES / name).read_text(encoding="utf-8")
            for old, new in {"127.0.0.1:8000": server.url.removeprefix("http://"), **changes}.items():
                assert old in text, old
                text = text.replace(old, new)
            config = tmp_path / name
            config.write_text((nginx_config if proxy == "nginx" else caddy_config)(text, tmp_path, port), "utf-8")
            command = [program, "-p", str(tmp_path), "-e", "stderr", "-c", str(config)]
            if proxy == "caddy":
                command = [program, "run", "--adapter", "caddyfile", "--config", str(config)]
            process = subprocess.Popen(command, stderr=subprocess.DEVNULL, env={"HOME": str(tmp_path)})
            running.callback(process.wait)
            running.callback(process.terminate)
            behind = object.__new__(Server)
            behind.url = f"http://127.0.0.1:{port}"
            end = time.monotonic() + 20
            while time.monotonic() < end:
                with contextlib.suppress(OSError):
                    socket.create_connection(("127.0.0.1", port)).close()
                    return behind
                assert process.poll() is None, f"{proxy} does not take the file"
            raise AssertionError(f"{proxy} does not listen")

        yield start_one


@pytest.mark.wide
@pytest.mark.parametrize(
    ("proxy", "changes"),
    [
        ("nginx", {"client_header_timeout 10s": "client_header_timeout 1s", "body_size 8m": "body_size 1m"}),
        ("caddy", {"read_header 10s": "read_header 1s", "8MB": "1MB"}),
    ],
)
def test_a_proxy_passes_streams_on_and_bounds_what_comes(
    proxy: str,
    changes: dict[str, str],
    start: Callable[..., Server],
    before: Callable[[str, Server, dict[str, str]], Server],
) -> None:
    server = before(proxy, start("--trusted-proxies", "127.0.0.1"), changes)
    assert server.get("/health").json()["status"] == "ready"
    with httpx.stream("POST", server.url + "/v1/completions", json={**ENDLESS, "max_tokens": 200}) as stream:
        pieces = list(stream.iter_raw())
    assert len(pieces) > 5 and b"[DONE]" in pieces[-1] + pieces[-2], "as they come"
    with Raw(server) as slow:
        assert slow.send(b"GET /health HTTP/1.1\r\nX: ").answer().status in (0, 408)
    with Raw(server) as large:
        body = b" " * (2 << 20)
        assert large.send(head("POST", "/v1/completions", length=len(body)) + body).answer().status == 413


@pytest.mark.wide
def test_nginx_bounds_the_requests_of_one_address(
    start: Callable[..., Server], before: Callable[[str, Server, dict[str, str]], Server]
) -> None:
    direct = start("--trusted-proxies", "127.0.0.1", "--max-num-seqs", "64")
    server = before("nginx", direct, {"limit_conn address 64": "limit_conn address 2"})
    opened = [Raw(server, "127.0.0.2").send(request(ENDLESS)) for _ in range(2)]
    assert [Answer(one.socket.recv(4096)).status for one in opened] == [200, 200]
    with Raw(server, "127.0.0.2") as third, Raw(server, "127.0.0.3") as other:
        assert Answer(third.send(head("GET", "/health")).socket.recv(4096)).status == 429
        assert Answer(other.send(head("GET", "/health")).socket.recv(4096)).status == 200
    for one in opened:
        one.socket.close()
    assert direct.settled(lambda: direct.get("/health").json()["detail"].startswith("0 calls"))
