"""How fast blocks are transferred, compared with a bare socket.

One process exports the blocks of a prompt of 4,096 tokens, and another pulls them. Between the same two processes as
many bytes go over a socket, written and read block by block. Pulls and bare sockets alternate.
"""

from __future__ import annotations

import multiprocessing
import socket
import time
from multiprocessing.connection import Connection

from benchmarks.comparison import log_line
from benchmarks.peer_side import PeerSide
from inflight.core.types.kv_transfer import KVTransferOptions
from inflight.execution.kv.block_memory import BlockMemory
from inflight.execution.kv.transfer.description import KVDescription
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


def side() -> PeerSide:
    return PeerSide(KVTransferOptions(role="both", transport="tcp"), SECRET, DESCRIPTION, BLOCKS)


def export(connection: Connection) -> None:
    """Run the process that has the blocks: export them by name, or send them to a bare socket's port."""
    here = side()
    connection.send(here.peer_transfers.address)
    views = here.memory.views(range(BLOCKS))
    while (asked := connection.recv()) is not None:
        if isinstance(asked, str):
            here.export(asked, range(BLOCKS), range(BLOCKS))
            connection.send(True)
            continue
        with socket.create_connection(("127.0.0.1", asked)) as bare:
            for view in views:
                bare.sendall(view)
    here.peer_transfers.close()


def bare_seconds(connection: Connection, memory: BlockMemory) -> float:
    views = memory.views(range(BLOCKS))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connection.send(listener.getsockname()[1])
        bare, _ = listener.accept()
    with bare:
        began = time.perf_counter()
        for view in views:
            while view:
                view = view[bare.recv_into(view) :]
        return time.perf_counter() - began


def pull_seconds(here: PeerSide, address: tuple[str, int], connection: Connection, export_id: str) -> float:
    connection.send(export_id)
    connection.recv()
    began = time.perf_counter()
    here.pull(address, export_id, range(BLOCKS), range(BLOCKS))
    ended = here.ended(60)
    seconds = time.perf_counter() - began
    if ended.error is not None:
        raise RuntimeError(ended.error)
    return seconds


def rates(repeats: int) -> tuple[list[float], list[float]]:
    """Return GB/s of pulls and of bare sockets, without the first of each, which open connections."""
    here, there = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=export, args=(there,), daemon=True)
    process.start()
    address = here.recv()
    puller = side()
    pulls, bare = [], []
    for number in range(repeats + 1):
        pulls.append(BLOCKS * BLOCK_BYTES / 1e9 / pull_seconds(puller, address, here, str(number)))
        bare.append(BLOCKS * BLOCK_BYTES / 1e9 / bare_seconds(here, puller.memory))
        log_line(f"{pulls[-1]:.2f} GB/s, by a bare socket {bare[-1]:.2f} GB/s")
    here.send(None)
    process.join(30)
    puller.peer_transfers.close()
    return pulls[1:], bare[1:]
