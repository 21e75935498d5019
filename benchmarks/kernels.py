"""Times the kernels on the shapes of Qwen2.5-0.5B and prints the share of the machine's roofline that they reach.

    python benchmarks/kernels.py [--threads N] [--isa NAME] [--repeat N] [--json]

For each number of tokens T it runs the products of one forward pass (24 layers and the output projection, which sees
one row per sequence: all T up to 64, else one) and compares with max(bytes / bandwidth, operations / peak). Bandwidth
and peak are measured between the repetitions, in the same run, because the machine may be shared; the best of the
repetitions counts on both sides, and the median is printed beside it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import numpy as np

from inflight.execution.ops.native import NativeOps
from inflight.execution.ops.protocol import KVShape, RopeTable, SamplingBatch, StepLayout

HIDDEN, FEED_FORWARD, HEADS, KV_HEADS, DIM, LAYERS, VOCABULARY = 896, 4864, 14, 2, 64, 24, 151936
QKV = (HEADS + 2 * KV_HEADS) * DIM

Array = np.ndarray[Any, Any]


def timed(body: Callable[[], object], count: int = 1) -> float:
    """Seconds of one call, over `count` of them."""
    start = time.perf_counter()
    for _ in range(count):
        body()
    return (time.perf_counter() - start) / count


class Weights:
    """Random weights of the whole model, packed."""

    def __init__(self, ops: NativeOps) -> None:
        rng = np.random.default_rng(0)

        def matrix(rows: int, columns: int) -> Array:
            # bf16 halves of numbers around ±2⁻⁵: sign and mantissa are random, the exponent is fixed.
            halves = rng.integers(0, 2**16, (rows, columns), dtype=np.uint16)
            return (halves & np.uint16(0x807F)) | np.uint16(0x3D00)

        qkv, o = matrix(QKV, HIDDEN), matrix(HIDDEN, HIDDEN)
        gate, up, down = matrix(FEED_FORWARD, HIDDEN), matrix(FEED_FORWARD, HIDDEN), matrix(HIDDEN, FEED_FORWARD)
        bias = np.zeros(QKV, np.float32)
        self.layers = [
            (ops.pack_linear([qkv], bias), ops.pack_linear([o]), ops.pack_gated(gate, up), ops.pack_linear([down]))
            for _ in range(LAYERS)
        ]
        table = ops.pack_table(matrix(VOCABULARY, HIDDEN), True)
        self.head = table.linear
        self.values_per_layer = QKV * HIDDEN + HIDDEN * HIDDEN + 3 * FEED_FORWARD * HIDDEN


class Products:
    """The products of one step over T tokens."""

    def __init__(self, ops: NativeOps, weights: Weights, tokens: int) -> None:
        self.ops, self.weights, self.tokens = ops, weights, tokens
        self.rows = tokens if tokens <= 64 else 1
        act = np.uint16 if ops.dtype == "bfloat16" else np.float32
        self.x = np.full((tokens, HIDDEN), 0x3F80 if act == np.uint16 else 1, act)
        self.wide = np.full((tokens, FEED_FORWARD), 0x3F80 if act == np.uint16 else 1, act)
        self.wide_out = np.empty_like(self.wide)
        self.qkv = np.empty((tokens, QKV), np.float32)
        self.residual = np.zeros((tokens, HIDDEN), np.float32)
        self.logits = np.empty((self.rows, VOCABULARY), np.float32)

    def run(self) -> None:
        ops = self.ops
        for qkv, o, gated, down in self.weights.layers:
            ops.linear(self.x, qkv, self.qkv)
            ops.linear_add(self.x, o, self.residual)
            ops.gated(self.x, gated, self.wide_out)
            ops.linear_add(self.wide, down, self.residual)
        ops.linear(self.x[: self.rows], self.weights.head, self.logits)

    def bytes(self) -> float:
        item = 2 if self.ops.dtype == "bfloat16" else 4
        return item * (LAYERS * self.weights.values_per_layer + VOCABULARY * HIDDEN)

    def operations(self) -> float:
        return 2.0 * (LAYERS * self.weights.values_per_layer * self.tokens + VOCABULARY * HIDDEN * self.rows)


def attention_bench(ops: NativeOps, rows: int, start: int, length: int) -> tuple[Callable[[], None], float, float]:
    """One layer's attention: `rows` chunks of `length` tokens from position `start` on. (body, bytes, operations)"""
    block, context = 16, start + length
    width = -(-context // block)
    arena = ops.kv_arena(KVShape(1, block, KV_HEADS, DIM), rows * width)
    act = np.uint16 if ops.dtype == "bfloat16" else np.float32
    rope = RopeTable(np.ones((context, DIM // 2), np.float32), np.zeros((context, DIM // 2), np.float32))
    tables = np.random.default_rng(0).permutation(rows * width).astype(np.int32).reshape(rows, width)

    def layout(first: int, n: int) -> StepLayout:
        return StepLayout(
            np.tile(np.arange(first, first + n, dtype=np.int32), rows),
            np.arange(rows + 1, dtype=np.int32) * n,
            np.full(rows, first, np.int32),
            tables,
        )

    filling = np.random.default_rng(1).standard_normal((rows * context, QKV)).astype(np.float32)
    all_queries = np.empty((rows * context, HEADS * DIM), act)
    ops.rope_and_write_kv(filling, arena, 0, layout(0, context), rope, None, None, 1e-6, all_queries)
    q = np.ascontiguousarray(all_queries[: rows * length])
    out, chunk = np.empty_like(q), layout(start, length)
    seen = rows * sum(range(start + 1, context + 1))
    item = np.dtype(act).itemsize
    return (
        lambda: ops.attention(q, arena, 0, chunk, DIM**-0.5, 0, out),
        rows * context * 2 * KV_HEADS * DIM * item,
        4.0 * seen * HEADS * DIM,
    )


def sampling(rows: int, temperature: float, top_k: int = 0, top_p: float = 1.0) -> SamplingBatch:
    def full(value: float, kind: Any) -> Array:
        return np.full(rows, value, kind)

    return SamplingBatch(
        full(temperature, np.float32), full(top_k, np.int32), full(top_p, np.float32), full(0, np.float32),
        full(1, np.float32), full(0, np.float32), full(0, np.float32), np.arange(rows, dtype=np.uint64),
        full(0, np.uint32), full(0, np.uint32), [None] * rows, full(0, np.int32), np.zeros(rows + 1, np.int32),
        np.zeros(0, np.int32), np.zeros(0, np.float32), full(0, np.bool_), full(0, np.int32),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--isa", default="auto")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--tokens", type=int, nargs="*", default=[1, 8, 32, 64, 128, 512])
    parser.add_argument("--only", choices=["products", "attention", "other"], default=None)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()

    ops = NativeOps(arguments.dtype, arguments.threads, arguments.isa)
    kind: Literal["bf16", "f32"] = "bf16" if arguments.dtype == "bfloat16" else "f32"
    bandwidths, peaks = [], []
    benches: list[tuple[str, Callable[[], None], float, float]] = []
    if arguments.only in (None, "products"):
        weights = Weights(ops)
        for tokens in arguments.tokens:
            products = Products(ops, weights, tokens)
            benches.append((f"products T={tokens}", products.run, products.bytes(), products.operations()))
    if arguments.only in (None, "attention"):
        for name, rows, start, length in [
            ("attention, decode of 32 rows at 1024", 32, 1023, 1),
            ("attention, decode of 1 row at 4096", 1, 4095, 1),
            ("attention, prefill of 512", 1, 0, 512),
            ("attention, prefill of 2048", 1, 0, 2048),
        ]:
            benches.append((name, *attention_bench(ops, rows, start, length)))

    times: dict[str, list[float]] = {name: [] for name, *_ in benches}
    for _ in range(arguments.repeat):
        for name, body, _, _ in benches:
            bandwidths.append(ops.read_bandwidth_bytes_per_s(0.5, 1))
            peaks.append(ops.peak_flops(kind, 0.02))
            if "attention" in name:
                body()
            times[name].append(timed(body))
    bandwidth, peak = max(bandwidths, default=0), max(peaks, default=0)

    report: dict[str, Any] = {"isa": ops.isa, "threads": ops.threads, "dtype": ops.dtype, "rows": []}
    if benches:
        report |= {"bandwidth_bytes_per_s": bandwidth, "peak_flops": peak}
        print(
            f"{ops.name}, {ops.threads} threads, {ops.dtype}: reads {bandwidth / 1e9:.1f} GB/s "
            f"(median {statistics.median(bandwidths) / 1e9:.1f}), peak {peak / 1e9:.0f} GFLOP/s "
            f"(median {statistics.median(peaks) / 1e9:.0f}); best and median of {arguments.repeat}",
            file=sys.stderr,
        )
    for name, _, size, operations in benches:
        bound = max(size / bandwidth, operations / peak)
        best, middle = min(times[name]), statistics.median(times[name])
        by = "bandwidth" if size / bandwidth > operations / peak else "peak"
        report["rows"].append({"name": name, "best_s": best, "median_s": middle, "roofline_s": bound, "bound_by": by})
        print(
            f"{name:40s} {best * 1e3:9.3f} ms (median {middle * 1e3:9.3f})  roofline {bound * 1e3:8.3f} ms by {by:9s}"
            f"  share {bound / best:4.0%} (median {bound / middle:4.0%})",
            file=sys.stderr,
        )

    if arguments.only in (None, "other"):
        rng = np.random.default_rng(2)
        logits = (3 * rng.standard_normal((32, VOCABULARY))).astype(np.float32)
        others: list[tuple[str, Callable[[], object]]] = []
        for label, batch in [
            ("greedy", sampling(32, 0)),
            ("temperature", sampling(32, 1.0)),
            ("top-k 20, top-p 0.8", sampling(32, 0.7, 20, 0.8)),
            ("top-p 0.95", sampling(32, 0.7, 0, 0.95)),
        ]:
            others.append((f"sample 32 rows, {label}", partial(ops.sample, logits, batch)))
        for tokens in (1, 32, 512):
            act = np.uint16 if ops.dtype == "bfloat16" else np.float32
            x, out = np.ones((tokens, HIDDEN), np.float32), np.empty((tokens, HIDDEN), act)
            norm = np.ones(HIDDEN, np.float32)
            others.append((f"rms_norm T={tokens}", partial(ops.rms_norm, x, norm, 1e-6, out)))
        small = ops.pack_linear([np.ones((16, 16), np.float32)])
        x, y = np.ones((1, 16), np.uint16 if ops.dtype == "bfloat16" else np.float32), np.empty((1, 16), np.float32)
        others.append(("linear 16×16, T=1 (cost of a call)", partial(ops.linear, x, small, y)))
        for name, call in others:
            spans = [timed(call, 1 if "sample" in name else 200) for _ in range(5)]
            report["rows"].append({"name": name, "best_s": min(spans), "median_s": statistics.median(spans)})
            print(
                f"{name:40s} {min(spans) * 1e6:9.1f} µs (median {statistics.median(spans) * 1e6:9.1f})", file=sys.stderr
            )
    if arguments.json:
        print(json.dumps(report))


if __name__ == "__main__":
    main()
