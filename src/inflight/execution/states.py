"""Recurrent layers' states of a sequence: a fixed number of bytes, whatever its length.

Knows which mixers have one and how large it is. What becomes of it is the layers' matter, where it lies the backend's.
"""

from __future__ import annotations

from inflight.execution.backends.protocol import LayerState
from inflight.models.spec import LinearAttention, Mixer, ModelSpec, ShortConvolution


def states_of(model: ModelSpec) -> tuple[LayerState | None, ...]:
    """Return the state shape of each layer, None for layers without; empty where no layer has one."""
    found = tuple(_state(layer.mixer, model.hidden_size) for layer in model.layers)
    return found if any(one is not None for one in found) else ()


def _state(mixer: Mixer, hidden: int) -> LayerState | None:
    if isinstance(mixer, LinearAttention):
        channels = 2 * mixer.key_heads * mixer.key_dim + mixer.value_heads * mixer.value_dim
        return LayerState(mixer.kernel - 1, channels, mixer.value_heads, mixer.key_dim, mixer.value_dim)
    if isinstance(mixer, ShortConvolution):
        return LayerState(mixer.kernel - 1, hidden)
    return None
