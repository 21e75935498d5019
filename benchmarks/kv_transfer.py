"""Keys and values between engines: how fast blocks travel beside what the way does by itself, and what the first decode
step waits for behind the last chunk of its prompt.

Part one has two processes: one gives blocks of a prompt of 4,096 tokens, as the exchange does, and the other pulls them
into its own; and between the same two processes as many bytes go by the bare way: one socket, read and written in
pieces of a block; or memory of as many places, filled and emptied in turn, with a byte for each turn. They take turns.

Part two has two engines of one thread each. Where the decode engine is known first, it pulls each chunk's blocks while
the next chunk is computed; otherwise it is asked when the prompt is computed, as behind a router. What is told is how
long behind the prefill engine's last step the decode engine has all blocks, so that its first step could begin.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import queue
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random

from benchmarks.comparison import publish, tell
from benchmarks.results import table
from benchmarks.shapes import QWEN25_05B, TINY, write_config
from benchmarks.workloads import prompt
from inflight.build import Engine, PeersWanted, build_engine
from inflight.config.engine import EngineSettings
from inflight.core.types.events import TokensEvent
from inflight.core.types.kv_exchange_options import KVExchangeOptions, Role, Way
from inflight.core.types.peers import KVHandover, PeerPlace, giving_place
from inflight.core.types.plan import Transfer
from inflight.core.types.request import Request
from inflight.core.types.sampling import SamplingParams
from inflight.execution.kv_exchange.block_memory import BlockMemory
from inflight.execution.kv_exchange.description import KVDescription
from inflight.execution.kv_exchange.exchange import KVExchange
from inflight.execution.kv_exchange.shared_memory import places
from inflight.peer_secret import PeerSecret

SECRET = PeerSecret(b"a secret of the benchmark")
BLOCK_BYTES, BLOCKS = 196_608, 256  # of Qwen2.5-0.5B's shape in bf16: 16 tokens, 24 layers, 2 heads of 64
DESCRIPTION = KVDescription(
    release="",
    model="",
    weights="",
    dtype="bfloat16",
    kv_format="bfloat16",
    kernels="",
    layers="",
    block_size=16,
    block_bytes=BLOCK_BYTES,
    tensor_parallel=1,
)
CHUNK, PROMPT = 64, 512  # tokens


# -- how fast blocks travel -------------------------------------------------------------------------------------------


def exchange(way: Way, role: Role) -> tuple[KVExchange, BlockMemory]:
    memory = bytearray(BLOCK_BYTES * BLOCKS)
    for start in range(0, len(memory), 4096):
        memory[start] = 1  # pages that nobody has touched are not copied
    blocks = BlockMemory(memoryview(memory), BLOCK_BYTES)
    return KVExchange(KVExchangeOptions(role=role, way=way), SECRET, lambda: DESCRIPTION, blocks), blocks


def give(way: Way, connection: Connection) -> None:
    """The process that has the blocks: gives them by the exchange, or sends as many bytes by the bare way."""
    opened, memory = exchange(way, "both")
    connection.send(opened.address)
    views, ticket = memory.views(range(BLOCKS)), 0
    while (asked := connection.recv()) is not None:
        if isinstance(asked, str):
            ticket += 1
            numbers = tuple(range(BLOCKS))
            opened.begin(Transfer(ticket, "send", giving_place(asked), numbers, numbers))
            connection.send(True)
            continue
        with socket.create_connection(("127.0.0.1", asked)) as bare:
            if way == "tcp":
                for view in views:
                    bare.sendall(view)
            else:
                _fill(bare, os.open(connection.recv(), os.O_RDWR), views)
    opened.close()


def _turns(blocks: int) -> Iterator[tuple[range, int, int]]:
    """A quarter of the places at a time: which blocks, where they go, and how many turns before stood there last."""
    some = max(1, places(BLOCK_BYTES) // 4)
    count = places(BLOCK_BYTES) // some
    for turn, first in enumerate(range(0, blocks, some)):
        yield range(first, min(first + some, blocks)), turn % count * some * BLOCK_BYTES, count


def _fill(bare: socket.socket, shared: int, views: list[memoryview]) -> None:
    """A byte says that a quarter is full, and one that it is empty."""
    out = 0
    for blocks, offset, count in _turns(len(views)):
        if out == count:
            out -= len(bare.recv(1))
        os.pwritev(shared, views[blocks.start : blocks.stop], offset)
        bare.sendall(b"1")
        out += 1
    while out:
        out -= len(bare.recv(1))
    os.close(shared)


def _empty(bare: socket.socket, shared: int, views: list[memoryview]) -> None:
    for blocks, offset, _ in _turns(len(views)):
        bare.recv(1)
        os.preadv(shared, views[blocks.start : blocks.stop], offset)
        bare.sendall(b"1")


def bare_seconds(way: Way, connection: Connection, memory: BlockMemory) -> float:
    views = memory.views(range(BLOCKS))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connection.send(listener.getsockname()[1])
        if way == "tcp":
            bare, _ = listener.accept()
            began = time.perf_counter()
            for view in views:
                while view:
                    view = view[bare.recv_into(view) :]
            seconds = time.perf_counter() - began
        else:
            shared = os.memfd_create("benchmark")
            os.ftruncate(shared, places(BLOCK_BYTES) * BLOCK_BYTES)
            connection.send(f"/proc/{os.getpid()}/fd/{shared}")
            bare, _ = listener.accept()
            began = time.perf_counter()
            _empty(bare, shared, views)
            seconds = time.perf_counter() - began
            os.close(shared)
        bare.close()
    return seconds


def pull_seconds(opened: KVExchange, address: tuple[str, int], connection: Connection, export: str) -> float:
    connection.send(export)
    connection.recv()
    numbers = tuple(range(BLOCKS))
    began = time.perf_counter()
    opened.begin(Transfer(1, "receive", PeerPlace(*address, export).place, numbers, numbers))
    while not (ended := opened.poll()):
        time.sleep(5e-4)  # as an engine does that waits for blocks
    seconds = time.perf_counter() - began
    if ended[0].error is not None:
        raise RuntimeError(ended[0].error)
    return seconds


def rates(way: Way, repeats: int) -> tuple[list[float], list[float]]:
    """GB/s of pulls and of the bare way, taken in turns; the first of each, with which connections are made, is left
    out."""
    here, there = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=give, args=(way, there), daemon=True)
    process.start()
    address = here.recv()
    opened, memory = exchange(way, "decode")
    pulls, bare = [], []
    for number in range(repeats + 1):
        pulls.append(BLOCKS * BLOCK_BYTES / 1e9 / pull_seconds(opened, address, here, f"{way} {number}"))
        bare.append(BLOCKS * BLOCK_BYTES / 1e9 / bare_seconds(way, here, memory))
        tell(f"{way}: {pulls[-1]:.2f} GB/s, by itself {bare[-1]:.2f} GB/s")
    here.send(None)
    process.join(30)
    opened.close()
    return pulls[1:], bare[1:]


# -- what the first decode step waits for -----------------------------------------------------------------------------


class Side:
    """One engine, advanced in a thread of its own; when which request had its first token."""

    def __init__(self, model: str, role: Role):
        options = KVExchangeOptions(role=role, timeout=300, hold=300)
        settings = EngineSettings(
            model=model,
            load_format="dummy",
            threads=1,
            max_num_batched_tokens=CHUNK,
            max_num_seqs=2,
            max_model_len=PROMPT + 64,
        )
        self.engine: Engine = build_engine(settings, peers=PeersWanted(options, SECRET))
        self.firsts: dict[str, float] = {}
        self._inbox: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._main, daemon=True)
        self._thread.start()

    def place(self, export_id: str) -> PeerPlace:
        assert self.engine.exchange is not None
        return PeerPlace(*self.engine.exchange.address, export_id)

    def add(self, request: Request) -> None:
        self._inbox.put(request)

    def first(self, request_id: str) -> float:
        """When its first token was there."""
        with self._changed:
            self._changed.wait_for(lambda: request_id in self.firsts)
        return self.firsts[request_id]

    def close(self) -> None:
        self._inbox.put(None)
        self._thread.join()
        self.engine.loop.close()

    def _main(self) -> None:
        loop = self.engine.loop
        while True:
            try:
                request = self._inbox.get(loop.idle, 60) if loop.idle else self._inbox.get_nowait()
                if request is None:
                    return
                loop.add(request)
            except queue.Empty:
                pass
            events = loop.advance()
            with self._changed:
                for event in events if isinstance(events, list) else ():
                    if isinstance(event, TokensEvent):
                        self.firsts.setdefault(event.request_id, time.perf_counter())
                self._changed.notify_all()


@contextmanager
def sides(shape: dict[str, object]) -> Iterator[tuple[Side, Side]]:
    with tempfile.TemporaryDirectory() as folder:
        model = str(write_config(Path(folder), shape))
        prefill, decode = Side(model, "prefill"), Side(model, "decode")
        try:
            yield prefill, decode
        finally:
            decode.close()
            prefill.close()


class Watch:
    """When the next pull has ended."""

    def __init__(self, exchange: KVExchange):
        self._exchange, self._target, self._ended = exchange, exchange.counts.pulls + 1, 0.0
        self._thread = threading.Thread(target=self._main, daemon=True)
        self._thread.start()

    def ended(self) -> float:
        self._thread.join()
        return self._ended

    def _main(self) -> None:
        while self._exchange.counts.pulls < self._target:
            time.sleep(5e-4)
        self._ended = time.perf_counter()


def waits(shape: dict[str, object], repeats: int) -> dict[str, list[float]]:
    """Seconds from the last step of the prompt until its blocks are where they are decoded: `ahead` and `behind`, by
    when the decode engine was asked. The first of each is left out."""
    found: dict[str, list[float]] = {"ahead": [], "behind": []}
    rng, vocabulary = Random(7), int(str(shape["vocab_size"]))

    def request(name: str, tokens: tuple[int, ...], handover: KVHandover | None) -> Request:
        params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
        return Request(request_id=name, prompt_token_ids=tokens, params=params, handover=handover)

    with sides(shape) as (prefill, decode):
        exchange = decode.engine.exchange
        assert exchange is not None
        for number in range(repeats + 1):
            for mode, waited in found.items():
                name, tokens = f"{mode} {number}", tuple(prompt(rng, PROMPT, vocabulary))
                take = request(name, tokens, KVHandover(take=prefill.place(name)))
                watch = Watch(exchange)
                if mode == "ahead":
                    decode.add(take)
                prefill.add(request(name, tokens, KVHandover(give=name)))
                last = prefill.first(name)
                if mode == "behind":
                    decode.add(take)
                decode.first(name)
                if number:
                    waited.append(watch.ended() - last)
                tell(f"{name}: the blocks were there {1e3 * (watch.ended() - last):.1f} ms behind the last chunk")
        if exchange.counts.failed_pulls:
            raise RuntimeError(f"{exchange.counts.failed_pulls} of {exchange.counts.pulls} pulls failed")
    return found


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--repeats", type=int, default=25)
    arguments.add_argument("--prompts", type=int, default=7)
    arguments.add_argument("--tiny", action="store_true", help="a shape that says nothing, to see that it runs")
    arguments.add_argument("--write", action="store_true", help="write the section of docs/results.md")
    given = arguments.parse_args()
    of = statistics.median
    rows = []
    for way in ("tcp", "shm"):
        pulls, bare = rates(way, given.repeats)
        share = of([one / other for one, other in zip(pulls, bare, strict=True)])
        best = max(pulls), max(bare)
        rows.append([way, *(f"{one:.2f}" for one in (of(pulls), of(bare))), f"{100 * share:.0f} %"])
        rows[-1] += [*(f"{one:.2f}" for one in best), f"{100 * best[0] / best[1]:.0f} %"]
    found = waits(TINY if given.tiny else QWEN25_05B, given.prompts)
    ms: Callable[[float], str] = lambda seconds: f"{1e3 * seconds:.1f}"  # noqa: E731
    second = [
        [when, *(ms(one) for one in (of(waited), min(waited), max(waited)))]
        for when, waited in zip(("before the prompt is computed", "when it is computed"), found.values(), strict=True)
    ]
    head = ["way", "pulled, GB/s", "by itself, GB/s", "share", "best pull", "best by itself", "share"]
    body = f"""{BLOCKS} blocks of {BLOCK_BYTES:,} bytes (4,096 tokens of Qwen2.5-0.5B's shape in bf16) between two \
processes on one host; medians of {given.repeats}, in turns, the share pair by pair; and the best of each.

{table(head, rows)}

A prompt of {PROMPT} tokens of that shape in chunks of {CHUNK}, between two engines of one thread each in one process: \
milliseconds from the prefill engine's last step until all blocks are where they are decoded, of {given.prompts} \
prompts.

{table(["the decode engine is asked", "median", "least", "most"], second)}"""
    publish("kv_transfer", "Keys and values between engines", body, given.write)


if __name__ == "__main__":
    main()
