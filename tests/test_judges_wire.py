"""The relay between a judge and a server: what it makes of the bytes that passed."""

from __future__ import annotations

import json
from urllib.request import Request, urlopen

import pytest

from benchmarks.judges.definitions import Definition, of_single_values, one_a_frame
from benchmarks.judges.judge import Figures
from benchmarks.judges.wire import Connection, Relay, observe
from benchmarks.stub_server import StubServer, body

REQUEST = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def frame(content: dict[str, object] | str) -> bytes:
    text = content if isinstance(content, str) else json.dumps(content)
    data = f"data: {text}\n\n".encode()
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def token(text: str, reason: str | None = None) -> bytes:
    return frame({"id": "cmpl-7", "choices": [{"text": text, "finish_reason": reason}]})


USAGE = frame({"id": "cmpl-7", "choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 3}})
END = frame("[DONE]") + b"0\r\n\r\n"


def test_latencies_count_from_the_first_byte_of_the_request() -> None:
    connection = Connection(
        [(1.0, REQUEST[:20]), (1.5, REQUEST[20:])],
        [(2.0, HEAD + token("a")), (2.25, token("b")), (3.0, token("c", "length") + USAGE + END)],
    )
    (passed,) = observe(connection)
    found = passed.observation
    assert (found.request_id, found.outcome, found.prompt_tokens, found.output_tokens) == ("7", "completed", 5, 3)
    assert (found.ttft, found.gaps, found.tpot, found.ended) == (1.0, [0.25, 0.75], 0.5, 3.0)


def test_requests_of_one_connection_are_distinguished_and_others_than_generations_left_out() -> None:
    listing = b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n"
    empty = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
    refused = b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\n\r\n"
    connection = Connection(
        [(1.0, listing), (2.0, REQUEST), (3.0, REQUEST), (4.0, REQUEST)],
        [(1.5, empty), (2.5, HEAD + token("a", "stop") + END), (3.5, refused), (4.5, HEAD + token("a"))],  # and no more
    )
    found = [one.observation for one in observe(connection)]
    assert [(one.outcome, one.intended) for one in found] == [("completed", 2.0), ("failed", 3.0), ("unfinished", 4.0)]


def test_an_answer_that_had_ended_when_the_connection_was_closed_is_complete() -> None:
    ended = HEAD + token("a") + token("b", "length") + USAGE
    (passed,) = observe(Connection([(1.0, REQUEST)], [(2.0, ended)]))
    found = passed.observation
    assert (found.outcome, found.output_tokens, found.ended) == ("completed", 3, 2.0)


def test_tokens_without_text_count_as_an_answer() -> None:
    (passed,) = observe(Connection([(1.0, REQUEST)], [(2.0, HEAD + token("", "stop") + USAGE + END)]))
    found = passed.observation
    assert (found.outcome, found.output_tokens, found.ttft) == ("completed", 3, None)


@pytest.mark.parametrize("tokens", [1, 6])
def test_bytes_pass_unchanged(tokens: int) -> None:
    with StubServer() as stub, Relay(stub.url) as relay:
        for url in (stub.url, relay.url):
            sent = Request(f"{url}/v1/completions", body({"tokens": tokens, "first_s": 0, "gap_s": 0}))
            with urlopen(sent, timeout=30) as answer:
                assert answer.read().count(b'"text"') == tokens
        figures = Figures.of_observations([one.observation for one in relay.passed()])
    assert (figures.requests, figures.failed, figures.output_tokens) == (1, 0, tokens)


def test_a_judges_own_definitions_explain_its_figures() -> None:
    """Frames that came at once are gaps to one and none to us; another counts by its schedule, and to the end."""
    ended = token("c") + token("", "length") + USAGE
    connection = Connection([(1.0, REQUEST)], [(2.0, HEAD + token("a")), (3.0, token("b") + ended), (3.5, END)])
    passed = list(observe(connection))
    ours = Figures.of_observations([one.observation for one in passed])
    assert (ours.ttft.mean, ours.itl.mean, ours.tpot.mean) == (1.0, 1.0, 0.5)
    frames = Definition(one_a_frame).figures(passed)
    assert frames.itl.mean == pytest.approx(1 / 3) and frames.tpot.mean == 0.5
    assert Definition().figures(passed).itl.mean == 0.5
    scheduled = Definition(one_a_frame, True, of_single_values, {"7": 0.5}, left_out=1).figures(passed * 2)
    assert (scheduled.ttft.p50, scheduled.tpot.p50, scheduled.requests_per_s) == (1.5, 0.75, 1 / 3)
    assert Definition(window=4.0).figures(passed).output_tokens_per_s == 0.75
