"""Failures between client and server, each against a stub that has it."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any, ClassVar, cast

import pytest
from endless_server import endless_server

from benchmarks.stub_server import StubServer
from inflight.bench.answer import Answer
from inflight.bench.client import send
from inflight.bench.client_types import Target
from inflight.bench.http_client import CompletionClient, open_session, retry_after
from inflight.workload.workload import Workload

from .stubbed import ScriptedBodies, entries, one, play

STREAM = {"tokens": 6, "gap_s": 0.01}


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_times_are_those_at_which_the_server_wrote(stub: StubServer, endpoint: str) -> None:
    stub.stamps()
    sent = play(stub, [{"tokens": 6, "first_s": 0.03, "gap_s": 0.02}] * 5, target={"endpoint": endpoint})
    stamps = stub.stamps()
    for seen in sent.observations:
        truth = stamps[seen.request_id]
        assert seen.outcome == "completed" and seen.output_tokens == 6
        assert seen.sent is not None and seen.intended <= seen.sent
        assert seen.sent + sent.began <= truth.received
        assert list(seen.token_times) == sorted(seen.token_times)
        for arrived, written, following in zip(
            seen.token_times, truth.tokens, [*truth.tokens[1:], float("inf")], strict=True
        ):
            assert written <= arrived + sent.began
            assert arrived + sent.began <= following + 2.0  # generous: a machine may be busy
        assert (seen.first_token, seen.last_token) == (seen.token_times[0], seen.token_times[-1])
        assert seen.ended >= seen.token_times[-1]


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_how_a_server_writes_its_frames_changes_nothing(stub: StubServer, endpoint: str) -> None:
    scripts: list[dict[str, Any]] = [
        *({"cut": 1}, {"cut": 7}, {"newline": "\r\n"}, {"newline": "\r\n", "cut": 3}, {"role": True}, {"done": False}),
        *({"usage": "none"}, {"usage": "continuous"}, {"usage": "none", "token_ids": True}),
    ]
    sent = play(stub, [{**STREAM, **script} for script in scripts], target={"endpoint": endpoint})
    for script, seen in zip(scripts, sent.observations, strict=True):
        assert (seen.outcome, seen.error, seen.output_tokens) == ("completed", "", 6), script
        assert list(seen.token_times) == sorted(seen.token_times)


@pytest.mark.parametrize(
    ("script", "frames", "counts"),
    [
        ({"usage": "final"}, 2, "usage"),
        ({"usage": "continuous"}, 2, "usage"),
        ({"usage": "none", "token_ids": True}, 2, "usage"),
    ],
)
def test_tokens_that_come_together_have_one_time(
    stub: StubServer, script: dict[str, Any], frames: int, counts: str
) -> None:
    sent = play(stub, [{**STREAM, "per_frame": 3, "gap_s": 0.3, **script}])
    (seen,) = sent.observations
    assert (sent.frames, sent.token_counts, seen.output_tokens) == (frames, counts, 6)
    (gap,) = seen.gaps
    assert seen.tpot == pytest.approx(gap / 3)  # three behind the first frame


def test_frames_stand_for_tokens_without_other_counts(stub: StubServer) -> None:
    sent = play(stub, [{**STREAM, "per_frame": 3, "usage": "none"}])
    assert (sent.observations[0].output_tokens, sent.token_counts) == (2, "frames")


def test_an_answer_in_one_piece_has_its_tokens_at_its_end(stub: StubServer) -> None:
    seen = one(stub, tokens=5, whole=True, cached=3)
    assert (seen.outcome, seen.output_tokens, seen.prompt_tokens, seen.cached_tokens) == ("completed", 5, 7, 3)
    assert seen.first_token == seen.last_token is not None
    assert not seen.token_times


FAULTS = (  # after so many tokens, and part of the error
    ("reset", 0, "before the first token: it was reset."),
    ("reset", 2, "after 2 tokens: it was reset."),
    ("close", 0, "before the first token: the server closed it."),
    ("close", 2, "after 2 tokens: the server closed it within the answer."),
    ("end", 2, "after 2 tokens with neither a finish_reason nor [DONE]"),
    ("garbage", 0, "not HTTP"),
    ("garbage", 2, "after 2 tokens: the data is not HTTP"),
    ("bad_json", 1, "After 1 token the server sent data that is no part of an answer"),
    ("error", 2, "After 2 tokens the server said: the engine fell over"),
)


def test_what_breaks_off_has_failed_and_keeps_its_tokens(stub: StubServer) -> None:
    scripts = [{**STREAM, "fault": fault, "fault_after": after, "usage": "none"} for fault, after, _ in FAULTS]
    for (fault, after, said), seen in zip(FAULTS, play(stub, scripts).observations, strict=True):
        assert seen.outcome == "failed", fault
        assert said in seen.error
        assert (seen.output_tokens, len(seen.token_times)) == (after, after)
        assert (seen.first_token is None) == (after == 0)


def test_what_takes_longer_than_the_patience_has_failed(stub: StubServer) -> None:
    seen = one(stub, {"timeout_s": 0.4}, **STREAM, fault="stall", fault_after=2, usage="none")
    assert seen.outcome == "failed"
    assert seen.error.startswith("No end within 0.4 s, after 2 tokens")
    assert seen.ended > seen.token_times[-1]


def test_an_answer_without_a_token_has_failed(stub: StubServer) -> None:
    seen = one(stub, tokens=0)
    assert seen.outcome == "failed" and "no token" in seen.error


def test_a_page_that_is_no_answer_is_quoted(stub: StubServer) -> None:
    seen = one(stub, page="<html>\n<body>Hello</body>")
    assert seen.outcome == "failed"
    assert seen.error == "The server sent neither server-sent events nor JSON: '<html>'"


def test_a_date_to_come_again_is_measured_by_the_servers_own_clock() -> None:
    class Answered:
        headers: ClassVar = {"Retry-After": "Sat, 01 Jan 2000 00:00:07 GMT", "Date": "Sat, 01 Jan 2000 00:00:04 GMT"}

    assert retry_after(cast(Any, Answered())) == 3.0


def test_no_server_is_a_failed_request(stub: StubServer) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        seen = one(f"http://127.0.0.1:{free.getsockname()[1]}")
    assert (seen.outcome, seen.status) == ("failed", 0)
    assert seen.error.startswith("No connection: Connection refused")


def test_a_server_that_is_too_busy_rejects_and_any_other_refusal_is_a_failure(stub: StubServer) -> None:
    outcomes = {429: "rejected", 503: "rejected", 400: "failed", 500: "failed"}
    scripts = [{"status": status, "retry_after": one} for status in outcomes for one in (None, "0", "soon")]
    for script, seen in zip(scripts, play(stub, scripts).observations, strict=True):
        status = script["status"]
        assert (seen.outcome, seen.status, seen.error) == (outcomes[status], status, f"HTTP {status}: come later")
        assert seen.first_token is None and seen.sent is not None


def test_a_rejected_request_is_sent_again_only_when_asked(stub: StubServer) -> None:
    refusal = {"status": 429, "retry_after": "0.2", "refusals": 2}
    assert one(stub, **refusal, name="never again").outcome == "rejected"
    assert one(stub, {"retries": 1}, **refusal, name="once again").outcome == "rejected"
    seen = one(stub, {"retries": 2}, **refusal, name="twice again")
    assert seen.outcome == "completed"
    assert seen.ttft is not None and seen.ttft >= 0.4  # from the intended time, waiting included
    assert seen.delay is not None and seen.delay < seen.ttft


def test_no_request_waits_for_a_time_that_was_not_sent_or_is_too_late(stub: StubServer) -> None:
    assert one(stub, {"retries": 5}, status=503, refusals=1, name="no time").outcome == "rejected"
    assert one(stub, {"retries": 5}, status=429, retry_after="nan", refusals=1, name="nonsense").outcome == "rejected"
    late = one(stub, {"retries": 5, "timeout_s": 3.0}, status=503, retry_after="60", refusals=1, name="too late")
    assert late.outcome == "rejected" and late.ended < 3.0


class BackwardClock(ScriptedBodies):
    """Turns the wall clock back an hour with every body, in the process that makes them."""

    def body(self, index: int, before: Any) -> Any:
        wall = time.time()
        time.time = lambda: wall - 3600.0 * (index + 1)
        return super().body(index, before)


def test_a_wall_clock_that_goes_backwards_changes_nothing(stub: StubServer) -> None:
    bodies = BackwardClock(({**STREAM},) * 5)
    sent = send(Workload(entries(5, 0.02), "backwards"), Target(stub.url, timeout_s=20.0), bodies)
    for seen in sent.observations:
        assert seen.outcome == "completed" and seen.sent is not None and seen.first_token is not None
        assert seen.intended <= seen.sent < seen.first_token < seen.ended
        assert list(seen.token_times) == sorted(seen.token_times)


@pytest.mark.parametrize(
    ("server", "said"),
    [
        ({"begin": b"data: "}, "The server sent an event of more than 1,048,576 bytes."),
        ({"begin": b"data: {}\n\ndata: "}, "The server sent an event of more than 1,048,576 bytes."),
        ({"content_type": "application/json"}, "The server sent an answer of more than 16,777,216 bytes."),
        ({"status": "500 Broken"}, "HTTP 500: 'xxx"),
    ],
    ids=["event", "later event", "whole answer", "error"],
)
def test_an_answer_that_does_not_end_is_not_kept(server: dict[str, Any], said: str) -> None:
    async def ask(url: str) -> str:
        target = Target(url)
        async with open_session(target) as session:
            return (await CompletionClient(session, target, 0.0).ask(b"{}", Answer(), 60.0)).error

    with endless_server(**server) as url:
        assert asyncio.run(ask(url)).startswith(said)
