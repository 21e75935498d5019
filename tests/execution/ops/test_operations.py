"""Every operation on every backend: kernels agree with the definition, and a row has the same bits in any company.

Each backend runs the operation as a program over the tokens of two sequences, and of the second alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from inflight.core.types.plan import Capacity, Chunk, NewRequest
from inflight.core.types.sampling import SamplingParams
from inflight.execution import ops
from inflight.execution.backends import open_backend
from inflight.execution.backends.bf16 import from_bf16, to_bf16
from inflight.execution.backends.protocol import Array, KVLayer, KVShape, LayerState, RopeTable, Routing
from inflight.execution.program import OPERATIONS, Operation, Program

from ..backends.material import normal, rope_table
from ..driver import backends

BLOCK, VOCAB, WIDTH = 16, 50, 24
FIRST, SECOND = 5, 3  # tokens of the sequences
SHAPE = KVShape(BLOCK, (KVLayer(0, 2, 16, 16), KVLayer(0, 1, 20, 0), None, None))
STATES = [None, None, LayerState(3, WIDTH), LayerState(3, 2 * 2 * 16 + 4 * 16, 4, 16, 16)]


class Rig:
    """A pass of a backend from the beginning of each sequence."""

    def __init__(self, backend: Any, sequences: Sequence[int]) -> None:
        """sequences: by number; the first has five tokens, the second three."""
        self.backend, self._lengths = backend, [(one, (FIRST, SECOND)[one]) for one in sequences]
        self.tokens = sum(length for _, length in self._lengths)
        states = backend.state_cache(STATES, 3, 0)
        batch = backend.input_batch(Capacity(6, BLOCK, 2, BLOCK, VOCAB), 5, states)
        cache, ids = backend.kv_cache(SHAPE, 6), [tuple((7 * one + at) % VOCAB for at in range(5)) for one in (0, 1)]
        chunks = [Chunk(one, one, 0, length, (one + 1,), 0) for one, length in self._lengths]
        new = [NewRequest(one, ids[one][:length], length, SamplingParams(), 0, 0) for one, length in self._lengths]
        batch.update(chunks, new)
        self._batch = backend.prepare(batch, cache, chunks)

    def rows(self, seed: int, width: int, kind: str = "float32") -> Any:
        """Return an activation of random numbers, which depend on the sequence and the token alone."""
        parts = [normal(100 * seed + one, FIRST, width)[:length] for one, length in self._lengths]
        return self._activation(np.concatenate(parts), kind)

    def out(self, width: int, kind: str = "float32") -> Any:
        """Return an activation of zeros."""
        return self._activation(np.zeros((self.tokens, width), np.float32), kind)

    def vector(self, seed: int, width: int) -> Any:
        return self.backend.pack_vector(normal(seed, width))

    def linear(self, seed: int, rows: int, columns: int, bias: bool = True) -> Any:
        return self.backend.pack_linear([normal(seed, rows, columns) / 4], normal(seed + 1, rows) if bias else None)

    def gate_up(self, seed: int) -> Any:
        return self.backend.pack_gate_up(normal(seed, 32, WIDTH) / 4, normal(seed + 1, 32, WIDTH) / 4)

    def table(self, seed: int) -> Any:
        return self.backend.pack_rows([normal(seed, VOCAB, WIDTH)], VOCAB, WIDTH)

    def rope(self, width: int) -> Any:
        table: RopeTable = rope_table(BLOCK, width)
        return self.backend.pack_rope(table)

    def run(self, operation: Operation[...], *arguments: Any, read: Any) -> Array:
        """Run one operation and return the rows of an activation, float32."""
        program = Program()
        operation(program, *arguments)
        ends = np.cumsum([length for _, length in self._lengths]).tolist()
        texts = [range(end - length, end) for end, (_, length) in zip(ends, self._lengths, strict=True)]
        self._batch.run(self.backend.compile(program), [end - 1 for end in ends], texts)
        rows = self.tokens if operation.rows == "read" else len(ends)
        if hasattr(read, "tensor"):
            return np.asarray(read.tensor[:rows].float().cpu().numpy())
        values = np.array(read.array[:rows])
        return from_bf16(values) if values.dtype == np.uint16 else values

    def _activation(self, values: Array, kind: str) -> Any:
        narrow = kind == "act" and self.backend.dtype == "bfloat16"
        if not hasattr(self.backend, "activation_of"):
            import torch

            from inflight.execution.backends.torch.memory import DeviceActivation

            tensor = torch.from_numpy(values).to(self.backend.device, torch.bfloat16 if narrow else torch.float32)
            return DeviceActivation(tensor, len(tensor))
        made = self.backend.activation(len(values), values.shape[1], kind)
        made.array[:] = to_bf16(values) if narrow else values
        return self.backend.activation_of(made.array)


def attention(rig: Rig) -> Array:
    q, out = rig.out(64, "act"), rig.out(64, "act")
    rig.run(ops.rope_and_write_kv, rig.rows(1, 128), 0, rig.rope(16), None, None, 1e-6, q, read=q)
    return rig.run(ops.attention, q, 0, 0.25, 0, out, read=out)


def written(operation: Operation[...], width: int, kind: str, *given: Callable[[Rig], Any]) -> Callable[[Rig], Array]:
    """Return a case of an operation that writes its last argument. given: makes the arguments before it."""

    def run(rig: Rig) -> Array:
        out = rig.out(width, kind)
        return rig.run(operation, *(one(rig) for one in given), out, read=out)

    return run


def changed(operation: Operation[...], index: int, *given: Callable[[Rig], Any]) -> Callable[[Rig], Array]:
    """Return a case of an operation that changes the argument of that index, or writes it before others."""

    def run(rig: Rig) -> Array:
        arguments = [one(rig) for one in given]
        return rig.run(operation, *arguments, read=arguments[index])

    return run


def floats(seed: int, width: int = WIDTH) -> Callable[[Rig], Any]:
    return lambda rig: rig.rows(seed, width)


def acts(seed: int, width: int = WIDTH) -> Callable[[Rig], Any]:
    return lambda rig: rig.rows(seed, width, "act")


def zeros(width: int, kind: str = "act") -> Callable[[Rig], Any]:
    return lambda rig: rig.out(width, kind)


def vector(seed: int, width: int = WIDTH) -> Callable[[Rig], Any]:
    return lambda rig: rig.vector(seed, width)


def constant(value: Any) -> Callable[[Rig], Any]:
    return lambda rig: value


def heads(rig: Rig) -> Any:
    return rig.backend.pack_heads([rig.linear(20 + head, 6, 8, bias=False) for head in range(3)])


def experts(rig: Rig) -> Any:
    down = [rig.linear(40 + one, WIDTH, 32) for one in range(4)]
    return rig.backend.pack_experts([rig.gate_up(30 + 2 * one) for one in range(4)], down, Routing(2))


LAYER, EPS = constant, constant(1e-5)
CASES: dict[str, Callable[[Rig], Array]] = {
    "activate": changed(ops.activate, 2, floats(1), constant("gelu_tanh"), zeros(WIDTH)),
    "add": changed(ops.add, 4, floats(1), vector(2), EPS, constant(0.5), floats(3)),
    "add_gated": changed(ops.add_gated, 2, floats(1), floats(2, 1), floats(3)),
    "add_positions": changed(ops.add_positions, 2, lambda rig: rig.table(1), constant(2), floats(2)),
    "add_token_types": changed(ops.add_token_types, 1, lambda rig: rig.table(1), floats(2)),
    "attention": attention,
    "by_head": written(ops.by_head, 3 * 7, "act", acts(1), heads),
    "clear": changed(ops.clear, 0, floats(1)),
    "convolve": written(ops.convolve, WIDTH, "float32", floats(1), LAYER(2), vector(2, 4 * WIDTH)),
    "convolve_gated": written(
        ops.convolve_gated, WIDTH, "act", floats(1, 3 * WIDTH), LAYER(2), vector(2, 4 * WIDTH), vector(3)
    ),
    "delta_rule": written(
        ops.delta_rule,
        64,
        "act",
        *(floats(1, 128), floats(2, 192), floats(3, 8), LAYER(3), constant(2)),
        *(vector(4, 4), vector(5, 4), vector(6, 16), EPS),
    ),
    "embed": written(ops.embed, WIDTH, "float32", lambda rig: rig.table(1)),
    "experts": changed(ops.experts, 3, acts(1), floats(2, 4), experts, floats(3)),
    "gate": changed(ops.gate, 1, floats(1), acts(2)),
    "gate_up": changed(ops.gate_up, 2, acts(1), lambda rig: rig.gate_up(2), zeros(32)),
    "gather": written(ops.gather, WIDTH, "float32", floats(1)),
    "layer_norm": written(ops.layer_norm, WIDTH, "act", floats(1), vector(2), vector(3), EPS),
    "layer_norm_sum": changed(ops.layer_norm_sum, 0, floats(1), vector(2), vector(3), EPS, zeros(WIDTH)),
    "linear": written(ops.linear, 40, "float32", acts(1), lambda rig: rig.linear(2, 40, WIDTH)),
    "linear_act": written(ops.linear_act, 40, "act", acts(1), lambda rig: rig.linear(2, 40, WIDTH), constant("gelu")),
    "linear_residual": changed(ops.linear_residual, 2, acts(1), lambda rig: rig.linear(2, 40, WIDTH), floats(3, 40)),
    "mean": written(ops.mean, WIDTH, "float32", floats(1)),
    "rms_norm": written(ops.rms_norm, WIDTH, "act", floats(1), vector(2), EPS),
    "rope_and_write_kv": written(
        ops.rope_and_write_kv,
        64,
        "act",
        *(floats(1, 128), LAYER(0), lambda rig: rig.rope(16), vector(2, 16), vector(3, 16), EPS),
    ),
    "rope_and_write_latent": changed(
        ops.rope_and_write_latent,
        6,
        *(floats(1, 2 * 12), floats(2, 20), LAYER(1), lambda rig: rig.rope(4), vector(3, 16), EPS),
        *(zeros(2 * 8), zeros(2 * 20)),
    ),
    "scale": changed(ops.scale, 0, floats(1), constant(0.3)),
    "soft_cap": changed(ops.soft_cap, 0, floats(1), constant(0.7)),
    "to_act": written(ops.to_act, WIDTH, "act", floats(1)),
}


def opened(name: str, dtype: Any) -> Any:
    if name != "kernels":
        return open_backend(dtype, threads=1, isa=name)
    triton = pytest.importorskip("triton")
    import torch

    from inflight.execution.backends.torch.backend import TorchBackend
    from inflight.execution.backends.torch.launcher import KernelLauncher

    from ..backends.torch.interpreted import mend_interpreter

    if triton.knobs.runtime.interpret:
        mend_interpreter()
    device = torch.device("cpu" if triton.knobs.runtime.interpret else "cuda:0")
    return TorchBackend(dtype, device, KernelLauncher(), batch_invariant=True)


# Triton's interpreter, in which the kernels of GPUs run here, computes no bf16.
WAYS = [(one, dtype) for one in [*backends(), "torch"] for dtype in ("float32", "bfloat16")] + [("kernels", "float32")]


def test_every_operation_has_a_case() -> None:
    assert set(CASES) == set(OPERATIONS)


def test_what_pytorch_computes_on_a_gpu_is_known() -> None:
    """One launch each, or of encoder-only passes, which have no graphs; all others are Triton kernels."""
    found = set()
    backend = opened("kernels", "float32")
    from ..backends.torch.launches import launches

    for name, case in CASES.items():
        rig = Rig(backend, (0, 1))
        if not launches(lambda case=case, rig=rig: case(rig)):  # type: ignore[misc]
            found.add(name)
    assert found == {"add_positions", "add_token_types", "clear", "gather", "mean", "scale", "soft_cap", "to_act"}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("backend", "dtype"), WAYS)
def test_it_is_its_definition_and_a_row_has_the_same_bits_in_any_company(backend: str, dtype: str, name: str) -> None:
    found = CASES[name](Rig(opened(backend, dtype), (0, 1)))
    want = CASES[name](Rig(opened("reference", dtype), (0, 1)))
    bound = float(np.abs(want).max()) * (2**-7 if dtype == "bfloat16" else 1e-5)
    np.testing.assert_allclose(found, want, rtol=0, atol=bound)
    alone = CASES[name](Rig(opened(backend, dtype), (1,)))
    np.testing.assert_array_equal(alone, found[-len(alone) :])
