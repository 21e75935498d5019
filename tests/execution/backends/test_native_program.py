"""Programs of the compiled module: operations run in order in one call, over arguments that live as long as they do."""

from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import pytest

from inflight.compiled import module
from inflight.execution import ops
from inflight.execution.backends.native import NativeBackend
from inflight.execution.backends.protocol import AttentionMetadata, KVShape
from inflight.execution.batch.pass_layout import PassInputs
from inflight.execution.program import Program

from .conftest import ISAS
from .material import OnArrays, metadata_of, normal, read

TOKENS, WIDTH, OUTPUTS = 5, 32, 48


def a_pass(backend: NativeBackend, metadata: AttentionMetadata, second_text_at: np.ndarray | None = None) -> Any:
    none, count = np.zeros(0, np.int32), len(metadata.positions)
    of_chunk = np.repeat(np.arange(len(metadata.context_len)), np.diff(metadata.query_start)).astype(np.int32)
    inputs = PassInputs(none, of_chunk, np.arange(count, dtype=np.int32), metadata, second_text_at=second_text_at)
    slots = OnArrays(backend)._slots
    return backend.forward_pass(inputs, backend.kv_cache(KVShape.uniform(1, 16, 1, 32), 4), slots, ())


def two_texts() -> AttentionMetadata:
    return metadata_of([(0, 2, [0]), (0, 3, [1])])


def test_a_program_has_the_bits_of_its_operations_one_by_one() -> None:
    backend = NativeBackend("bfloat16", 2, ISAS[0])
    weight, norm = backend.pack_linear([normal(1, OUTPUTS, WIDTH)]), backend.pack_vector(normal(2, WIDTH))
    x = normal(3, TOKENS, WIDTH)

    def outputs(at_once: bool) -> np.ndarray:
        batch, whole = a_pass(backend, two_texts()), Program()
        hidden = backend.activation_of(x.copy())
        normed, out = backend.activation(TOKENS, WIDTH, "act"), backend.activation(TOKENS, OUTPUTS, "float32")
        ops.scale(whole, hidden, 0.5)
        ops.rms_norm(whole, hidden, norm, 1e-6, normed)
        ops.linear(whole, normed, weight, out)
        ops.linear_residual(whole, normed, weight, out)
        parts = [whole] if at_once else [Program() for _ in whole.calls]
        for one, call in zip(parts, whole.calls, strict=False):
            one.calls = whole.calls if at_once else [call]
            batch.run(backend.compile(one))
        return np.array(out.array)

    np.testing.assert_array_equal(outputs(at_once=True), outputs(at_once=False))


def test_a_run_brings_the_rows_to_gather_and_the_texts() -> None:
    backend = NativeBackend("float32", 1, ISAS[0])
    batch, program, x = a_pass(backend, two_texts()), Program(), normal(1, TOKENS, WIDTH)
    hidden = backend.activation_of(x)
    gathered, means = (backend.activation(TOKENS, WIDTH, "float32") for _ in range(2))
    ops.gather(program, hidden, gathered)
    ops.mean(program, hidden, means)
    compiled = backend.compile(program)
    for places, texts in (([4, 0, 4], [range(2), range(2, 5)]), ([1], [range(5)]), ([], [])):
        batch.run(compiled, places, texts)
        assert (gathered.rows, means.rows) == (len(places), len(texts))
        np.testing.assert_array_equal(gathered.array[: len(places)], x[places])
        expected = [x[text].mean(0) for text in texts]
        np.testing.assert_allclose(means.array[: len(texts)], np.reshape(expected, (-1, WIDTH)), rtol=1e-6)


@pytest.mark.parametrize("is_pair", [False, True])
def test_positions_and_token_types_are_the_passes(is_pair: bool) -> None:
    backend = NativeBackend("float32", 1, ISAS[0])
    batch = a_pass(backend, two_texts(), np.array([2, 1], np.int32) if is_pair else None)
    table = normal(1, 8, WIDTH)
    packed, program = backend.pack_rows([table], 8, WIDTH), Program()
    out, types = (backend.activation_of(np.zeros((TOKENS, WIDTH), np.float32)) for _ in range(2))
    ops.add_positions(program, packed, 3, out)
    ops.add_token_types(program, packed, types)
    batch.run(backend.compile(program))
    np.testing.assert_array_equal(out.array, table[[3, 4, 3, 4, 5]])
    np.testing.assert_array_equal(types.array, table[[0, 0, 0, 1, 1] if is_pair else [0] * TOKENS])


def test_a_refusal_within_a_program_is_its_operations_sentence_and_ends_the_turn() -> None:
    backend = NativeBackend("float32", 2, ISAS[0])
    batch, program = a_pass(backend, two_texts()), Program()
    hidden, small = backend.activation_of(normal(1, TOKENS, WIDTH)), backend.activation(2, WIDTH, "float32")
    ops.scale(program, hidden, 2.0)
    ops.gather(program, hidden, small)
    compiled = backend.compile(program)
    with pytest.raises(ValueError, match=r"^out must have room for 3 rows, not for 2$"):
        batch.run(compiled, [0, 1, 2])
    with pytest.raises(ValueError, match=r"^there is no row 5 to gather$"):
        batch.run(compiled, [5])
    batch.run(compiled, [1])
    np.testing.assert_array_equal(small.array[:1], 8 * normal(1, TOKENS, WIDTH)[1:2])


def test_arguments_live_as_long_as_the_program() -> None:
    backend = NativeBackend("bfloat16", 1, ISAS[0])
    program = module().Program()
    x, out = normal(1, TOKENS, WIDTH), np.zeros((TOKENS, WIDTH), np.uint16)
    program.rms_norm(
        backend.activation_of(x), backend.pack_vector(np.ones(WIDTH, np.float32)), 1e-6, backend.activation_of(out)
    )
    gc.collect()
    garbage = [np.full(WIDTH, np.nan, np.float32) for _ in range(100)]  # would take the place of freed numbers
    program.run(a_pass(backend, two_texts())._prepared, [], [], [])
    del garbage
    expected = x / np.sqrt((x**2).mean(1, keepdims=True))
    np.testing.assert_allclose(read("bfloat16", out), expected, rtol=1e-2)


def test_an_argument_of_another_kind_is_refused_when_it_is_recorded() -> None:
    program, numbers = module().Program(), np.zeros((2, WIDTH), np.float32)
    with pytest.raises(TypeError):
        program.scale(numbers, 1.0)
    with pytest.raises(TypeError):
        program.rms_norm(module().Activation(numbers), None, 1e-6, module().Activation(numbers))
    assert len(program) == 0


def test_programs_of_several_threads_take_turns() -> None:
    backend = NativeBackend("float32", 2, ISAS[0])
    weight, found = backend.pack_linear([normal(1, OUTPUTS, WIDTH)]), {}

    def work(number: int) -> None:
        batch, program, x = a_pass(backend, two_texts()), Program(), normal(number, TOKENS, WIDTH)
        out = backend.activation(TOKENS, OUTPUTS, "float32")
        for _ in range(20):
            ops.linear(program, backend.activation_of(x), weight, out)
        compiled = backend.compile(program)
        for _ in range(20):
            batch.run(compiled)
        found[number] = (x @ normal(1, OUTPUTS, WIDTH).T, np.array(out.array))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for expected, computed in found.values():
        np.testing.assert_allclose(computed, expected, rtol=1e-4, atol=1e-4)
