"""The memory that a sequence takes, by a model's spec: keys and values of each token, and recurrent states with the
checkpoints of them."""

from __future__ import annotations

from inflight.models.parts import TokenKV
from inflight.models.spec import ModelSpec

_STATE_BYTES = 4  # of an element of recurrent state: it is a sum over all tokens, and is kept in float32
_CONVOLUTION_BYTES = 2  # of an element that a short convolution keeps: activations, in bf16

CHECKPOINTS_PER_ROW = 2  # for the end of its prompt, and for where it is
CHECKPOINT_MEMORY_SHARE = 0.25  # of the memory that live states leave free; the rest is for blocks
MAX_SMALL_CHECKPOINTS_PER_ROW = 16  # as of short convolutions: a conversation that waits for its next turn has two
SMALL_CHECKPOINT_MEMORY_SHARE = 1 / 64  # of that memory, which these may take


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


def default_checkpoints(rows: int, bytes_per_state: float, free_bytes: float) -> int:
    """Return how many copies of recurrent state to allocate: at least 1, from which samples of a request and preempted
    sequences continue."""
    small = int(SMALL_CHECKPOINT_MEMORY_SHARE * free_bytes // bytes_per_state)
    usual = int(CHECKPOINT_MEMORY_SHARE * free_bytes // bytes_per_state)
    return max(1, min(MAX_SMALL_CHECKPOINTS_PER_ROW * rows, small), min(CHECKPOINTS_PER_ROW * rows, usual))


def host_checkpoints(host_bytes: float, bytes_per_state: float) -> int:
    """Return how many copies of recurrent state a part of the host's memory is for, where device and host share one
    memory. More blocks stay cached with it, and a sequence begins behind these only where a copy is."""
    return int(CHECKPOINT_MEMORY_SHARE * host_bytes // bytes_per_state) if bytes_per_state else 0
