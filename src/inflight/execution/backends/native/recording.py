"""A recorded pass: the operations that it ran, the bytes and products of each, and when threads were at them.

Bytes and products are counted from the sizes of packed weights, activations and blocks; `step_trace` divides a step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from inflight.compiled import module
from inflight.execution.backends.protocol import Array, AttentionMetadata, DType, KVShape
from inflight.execution.program import Call


class Span(NamedTuple):
    """Hold when a call began and ended, by its number, and the thread's own time in between, in nanoseconds."""

    call: int
    begin: int
    end: int
    own: int


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """An operation that was called.

    Attributes:
        operation: Its name, with the sizes of its weights.
        bytes: That it reads at least: weights, keys and values; rows of numbers where it has neither.
        flops: Operations of its products; a multiply-add counts two.
        rate: Whose peak bounds these: "bfloat16", "float32" or "int8".
    """

    operation: str
    bytes: int
    flops: float
    rate: str


@dataclass(frozen=True, slots=True)
class Recorded:
    """The result of a `Recording`; spans are in the order in which they ended.

    Attributes:
        calls: By number.
        spans: When kernels computed a call, on the calling thread.
        jobs: When they did so on all threads, until the last had left.
        workers: When each thread was at a job, the calling thread first.
    """

    calls: list[RecordedCall]
    spans: list[Span]
    jobs: list[Span]
    workers: list[list[Span]]


class Recording:
    """Records the calls of a backend's passes until it is finished."""

    def __init__(self, kernels: Any, dtype: DType) -> None:
        self._kernels, self._dtype = kernels, dtype
        self._of_activations, self._now = module().Activation, module().Trace.now
        # The first is for what runs outside of operations. Costs are counted at the end, beside no step.
        self._calls: list[RecordedCall | _Uncounted] = [RecordedCall("copies", 0, 0, dtype)]
        kernels.start_trace()

    def now(self) -> int:
        """Return nanoseconds on the clock of the spans."""
        return int(self._now())

    def finish(self) -> Recorded:
        """Return what was recorded; nothing more is."""
        trace = self._kernels.stop_trace()
        calls = [
            call if isinstance(call, RecordedCall) else call.costs.of(call.name, call.arguments, call.rows)
            for call in self._calls
        ]
        return Recorded(calls, _spans(trace.calls), _spans(trace.jobs), [_spans(one) for one in trace.workers])

    def of_pass(self, metadata: AttentionMetadata, shape: KVShape) -> PassRecorder:
        """Return what records the programs of a pass over these positions."""
        return PassRecorder(self, _Costs(self._of_activations, self._dtype, metadata, shape))

    def begin(self, *calls: RecordedCall | _Uncounted) -> None:
        """Assign what the kernels compute from now on to the first of these calls; a program goes on to the others."""
        self._kernels.begin_traced_call(len(self._calls))
        self._calls += calls


class PassRecorder:
    """Assigns the spans of a pass's programs to their operations."""

    def __init__(self, recording: Recording, costs: _Costs) -> None:
        self._recording, self._costs = recording, costs

    @contextmanager
    def recorded(self, calls: Sequence[Call]) -> Iterator[None]:
        """Record a program of these operations, which runs meanwhile."""
        found = [_Uncounted(self._costs, one.operation.name, one.arguments) for one in calls]
        self._recording.begin(*found)
        yield
        for one, call in zip(found, calls, strict=True):
            one.rows = self._costs.rows_of(call)


@dataclass(slots=True)
class _Uncounted:
    """A call as it was made. rows: that it read; later programs may change those of its activations."""

    costs: _Costs
    name: str
    arguments: tuple[Any, ...]
    rows: int = 0


class _Costs:
    """Bytes and products of operations of a pass over these positions."""

    def __init__(self, of_activations: type[Any], dtype: DType, metadata: AttentionMetadata, shape: KVShape) -> None:
        self._of_activations, self._dtype, self._shape = of_activations, dtype, shape
        self._item = 2 if dtype == "bfloat16" else 4
        self._tokens = len(metadata.positions)
        self._starts = metadata.context_len.astype(np.int64)
        self._lengths = np.diff(metadata.query_start).astype(np.int64)

    def rows_of(self, call: Call) -> int:
        """Return the rows that a call has just read: of the first activation, or those that were gathered."""
        found = [one for one in call.arguments if isinstance(one, self._of_activations)]
        return int(found[-1 if call.operation.rows == "places" else 0].rows)

    def of(self, name: str, given: tuple[Any, ...], count: int) -> RecordedCall:
        """Count a call. given: the operation's arguments, in the order of the protocol. count: as of `rows_of`."""
        match name:
            case "linear" | "linear_residual" | "linear_act" | "gate_up":
                return self._product(name, count, given[1])
            case "experts":
                return self._experts(count, given[2])
            case "by_head":
                heads = given[1]
                flops = 2.0 * count * heads.count * heads.rows * heads.columns
                return RecordedCall(_sized(name, heads.columns, heads.rows), heads.nbytes, flops, self._dtype)
            case "attention":
                return self._attention(given[0], given[1], given[3])
            case "embed":
                table = given[0]
                return RecordedCall(name, self._tokens * table.nbytes // table.rows, 0, self._dtype)
        rows: list[Any] = [one for one in given if isinstance(one, self._of_activations)]
        return RecordedCall(name, count * sum(one.array.strides[0] for one in rows), 0, self._dtype)

    def _rate(self, holds: list[str]) -> str:
        return self._dtype if "act" in holds else "int8"

    def _product(self, name: str, rows: int, weight: Any) -> RecordedCall:
        outputs = weight.rows * (2 if name == "gate_up" else 1)
        label = f"{_sized(name, weight.columns, outputs)} {self._rate(weight.holds)}"
        return RecordedCall(label, weight.nbytes, 2.0 * rows * outputs * weight.columns, self._rate(weight.holds))

    def _experts(self, rows: int, experts: Any) -> RecordedCall:
        """Count as many experts as tokens can be routed to; which they are is known to the kernels alone."""
        gate_up, down = experts.held[:2]
        of_one = gate_up.columns * 2 * gate_up.rows + down.columns * down.rows
        read = min(experts.count, rows * experts.top_k) * (gate_up.nbytes + down.nbytes)
        label = f"experts {experts.top_k} of {experts.count}"
        return RecordedCall(label, read, 2.0 * rows * experts.top_k * of_one, self._rate(gate_up.holds))

    def _attention(self, q: Any, layer: int, window: int) -> RecordedCall:
        kept, quantized = self._shape.of(layer), self._shape.quantized
        ends = self._starts + self._lengths
        first = np.maximum(self._starts + 1 - window, 0) if window else np.zeros_like(ends)
        seen = _seen(self._starts, self._lengths, window)
        numbers = kept.kv_heads * (kept.key_dim + kept.value_dim)
        of_one = numbers + 4 * kept.kv_heads * (2 if kept.value_dim else 1) if quantized else numbers * self._item
        wide = q.array.shape[1] * (1 + (kept.value_dim or kept.key_dim) / kept.key_dim)
        flops = 2.0 * seen * wide * (2 if quantized else 1)
        label = f"attention window {window}" if window else "attention"
        return RecordedCall(label, int((ends - first).sum()) * of_one, flops, "int8" if quantized else self._dtype)


def _spans(found: list[tuple[int, int, int, int]]) -> list[Span]:
    return [Span(*one) for one in found]


def _sized(name: str, inputs: int, outputs: int) -> str:
    return f"{name} {inputs}→{outputs}"


def _seen(starts: Array, lengths: Array, window: int) -> float:
    """Count pairs of a query and a position that it sees; window 0: all up to its own."""
    total = 0.0
    for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
        positions = np.arange(start + 1, start + length + 1)
        total += float((np.minimum(positions, window) if window else positions).sum())
    return total
