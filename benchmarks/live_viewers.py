"""Measure what it costs a server to be looked at: the same work without viewers of the live page, with one and with
ten.

The work is fixed: so many completions, so many at once. Each number of viewers has its turn in each round, in another
order each time, and is compared with none of the same round. Viewers are sockets in a process of their own that read
what comes and throw it away. Throughput is what a client sees, on cores that viewers and client share with the server;
the server's own CPU for a thousand tokens shows what it did itself, whatever else runs on the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import selectors
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.synchronize import Event

from benchmarks.results import table, write_section
from benchmarks.served import Server, tree_seconds
from benchmarks.streams import HOST, Stream, post, run, send
from inflight.metrics.confidence import Estimate, paired_ratio

VIEWERS = (0, 1, 10)
TOKENS, AT_ONCE = 128, 24
SETTLING_SECONDS = 6.0  # after viewers have gone: until then frames are made for those who come back


@dataclass(frozen=True, slots=True)
class Measured:
    tokens_per_s: float
    cpu_ms: float  # of the server, for 1,000 tokens


def _look(port: int, viewers: int, ready: Event, ending: Event) -> None:
    """In a process of its own."""
    selector = selectors.DefaultSelector()
    for _ in range(viewers):
        one = socket.create_connection((HOST, port))
        one.sendall(f"GET /live/events HTTP/1.1\r\nHost: {HOST}\r\nAccept: text/event-stream\r\n\r\n".encode())
        selector.register(one, selectors.EVENT_READ)
    ready.set()
    space = bytearray(1 << 20)
    while not ending.is_set():
        for key, _ in selector.select(0.5):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.recv_into(space)


@contextmanager
def looked_at(port: int, viewers: int) -> Iterator[None]:
    if not viewers:
        yield
        return
    context = multiprocessing.get_context("spawn")
    ready, ending = context.Event(), context.Event()
    process = context.Process(target=_look, args=(port, viewers, ready, ending), daemon=True)
    process.start()
    assert ready.wait(60), "the viewers did not come"
    try:
        yield
    finally:
        ending.set()
        process.join(10)


async def _ask(port: int, requests: int) -> None:
    """All of them, so many at once."""
    body = {"prompt": "A batch is", "max_tokens": TOKENS, "ignore_eos": True, "stream": True}
    asked, left = post("/v1/completions", body), iter(range(requests))

    async def one_after_the_other() -> None:
        for _ in left:
            stream = await send(port, Stream(asked))
            assert stream.complete, f"a request was answered with {stream.status}"

    await asyncio.gather(*(one_after_the_other() for _ in range(AT_ONCE)))


def measure(server: Server, viewers: int, requests: int) -> Measured:
    with looked_at(server.port, viewers):
        cpu, began = tree_seconds(server.process.pid), time.perf_counter()
        run(_ask(server.port, requests))
        seconds = time.perf_counter() - began
        cpu = tree_seconds(server.process.pid) - cpu
    if viewers:
        time.sleep(SETTLING_SECONDS)
    tokens = requests * TOKENS
    return Measured(tokens / seconds, cpu / tokens * 1e6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="folder or hub id; the built-in model unless given")
    parser.add_argument("--requests", type=int, default=240, help="of one turn")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--write", action="store_true", help="into docs/results.md")
    given = parser.parse_args()
    found: dict[int, list[Measured]] = {viewers: [] for viewers in VIEWERS}
    with Server(*([given.model] if given.model else [])) as server:
        measure(server, 0, given.requests)  # warm
        for number in range(given.rounds):
            order = VIEWERS[number % 3 :] + VIEWERS[: number % 3]
            for viewers in order:
                found[viewers].append(measure(server, viewers, given.requests))
                print(number, viewers, found[viewers][-1], flush=True)
    body = _report(found, given.requests)
    print(body)
    if given.write:
        command = "python -m benchmarks.live_viewers" + (f" --model {given.model}" if given.model else "")
        write_section("live_viewers", "A server that is looked at", command, body)


def _report(found: dict[int, list[Measured]], requests: int) -> str:
    none = found[0]
    rows = []
    for viewers, some in found.items():
        tokens = sum(one.tokens_per_s for one in some) / len(some)
        cpu = sum(one.cpu_ms for one in some) / len(some)
        speed = paired_ratio([one.tokens_per_s for one in some], [one.tokens_per_s for one in none])
        work = paired_ratio([one.cpu_ms for one in some], [one.cpu_ms for one in none])
        ratios = ("", "") if viewers == 0 else (_ratio(speed), _ratio(work))
        rows.append((viewers, f"{tokens:,.0f}", ratios[0], f"{cpu:,.0f}", ratios[1]))
    head = ("viewers", "output tokens/s", "of none", "server's CPU for 1,000 tokens, ms", "of none")
    return (
        f"{requests} completions of {TOKENS} tokens, {AT_ONCE} at once; {len(none)} rounds, each number of viewers in "
        "turn and compared within its round (95 % intervals).\n\n" + table(head, rows)
    )


def _ratio(one: Estimate | None) -> str:
    if one is None:
        return "–"
    return f"{one.mean:.3f}" + ("" if one.low is None else f" ({one.low:.3f} to {one.high:.3f})")


if __name__ == "__main__":
    main()
