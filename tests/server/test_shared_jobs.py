"""Files and batch jobs in several API processes: all have the data directory, and one answers lines."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from .conftest import Server
from .test_batches import answers, ended, hand_in, lines_of
from .test_processes import children, owner, spread

HEAD = (
    "POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3000000\r\n"
    "Content-Type: multipart/form-data; boundary=b\r\n\r\n"
    '--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n'
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def pair(data: Path) -> Any:
    running = Server("--api-processes", "2", "--data-dir", str(data), "--max-file-mb", "4").ready()
    yield running
    assert running.stop() == 0, "".join(running.log)
    assert "Traceback" not in "".join(running.log)


def worker(data: Path) -> int:
    """The process that answers lines."""
    return int(json.loads((data / "worker").read_text())["pid"])


def writing(data: Path) -> int:
    """Files that are being received."""
    with contextlib.closing(sqlite3.connect(data / "batch.sqlite")) as database:
        return int(database.execute("SELECT count(*) FROM files WHERE state = 'writing'").fetchone()[0])


def upload(client: httpx.Client, content: bytes, purpose: str = "batch") -> httpx.Response:
    return client.post("/v1/files", files={"file": ("x.jsonl", content)}, data={"purpose": purpose})


def test_files_and_jobs_are_the_same_in_every_process(pair: Server, data: Path) -> None:
    clients = spread(pair)
    assert worker(data) in {owner(pair, client) for client in clients} == set(children(pair))
    documents = [client.get("/openapi.json").json() for client in clients]
    assert documents[0] == documents[1] and "/v1/batches" in documents[0]["paths"]
    content = lines_of(5, "/v1/completions")
    for client, other in (clients, clients[::-1]):
        file = upload(client, content).json()
        assert file["bytes"] == len(content) and file in other.get("/v1/files?limit=3").json()["data"]
        assert other.get(f"/v1/files/{file['id']}/content").content == content
        asked = {"input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
        job = client.post("/v1/batches", json=asked).json()
        assert pair.settled(lambda: other.get(f"/v1/batches/{job['id']}").json()["status"] == "completed")  # noqa: B023
        assert client.get("/v1/batches").json()["data"][0]["id"] == job["id"]
    assert pair.settled(lambda: pair.metric("inflight_batch_lines_total", outcome="completed") == 10)
    assert pair.metric("inflight_batch_jobs_ended_total", status="completed") == 2
    for client in clients:
        client.close()


def test_large_files_pass_whole(pair: Server) -> None:
    content = bytes(range(256)) * (3 << 12)
    for client in spread(pair):
        file = upload(client, content).json()["id"]
        for other in (client, *spread(pair)):
            assert other.get(f"/v1/files/{file}/content").content == content
        assert client.delete(f"/v1/files/{file}").json()["deleted"]


def test_refusals_are_the_same_in_every_process(pair: Server) -> None:
    said = []
    for client in spread(pair):
        log = len(pair.log)
        bad = [
            client.get("/v1/files/file-unknown"),
            client.delete("/v1/batches"),
            client.get("/v1/files?limit=0"),
            client.post("/v1/batches", content=b"{"),
            client.post("/v1/files", content=b"x", headers={"Content-Type": "text/plain"}),
            upload(client, b"x", purpose="poetry"),
        ]
        assert [one.status_code for one in bad] == [404, 405, 400, 400, 400, 400]
        assert bad[1].headers["Allow"] and len({one.headers["X-Request-Id"] for one in bad}) == len(bad)
        said.append([one.json()["error"] for one in bad])
        assert pair.settled(lambda: sum("/v1/" in line for line in pair.log[log:]) == len(bad))  # noqa: B023
        client.close()
    assert said[0] == said[1]


def test_a_file_that_is_too_large_is_refused_before_it_comes(pair: Server) -> None:
    connections = []
    for _ in range(8):  # in either process
        connections.append(socket.create_connection(("127.0.0.1", int(pair.url.rpartition(":")[2])), timeout=30))
        connections[-1].sendall(HEAD.replace("3000000", "9000000").encode() + b"x" * 1000)
    for connection in connections:
        with connection:
            assert connection.recv(1000).startswith(b"HTTP/1.1 413")


def test_an_upload_that_breaks_off_leaves_nothing(pair: Server, data: Path) -> None:
    before = len(pair.get("/v1/files").json()["data"])
    for _ in range(8):  # in either process
        with socket.create_connection(("127.0.0.1", int(pair.url.rpartition(":")[2]))) as connection:
            connection.sendall(HEAD.encode() + b"x" * 200_000)
    assert pair.settled(lambda: not writing(data))
    assert len(pair.get("/v1/files").json()["data"]) == before


@pytest.mark.wide
def test_tenants_do_not_see_each_others_files(start: Callable[..., Server], tmp_path: Path, keys_file: Path) -> None:
    server = start("--api-processes", "2", "--data-dir", str(tmp_path / "data"), "--api-keys-file", str(keys_file))
    clients = spread(server)
    for client in clients:
        client.headers["Authorization"] = "Bearer sk-acme"
        file = upload(client, b"{}\n").json()["id"]
        for other in clients:
            assert other.get(f"/v1/files/{file}", headers={"Authorization": "Bearer sk-acme"}).status_code == 200
            assert other.get(f"/v1/files/{file}", headers={"Authorization": "Bearer sk-umbrella"}).status_code == 404
            assert other.get(f"/v1/files/{file}", headers={"Authorization": "Bearer unknown"}).status_code == 401
    assert server.stop() == 0


def test_jobs_go_on_when_the_process_that_answers_lines_is_killed(start: Callable[..., Server], tmp_path: Path) -> None:
    data = tmp_path / "data"
    server = start("--api-processes", "2", "--data-dir", str(data), "--batch-concurrency", "4")
    client = server.client()
    content = lines_of(60, "/v1/completions", max_tokens=40, ignore_eos=True, temperature=1.0, seed=1)
    job = hand_in(client, content, "/v1/completions")
    assert server.settled(lambda: client.batches.retrieve(job.id).request_counts.completed > 5)
    client.close()
    killed = worker(data)
    [other] = set(children(server)) - {killed}
    os.kill(killed, signal.SIGKILL)
    with httpx.Client(base_url=server.url, timeout=60) as asking:
        assert asking.get(f"/v1/batches/{job.id}").status_code == 200
        assert owner(server, asking) == other
    assert server.settled(lambda: server.get(f"/v1/batches/{job.id}").status_code == 200)
    client = server.client()
    done = ended(server, client, job.id)
    assert done.status == "completed" and done.request_counts.completed == 60 and worker(data) != killed
    lines = answers(client, done.output_file_id)
    assert [line["custom_id"] for line in lines] == [f"line-{n}" for n in range(60)]
    assert len({line["response"]["body"]["choices"][0]["text"] for line in lines}) == 1, "the seed is the same"
    assert server.stop() == 0 and "Traceback" not in "".join(server.log)


@pytest.mark.wide
def test_a_damaged_database_ends_the_server_with_one_sentence(start: Callable[..., Server], tmp_path: Path) -> None:
    given = ("--api-processes", "2", "--data-dir", str(tmp_path))
    assert start(*given).stop() == 0
    database = tmp_path / "batch.sqlite"
    database.write_bytes(b"x" * database.stat().st_size)
    server = start(*given, ready=False)
    assert server.process.wait(60) == 1
    assert server.settled(lambda: any("is damaged or no database" in line for line in server.log)), server.log
    assert sum("is damaged or no database" in line for line in server.log) == 1, "no process is started again"
    assert not any("Traceback" in line for line in server.log)


@pytest.mark.wide
def test_an_upload_on_its_way_keeps_no_server_from_ending(start: Callable[..., Server], tmp_path: Path) -> None:
    server = start("--api-processes", "2", "--data-dir", str(tmp_path / "data"))
    connections = []
    for _ in range(6):  # in either process
        connections.append(socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=30))
        connections[-1].sendall(HEAD.encode() + b"x" * 1_500_000)
    assert server.settled(lambda: writing(tmp_path / "data") == 6)
    assert server.stop() == 0 and "Traceback" not in "".join(server.log), "".join(server.log)
    assert not writing(tmp_path / "data") and not list((tmp_path / "data" / "partial").iterdir())


def test_an_upload_of_a_killed_process_leaves_nothing(start: Callable[..., Server], tmp_path: Path) -> None:
    data = tmp_path / "data"
    server = start("--api-processes", "2", "--data-dir", str(data))
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=30) as connection:
        connection.sendall(HEAD.encode() + b"x" * 1_500_000)
        assert server.settled(lambda: writing(data) == 1)
        for child in children(server):
            os.kill(child, signal.SIGKILL)
        assert server.settled(lambda: not writing(data) and not list((data / "partial").iterdir()))
    assert server.settled(lambda: server.get("/v1/files").status_code == 200)
