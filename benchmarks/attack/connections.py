"""Attacks by connections: what is sent is half, slow, huge, no HTTP at all, or nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cache

from benchmarks.attack.calls import unread
from benchmarks.attack.kind import Act, Attack
from benchmarks.attack.visit import PATIENCE, WRONG_KEY, Line, Visit
from benchmarks.attack.wire import HOST, MAX_BODY, filled, get, head, post, text, upload

_COMPLETION = "/v1/completions"
_DRIP = 0.5  # seconds between single bytes


@cache
def _lists() -> bytes:
    return filled('{"prompt":[', "[]", "]}")


def _send_and_read(wire: Callable[[Visit], bytes]) -> Act:
    """Send the bytes and read the answer."""

    async def act(visit: Visit) -> None:
        await visit.ask(wire(visit))

    return act


def _held(wire: Callable[[Visit], bytes], drip: bytes = b"") -> Act:
    """Sends this, then a byte now and then or nothing, and stays until the server ends it."""

    async def act(visit: Visit) -> None:
        async with visit.line() as line:
            if line is None:
                return
            await line.send(wire(visit))
            dripping = asyncio.ensure_future(line.drip(drip * 4096, _DRIP)) if drip else None
            try:
                visit.note(await line.status())
            finally:
                if dripping is not None:
                    dripping.cancel()

    return act


async def _storm(visit: Visit) -> None:
    """Comes, asks for a stream, reads some of it or none, goes."""
    body = text({"prompt": "x", "max_tokens": 200, "ignore_eos": True, "stream": True})
    async with visit.line() as line:
        if line is None:
            return
        await line.send(post(_COMPLETION, body, visit.key))
        if visit.rng.random() < 0.5:
            async with asyncio.timeout(PATIENCE):
                await line.status()
        await asyncio.sleep(visit.rng.random() * 0.05)
        visit.note("left")


async def _come_and_go(visit: Visit) -> None:
    async with visit.line() as line:
        if line is not None:
            visit.note("left")
    await asyncio.sleep(0.002)


async def _unread_pipeline(visit: Visit) -> None:
    """Thousands of small requests ahead of their answers, which are not read."""
    async with visit.line(small_buffer=True) as line:
        if line is None:
            return
        one = f"GET /v1/models HTTP/1.1\r\nHost: {HOST}\r\nAuthorization: Bearer {visit.key}\r\n\r\n".encode()
        sending = asyncio.ensure_future(line.send(one * 20_000))
        await asyncio.sleep(3.0)
        sending.cancel()
        visit.note(await _status_soon(line))


async def _status_soon(line: Line) -> str:
    try:
        async with asyncio.timeout(PATIENCE):
            return await line.status()
    except TimeoutError:
        return f"nothing within {PATIENCE:g} s"


async def _chunks(visit: Visit, chunk: bytes, count: int) -> None:
    wire = head(_COMPLETION, None, visit.key, more=["Content-Type: application/json", "Transfer-Encoding: chunked"])
    await visit.ask(wire, chunk * count, b"0\r\n\r\n")


def _chunked(chunk: bytes, count: int) -> Act:
    async def act(visit: Visit) -> None:
        await _chunks(visit, chunk, count)

    return act


def _headers(name: Callable[[int], str], count: int, value: str) -> Callable[[Visit], bytes]:
    @cache
    def lines() -> tuple[str, ...]:
        return tuple(f"{name(number)}: {value}" for number in range(count))

    return lambda visit: head("/health", None, visit.key, "GET", more=lines())


def _heads() -> list[Attack]:
    small = _headers(lambda number: f"x-{number}", 200_000, "v")
    return [
        Attack("long URL", "a URL of 59 MB", _send_and_read(lambda _: get("/" + "u" * (59 << 20))), 4),
        Attack(
            "long query",
            "a URL of 8 kB, as long as allowed",
            _send_and_read(lambda _: get("/health?" + "q" * 8000)),
            16,
        ),
        Attack("long header", "one header of 15 MB", _send_and_read(_headers(lambda _: "x", 1, "v" * (15 << 20))), 6),
        Attack("many headers", "200,000 small headers", _send_and_read(small), 6),
        Attack(
            "half a head",
            "half of the headers, then a byte now and then",
            _held(lambda _: b"GET /health HTTP/1.1\r\nHost: x\r\nx-more: ", b"v"),
            200,
        ),
        Attack("head of 30 kB", "headers nearly as large as allowed, unended", _held(_unended), 500),
    ]


def _unended(visit: Visit) -> bytes:
    return f"GET /health HTTP/1.1\r\nHost: {HOST}\r\nx: {'v' * 30_000}".encode()


def _half_bodies() -> list[Attack]:
    def lacking(key: Callable[[Visit], str]) -> Callable[[Visit], bytes]:
        return lambda visit: head(_COMPLETION, len(_lists()), key(visit)) + _lists()[:-1]

    return [
        Attack("last byte missing", "8 MB but the last byte", _held(lacking(lambda visit: visit.key)), 40),
        Attack("last byte missing, no key", "the same without a key", _held(lacking(lambda _: "")), 40),
        Attack("last byte missing, wrong key", "the same, unknown key", _held(lacking(lambda _: WRONG_KEY)), 40),
        Attack(
            "a byte at a time",
            "a body announced as 8 MB, two bytes a second",
            _held(_announced, b" "),
            200,
        ),
        Attack("no body", "a body announced and never sent", _held(_announced), 500),
        Attack("expect", "Expect: 100-continue, and then nothing", _held(_expecting), 100),
        Attack("idle", "connections that say nothing", _held(lambda _: b""), 500),
        Attack("half-sent and gone", "goes away in the middle of 8 MB", _half_and_gone, 20),
    ]


def _expecting(visit: Visit) -> bytes:
    return head(_COMPLETION, MAX_BODY, visit.key, more=["Expect: 100-continue"])


async def _half_and_gone(visit: Visit) -> None:
    async with visit.line() as line:
        if line is not None:
            await line.send(head(_COMPLETION, len(_lists()), visit.key) + _lists()[: visit.rng.randrange(MAX_BODY)])
            visit.note("left")


def _no_http() -> list[Attack]:
    hello = bytes.fromhex("16030100ca010000c60303") + bytes(range(193))
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9)
    upgrade = ["Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA"]
    asked = text({"prompt": "x", "max_tokens": 1})

    async def garbage(visit: Visit) -> None:
        await visit.ask(visit.rng.randbytes(visit.rng.randrange(1, 1 << 20)))

    return [
        Attack("TLS hello", "TLS on the plain port", _send_and_read(lambda _: hello), 16),
        Attack("HTTP/0.9", "a line without a version", _send_and_read(lambda _: b"GET /health\r\n\r\n"), 16),
        Attack("HTTP/2", "the preface of HTTP/2", _send_and_read(lambda _: preface), 16),
        Attack(
            "h2c",
            "an upgrade to HTTP/2, with a body",
            _send_and_read(lambda v: head(_COMPLETION, len(asked), v.key, more=upgrade) + asked),
            8,
        ),
        Attack("garbage", "up to a megabyte of random bytes", garbage, 16),
        Attack(
            "pipelined garbage",
            "a request, then a megabyte of noise on the same line",
            _send_and_read(
                lambda v: f"GET /health HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode() + v.rng.randbytes(1 << 20)
            ),
            8,
        ),
        Attack("unread pipeline", "20,000 requests ahead of answers that are not read", _unread_pipeline, 8),
        Attack("methods", "methods that no path has", _methods, 16),
    ]


async def _methods(visit: Visit) -> None:
    method = visit.rng.choice(["PUT", "PATCH", "TRACE", "OPTIONS", "CONNECT", "PROPFIND", "X" * 4000])
    await visit.ask(head(_COMPLETION, 2, visit.key, method) + b"{}")


def _transfers() -> list[Attack]:
    extension = b"1;" + b"e" * (1 << 20) + b"\r\n \r\n"
    return [
        Attack("chunk extensions", "chunks of a byte with a megabyte beside it", _chunked(extension, 31), 6),
        Attack("small chunks", "a million chunks of one byte", _chunked(b"1\r\n \r\n", 1_000_000), 6),
        Attack(
            "huge chunk", "a chunk announced as 2^60 bytes", _chunked(b"fffffffffffffff\r\n" + b" " * MAX_BODY, 1), 6
        ),
        Attack("no length", "8 MB in one chunk", _chunked(b"%x\r\n%b\r\n" % (MAX_BODY, b"[" * MAX_BODY), 1), 6),
        Attack("trailers", "200,000 trailers behind a body", _send_and_read(_trailers), 6),
        Attack("compressed", "a body said to be gzip", _send_and_read(_compressed), 6),
    ]


def _trailers(visit: Visit) -> bytes:
    wire = head(_COMPLETION, None, visit.key, more=["Content-Type: application/json", "Transfer-Encoding: chunked"])
    return wire + b"2\r\n{}\r\n0\r\n" + b"x: v\r\n" * 200_000 + b"\r\n"


def _compressed(visit: Visit) -> bytes:
    body = b"\x1f\x8b" + bytes(MAX_BODY)
    return head(_COMPLETION, len(body), visit.key, more=["Content-Encoding: gzip"]) + body


def _pages() -> list[Attack]:
    async def page(visit: Visit) -> None:
        await visit.ask(get(visit.rng.choice(["/metrics", "/openapi.json", "/docs", "/v1/models", "/"]), visit.key))

    return [
        Attack("pages", "/metrics, /openapi.json, /docs again and again", page, 16),
        Attack("disconnect storm", "streams asked for and left at once", _storm, 100),
        Attack("come and go", "connections that are closed at once", _come_and_go, 50),
    ]


def _of_browsers() -> list[Attack]:
    page = ["Origin: https://attacker.example", "Sec-Fetch-Site: cross-site"]
    line = b'{"custom_id":"1"}\n'

    def rebound(_: Visit) -> bytes:
        return get("/v1/models").replace(f"Host: {HOST}".encode(), b"Host: attacker.example")

    return [
        Attack(
            "cross-site upload",
            "a page of another site uploads a file",
            _send_and_read(lambda _: upload(line * 1000, more=page)),
            8,
            False,
        ),
        Attack("rebound name", "another site's name for this server", _send_and_read(rebound), 8, False),
    ]


def crowds() -> list[Attack]:
    """Return attacks that last beside honest clients; not of the catalogue."""
    slow = text({"prompt": "x", "max_tokens": 40, "ignore_eos": True, "stream": True})  # slow, but little work
    return [
        Attack("crowd: idle", "connections that say nothing", _held(lambda _: b""), 2000),
        Attack("crowd: slow bodies", "a body at two bytes a second", _held(_announced, b" "), 100),
        Attack("crowd: slow readers", "64 bytes of a stream every half second", unread(slow, 0.5), 100),
    ]


def _announced(visit: Visit) -> bytes:
    return head(_COMPLETION, MAX_BODY, visit.key)


def connection_attacks() -> list[Attack]:
    return [*_heads(), *_half_bodies(), *_no_http(), *_transfers(), *_pages(), *_of_browsers()]
