"""Every backend has all that the protocol names."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from inflight.compiled import module
from inflight.core.types.plan import Capacity
from inflight.execution import ops  # noqa: F401  # which registers them
from inflight.execution.backends import open_backend
from inflight.execution.backends.protocol import Backend, ForwardPass, KVShape, LayerState
from inflight.execution.program import OPERATIONS

from ..driver import backends


def methods(kind: type) -> dict[str, Any]:
    """Return its own methods and those of its parts."""
    own = {name: body for one in kind.__mro__ for name, body in vars(one).items() if inspect.isfunction(body)}
    return {name: body for name, body in own.items() if not name.startswith("_")}


@pytest.mark.parametrize("isa", [*backends(), "torch", "null"])
def test_a_backend_and_its_passes_have_all_that_the_protocol_names(isa: str) -> None:
    backend = open_backend("float32", threads=1, isa=isa)
    assert isinstance(backend, Backend)
    states = backend.state_cache([LayerState(3, 8)], rows=2, snapshots=1)
    capacity = Capacity(1, 16, 1, 16, 10, state_snapshots=1)
    made = backend.input_batch(capacity, padding_block=0, states=states)
    batch = backend.prepare(made, backend.kv_cache(KVShape.uniform(1, 16, 1, 32), 1), [])
    assert not [name for name in methods(ForwardPass) if not callable(getattr(batch, name, None))]


@pytest.mark.skipif(backends() == ["reference"], reason="the kernels are not built")
def test_a_program_of_the_compiled_module_records_every_operation() -> None:
    program = module().Program()
    assert not [name for name in OPERATIONS if not callable(getattr(program, name, None))]
