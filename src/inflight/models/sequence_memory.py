"""The memory that a sequence takes, by a model's spec: keys and values of each token, and recurrent states."""

from __future__ import annotations

from inflight.models.parts import TokenKV
from inflight.models.spec import ModelSpec

_STATE_BYTES = 4  # of an element of recurrent state: it is a sum over all tokens, and is kept in float32
_CONVOLUTION_BYTES = 2  # of an element that a short convolution keeps: activations, in bf16


def kv_bytes_per_token(spec: ModelSpec, item_bytes: float = 2) -> float:
    """Bytes by which a sequence's cache grows with each token: of the layers without a window alone.

    This is the published formula, 2·K·h·b summed over layers of attention (of latent attention: rank and rotated key).
    What layers with a window keep is bounded (`kept_bytes`), and what recurrent layers keep is fixed (`state_bytes`).
    """
    return sum(
        count * _bytes(layer.mixer.cached, item_bytes)
        for layer, count in spec.kinds_of_layers
        if not layer.mixer.visible_tokens
    )


def paged_kv_bytes_per_token(spec: ModelSpec, item_bytes: float = 2, scale_bytes: float = 0) -> float:
    """Bytes of a token over all layers, those with a window too: what a step writes of it, and what it takes in memory
    as long as every window shows it.

    scale_bytes: beside each head's keys and each head's values (of latent attention, beside the vector), where they are
    quantized.
    """
    return sum(count * _bytes(layer.mixer.cached, item_bytes, scale_bytes) for layer, count in spec.kinds_of_layers)


def read_bytes(spec: ModelSpec, tokens: float, item_bytes: float = 2, scale_bytes: float = 0) -> float:
    """Bytes of keys and values that attention reads for one token that sees `tokens` tokens: those of each layer, its
    own or another's; an encoder reads the keys and values that the step has just written."""
    return sum(
        count * _bytes(layer.mixer.reads, item_bytes, scale_bytes) * min(tokens, layer.mixer.visible_tokens or tokens)
        for layer, count in spec.kinds_of_layers
    )


def _bytes(one: TokenKV | None, item_bytes: float, scale_bytes: float = 0) -> float:
    """Return the bytes of one token in one layer."""
    return 0 if one is None else one.elements * item_bytes + one.scales * scale_bytes


def state_bytes(spec: ModelSpec) -> int:
    """Bytes of a sequence's recurrent state over all layers, however long it is: the state in float32, and the inputs
    that short convolutions look back on in bf16."""
    states = ((layer.mixer.recurrent_state(spec.hidden_size), count) for layer, count in spec.kinds_of_layers)
    return sum(
        count * (state.elements * _STATE_BYTES + state.convolved * _CONVOLUTION_BYTES)
        for state, count in states
        if state is not None
    )
