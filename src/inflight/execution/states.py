"""What the recurrent layers of a model keep of a sequence: a state of fixed size, whatever its length.

Knows which mixers have one and how large it is. What becomes of it is the layers' matter, where it lies the backend's.
"""

from __future__ import annotations

from inflight.execution.backends.protocol import LayerState
from inflight.models.spec import LinearAttention, Mixer, ModelSpec, ShortConvolution


def states_of(model: ModelSpec) -> tuple[LayerState | None, ...]:
    """Of each layer; empty where none has one."""
    found = tuple(_state(layer.mixer, model.hidden_size) for layer in model.layers)
    return found if any(one is not None for one in found) else ()


def _state(mixer: Mixer, hidden: int) -> LayerState | None:
    if isinstance(mixer, LinearAttention):
        channels = 2 * mixer.key_heads * mixer.key_dim + mixer.value_heads * mixer.value_dim
        return LayerState(mixer.kernel - 1, channels, mixer.value_heads, mixer.key_dim, mixer.value_dim)
    if isinstance(mixer, ShortConvolution):
        return LayerState(mixer.kernel - 1, hidden)
    return None
