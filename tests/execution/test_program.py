"""Programs and their memory: what is compiled stays as it is, and activations are shared by name, width and kind."""

from __future__ import annotations

import numpy as np
import pytest

from inflight.core.types.plan import Capacity, Chunk, NewRequest
from inflight.core.types.sampling import SamplingParams
from inflight.execution import ops
from inflight.execution.backends import open_backend
from inflight.execution.backends.protocol import KVShape
from inflight.execution.program import Program, Workspace

from .driver import backends


@pytest.mark.parametrize("isa", backends())
def test_operations_that_are_recorded_behind_do_not_join_a_compiled_program(isa: str) -> None:
    backend = open_backend("float32", 1, isa)
    batch = backend.input_batch(Capacity(2, 16, 1, 16, 50), 1)
    chunks = [Chunk(0, 0, 0, 3, (0,), 0)]
    batch.update(chunks, [NewRequest(0, (1, 2, 3), 3, SamplingParams(), 0, 0)])
    forward = backend.prepare(batch, backend.kv_cache(KVShape.uniform(1, 16, 1, 16), 2), chunks)
    program, table = (
        Program(Workspace(backend.activation, 3)),
        backend.pack_rows([np.ones((50, 16), np.float32)], 50, 16),
    )
    hidden = program.take("hidden", 16, "float32")
    ops.embed(program, table, hidden)
    compiled = backend.compile(program)
    ops.scale(program, hidden, 3.0)
    longer = backend.compile(program)
    for one, value in ((compiled, 1), (longer, 3), (compiled, 1)):
        forward.run(one)
        numbers = hidden.tensor.numpy() if hasattr(hidden, "tensor") else hidden.array
        assert np.unique(numbers[:3]).tolist() == [value]


def test_activations_of_a_workspace_are_shared_by_name_width_and_kind() -> None:
    workspace = Workspace(
        lambda rows, width, kind: np.zeros((rows, width), np.float32 if kind == "float32" else "u2"), 5
    )
    first = workspace.take("mixed", 8)
    assert workspace.take("mixed", 8) is first and first.shape == (5, 8)
    others = [workspace.take("mixed", 9), workspace.take("mixed", 8, "float32"), workspace.take("other", 8)]
    assert [one.dtype.name for one in (first, *others)] == ["uint16", "uint16", "float32", "uint16"]
    assert workspace.nbytes == 5 * (2 * 8 + 2 * 9 + 4 * 8 + 2 * 8)
