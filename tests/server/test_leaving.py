"""Clients that leave at any moment of a request: afterwards nothing is held, and each call was counted once."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from .conftest import Server

WORKER = b"inflight.execution.grammars.compile_worker"
RESETS = struct.pack("ii", 1, 0)  # SO_LINGER of a socket whose closing sends a reset
SECONDS = 60.0  # for which a test waits at most
AMBIGUOUS = 'start: s\ns: s s s | s s | "a" | "b" | ""'
SLOW = {"type": "integer", "allOf": [{"multipleOf": 1999}, {"multipleOf": 1997}]}
PATTERNS = {"type": "object", "patternProperties": {f"^a{n}[a-z]*{n}$": {"type": "integer"} for n in range(60)}}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string", "maxLength": 9}}},
    },
}
COMPLETION, CHAT, RESPONSE = "/v1/completions", "/v1/chat/completions", "/v1/responses"


def schema(value: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "s", "schema": value, "strict": True}}


def bodies(rng: random.Random) -> tuple[str, dict[str, Any]]:
    """A request of any kind, and its path."""
    plain = {"prompt": "Once upon a time", "max_tokens": rng.choice((1, 30, 120)), "ignore_eos": True}
    messages = {"messages": [{"role": "user", "content": f"Hello {rng.randrange(5)}"}], "max_tokens": 40}
    made: list[tuple[str, dict[str, Any]]] = [
        (COMPLETION, plain),
        (COMPLETION, {**plain, "n": 3}),
        (COMPLETION, {**plain, "n": 20, "max_tokens": 10}),
        (COMPLETION, {"prompt": "x" * 40_000, "max_tokens": 3}),
        (
            COMPLETION,
            {"prompt": "a", "max_tokens": 30, "structured_outputs": {"regex": f"[a-z]{{{rng.randrange(2, 40)}}}"}},
        ),
        (COMPLETION, {"prompt": "a", "max_tokens": 30, "structured_outputs": {"grammar": AMBIGUOUS}}),
        (CHAT, {**messages, "response_format": schema({**SLOW, "minimum": rng.randrange(1000)})}),
        (CHAT, {**messages, "response_format": schema({**PATTERNS, "title": str(rng.randrange(1000))})}),
        (CHAT, {**messages, "tools": [TOOL], "tool_choice": "required"}),
        (CHAT, {**messages, "tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "weather"}}}),
        (CHAT, messages),
        (RESPONSE, {"input": "Say it", "max_output_tokens": 30}),
    ]
    path, body = rng.choice(made)
    return path, {**body, "stream": rng.random() < 0.5}


async def visit(server: Server, rng: random.Random) -> None:
    """Send one request, or its beginning, and leave."""
    path, body = bodies(rng)
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
    request = head.encode() + b"Content-Length: %d\r\n\r\n" % len(content) + content
    how = rng.choice(("close", "reset", "half", "stay"))
    cut = rng.randrange(len(request)) if rng.random() < 0.15 else len(request)
    max_bytes, max_seconds = rng.choice((0, 1, 200, 2000, 1 << 20)), rng.choice((0.0, 0.001, 0.02, 0.2, 1.0))
    if how == "stay" and cut == len(request):
        max_bytes, max_seconds = 1 << 30, SECONDS
    reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
    with suppress(ConnectionError, TimeoutError):
        writer.write(request[:cut])
        await writer.drain()
        if how == "half":
            writer.write_eof()
        async with asyncio.timeout(max_seconds):
            while max_bytes > 0 and (piece := await reader.read(min(max_bytes, 1 << 16))):
                max_bytes -= len(piece)
    if how == "reset":
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESETS)
    writer.transport.abort()


async def visits(server: Server, seed: int, count: int, at_once: int = 24) -> None:
    rng, gate = random.Random(seed), asyncio.Semaphore(at_once)

    async def one(seed: int) -> None:
        async with gate:
            await visit(server, random.Random(seed))

    await asyncio.gather(*(one(rng.randrange(1 << 30)) for _ in range(count)))


class Process(NamedTuple):
    parent: int
    state: str
    command: bytes


def descendants(server: Server) -> dict[int, Process]:
    """All processes that it has started, and those that these have."""
    processes = dict[int, Process]()
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            processes[int(entry.name)] = Process(int(parent), state, (entry / "cmdline").read_bytes())
    found, ahead = dict[int, Process](), {server.process.pid}
    while ahead:
        ahead = {number for number, one in processes.items() if one.parent in ahead}
        found |= {number: processes[number] for number in ahead}
    return found


def workers(found: dict[int, Process]) -> set[int]:
    """Processes that compile grammars; their children have the same command."""
    commands = {number for number, one in found.items() if WORKER in one.command}
    return {number for number in commands if found[number].parent not in commands}


def at_work(server: Server) -> list[int]:
    """Processes that compile a grammar, and zombies."""
    found = descendants(server)
    idle = workers(found)
    return [number for number, one in found.items() if one.state == "Z" or one.parent in idle]


def held(server: Server) -> dict[str, float]:
    """Whatever is held or in flight; nothing at rest."""
    names = ("sequences_running", "sequences_waiting", "sequences_swapped")
    counts = {name: server.metric(f"inflight_{name}") for name in names}
    counts["blocks"] = server.metric("inflight_kv_blocks", state="held")
    counts["calls"] = float("0 calls" not in server.get("/health").json()["detail"])
    ended = server.metric("inflight_requests_finished_total")
    counts["accepted and not ended"] = server.metric("inflight_requests_accepted_total") - ended
    return {name: count for name, count in counts.items() if count}


def answers(server: Server) -> list[Any]:
    prompts = ("Once", "The river", "a b c")
    asked = [server.post(COMPLETION, {"prompt": one, "max_tokens": 24, "temperature": 0}) for one in prompts]
    return [one.json()["choices"] for one in asked]


def is_noise(line: str) -> bool:
    entry = json.loads(line) if line.startswith("{") else {"level": "none"}
    return entry["level"] not in ("debug", "info")


def check_left(start: Callable[..., Server], seed: int, count: int, *arguments: str, kills: int = 0) -> None:
    server = start("--max-streams", "400", *arguments)
    before = answers(server)

    async def attack() -> None:
        visiting = asyncio.ensure_future(visits(server, seed, count))
        for _ in range(kills):
            await asyncio.sleep(0.5)
            for worker in workers(descendants(server)):
                os.kill(worker, signal.SIGKILL)
        await visiting

    asyncio.run(attack())
    assert server.settled(lambda: not held(server), SECONDS), held(server)
    assert server.settled(lambda: not at_work(server), SECONDS), "a compile, or a zombie, is left"
    assert answers(server) == before
    answered = sum(
        server.metric("inflight_http_requests_total", endpoint=path) for path in (COMPLETION, CHAT, RESPONSE)
    )
    assert 0.8 * count < answered <= count + 2 * len(before), "each once; what never came whole may count or not"
    assert server.metric("inflight_http_requests_total", status="500") == 0
    ended = "the process that compiles grammars ended"
    noise = [line for line in server.log if is_noise(line) and not (kills and ended in line)]
    assert not noise, "".join(noise)
    assert server.stop() == 0


def test_clients_that_leave_leave_nothing_behind(start: Callable[..., Server]) -> None:
    check_left(start, 1, 60, "--max-num-seqs", "4")


@pytest.mark.wide
@pytest.mark.parametrize(
    "arguments",
    [
        ("--api-processes", "2", "--max-num-seqs", "4"),
        ("--num-blocks", "40", "--max-model-len", "400", "--max-num-seqs", "12"),
        ("--num-blocks", "40", "--max-model-len", "400", "--preemption", "swap", "--swap-space", "0.01"),
        ("--speculation", "suffix", "--max-num-seqs", "6"),
    ],
    ids=["processes", "preempted", "swapped", "drafts"],
)
@pytest.mark.parametrize("seed", [2, 3])
def test_many_clients_that_leave_leave_nothing_behind(
    start: Callable[..., Server], arguments: tuple[str, ...], seed: int
) -> None:
    check_left(start, seed, 250, *arguments)


@pytest.mark.wide
def test_requests_are_answered_while_the_process_that_compiles_is_killed(start: Callable[..., Server]) -> None:
    check_left(start, 4, 250, "--max-num-seqs", "4", kills=8)


@pytest.mark.wide
@pytest.mark.parametrize("seconds", [0.1, 0.7, 1.6, 3.1])
def test_a_server_that_is_stopped_amid_all_that_leaves_no_process(start: Callable[..., Server], seconds: float) -> None:
    server = start("--drain-timeout", "0.5", "--max-num-seqs", "4")
    mine = set[int]()

    async def attack() -> None:
        visiting = asyncio.ensure_future(visits(server, 5, 400))
        await asyncio.sleep(seconds)
        mine.update(descendants(server))
        server.process.send_signal(signal.SIGTERM)
        with suppress(OSError):
            await visiting

    asyncio.run(attack())
    assert server.process.wait(SECONDS) == 0
    assert server.settled(lambda: not any(Path(f"/proc/{one}").exists() for one in mine), SECONDS)
    log = "".join(server.log)
    assert not any(word in log for word in ("Traceback", "never awaited", "never retrieved"))
