"""Bodies on their way in: who may send one, how large, how slowly, and how many at once."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from inflight.server.errors import ApiError
from inflight.server.ingress import bodies
from inflight.server.ingress.bodies import BodyBudget, BodyLease

from ..conftest import Server, children
from .raw import GENERATE, Raw, head, request

COMPLETIONS = "/v1/completions"
MEBIBYTE = 1 << 20


def resident(server: Server) -> int:
    """Return the bytes of the API process."""
    (process,) = children(server, "inflight.server.processes.child")
    status = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    return int(status.split("VmRSS:")[1].split()[0]) * 1024


def test_keys_are_checked_on_the_headers_before_the_body(keyed: Server) -> None:
    server = keyed
    for headers, code in (((), "missing_api_key"), (("Authorization: Bearer no",), "invalid_api_key")):
        with Raw(server) as raw:  # not one byte of the body is there
            answer = raw.send(head("POST", COMPLETIONS, *headers, length=7 * MEBIBYTE)).answer()
            assert (answer.status, answer.error["code"]) == (401, code)
            assert answer.headers["connection"] == "close"
        with Raw(server) as raw:  # and all of it
            answer = raw.send(head("POST", COMPLETIONS, *headers, length=MEBIBYTE) + b"x" * MEBIBYTE).answer()
            assert answer.error["code"] == code, "the answer is read, although the body was not"
    with Raw(server) as raw:
        assert raw.send(head("GET", "/v1/models")).one().status == 401
        assert raw.send(head("GET", "/v1/models", "Authorization: Bearer sk-acme")).one().status == 200
        for path in ("/health", "/version", "/metrics", "/docs", "/openapi.json"):
            assert raw.send(head("GET", path)).one().status == 200, path
    assert "bearer" in server.get("/openapi.json").text.lower()
    assert server.post("/v1/files", {}).status_code == 401


def test_a_body_that_is_too_large_is_refused_when_it_says_so(start: Callable[..., Server]) -> None:
    server = start("--max-body-mb", "1")
    with Raw(server) as raw:
        answer = raw.send(head("POST", COMPLETIONS, length=MEBIBYTE + 1)).answer()
        assert (answer.status, answer.error["code"]) == (413, "body_too_large")
    with Raw(server) as raw:
        chunks = b"%x\r\n" % 65536 + b"x" * 65536 + b"\r\n"
        answer = raw.send(head("POST", COMPLETIONS, "Transfer-Encoding: chunked") + chunks * 20).answer()
        assert (answer.status, answer.error["code"]) == (413, "body_too_large")
    body = b'{"prompt": "Once", "max_tokens": 1}' + b" " * (MEBIBYTE - 40)
    json_type = {"Content-Type": "application/json"}
    assert httpx.post(server.url + COMPLETIONS, content=body, headers=json_type, timeout=60).status_code == 200


@pytest.mark.wide
def test_a_body_must_come_in_time(start: Callable[..., Server], tmp_path: Path) -> None:
    server = start("--body-timeout", "0.5", "--upload-timeout", "0.5", "--data-dir", str(tmp_path))
    with Raw(server) as raw:
        answer = raw.send(head("POST", COMPLETIONS, length=100) + b"{").answer()
        assert (answer.status, answer.error["code"]) == (408, "body_timeout")
        assert "--body-timeout" in answer.error["message"]
    with Raw(server) as raw:
        form = head("POST", "/v1/files", "Content-Type: multipart/form-data; boundary=b", length=10_000)
        answer = raw.send(form.replace(b"Content-Type: application/json\r\n", b"") + b"--b\r\n").answer()
        assert answer.status == 408 and "--upload-timeout" in answer.error["message"]


def test_expecting_clients_are_answered_before_they_send(server: Server) -> None:
    with Raw(server) as raw:
        raw.send(head("POST", COMPLETIONS, "Expect: 100-continue", length=100 * MEBIBYTE))
        assert raw.answer().status == 413
    whole = request(GENERATE, "Expect: 100-continue")
    first, _, body = whole.partition(b"\r\n\r\n")
    with Raw(server) as raw:
        raw.send(first + b"\r\n\r\n")
        assert raw.socket.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert raw.send(body).one().status == 200


def test_half_sent_bodies_do_not_fill_the_memory(start: Callable[..., Server]) -> None:
    server = start("--body-budget-mb", "16", "--max-body-mb", "4", "--body-timeout", "60")
    server.post(COMPLETIONS, GENERATE)
    before = resident(server)
    length = 4 * MEBIBYTE
    attackers = [
        Raw(server, f"127.0.0.{2 + number % 20}").send(head("POST", COMPLETIONS, length=length)) for number in range(60)
    ]
    for one in attackers:
        one.socket.settimeout(0.05)
        with contextlib.suppress(OSError):  # it takes no more
            one.socket.sendall(b"x" * (length - 1))
    grown = resident(server) - before
    assert grown < 80 * MEBIBYTE, f"{grown / MEBIBYTE:.0f} MiB"  # 240 were sent
    assert server.get("/health").status_code == 200
    for one in attackers:
        one.socket.close()
    assert server.settled(lambda: resident(server) - before < 16 * MEBIBYTE, 30), "and none is kept when they have gone"


def test_a_body_that_finds_no_room_is_refused_with_a_time_to_retry(start: Callable[..., Server]) -> None:
    server = start("--body-budget-mb", "1", "--max-body-mb", "1", "--body-timeout", "60")
    with Raw(server) as holder, Raw(server, "127.0.0.3") as other:
        holder.send(head("POST", COMPLETIONS, length=MEBIBYTE) + b"x" * (MEBIBYTE - 1))
        assert server.settled(lambda: server.get("/health").status_code == 200)
        answer = other.send(request({"prompt": "x" * 500_000})).answer()
        assert (answer.status, answer.error["code"]) == (503, "body_budget")
        assert int(answer.headers["retry-after"]) >= 1
    assert server.settled(lambda: server.post(COMPLETIONS, GENERATE).status_code == 200)


def test_many_long_bodies_of_one_client_are_all_answered(start: Callable[..., Server]) -> None:
    server = start("--body-budget-mb", "1", "--max-body-mb", "0.25")  # one of them at a time fits into a client's share
    body = json.dumps(GENERATE).encode() + b" " * 200_000

    async def posted(client: httpx.AsyncClient, content: bytes) -> int:
        answer = await client.post(COMPLETIONS, content=content, headers={"Content-Type": "application/json"})
        return answer.status_code

    async def scenario() -> list[int]:
        async with httpx.AsyncClient(base_url=server.url, timeout=120, limits=httpx.Limits()) as client:
            return await asyncio.gather(*(posted(client, body) for _ in range(40)), posted(client, body.strip()))

    assert asyncio.run(scenario()) == [200] * 41


def test_an_owner_has_a_share_of_the_budget_and_others_the_rest() -> None:
    async def scenario() -> None:
        budget = BodyBudget(100, share=40, longest=40, patience=0.05, small=0)
        first, second, third, other, last = (budget.lease(owner) for owner in "aaabc")
        for lease in (first, other):
            await lease.reserve(40)
            await lease.grow(40)
        waiting = asyncio.ensure_future(second.reserve(30))
        behind = asyncio.ensure_future(third.reserve(10))
        await asyncio.sleep(0.01)
        assert not waiting.done() and not behind.done() and budget.held == 80
        first.release()
        await asyncio.gather(waiting, behind)
        await second.grow(30)
        assert budget.held == 70
        first.release()
        assert budget.held == 70, "released once"
        await last.reserve(40)
        with pytest.raises(ApiError, match="Bodies in memory have 70 bytes"):
            await last.grow(40)
        second.release()
        await last.grow(40)

    asyncio.run(scenario())


@pytest.mark.parametrize("unknown", [False, True])
def test_bodies_of_one_owner_do_not_wait_for_each_other_half_read(unknown: bool) -> None:
    async def read(lease: BodyLease, size: int) -> None:
        await lease.reserve(None if unknown else size)
        for _ in range(size // 10):
            await lease.grow(10)
            await asyncio.sleep(0)
        lease.complete()
        await asyncio.sleep(0)
        lease.release()

    async def scenario() -> None:
        budget = BodyBudget(100, share=40, longest=40, patience=60, small=10)
        async with asyncio.timeout(30):
            await asyncio.gather(*(read(budget.lease("a"), size) for size in [30, 20, 10, 40, 30, 20, 40] * 5))
        assert budget.held == 0 and not budget._reserved and not budget._waiting and not len(budget._locks)

    asyncio.run(scenario())


def test_a_body_that_is_complete_leaves_the_rest_of_its_reservation_to_others() -> None:
    async def scenario() -> None:
        budget = BodyBudget(100, share=40, longest=40, small=0)
        first, second = budget.lease("a"), budget.lease("a")
        await first.reserve(40)
        await first.grow(10)
        waiting = asyncio.ensure_future(second.reserve(30))
        await asyncio.sleep(0)
        first.complete()
        await waiting

    asyncio.run(scenario())


def test_so_many_bodies_wait_for_memory_and_no_more() -> None:
    async def scenario() -> None:
        budget = BodyBudget(100, share=40, longest=40, small=0)
        first = budget.lease("a")
        await first.reserve(40)
        waiting = [asyncio.ensure_future(budget.lease("a").reserve(1)) for _ in range(128)]
        await asyncio.sleep(0)
        with pytest.raises(ApiError, match="128 of yours, at most 128; 128 in all"):
            await budget.lease("a").reserve(1)
        await budget.lease("b").reserve(1)
        for one in waiting[1:]:
            one.cancel()
        first.release()
        await waiting[0]

    asyncio.run(scenario())


@pytest.mark.parametrize("reserves", [True, False])
def test_who_is_cancelled_while_waiting_holds_nothing(reserves: bool) -> None:
    async def scenario() -> None:
        budget = BodyBudget(10, share=10, longest=10, patience=60, small=0)
        first, second, third = (budget.lease(owner) for owner in ("aac" if reserves else "abc"))
        await first.reserve(10)
        await first.grow(10)
        if not reserves:
            await second.reserve(5)
        waiting = asyncio.ensure_future(second.reserve(5) if reserves else second.grow(5))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        first.release()
        second.release()
        assert budget.held == 0 and not budget._waiting
        await third.reserve(10)
        await third.grow(10)

    asyncio.run(scenario())


def test_small_bodies_find_room_beside_large_ones_that_fill_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "SMALL_ROOM_BYTES", 20)

    async def scenario() -> None:
        budget = BodyBudget(100, share=50, longest=50, patience=0.05, small=20)
        for owner in "ab":
            large = budget.lease(owner)
            await large.reserve(50)
            await large.grow(50)
        small = budget.lease("c")
        await small.reserve(20)
        await small.grow(20)
        with pytest.raises(ApiError, match="Bodies in memory have 120 bytes"):
            await budget.lease("d").grow(1)

    asyncio.run(scenario())


def test_a_small_body_that_grows_is_counted_as_a_large_one() -> None:
    async def scenario() -> None:
        budget = BodyBudget(100, share=50, longest=50, patience=0.05, small=10)
        lease = budget.lease("a")
        await lease.reserve(5)
        await lease.grow(5)
        await lease.grow(25)  # what was stored before it
        assert lease.is_large and budget._reserved == {("a", True): 30}

    asyncio.run(scenario())
