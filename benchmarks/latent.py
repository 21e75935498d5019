"""Measure what latent attention (MLA) costs, whose values are a part of its keys: beside plain attention over as wide
heads.

One layer in bf16: every query head reads the same 512 compressed numbers and 64 of a rotated key, in bf16 or int8; the
plain one has a single KV head of 512 numbers. The three take turns, in one core's own time, so that what others do on
the machine counts as little as it can.

    nice python -m benchmarks.latent [--write]
"""

from __future__ import annotations

import argparse
import itertools
import time
from functools import partial

import numpy as np

from benchmarks.kernel_bodies import BLOCK, Body, over, recorded
from benchmarks.rates import Probe, in_turns
from benchmarks.results import table, write_section
from inflight.execution import ops
from inflight.execution.backends import host
from inflight.execution.backends.native import NativeBackend
from inflight.execution.backends.protocol import AttentionMetadata, KVLayer, KVShape, RopeTable

RANK, ROTATED, NOPE = 512, 64, 128  # numbers of DeepSeek's compressed vector, of its rotated key, of a query's rest
CONTEXT = 4096
# heads, tokens of a chunk, context behind its last one: of V2-Lite and V3 in a decode, and of the end of a prompt
CASES = ((16, 1, CONTEXT), (128, 1, CONTEXT), (16, 512, 2048))


def whole(context: int, first: int = 0) -> AttentionMetadata:
    """One chunk that ends with the context, in separate blocks."""
    tables = np.random.default_rng(0).permutation(-(-context // BLOCK)).astype(np.int32)[None, None]
    positions = np.arange(first, context, dtype=np.int32)
    return AttentionMetadata(
        positions, np.array([0, len(positions)], np.int32), np.array([first], np.int32), np.ascontiguousarray(tables)
    )


def no_rotation(positions: int, dim: int) -> RopeTable:
    return RopeTable(np.ones((positions, dim // 2), np.float32), np.zeros((positions, dim // 2), np.float32))


def pairs(length: int, context: int) -> int:
    """Queries and the positions that they see."""
    return sum(range(context - length + 1, context + 1))


def latent(backend: NativeBackend, heads: int, length: int, context: int, quantized: bool) -> Body:
    width, on, random = RANK + ROTATED, backend.activation_of, np.random.default_rng(1)
    shape = KVShape(BLOCK, (KVLayer(0, 1, width, 0),), quantized)
    cache = backend.kv_cache(shape, -(-context // BLOCK))
    filled, norm = random.standard_normal((context, width), np.float32), backend.pack_vector(np.ones(RANK, np.float32))
    for first in range(0, context, 512):  # in parts: the queries of all of it would be large
        part = np.ascontiguousarray(filled[first : first + 512])
        count = len(part)
        queries = on(np.zeros((count, heads * width), np.uint16))
        write = partial(
            ops.rope_and_write_latent,
            q=on(random.standard_normal((count, heads * (NOPE + ROTATED)), np.float32)),
            kv=on(part),
            layer=0,
            rope=backend.pack_rope(no_rotation(context, ROTATED)),
            kv_norm=norm,
            eps=1e-6,
            nope_out=on(host.empty((count, heads * NOPE), np.uint16)),
            q_out=queries,
        )
        recorded(backend, over(backend, whole(first + count, first), cache), write)()
    q, out = on(some(random, length, heads * width)), on(host.empty((length, heads * RANK), np.uint16))
    batch = over(backend, whole(context, context - length), cache)
    held = "int8" if quantized else "bf16"
    return Body(
        f"latent, {held}",
        recorded(backend, batch, lambda program: ops.attention(program, q, 0, width**-0.5, 0, out)),
        context * (width + 4 if quantized else 2 * width),
        2.0 * pairs(length, context) * heads * (width + RANK),
        "bfloat16",
    )


def plain(backend: NativeBackend, heads: int, length: int, context: int) -> Body:
    """One KV head, as wide as a compressed vector."""
    on, random = backend.activation_of, np.random.default_rng(1)
    cache = backend.kv_cache(KVShape.uniform(1, BLOCK, 1, RANK), -(-context // BLOCK))
    for first in range(0, context, 512):
        count = min(512, context - first)
        write = partial(
            ops.rope_and_write_kv,
            qkv=on(random.standard_normal((count, (heads + 2) * RANK), np.float32)),
            layer=0,
            rope=backend.pack_rope(no_rotation(context, RANK)),
            q_norm=None,
            k_norm=None,
            eps=1e-6,
            q_out=on(host.empty((count, heads * RANK), np.uint16)),
        )
        recorded(backend, over(backend, whole(first + count, first), cache), write)()
    q, out = on(some(random, length, heads * RANK)), on(host.empty((length, heads * RANK), np.uint16))
    batch = over(backend, whole(context, context - length), cache)
    return Body(
        "plain, bf16",
        recorded(backend, batch, lambda program: ops.attention(program, q, 0, RANK**-0.5, 0, out)),
        context * 4 * RANK,
        4.0 * pairs(length, context) * heads * RANK,
    )


def some(random: np.random.Generator, rows: int, width: int) -> np.ndarray:
    """Numbers around ±2⁻⁵, in bf16, where a step's own arrays would lie."""
    made = host.empty((rows, width), np.uint16)
    made[...] = random.integers(0, 2**16, (rows, width), np.uint16) & np.uint16(0x807F) | np.uint16(0x3D00)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--write", action="store_true", help="write the section of docs/results.md")
    arguments = parser.parse_args()
    backend = NativeBackend("bfloat16", 1)
    probe, cells = Probe(backend, own_time=True), []
    for case in CASES:
        row = [plain(backend, *case), latent(backend, *case, False), latent(backend, *case, True)]
        (timings,) = in_turns([row], probe, arguments.repeats, time.process_time)
        heads, length, context = case
        what = "one token" if length == 1 else f"the last {length} tokens"
        of_best = itertools.chain(*(one.cells(probe.best) for one in timings))
        rates = [f"{body.operations / min(one.seconds) / 1e9:.0f}" for body, one in zip(row, timings, strict=True)]
        cells.append([f"{what} of {context:,}, {heads} heads", *of_best, ", ".join(rates), timings[2].over(timings[1])])
    head = ["", *itertools.chain(*([f"{kind}, ms", "share"] for kind in ("plain", "latent", "latent in int8")))]
    body = (
        f"One layer's attention over {RANK} compressed numbers and {ROTATED} of a rotated key, and over one head of "
        f"keys and values of {RANK}: milliseconds of one core's own time, the best of {arguments.repeats}, and the "
        "share of the roofline in bf16: of that best, and in brackets the median. The ratio is the median, and what "
        f"the middle half of the repetitions lies between.\n\n{backend.name}, 1 thread. {probe.summary()}\n\n"
    ) + table([*head, "GFLOP/s of the three", "int8 / bf16"], cells)
    print(body)
    if arguments.write:
        command = f"python -m benchmarks.latent --repeats {arguments.repeats}"
        write_section("latent", "What latent attention costs", command, body)


if __name__ == "__main__":
    main()
