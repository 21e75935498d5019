from __future__ import annotations

import http.server
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from endless_server import endless_server

from benchmarks.stub_server import StubServer
from inflight.bench.client_types import BenchError, Target
from inflight.bench.served_model import offered


@contextmanager
def answering(pages: dict[str, tuple[int, str]]) -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, page = pages.get(self.path, (404, "not here"))
            self.send_response(status)
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page.encode())

        def log_message(self, *arguments: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def refused(url: str) -> str:
    with pytest.raises(BenchError) as raised:
        offered(Target(url, connect_timeout_s=1.0))
    return str(raised.value)


def test_the_models_of_a_server_are_named(stub: StubServer) -> None:
    for url in (stub.url, stub.url + "/"):
        assert [row["id"] for row in offered(Target(url))] == ["stub"]


@pytest.mark.parametrize("status", [200, 500])
def test_an_answer_that_breaks_off_is_reported(status: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(b"HTTP/1.1 %d X\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhe" % status)

        threading.Thread(target=answer, daemon=True).start()
        assert "ended within its answer" in refused(f"http://127.0.0.1:{server.getsockname()[1]}")


def test_a_server_that_lists_no_models_but_is_well_will_do() -> None:
    with answering({"/health": (200, "")}) as url:
        assert offered(Target(url)) == []


@pytest.mark.parametrize(
    ("pages", "said"),
    [
        ({"/v1/models": (401, '{"error": {"message": "no key"}}')}, "needs a key (HTTP 401: no key)"),
        ({"/v1/models": (503, '{"error": {"message": "still loading"}}')}, "not ready: HTTP 503 to /v1/models (still"),
        ({"/v1/models": (200, "<html>")}, "does not answer with a list of models: '<html>'"),
        ({"/v1/models": (200, '["a"]')}, "does not answer with a list of models"),
        ({}, "HTTP 404 to /v1/models and 404 to /health"),
    ],
)
def test_what_is_no_server_to_be_measured_is_reported(pages: dict[str, tuple[int, str]], said: str) -> None:
    with answering(pages) as url:
        assert said in refused(url)


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://x", "http://", "http://[bad"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    assert "is no address of a server" in refused(url)


def test_no_server_is_reported_at_once() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        assert "No server answers at http://127.0.0.1" in refused(f"http://127.0.0.1:{free.getsockname()[1]}")


@pytest.mark.parametrize(
    ("says", "said"),
    [(b"\x00\x01 what?\r\n\r\n", "does not speak HTTP"), (b"", "gave no answer"), (None, "within 1 s")],
)
def test_a_port_where_something_else_lives_is_reported(says: bytes | None, said: str) -> None:
    done = threading.Event()

    def talk(door: socket.socket) -> None:
        while not done.is_set():
            caller, _ = door.accept()
            if says is None:
                done.wait(30)
            else:
                caller.recv(1000)
                caller.sendall(says)
            caller.close()

    with socket.create_server(("127.0.0.1", 0)) as door:
        threading.Thread(target=talk, args=(door,), daemon=True).start()
        began = time.monotonic()
        assert said in refused(f"http://127.0.0.1:{door.getsockname()[1]}")
        assert time.monotonic() - began < 30
        done.set()


@pytest.mark.parametrize("status", ["200 OK", "503 Busy"])
def test_an_answer_that_does_not_end_is_refused(status: str) -> None:
    with endless_server(status) as url:
        assert "answers with more than 4,194,304 bytes" in refused(url)
