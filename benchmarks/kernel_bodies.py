"""Define what to time of the kernels: one call or one pass of calls each, with the bytes and operations that it cannot
avoid.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from inflight.core.types.plan import Capacity
from inflight.counted import counted
from inflight.execution import ops
from inflight.execution.backends import host
from inflight.execution.backends.native import NativeBackend, NativePass
from inflight.execution.backends.protocol import Array, AttentionMetadata, Hold, KVShape, RopeTable, SamplingBatch
from inflight.execution.batch.pass_layout import PassInputs
from inflight.execution.program import Program
from inflight.models.mixers.attention import Attention
from inflight.models.mlps.dense import Dense
from inflight.models.spec import ModelSpec

BLOCK = 16  # tokens of a KV block
ONE = 0x3F80  # in bf16
BYTES: dict[Hold, float] = {"act": 2, "int8": 1, "int4": 0.5 + 2 / 32}  # of a weight; int4 in groups of 32


@dataclass(frozen=True)
class Body:
    """Something to time. `rate` names the instruction whose peak bounds its operations: "bfloat16", "int8" or
    "float32". calls: that are timed together, each over memory of its own where no cache shall hold it."""

    name: str
    run: Callable[[], object]
    bytes: float
    operations: float
    rate: str = "bfloat16"
    calls: int = 1


def matrix(rows: int, columns: int) -> Array:
    """bf16 halves of numbers around ±2⁻⁵: sign and mantissa are random, the exponent is fixed."""
    halves = np.random.default_rng(rows).integers(0, 2**16, (rows, columns), dtype=np.uint16)
    return (halves & np.uint16(0x807F)) | np.uint16(0x3D00)


class Layers:
    """The matrices of all layers, and the products of one step over them."""

    def __init__(self, config: ModelSpec, backend: NativeBackend, hold: Hold) -> None:
        self._config, self._backend, self._hold = config, backend, hold
        attention, mlp = config.layers[0].mixer, config.layers[0].mlp
        assert isinstance(attention, Attention) and isinstance(mlp, Dense)
        hidden, inner, width = config.hidden_size, mlp.width, attention.heads * attention.head_dim
        qkv, output = matrix(attention.qkv_rows, hidden), matrix(hidden, width)
        gate, up, down = matrix(inner, hidden), matrix(inner, hidden), matrix(hidden, inner)
        bias = np.zeros(attention.qkv_rows, np.float32)
        self._values = len(config.layers) * sum(one.size for one in (qkv, output, gate, up, down))
        self._layers = [
            (
                backend.pack_linear([qkv], bias, hold),
                backend.pack_linear([output], None, hold),
                backend.pack_gate_up(gate, up, hold),
                backend.pack_linear([down], None, hold),
            )
            for _ in config.layers
        ]

    def products(self, tokens: int) -> Body:
        config, batch = self._config, plain(self._backend)
        mixer, mlp = config.layers[0].mixer, config.layers[0].mlp
        assert isinstance(mixer, Attention) and isinstance(mlp, Dense)
        x, wide, attn_out = (
            self._backend.activation_of(ones(tokens, count))
            for count in (config.hidden_size, mlp.width, mixer.heads * mixer.head_dim)
        )
        sizes = ((mlp.width, np.uint16), (mixer.qkv_rows, np.float32), (config.hidden_size, np.float32))
        inner, qkv_out, residual = (
            self._backend.activation_of(host.empty((tokens, width), kind)) for width, kind in sizes
        )
        residual.array[...] = 0

        def record(program: Program) -> None:
            for qkv, output, gate_up, down in self._layers:
                ops.linear(program, x, qkv, qkv_out)
                ops.linear_residual(program, attn_out, output, residual)
                ops.gate_up(program, x, gate_up, inner)
                ops.linear_residual(program, wide, down, residual)

        return Body(
            f"products of the layers, {counted(tokens, 'token')}",
            recorded(self._backend, batch, record),
            self._values * BYTES[self._hold],
            2.0 * self._values * tokens,
            "bfloat16" if self._hold == "act" else "int8",
        )


class Head:
    """The output projection."""

    def __init__(self, config: ModelSpec, backend: NativeBackend, hold: Hold) -> None:
        self._config, self._backend, self._hold = config, backend, hold
        self._weight = backend.pack_linear([matrix(config.vocab_size, config.hidden_size)], None, hold)

    def logits(self, rows: int) -> Body:
        config = self._config
        x = self._backend.activation_of(ones(rows, config.hidden_size))
        out = self._backend.activation_of(host.empty((rows, config.vocab_size), np.float32))
        values = config.vocab_size * config.hidden_size
        return Body(
            f"output projection, {counted(rows, 'row')}",
            recorded(self._backend, plain(self._backend), partial(ops.linear, x=x, weight=self._weight, out=out)),
            values * BYTES[self._hold],
            2.0 * values * rows,
            "bfloat16" if self._hold == "act" else "int8",
        )


def plain(backend: NativeBackend) -> NativePass:
    """A pass over no tokens, for products of whatever there is."""
    none = np.zeros(0, np.int32)
    nowhere = AttentionMetadata(none, np.zeros(1, np.int32), none, np.zeros((1, 0, 1), np.int32))
    return over(backend, nowhere, backend.kv_cache(KVShape.uniform(1, BLOCK, 1, 32), 1))


def over(backend: NativeBackend, metadata: AttentionMetadata, kv_cache: Any) -> NativePass:
    """A pass over these positions, whatever their tokens are."""
    none, token_ids = np.zeros(0, np.int32), np.zeros(len(metadata.positions), np.int32)
    slots = backend.input_batch(Capacity(1, BLOCK, 1, BLOCK, 1), 0)
    return backend.forward_pass(PassInputs(none, none, token_ids, metadata), kv_cache, slots, ())


def recorded(backend: NativeBackend, batch: NativePass, record: Callable[[Program], None]) -> Callable[[], None]:
    """Return a run of the operations that `record` calls on a program."""
    program = Program()
    record(program)
    return partial(batch.run, backend.compile(program))


def ones(tokens: int, width: int) -> Array:
    """Ones, in bf16, where a step's own arrays would lie."""
    made = host.empty((tokens, width), np.uint16)
    made[...] = ONE
    return made


def attention(config: ModelSpec, backend: NativeBackend, quantized: bool, rows: int, start: int, length: int) -> Body:
    """One layer's attention: `rows` chunks of `length` tokens from position `start` on, in separate blocks. The
    ceiling of int8 keys and values has each product twice: queries and probabilities are two bytes."""
    mixer = config.layers[0].mixer
    assert isinstance(mixer, Attention)
    heads, kv_heads, dim = mixer.heads, mixer.kv_heads, mixer.head_dim
    context = start + length
    width = -(-context // BLOCK)
    kv_cache = backend.kv_cache(KVShape.uniform(1, BLOCK, kv_heads, dim, quantized), rows * width)
    rope = RopeTable(np.ones((context, dim // 2), np.float32), np.zeros((context, dim // 2), np.float32))
    tables = np.random.default_rng(0).permutation(rows * width).astype(np.int32).reshape(rows, width)

    def metadata(first: int, count: int) -> AttentionMetadata:
        return AttentionMetadata(
            np.tile(np.arange(first, first + count, dtype=np.int32), rows),
            np.arange(rows + 1, dtype=np.int32) * count,
            np.full(rows, first, np.int32),
            tables[None],
        )

    filling = np.random.default_rng(1).standard_normal((rows * context, mixer.qkv_rows)).astype(np.float32)
    queries = backend.activation_of(np.empty((rows * context, heads * dim), np.uint16))
    written, packed = backend.activation_of(filling), backend.pack_rope(rope)
    whole = over(backend, metadata(0, context), kv_cache)
    recorded(backend, whole, lambda to: ops.rope_and_write_kv(to, written, 0, packed, None, None, 1e-6, queries))()
    q = backend.activation_of(np.ascontiguousarray(queries.array[: rows * length]))
    out, batch = backend.activation_of(np.empty_like(q.array)), over(backend, metadata(start, length), kv_cache)
    seen = rows * sum(range(start + 1, context + 1))
    what = f"{counted(rows, 'row')} at {context} tokens" if length == 1 else f"a prompt of {length} tokens"
    return Body(
        f"attention of a layer, {what}",
        recorded(backend, batch, lambda program: ops.attention(program, q, 0, dim**-0.5, 0, out)),
        rows * context * 2 * kv_heads * (dim + 4 if quantized else 2 * dim),
        4.0 * seen * heads * dim * (2 if quantized else 1),
        "int8" if quantized else "bfloat16",
    )


def others(config: ModelSpec, backend: NativeBackend) -> list[Body]:
    """Return what is small beside the above: its time is reported, not a share of anything."""
    logits = (3 * np.random.default_rng(2).standard_normal((32, config.vocab_size))).astype(np.float32)
    bodies = [
        Body(f"sampling of 32 rows, {label}", partial(backend.sample, logits, settings), 0, 0)
        for label, settings in (
            ("greedy", sampling(32, 0)),
            ("temperature", sampling(32, 1.0)),
            ("top-k 20, top-p 0.8", sampling(32, 0.7, 20, 0.8)),
            ("top-p 0.95", sampling(32, 0.7, 0, 0.95)),
        )
    ]
    width, batch = config.hidden_size, plain(backend)
    norm = backend.pack_vector(np.ones(width, np.float32))
    for tokens in (1, 32, 512):
        x = backend.activation_of(np.ones((tokens, width), np.float32))
        out = backend.activation_of(np.empty((tokens, width), np.uint16))
        run = recorded(backend, batch, partial(ops.rms_norm, x=x, weight=norm, eps=1e-6, out=out))
        bodies.append(Body(f"norm of {counted(tokens, 'token')}", run, 0, 0))
    small = backend.pack_linear([np.ones((16, 16), np.float32)])
    tiny, answer = backend.activation_of(ones(1, 16)), backend.activation_of(np.empty((1, 16), np.float32))
    run = recorded(backend, batch, partial(ops.linear, x=tiny, weight=small, out=answer))
    bodies.append(Body("a call of next to nothing", run, 0, 0))
    return bodies


def sampling(rows: int, temperature: float, top_k: int = 0, top_p: float = 1.0) -> SamplingBatch:
    """Settings of equal rows without penalties or biases."""

    def full(value: float, kind: Any) -> Array:
        return np.full(rows, value, kind)

    return SamplingBatch(
        full(temperature, np.float32), full(top_k, np.int32), full(top_p, np.float32), full(0, np.float32),
        full(1, np.float32), full(0, np.float32), full(0, np.float32), np.arange(rows, dtype=np.uint64),
        full(0, np.uint32), full(0, np.uint32), [None] * rows, full(0, np.int32), np.zeros(rows + 1, np.int32),
        np.zeros(0, np.int32), np.zeros(0, np.float32), [None] * rows, full(0, np.bool_), full(0, np.int32),
    )  # fmt: skip
