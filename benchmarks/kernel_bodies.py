"""What to time of the kernels: one call or one pass of calls each, with the bytes and operations that it cannot avoid.

Knows the op set and a model's shape; not how often, beside what, or against which rates things are timed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from inflight.execution import arrays
from inflight.execution.ops.native import NativeOps
from inflight.execution.ops.protocol import Array, KVShape, RopeTable, SamplingBatch, StepLayout
from inflight.execution.sizes import parts
from inflight.models.spec import ModelSpec

BLOCK = 16  # tokens of a KV block
ONE = 0x3F80  # in bf16


@dataclass(frozen=True)
class Body:
    """Something to time. `rate` names the instruction whose peak bounds its operations: "bfloat16" or "int8"."""

    name: str
    run: Callable[[], object]
    bytes: float
    operations: float
    rate: str = "bfloat16"


def matrix(rows: int, columns: int) -> Array:
    """bf16 halves of numbers around ±2⁻⁵: sign and mantissa are random, the exponent is fixed."""
    halves = np.random.default_rng(rows).integers(0, 2**16, (rows, columns), dtype=np.uint16)
    return (halves & np.uint16(0x807F)) | np.uint16(0x3D00)


class Layers:
    """The matrices of all layers, packed in bf16 or int8, and the products of one step over them."""

    def __init__(self, config: ModelSpec, ops: NativeOps, quantized: bool) -> None:
        self._config, self._ops, self._quantized = config, ops, quantized
        attention, mlp = parts(config.layers[0])
        hidden, inner, width = config.hidden_size, mlp.width, attention.heads * attention.head_dim
        qkv, output = matrix(attention.qkv_rows, hidden), matrix(hidden, width)
        gate, up, down = matrix(inner, hidden), matrix(inner, hidden), matrix(hidden, inner)
        bias = np.zeros(attention.qkv_rows, np.float32)
        self._values = len(config.layers) * sum(one.size for one in (qkv, output, gate, up, down))
        self._layers = [
            (
                ops.pack_linear([qkv], bias, quantized),
                ops.pack_linear([output], None, quantized),
                ops.pack_gated(gate, up, quantized),
                ops.pack_linear([down], None, quantized),
            )
            for _ in config.layers
        ]

    def products(self, tokens: int) -> Body:
        config, ops = self._config, self._ops
        mixer, mlp = parts(config.layers[0])
        x, wide, attended = (
            activations(tokens, count) for count in (config.hidden_size, mlp.width, mixer.heads * mixer.head_dim)
        )
        inner, qkv_out = arrays.empty(wide.shape, np.uint16), arrays.empty((tokens, mixer.qkv_rows), np.float32)
        residual = arrays.empty((tokens, config.hidden_size), np.float32)
        residual[...] = 0

        def run() -> None:
            for qkv, output, gated, down in self._layers:
                ops.linear(x, qkv, qkv_out)
                ops.linear_add(attended, output, residual)
                ops.gated(x, gated, inner)
                ops.linear_add(wide, down, residual)

        return Body(
            f"products of the layers, {tokens} tokens",
            run,
            self._values * (1 if self._quantized else 2),
            2.0 * self._values * tokens,
            "int8" if self._quantized else "bfloat16",
        )


class Head:
    """The output projection, packed in bf16 or int8."""

    def __init__(self, config: ModelSpec, ops: NativeOps, quantized: bool) -> None:
        self._config, self._ops, self._quantized = config, ops, quantized
        self._weight = ops.pack_linear([matrix(config.vocab_size, config.hidden_size)], None, quantized)

    def logits(self, rows: int) -> Body:
        config = self._config
        x, out = activations(rows, config.hidden_size), arrays.empty((rows, config.vocab_size), np.float32)
        values = config.vocab_size * config.hidden_size
        return Body(
            f"output projection, {rows} rows",
            partial(self._ops.linear, x, self._weight, out),
            values * (1 if self._quantized else 2),
            2.0 * values * rows,
            "int8" if self._quantized else "bfloat16",
        )


def activations(tokens: int, width: int) -> Array:
    """Ones, in bf16, where a step's own arrays would lie."""
    made = arrays.empty((tokens, width), np.uint16)
    made[...] = ONE
    return made


def attention(config: ModelSpec, ops: NativeOps, quantized: bool, rows: int, start: int, length: int) -> Body:
    """One layer's attention: `rows` chunks of `length` tokens from position `start` on, in blocks that lie apart. The
    ceiling of int8 keys and values has each product twice: queries and probabilities are two bytes."""
    mixer, _ = parts(config.layers[0])
    heads, kv_heads, dim = mixer.heads, mixer.kv_heads, mixer.head_dim
    context = start + length
    width = -(-context // BLOCK)
    arena = ops.kv_arena(KVShape(1, BLOCK, kv_heads, dim, quantized), rows * width)
    rope = RopeTable(np.ones((context, dim // 2), np.float32), np.zeros((context, dim // 2), np.float32))
    tables = np.random.default_rng(0).permutation(rows * width).astype(np.int32).reshape(rows, width)

    def layout(first: int, count: int) -> StepLayout:
        return StepLayout(
            np.tile(np.arange(first, first + count, dtype=np.int32), rows),
            np.arange(rows + 1, dtype=np.int32) * count,
            np.full(rows, first, np.int32),
            tables,
        )

    filling = np.random.default_rng(1).standard_normal((rows * context, mixer.qkv_rows)).astype(np.float32)
    queries = np.empty((rows * context, heads * dim), np.uint16)
    ops.rope_and_write_kv(filling, arena, 0, layout(0, context), rope, None, None, 1e-6, queries)
    q = np.ascontiguousarray(queries[: rows * length])
    out, chunk = np.empty_like(q), layout(start, length)
    seen = rows * sum(range(start + 1, context + 1))
    what = f"{rows} rows at {context} tokens" if length == 1 else f"a prompt of {length} tokens"
    return Body(
        f"attention of a layer, {what}",
        lambda: ops.attention(q, arena, 0, chunk, dim**-0.5, 0, out),
        rows * context * 2 * kv_heads * (dim + 4 if quantized else 2 * dim),
        4.0 * seen * heads * dim * (2 if quantized else 1),
        "int8" if quantized else "bfloat16",
    )


def others(config: ModelSpec, ops: NativeOps) -> list[Body]:
    """What is small beside the above: its time is told, not a share of anything."""
    logits = (3 * np.random.default_rng(2).standard_normal((32, config.vocab_size))).astype(np.float32)
    bodies = [
        Body(f"sampling of 32 rows, {label}", partial(ops.sample, logits, batch), 0, 0)
        for label, batch in (
            ("greedy", sampling(32, 0)),
            ("temperature", sampling(32, 1.0)),
            ("top-k 20, top-p 0.8", sampling(32, 0.7, 20, 0.8)),
            ("top-p 0.95", sampling(32, 0.7, 0, 0.95)),
        )
    ]
    norm = np.ones(config.hidden_size, np.float32)
    for tokens in (1, 32, 512):
        x, out = np.ones((tokens, len(norm)), np.float32), np.empty((tokens, len(norm)), np.uint16)
        bodies.append(Body(f"norm of {tokens} tokens", partial(ops.rms_norm, x, norm, 1e-6, out), 0, 0))
    small = ops.pack_linear([np.ones((16, 16), np.float32)])
    tiny, answer = np.full((1, 16), ONE, np.uint16), np.empty((1, 16), np.float32)
    bodies.append(Body("a call of next to nothing", partial(ops.linear, tiny, small, answer), 0, 0))
    return bodies


def sampling(rows: int, temperature: float, top_k: int = 0, top_p: float = 1.0) -> SamplingBatch:
    """Settings of equal rows without penalties or biases."""

    def full(value: float, kind: Any) -> Array:
        return np.full(rows, value, kind)

    return SamplingBatch(
        full(temperature, np.float32), full(top_k, np.int32), full(top_p, np.float32), full(0, np.float32),
        full(1, np.float32), full(0, np.float32), full(0, np.float32), np.arange(rows, dtype=np.uint64),
        full(0, np.uint32), full(0, np.uint32), [None] * rows, full(0, np.int32), np.zeros(rows + 1, np.int32),
        np.zeros(0, np.int32), np.zeros(0, np.float32), full(0, np.bool_), full(0, np.int32),
    )  # fmt: skip
