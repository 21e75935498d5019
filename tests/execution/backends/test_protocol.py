"""Every backend has all that the protocol names: each operation of a pass, with its arguments, and packing."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from inflight.core.types.plan import Capacity
from inflight.execution.backends import open_backend
from inflight.execution.backends.protocol import (
    AttentionOperations,
    Backend,
    ForwardPass,
    KVShape,
    LayerState,
    ProductOperations,
    RecurrentOperations,
    RowOperations,
)
from inflight.execution.backends.reference import pass_attention, pass_products, pass_rows, pass_states

from ..driver import backends

KINDS = [
    (RowOperations, pass_rows.RowOperations),
    (ProductOperations, pass_products.ProductOperations),
    (AttentionOperations, pass_attention.AttentionOperations),
    (RecurrentOperations, pass_states.RecurrentOperations),
]


def methods(protocol: type) -> dict[str, Any]:
    """Return its own methods and those of its parts."""
    own = {name: body for one in protocol.__mro__ for name, body in vars(one).items() if inspect.isfunction(body)}
    return {name: body for name, body in own.items() if not name.startswith("_")}


def arguments(method: Any) -> list[tuple[str, Any]]:
    return [(one.name, one.default) for one in inspect.signature(method).parameters.values()]


@pytest.mark.parametrize("isa", [*backends(), "torch", "null"])
def test_a_backend_and_its_passes_have_all_that_the_protocol_names(isa: str) -> None:
    backend = open_backend("float32", threads=1, isa=isa)
    assert isinstance(backend, Backend)
    states = backend.state_cache([LayerState(3, 8)], rows=2, snapshots=1)
    slots = backend.request_slots(Capacity(1, 16, 1, 16, 10, state_snapshots=1), padding_block=0, states=states)
    batch = backend.prepare(slots, backend.kv_cache(KVShape.uniform(1, 16, 1, 32), 1), [])
    assert not [name for name in methods(ForwardPass) if not callable(getattr(batch, name, None))]


@pytest.mark.parametrize(("protocol", "ref"), KINDS)
def test_the_reference_has_the_arguments_that_the_protocol_names(protocol: type, ref: type) -> None:
    named = methods(protocol)
    assert named
    assert {name: arguments(getattr(ref, name)) for name in named} == {
        name: arguments(body) for name, body in named.items()
    }
    assert set(methods(ref)) == set(named), "an operation that the protocol does not name"
