"""Measure what a step computes beside its products: attention, sampling, and rows between products.

Milliseconds of one core's own time, and the share of the roofline. Attention goes through the layers of a model of
Qwen2.5-0.5B's shape (of 32 long rows through a quarter of them), each with keys and values of its own in shuffled
blocks, so that no cache holds them. Keys and values in int8 and in bf16 are timed alternately. Logits are random: as a
model's, most of which are far below the largest, and of equal size.

    python -m benchmarks.beside_products [--isa avx2] [--repeats 5] [--write]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from functools import partial

import numpy as np

from benchmarks.kernel_bodies import BLOCK, Body, ones, over, plain, recorded, sampling
from benchmarks.rates import Probe, in_turns
from benchmarks.results import table, write_section
from inflight.execution import ops
from inflight.execution.backends import host
from inflight.execution.backends.native import NativeBackend
from inflight.execution.backends.protocol import Array, AttentionMetadata, KVShape, RopeTable
from inflight.execution.program import Program

HEADS, KV_HEADS, DIM, LAYERS, HIDDEN, VOCABULARY = 14, 2, 64, 24, 896, 151_936
# Rows, the positions that each sees, and the tokens of a chunk.
STEPS = ((1, 8192, 1), (8, 8192, 1), (32, 8192, 1), (32, 1024, 1), (1, 512, 512), (1, 2048, 2048), (1, 8192, 512))
ROWS = 32


def attention(backend: NativeBackend, rows: int, context: int, length: int, quantized: bool) -> Body:
    """All layers' attention of `rows` chunks of `length` tokens, the last of their contexts."""
    width, layers = -(-context // BLOCK), LAYERS // 4 if rows * context > 2**17 else LAYERS
    cache = backend.kv_cache(KVShape.uniform(layers, BLOCK, KV_HEADS, DIM, quantized), rows * width)
    np.frombuffer(backend.block_memory(cache), np.uint8)[...] = 0x3C  # small numbers in bf16 and as scales
    start = context - length
    metadata = AttentionMetadata(
        np.tile(np.arange(start, context, dtype=np.int32), rows),
        np.arange(rows + 1, dtype=np.int32) * length,
        np.full(rows, start, np.int32),
        np.random.default_rng(0).permutation(rows * width).astype(np.int32).reshape(1, rows, width),
    )
    batch = over(backend, metadata, cache)
    q = backend.activation_of(ones(rows * length, HEADS * DIM))
    out = backend.activation_of(ones(rows * length, HEADS * DIM))

    def record(program: Program) -> None:
        for layer in range(layers):
            ops.attention(program, q, layer, DIM**-0.5, 0, out)

    seen = rows * sum(range(start + 1, context + 1))
    if length == 1:
        what = f"{rows} at {context:,}" + (f", {layers} layers" if layers < LAYERS else "")
    else:
        what = f"a prompt of {length:,}" if length == context else f"a chunk of {length:,} up to {context:,}"
    return Body(
        f"attention, {what}, {'int8' if quantized else 'bf16'}",
        recorded(backend, batch, record),
        layers * rows * context * 2 * KV_HEADS * (DIM + 4 if quantized else 2 * DIM),
        layers * 4.0 * seen * HEADS * DIM * (2 if quantized else 1),
        "int8" if quantized else "bfloat16",
    )


def as_a_models() -> Array:
    """Return logits as a model's: in nine of ten runs of 64 none is within 8 of the largest."""
    random = np.random.default_rng(2)
    logits = (2.5 * random.standard_normal((ROWS, VOCABULARY))).astype(np.float32)
    logits[:, random.permutation(VOCABULARY)[:20]] += random.uniform(6, 16, (ROWS, 20)).astype(np.float32)
    return logits


def draws(backend: NativeBackend) -> Iterator[Body]:
    equal = np.random.default_rng(3).standard_normal((ROWS, VOCABULARY)).astype(np.float32)
    for name, logits in (("a model's", as_a_models()), ("equal", equal)):
        for how, temperature, top_k, top_p in (
            ("greedy", 0.0, 0, 1.0),
            ("temperature 1", 1.0, 0, 1.0),
            ("top-p 0.95", 1.0, 0, 0.95),
            ("top-k 20, top-p 0.8", 0.7, 20, 0.8),
        ):
            settings = sampling(ROWS, temperature, top_k, top_p)
            yield Body(
                f"sampling of {ROWS} rows, {name} logits, {how}",
                partial(backend.sample, logits, settings),
                logits.nbytes,
                0,
                "float32",
            )


def rows_between(backend: NativeBackend) -> Iterator[Body]:
    """Their ceiling is what they read and write, as if that lay in memory; it lies in a cache."""
    x = backend.activation_of(np.ones((ROWS, HIDDEN), np.float32))
    normed = backend.activation_of(host.empty((ROWS, HIDDEN), np.uint16))
    weight, batch = backend.pack_vector(np.ones(HIDDEN, np.float32)), plain(backend)
    run = recorded(backend, batch, partial(ops.rms_norm, x=x, weight=weight, eps=1e-6, out=normed))
    yield Body(f"norm of {ROWS} rows", run, ROWS * HIDDEN * 6, 0)
    width = (HEADS + 2 * KV_HEADS) * DIM
    metadata = AttentionMetadata(
        np.full(ROWS, 9, np.int32),
        np.arange(ROWS + 1, dtype=np.int32),
        np.full(ROWS, 9, np.int32),
        np.arange(ROWS, dtype=np.int32).reshape(1, ROWS, 1),
    )
    qkv = backend.activation_of(np.ones((ROWS, width), np.float32))
    q = backend.activation_of(host.empty((ROWS, HEADS * DIM), np.uint16))
    rope = backend.pack_rope(RopeTable(np.ones((BLOCK, DIM // 2), np.float32), np.zeros((BLOCK, DIM // 2), np.float32)))

    def write(program: Program) -> None:
        ops.rope_and_write_kv(program, qkv, 0, rope, None, None, 1e-6, q)

    for quantized in (False, True):
        turned = over(backend, metadata, backend.kv_cache(KVShape.uniform(1, BLOCK, KV_HEADS, DIM, quantized), ROWS))
        yield Body(
            f"rotation of {ROWS} rows, keys and values into blocks, {'int8' if quantized else 'bf16'}",
            recorded(backend, turned, write),
            ROWS * width * 6,
            0,
        )


def bodies(backend: NativeBackend) -> Iterator[list[Body]]:
    """Bodies that are timed alternately."""
    for rows, context, length in STEPS:
        yield [attention(backend, rows, context, length, quantized) for quantized in (False, True)]
    for body in (*draws(backend), *rows_between(backend)):
        yield [body]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isa", default="auto", help="instruction set")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="write the section of docs/results.md")
    arguments = parser.parse_args()
    backend = NativeBackend("bfloat16", 1, arguments.isa)
    probe, cells = Probe(backend, own_time=True), []
    for row in bodies(backend):
        (timings,) = in_turns([row], probe, arguments.repeats, time.thread_time)
        for body, timing in zip(row, timings, strict=True):
            best = min(timing.seconds)
            rates = (f"{body.bytes / best / 1e9:.1f}", f"{body.operations / best / 1e9:.0f}" if body.operations else "")
            cells.append([body.name, f"{best * 1e3:.3f}", *rates, timing.cells(probe.best)[1]])
    text = f"{backend.name}, 1 thread. {probe.summary()}\n\n" + table(["", "ms", "GB/s", "GOP/s", "share"], cells)
    print(text)
    if arguments.write:
        command = f"python -m benchmarks.beside_products --isa {arguments.isa} --repeats {arguments.repeats}"
        write_section("beside_products", "What stands beside the products of a step", command, text)


if __name__ == "__main__":
    main()
