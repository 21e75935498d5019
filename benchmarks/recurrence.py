"""Measure what recurrent state costs: the short convolution and the gated delta rule of a Gated DeltaNet layer, beside
its products.

One layer of Qwen3-Next's shape in bf16, for rows that decode and for a prompt, in milliseconds of one core's own time,
so that what others do on the machine counts as little as it can. Products, convolution and rule take turns. In a decode
each call is over another layer's matrices and states, as in a step, so that no cache holds them.

    nice python -m benchmarks.recurrence [--write]
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks.kernel_bodies import BLOCK, BYTES, Body, matrix, ones, recorded
from benchmarks.rates import CACHED, Probe, in_turns
from benchmarks.results import table, write_section
from inflight.core.types.plan import Capacity
from inflight.counted import counted
from inflight.execution import ops
from inflight.execution.backends import host
from inflight.execution.backends.native import NativeBackend, NativePass
from inflight.execution.backends.protocol import AttentionMetadata, KVShape, LayerState, StateMetadata
from inflight.execution.batch.input_batch import InputBatch
from inflight.execution.batch.pass_layout import PassInputs
from inflight.execution.program import Program
from inflight.models.mixers.deltanet import LinearAttention

HIDDEN = 2048
SPEC = LinearAttention(key_heads=16, value_heads=32, key_dim=128, value_dim=128, kernel=4)
VALUES = SPEC.value_heads * SPEC.value_dim
CHANNELS = 2 * SPEC.key_heads * SPEC.key_dim + VALUES
STATE = LayerState(SPEC.kernel - 1, CHANNELS, SPEC.value_heads, SPEC.key_dim, SPEC.value_dim)
STATE_BYTES = 4 * VALUES * SPEC.key_dim  # the matrices of a row in a layer, in float32
PER_ELEMENT = 6  # operations on each of a state's numbers: kS, S ← d · S + k ⊗ δ, qS, with d · S in the second
CASES = ((1, 1), (8, 1), (32, 1), (1, 512))  # rows, tokens of each


class Layers:
    """Layers that are alike, and a pass over rows that are in the midst of their sequences."""

    def __init__(self, backend: NativeBackend, rows: int, length: int) -> None:
        self._backend, self._rows, self._length = backend, rows, length
        self._count = max(2, -(-2 * CACHED // (rows * STATE_BYTES))) if length == 1 else 2
        self._pass = self._over([STATE] * self._count)
        random = np.random.default_rng(0)
        tokens, on = rows * length, backend.activation_of
        self._x = on(ones(tokens, HIDDEN))
        self._projected = on(random.standard_normal((tokens, CHANNELS + VALUES)).astype(np.float32))
        self._qkv = on(random.standard_normal((tokens, CHANNELS)).astype(np.float32))
        self._gates = on(random.standard_normal((tokens, 2 * SPEC.value_heads)).astype(np.float32))
        self._mixed = on(ones(tokens, VALUES))
        self._residual = on(host.empty((tokens, HIDDEN), np.float32))
        self._residual.array[...] = 0

    @property
    def _tokens(self) -> int:
        return self._rows * self._length

    def _over(self, states: list[LayerState]) -> NativePass:
        rows, length, backend = self._rows, self._length, self._backend
        start, width = 1, -(-(1 + length) // BLOCK)
        cache = backend.state_cache(states, rows + 1, 1)
        slots = InputBatch(Capacity(width, BLOCK, rows, BLOCK * width, 1, state_snapshots=1), 0, cache)
        metadata = AttentionMetadata(
            np.tile(np.arange(start, start + length, dtype=np.int32), rows),
            np.arange(rows + 1, dtype=np.int32) * length,
            np.full(rows, start, np.int32),
            np.zeros((1, rows, width), np.int32),
        )
        none, none_due = np.zeros(0, np.int32), np.zeros(rows + 1, np.int32)
        going_on = StateMetadata(np.arange(rows, dtype=np.int32), none_due, none, none)
        inputs = PassInputs(none, none, np.zeros(self._tokens, np.int32), metadata, going_on)
        return backend.forward_pass(inputs, backend.kv_cache(KVShape.uniform(1, BLOCK, 1, 32), width), slots, ())

    def _in_turn(self, records: Iterable[Callable[[Program], None]]) -> Callable[[], None]:
        """Return what runs the next of these programs, round and round."""
        turn = itertools.cycle([recorded(self._backend, self._pass, record) for record in records])
        return lambda: next(turn)()

    def products(self) -> Body:
        backend = self._backend
        shapes = ((CHANNELS + VALUES, HIDDEN), (2 * SPEC.value_heads, HIDDEN), (HIDDEN, VALUES))
        held = [[backend.pack_linear([matrix(*shape)]) for shape in shapes] for _ in range(2)]

        def record(weights: Sequence[Any], program: Program) -> None:
            projection, gates, output = weights
            ops.linear(program, self._x, projection, self._projected)
            ops.linear(program, self._x, gates, self._gates)
            ops.linear_residual(program, self._mixed, output, self._residual)

        body = self._in_turn(partial(record, weights) for weights in held)
        weights = sum(rows * columns for rows, columns in shapes)
        return Body("products", body, weights * BYTES["act"], 2.0 * weights * self._tokens, calls=2)

    def convolution(self) -> Body:
        """Return no share: what it reads and writes is in a cache, and its multiply-adds are few."""
        weight = self._backend.pack_vector(np.full(SPEC.kernel * CHANNELS, 0.25, np.float32))

        def record(layer: int, program: Program) -> None:
            ops.convolve(program, self._projected, layer, weight, self._qkv)

        body = self._in_turn(partial(record, layer) for layer in range(self._count))
        return Body("convolution", body, 0, 0, calls=self._count)

    def rule(self) -> Body:
        random, pack = np.random.default_rng(1), self._backend.pack_vector
        decay = pack(-np.exp(random.standard_normal(SPEC.value_heads)).astype(np.float32))
        step_bias = pack(np.zeros(SPEC.value_heads, np.float32))
        norm = pack(np.ones(SPEC.value_dim, np.float32))
        given = (SPEC.key_heads, decay, step_bias, norm, 1e-6, self._mixed)

        def record(layer: int, program: Program) -> None:
            ops.delta_rule(program, self._qkv, self._projected, self._gates, layer, *given)

        body = self._in_turn(partial(record, layer) for layer in range(self._count))
        elements = STATE_BYTES // 4
        moved, operations = 2 * STATE_BYTES * self._rows, float(PER_ELEMENT * elements * self._tokens)
        return Body("delta rule", body, moved, operations, "float32", self._count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--write", action="store_true", help="write the section of docs/results.md")
    arguments = parser.parse_args()
    backend = NativeBackend("bfloat16", 1)
    probe, cells = Probe(backend, own_time=True), []
    for rows, length in CASES:
        layers = Layers(backend, rows, length)
        of_layer = [layers.products(), layers.convolution(), layers.rule()]
        (timings,) = in_turns([of_layer], probe, arguments.repeats, time.process_time)
        products, convolution, rule = timings
        name = f"decode, {counted(rows, 'row')}" if length == 1 else f"a prompt of {length} tokens"
        times = [*products.cells(probe.best), convolution.cells(probe.best)[0], *rule.cells(probe.best)]
        cells.append([name, *times, rule.over(products)])
    head = ["", "products, ms", "share", "convolution, ms", "delta rule, ms", "share", "rule / products"]
    body = (
        f"One layer of Gated DeltaNet, hidden {HIDDEN:,}, {SPEC.key_heads} heads of keys and {SPEC.value_heads} of "
        f"values, of {SPEC.key_dim}: milliseconds of one core's own time, the best of {arguments.repeats}, and the "
        "share of the roofline: of that best, and in brackets the median. The rule's arithmetic is in float32; its "
        "states are read and written, both at the rate of reading. The ratio is the median, and what the middle half "
        f"of the repetitions lies between.\n\n{backend.name}, 1 thread. {probe.summary()}\n\n"
    ) + table(head, cells)
    print(body)
    if arguments.write:
        command = f"python -m benchmarks.recurrence --repeats {arguments.repeats}"
        write_section("recurrence", "What recurrent state costs", command, body)


if __name__ == "__main__":
    main()
