"""Recorded passes: which calls, what each reads and computes, the same bits, and silence afterwards."""

from __future__ import annotations

import threading
import time

import numpy as np

from inflight.core.types.plan import Capacity
from inflight.execution import ops
from inflight.execution.backends.native import NativeBackend
from inflight.execution.backends.native.recording import Recorded
from inflight.execution.backends.protocol import KVShape
from inflight.execution.batch.input_batch import InputBatch
from inflight.execution.batch.pass_layout import PassInputs
from inflight.execution.program import Program

from .conftest import ISAS
from .material import Blocks, metadata_of, normal

HEADS, KV_HEADS, DIM, HIDDEN, VOCABULARY = 4, 2, 32, 96, 640


def step(backend: NativeBackend) -> np.ndarray:
    """A product and attention of a decode over 41 positions and a chunk of 20, after the lookup of their tokens."""
    blocks = Blocks.shuffled(16, 3)
    metadata = metadata_of([(40, 1, blocks.take(41, 16)), (0, 20, blocks.take(20, 16))])
    cache = backend.kv_cache(KVShape.uniform(1, 16, KV_HEADS, DIM), 16)
    none = np.zeros(0, np.int32)
    inputs = PassInputs(none, none, np.arange(21, dtype=np.int32), metadata)
    batch = backend.forward_pass(inputs, cache, InputBatch(Capacity(16, 16, 2, 64, VOCABULARY), 0), ())
    linear = backend.pack_linear([normal(1, (HEADS + 2 * KV_HEADS) * DIM, HIDDEN)])
    hidden, normed = backend.activation(21, HIDDEN, "float32"), backend.activation(21, HIDDEN, "act")
    qkv = backend.activation(21, (HEADS + 2 * KV_HEADS) * DIM, "float32")
    q, out = backend.activation(21, HEADS * DIM, "act"), backend.activation(21, HEADS * DIM, "act")
    program = Program()
    ops.embed(program, backend.pack_table(normal(2, VOCABULARY, HIDDEN)), hidden)
    ops.rms_norm(program, hidden, backend.pack_vector(np.ones(HIDDEN, np.float32)), 1e-6, normed)
    ops.linear(program, normed, linear, qkv)
    ops.rope_and_write_kv(program, qkv, 0, None, None, None, 1e-6, q)
    ops.attention(program, q, 0, DIM**-0.5, 30, out)
    batch.run(backend.compile(program))
    return out.array


def recorded(backend: NativeBackend) -> tuple[np.ndarray, Recorded]:
    with backend.recorded() as recording:
        out = step(backend)
        return out, recording.finish()


def test_calls_say_what_they_read_and_compute() -> None:
    _, found = recorded(NativeBackend("bfloat16", 2, ISAS[0]))
    assert [call.operation for call in found.calls[1:]] == [
        "embed", "rms_norm", "linear 96→256 bfloat16", "rope_and_write_kv", "attention window 30",
    ]  # fmt: skip
    product, attention = found.calls[3], found.calls[5]
    assert (product.bytes, product.flops) == (256 * HIDDEN * 2, 2 * 21 * 256 * HIDDEN)
    assert attention.bytes == (30 + 20) * KV_HEADS * 2 * DIM * 2
    assert attention.flops == 4 * (30 + 20 * 21 // 2) * HEADS * DIM


def test_tables_count_by_the_passes_tokens_and_gathered_rows_by_their_places() -> None:
    backend, blocks = NativeBackend("float32", 1, ISAS[0]), Blocks.shuffled(4, 3)
    metadata, none = metadata_of([(0, 5, blocks.take(5, 16))]), np.zeros(0, np.int32)
    batch = InputBatch(Capacity(4, 16, 2, 64, VOCABULARY), 0)
    cache = backend.kv_cache(KVShape.uniform(1, 16, KV_HEADS, DIM), 4)
    hidden, out = backend.activation(5, HIDDEN, "float32"), backend.activation(5, HIDDEN, "float32")
    table, program = backend.pack_rows([normal(1, VOCABULARY, HIDDEN)], VOCABULARY, HIDDEN), Program()
    ops.embed(program, table, hidden)
    ops.add_positions(program, table, 2, hidden)
    ops.gather(program, hidden, out)
    with backend.recorded() as recording:
        inputs = PassInputs(none, none, np.arange(5, dtype=np.int32), metadata)
        backend.forward_pass(inputs, cache, batch, ()).run(backend.compile(program), [4, 2])
        _, *calls = recording.finish().calls
    row = 4 * HIDDEN
    assert [(one.operation, one.bytes) for one in calls] == [
        ("embed", 5 * row), ("add_positions", 5 * row), ("gather", 2 * 2 * row),
    ]  # fmt: skip


def test_spans_of_threads_lie_in_jobs_and_jobs_in_calls() -> None:
    _, found = recorded(NativeBackend("float32", 3, ISAS[0]))
    assert {span.call for span in found.spans} >= {1, 2, 3, 4, 5} and len(found.workers) == 3
    for job in found.jobs:
        assert any(call.begin <= job.begin <= job.end <= call.end for call in found.spans if call.call == job.call)
    for spans in found.workers:
        for span in spans:
            assert any(job.begin <= span.begin <= span.end <= job.end for job in found.jobs if job.call == span.call)
    assert len(found.workers[0]) == len(found.jobs), "the caller is at every job"


def test_a_recording_changes_no_bit_and_ends() -> None:
    backend = NativeBackend("bfloat16", 2, ISAS[0])
    out, found = recorded(backend)
    np.testing.assert_array_equal(step(backend), out)
    assert len(recorded(backend)[1].calls) == len(found.calls), "what came in between is in neither"


def test_python_goes_on_while_a_recording_waits_for_a_call_to_end() -> None:
    backend = NativeBackend("float32", 1, ISAS[0])
    begins, has_ended = threading.Event(), threading.Event()

    def compute() -> None:
        backend._kernels.peak("f32", 2.0)
        has_ended.set()

    def record() -> None:
        begins.set()
        with backend.recorded() as recording:
            recording.finish()

    threads = [threading.Thread(target=one) for one in (compute, record)]
    threads[0].start()
    time.sleep(0.1)  # it computes
    threads[1].start()
    begins.wait()
    turns = 0
    while not has_ended.wait(0.01):
        turns += 1
    for one in threads:
        one.join()
    assert turns > 10, "of some two hundred"
