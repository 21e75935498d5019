"""Streams over the wire: frames, signs of life, clients that leave, readers that are slow."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from .conftest import Server

ENDLESS = {"prompt": "Once", "max_tokens": 900, "ignore_eos": True, "stream": True}


def frames(server: Server, path: str, body: dict[str, Any]) -> list[str]:
    with httpx.stream("POST", server.url + path, json=body, timeout=60) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        return [line for line in response.iter_lines() if line]


def under_way(server: Server) -> str:
    return str(server.get("/health").json()["detail"])


def raw_stream(server: Server, body: dict[str, Any], path: str = "/v1/completions", **options: int) -> socket.socket:
    """A connection that has asked for a stream and reads nothing by itself."""
    address = urlsplit(server.url)
    connection = socket.socket()
    for option, value in options.items():
        connection.setsockopt(socket.SOL_SOCKET, getattr(socket, option), value)
    connection.connect((address.hostname, address.port))
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n"
    head += "Content-Type: application/json\r\n\r\n"
    connection.sendall(head.encode() + data)
    return connection


def test_frames_end_with_done(server: Server) -> None:
    lines = frames(server, "/v1/completions", {"prompt": "What is", "max_tokens": 5, "stream": True})
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    last = json.loads(lines[-2].removeprefix("data: "))
    assert last["choices"][0]["finish_reason"] == "length" and "usage" not in last


def test_timings_come_with_the_last_frame(server: Server) -> None:
    body = {"prompt": "What is", "max_tokens": 5, "stream": True, "timings": True}
    shown = [json.loads(line[6:]) for line in frames(server, "/v1/completions", body)[:-1]]
    assert ["timings" in one for one in shown] == [False] * (len(shown) - 1) + [True]
    body["stream_options"] = {"include_usage": True}
    shown = [json.loads(line[6:]) for line in frames(server, "/v1/completions", body)[:-1]]
    assert "timings" in shown[-1] and shown[-1]["choices"] == []


def test_a_client_that_goes_away_frees_what_it_held(server: Server) -> None:
    with httpx.stream("POST", server.url + "/v1/completions", json={**ENDLESS, "n": 8}, timeout=60) as response:
        lines = response.iter_lines()  # kept: the stream is closed with it
        next(lines)
        assert under_way(server) == "1 call in flight"
    assert server.settled(lambda: under_way(server) == "0 calls in flight")


def test_a_client_that_waits_for_a_whole_answer_and_goes_away_frees_it_too(server: Server) -> None:
    connection = raw_stream(server, {**ENDLESS, "stream": False, "n": 8})
    assert server.settled(lambda: under_way(server) == "1 call in flight")
    connection.close()
    assert server.settled(lambda: under_way(server) == "0 calls in flight")


@pytest.mark.wide
def test_signs_of_life_while_a_request_waits(start: Callable[..., Server]) -> None:
    """One row, taken by another call."""
    server = start("--max-num-seqs", "1", "--keep-alive", "0.05", "--max-model-len", "1024")
    holder = raw_stream(server, ENDLESS)
    assert b"200" in holder.recv(64)
    with httpx.stream("POST", server.url + "/v1/completions", json={**ENDLESS, "max_tokens": 3}, timeout=60) as second:
        lines = [line for line in second.iter_lines() if line]
    assert lines[0] == ": waiting" and lines[-1] == "data: [DONE]"
    holder.close()


def test_a_slow_reader_gets_everything_and_slows_no_other(server: Server) -> None:
    """It reads nothing while the answer is made; frames that it did not take are merged into larger ones."""
    slow = raw_stream(server, {**ENDLESS, "n": 16, "temperature": 1.0, "seed": 1}, SO_RCVBUF=4096)
    quick = frames(server, "/v1/completions", {**ENDLESS, "max_tokens": 50})
    assert quick[-1] == "data: [DONE]"
    time.sleep(1.0)
    received, connection = b"", slow
    connection.settimeout(30)
    while b"[DONE]" not in received:
        piece = connection.recv(65536)
        assert piece, "the connection was closed before the end"
        received += piece
    connection.close()
    assert received.count(b'"finish_reason":"length"') == 16


def test_a_reader_that_stands_still_does_not_hold_its_place_for_ever(start: Callable[..., Server]) -> None:
    server = start("--request-timeout", "1")
    body = {**ENDLESS, "n": 16, "logprobs": 20, "temperature": 1.0}
    stalled = raw_stream(server, body, SO_RCVBUF=4096)
    assert server.settled(lambda: under_way(server) == "1 call in flight")
    assert server.settled(lambda: under_way(server) == "0 calls in flight", 15)
    stalled.close()


def test_an_error_in_a_stream_has_the_wrapped_shape(start: Callable[..., Server]) -> None:
    server = start("--request-timeout", "0.2", "--max-num-seqs", "1")
    lines = frames(server, "/v1/completions", ENDLESS)
    error = json.loads(lines[-2].removeprefix("data: "))["error"]
    assert error["code"] == "request_timeout" and "0.2 s" in error["message"]
    assert lines[-1] == "data: [DONE]"
    answer = server.post("/v1/completions", {**ENDLESS, "stream": False})
    assert answer.status_code == 408 and answer.json()["error"]["type"] == "timeout_error"
    assert server.settled(lambda: under_way(server) == "0 calls in flight")


@pytest.mark.parametrize("count", [64])
def test_many_streams_at_once_all_end(server: Server, count: int) -> None:
    ends: list[str] = []

    def read() -> None:
        ends.append(frames(server, "/v1/completions", {**ENDLESS, "max_tokens": 40})[-1])

    threads = [threading.Thread(target=read) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ends == ["data: [DONE]"] * count
