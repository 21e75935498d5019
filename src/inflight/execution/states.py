"""Recurrent layers' states of a sequence: a fixed number of bytes, whatever its length."""

from __future__ import annotations

from msgspec.structs import astuple

from inflight.execution.backends.protocol import LayerState
from inflight.models.spec import ModelSpec


def states_of(model: ModelSpec) -> tuple[LayerState | None, ...]:
    """Return the state shape of each layer, None for layers without; empty where no layer has one."""
    states = [layer.mixer.recurrent_state(model.hidden_size) for layer in model.layers]
    return tuple(None if one is None else LayerState(*astuple(one)) for one in states) if any(states) else ()
