"""Batch jobs on the real engine, through OpenAI's client: handed in, killed, taken up again."""

from __future__ import annotations

import contextlib
import io
import json
import signal
import socket
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from .conftest import Server


def lines_of(count: int, url: str = "/v1/chat/completions", **body: Any) -> bytes:
    asked: dict[str, Any] = {"model": "built-in", "max_tokens": 12, **body}
    asked |= {"messages": [{"role": "user", "content": "What is a KV block?"}]} if "chat" in url else {"prompt": "A"}
    lines = ({"custom_id": f"line-{n}", "method": "POST", "url": url, "body": asked} for n in range(count))
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def hand_in(client: openai.OpenAI, content: bytes, endpoint: Any = "/v1/chat/completions") -> Any:
    file = client.files.create(file=("lines.jsonl", io.BytesIO(content)), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h")


def ended(server: Server, client: openai.OpenAI, job_id: str) -> Any:
    assert server.settled(lambda: client.batches.retrieve(job_id).status in ("completed", "failed", "cancelled"), 60)
    return client.batches.retrieve(job_id)


def answers(client: openai.OpenAI, file_id: str | None) -> list[dict[str, Any]]:
    return [json.loads(line) for line in client.files.content(file_id or "").text.splitlines()]


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = Server("--data-dir", str(tmp_path_factory.mktemp("jobs"))).ready()
    yield running
    running.process.kill()
    running.process.wait(30)


def test_a_job_is_answered_line_by_line(jobs: Server) -> None:
    client = jobs.client()
    lines_before, jobs_before = jobs.metric("inflight_batch_lines_total"), [one.id for one in client.batches.list()]
    alone = client.chat.completions.create(
        model="built-in", messages=[{"role": "user", "content": "What is a KV block?"}], max_tokens=12
    )
    job = ended(jobs, client, hand_in(client, lines_of(40)).id)
    assert job.status == "completed" and job.request_counts.completed == 40 and job.error_file_id is None
    lines = answers(client, job.output_file_id)
    assert [line["custom_id"] for line in lines] == [f"line-{n}" for n in range(40)]
    for line in lines:
        body = line["response"]["body"]
        assert body["choices"][0]["message"]["content"] == alone.choices[0].message.content
        assert body["service_tier"] == "flex" and line["response"]["status_code"] == 200
    assert jobs.metric("inflight_batch_lines_total") == lines_before + 40
    assert [one.id for one in client.batches.list(limit=5)] == [job.id, *jobs_before]


def test_lines_that_cannot_be_served_stand_in_the_error_file(jobs: Server) -> None:
    client = jobs.client()
    content = lines_of(2) + b"not json\n" + lines_of(1, temperature=-9).replace(b"line-0", b"hot")
    content += lines_of(1, model="gpt-99").replace(b"line-0", b"other") + lines_of(1).replace(b"line-0", b"last")
    job = ended(jobs, client, hand_in(client, content).id)
    assert job.status == "completed"
    assert (job.request_counts.completed, job.request_counts.failed) == (3, 3)
    assert [line["custom_id"] for line in answers(client, job.output_file_id)] == ["line-0", "line-1", "last"]
    bad, hot, other = answers(client, job.error_file_id)
    assert bad["error"]["line"] == 3 and bad["response"] is None
    assert hot["response"]["status_code"] == 400 and hot["response"]["body"]["error"]["param"] == "temperature"
    assert other["response"]["status_code"] == 404


def test_a_killed_server_goes_on_where_it_was(start: Callable[..., Server], tmp_path: Path) -> None:
    arguments = ("--data-dir", str(tmp_path / "data"), "--batch-concurrency", "4")
    first = start(*arguments)
    client = first.client()
    content = lines_of(60, "/v1/completions", max_tokens=40, ignore_eos=True, temperature=1.0, seed=1)
    job = hand_in(client, content, "/v1/completions")
    assert first.settled(lambda: (client.batches.retrieve(job.id).request_counts.completed) > 5)
    first.process.send_signal(signal.SIGKILL)
    first.process.wait(30)
    second = start(*arguments)
    done = ended(second, second.client(), job.id)
    assert done.status == "completed" and done.request_counts.completed == 60
    lines = answers(second.client(), done.output_file_id)
    assert [line["custom_id"] for line in lines] == [f"line-{n}" for n in range(60)]
    assert len({line["response"]["body"]["choices"][0]["text"] for line in lines}) == 1, "the seed is the same"


def test_a_cancelled_job_keeps_what_is_answered(jobs: Server) -> None:
    client = jobs.client()
    content = lines_of(200, "/v1/completions", max_tokens=200, ignore_eos=True)
    job = hand_in(client, content, "/v1/completions")
    assert jobs.settled(lambda: client.batches.retrieve(job.id).request_counts.completed > 0)
    client.batches.cancel(job.id)
    done = ended(jobs, client, job.id)
    assert done.status == "cancelled" and 0 < done.request_counts.completed < 200
    assert len(answers(client, done.output_file_id)) == done.request_counts.completed


def test_people_go_before_jobs(jobs: Server) -> None:
    client = jobs.client()
    job = hand_in(client, lines_of(300, "/v1/completions", max_tokens=300, ignore_eos=True), "/v1/completions")
    assert jobs.settled(lambda: jobs.metric("inflight_sequences_running", lane="batch") > 8)
    answer = client.completions.create(
        model="built-in", prompt="What is", max_tokens=4, extra_body={"timings": True}
    ).model_dump()
    assert answer["timings"]["lane"] == "interactive"
    assert answer["timings"]["queue_ms"] < 1000
    client.batches.cancel(job.id)
    ended(jobs, client, job.id)


def test_tenants_do_not_see_each_others_jobs(start: Callable[..., Server], tmp_path: Path, keys_file: Path) -> None:
    server = start("--data-dir", str(tmp_path / "data"), "--api-keys-file", str(keys_file))
    acme, umbrella = server.client("sk-acme"), server.client("sk-umbrella")
    job = hand_in(acme, lines_of(2))
    for look in (
        lambda: umbrella.batches.retrieve(job.id),
        lambda: umbrella.batches.cancel(job.id),
        lambda: umbrella.files.content(job.input_file_id),
        lambda: umbrella.files.delete(job.input_file_id),
    ):
        with pytest.raises(openai.NotFoundError):
            look()
    assert list(umbrella.files.list()) == [] and list(umbrella.batches.list()) == []
    assert ended(server, acme, job.id).status == "completed"


def test_what_is_stored_is_bounded(start: Callable[..., Server], tmp_path: Path, keys_file: Path) -> None:
    keys_file.write_text(keys_file.read_text() + '\n[roomy]\nkey = "sk-roomy"\nmax_stored_mb = 5\n')
    bounds = ("--max-stored-mb", "0.0625", "--max-stored-files", "2")
    server = start("--data-dir", str(tmp_path / "data"), "--api-keys-file", str(keys_file), *bounds)

    def upload(key: str, size: int) -> str:
        return server.client(key).files.create(file=("x.jsonl", io.BytesIO(b"x" * size)), purpose="batch").id

    with pytest.raises(openai.APIStatusError, match=r"of 0\.0625 MiB in use") as refused:
        upload("sk-acme", 70_000)
    assert refused.value.status_code == 413
    first = upload("sk-acme", 5_000)
    upload("sk-acme", 10)
    with pytest.raises(openai.APIStatusError, match="Storage quota exceeded: 2 of 2 files"):
        upload("sk-acme", 10)
    server.client("sk-acme").files.delete(first)
    upload("sk-acme", 10)
    upload("sk-roomy", 2_000_000)


def test_a_folder_of_somebodys_documents_is_refused(start: Callable[..., Server], tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    server = start("--data-dir", str(tmp_path), ready=False)
    assert server.process.wait(30) == 1
    assert server.settled(lambda: any("give an empty folder" in line for line in server.log)), server.log
    assert not any("Traceback" in line for line in server.log)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_damaged_database_is_refused_in_one_sentence(start: Callable[..., Server], tmp_path: Path) -> None:
    assert start("--data-dir", str(tmp_path)).stop() == 0
    database = tmp_path / "batch.sqlite"
    database.write_bytes(b"x" * database.stat().st_size)
    server = start("--data-dir", str(tmp_path), ready=False)
    assert server.process.wait(30) == 1
    assert server.settled(lambda: any("is damaged or no database" in line for line in server.log)), server.log
    assert not any("Traceback" in line for line in server.log)


@pytest.mark.wide
def test_the_server_says_that_it_checks_its_data_directory(start: Callable[..., Server], tmp_path: Path) -> None:
    assert start("--data-dir", str(tmp_path)).stop() == 0
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    with contextlib.closing(sqlite3.connect(tmp_path / "batch.sqlite", isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode=EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")  # the check waits for it
        server = start("--data-dir", str(tmp_path), "--port", str(port), ready=False)
        server.url = f"http://127.0.0.1:{port}"
        assert server.settled(lambda: "checking the data directory" in loading_answer(server, "/health")), server.log
        assert "The server is checking its data directory; try again" in loading_answer(server, "/v1/files")
    server.ready()
    assert server.client().batches.list().data == []


def loading_answer(server: Server, path: str) -> str:
    """With a 503, while the server starts."""
    try:
        answer = server.get(path)
    except httpx.ConnectError:
        return ""
    return answer.text if answer.status_code == 503 else ""


@pytest.mark.wide
def test_two_servers_cannot_share_a_data_directory(start: Callable[..., Server], tmp_path: Path) -> None:
    start("--data-dir", str(tmp_path / "data"))
    second = start("--data-dir", str(tmp_path / "data"), ready=False)
    assert second.process.wait(30) == 1
    assert second.settled(lambda: any("in use" in line for line in second.log)), second.log
    assert not any("Traceback" in line for line in second.log)


def test_without_a_data_directory_there_are_no_jobs(start: Callable[..., Server]) -> None:
    with pytest.raises(openai.NotFoundError, match="--data-dir"):
        start().client().batches.list()
