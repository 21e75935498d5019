"""How fast blocks travel beside what the way does by itself.

Two processes: one gives blocks of a prompt of 4,096 tokens, as the exchange does, and the other pulls them into its
own; and between the same two processes as many bytes go by the bare way: one socket, read and written in pieces of a
block; or memory of as many places, filled and emptied in turn, with a byte for each turn. They take turns.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection

from benchmarks.comparison import log_line
from benchmarks.peer_side import PeerSide
from inflight.core.types.kv_transfer import KVTransferOptions, Role, Transport
from inflight.execution.kv.block_memory import BlockMemory
from inflight.execution.kv.transfer.description import KVDescription
from inflight.execution.kv.transfer.shared_memory import places
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


def side(transport: Transport, role: Role) -> PeerSide:
    return PeerSide(KVTransferOptions(role=role, transport=transport), SECRET, DESCRIPTION, BLOCKS)


def give(transport: Transport, connection: Connection) -> None:
    """The process that has the blocks: gives them by the exchange, or sends as many bytes by the bare way."""
    here = side(transport, "both")
    connection.send(here.peer_transfers.address)
    views = here.memory.views(range(BLOCKS))
    while (asked := connection.recv()) is not None:
        if isinstance(asked, str):
            here.give(asked, range(BLOCKS), range(BLOCKS))
            connection.send(True)
            continue
        with socket.create_connection(("127.0.0.1", asked)) as bare:
            if transport == "tcp":
                for view in views:
                    bare.sendall(view)
            else:
                _fill(bare, os.open(connection.recv(), os.O_RDWR), views)
    here.peer_transfers.close()


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


def bare_seconds(transport: Transport, connection: Connection, memory: BlockMemory) -> float:
    views = memory.views(range(BLOCKS))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connection.send(listener.getsockname()[1])
        if transport == "tcp":
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


def pull_seconds(here: PeerSide, address: tuple[str, int], connection: Connection, export: str) -> float:
    connection.send(export)
    connection.recv()
    began = time.perf_counter()
    here.take(address, export, range(BLOCKS), range(BLOCKS))
    ended = here.ended(60)
    seconds = time.perf_counter() - began
    if ended.error is not None:
        raise RuntimeError(ended.error)
    return seconds


def rates(transport: Transport, repeats: int) -> tuple[list[float], list[float]]:
    """GB/s of pulls and of the bare way, taken in turns; the first of each, with which connections are made, is left
    out."""
    here, there = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=give, args=(transport, there), daemon=True)
    process.start()
    address = here.recv()
    puller = side(transport, "decode")
    pulls, bare = [], []
    for number in range(repeats + 1):
        pulls.append(BLOCKS * BLOCK_BYTES / 1e9 / pull_seconds(puller, address, here, f"{transport} {number}"))
        bare.append(BLOCKS * BLOCK_BYTES / 1e9 / bare_seconds(transport, here, puller.memory))
        log_line(f"{transport}: {pulls[-1]:.2f} GB/s, by itself {bare[-1]:.2f} GB/s")
    here.send(None)
    process.join(30)
    puller.peer_transfers.close()
    return pulls[1:], bare[1:]
