"""The memory that a sequence takes, by a model's spec: keys and values of each token, and recurrent states."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from inflight.models.layer_weights import kinds_of_layers
from inflight.models.spec import Attention, LatentAttention, LinearAttention, Mamba, Mixer, ModelSpec

_STATE_BYTES = 4  # of an element of recurrent state: it is a sum over all tokens, and is kept in float32
_CONVOLUTION_BYTES = 2  # of an element that a short convolution keeps: activations, in bf16


def cached_elements(mixer: Mixer) -> int:
    """Elements that a layer caches of each token it sees: 2·K·h; of latent attention the compressed vector and the
    rotated key, for all heads once; none where a state of fixed size takes the cache's place, it reads what another
    layer has cached, or texts are whole."""
    if isinstance(mixer, Attention):
        return 2 * mixer.kv_heads * mixer.head_dim if mixer.kv_layer is None and mixer.causal else 0
    return mixer.kv_lora_rank + mixer.qk_rope_head_dim if isinstance(mixer, LatentAttention) else 0


def kv_bytes_per_token(spec: ModelSpec, item_bytes: float = 2) -> float:
    """Bytes by which a sequence's cache grows with each token: of the layers without a window alone.

    This is the published formula, 2·K·h·b summed over layers of attention (of latent attention: rank and rotated key).
    What layers with a window keep is bounded (`kept_bytes`), and what recurrent layers keep is fixed (`state_bytes`).
    """
    return (
        sum(count * cached_elements(mixer) for mixer, count in mixers(spec) if not visible_tokens(mixer)) * item_bytes
    )


def paged_kv_bytes_per_token(spec: ModelSpec, item_bytes: float = 2, scale_bytes: float = 0) -> float:
    """Bytes of a token over all layers, those with a window too: what a step writes of it, and what it takes in memory
    as long as every window shows it.

    scale_bytes: beside each head's keys and each head's values (of latent attention, beside the vector), where they are
    quantized.
    """
    return sum(count * _cached_bytes(mixer, item_bytes, scale_bytes) for mixer, count in mixers(spec))


def read_bytes(spec: ModelSpec, tokens: float, item_bytes: float = 2, scale_bytes: float = 0) -> float:
    """Bytes of keys and values that attention reads for one token that sees `tokens` tokens: those of each layer, its
    own or another's."""
    own = [
        replace(mixer, kv_layer=None, causal=True) if isinstance(mixer, Attention) else mixer
        for mixer, _ in mixers(spec)
    ]  # an encoder reads the keys and values that the step has just written
    return sum(
        count * _cached_bytes(cached, item_bytes, scale_bytes) * min(tokens, visible_tokens(mixer) or tokens)
        for cached, (mixer, count) in zip(own, mixers(spec), strict=True)
    )


def kept_bytes(spec: ModelSpec, tokens: float, item_bytes: float = 2, scale_bytes: float = 0) -> float:
    """Bytes of keys and values that a sequence of `tokens` tokens needs: of a layer with a window its window's."""
    return sum(
        count * _cached_bytes(mixer, item_bytes, scale_bytes) * min(tokens, visible_tokens(mixer) or tokens)
        for mixer, count in mixers(spec)
    )


def _cached_bytes(mixer: Mixer, item_bytes: float, scale_bytes: float) -> float:
    """Return the bytes of one token in one layer."""
    if isinstance(mixer, Attention):
        scales = 2 * mixer.kv_heads if mixer.kv_layer is None and mixer.causal else 0
    else:
        scales = 1 if isinstance(mixer, LatentAttention) else 0
    return cached_elements(mixer) * item_bytes + scales * scale_bytes


def state_bytes(spec: ModelSpec) -> int:
    """Bytes of a sequence's recurrent state over all layers, however long it is: the state in float32, and the inputs
    that short convolutions look back on in bf16."""
    found = 0
    for mixer, count in mixers(spec):
        state, convolved = state_elements(mixer, spec.hidden_size)
        found += count * (state * _STATE_BYTES + convolved * _CONVOLUTION_BYTES)
    return found


def state_elements(mixer: Mixer, hidden: int) -> tuple[int, int]:
    """Return the elements of a layer's state, and of the inputs that a convolution keeps."""
    if isinstance(mixer, Attention | LatentAttention):
        return 0, 0
    if isinstance(mixer, LinearAttention):
        channels = 2 * mixer.key_heads * mixer.key_dim + mixer.value_heads * mixer.value_dim
        return mixer.value_heads * mixer.key_dim * mixer.value_dim, channels * (mixer.kernel - 1)
    if isinstance(mixer, Mamba):
        return mixer.inner * mixer.state, mixer.inner * (mixer.kernel - 1)
    return 0, hidden * (mixer.kernel - 1)


def mixers(spec: ModelSpec) -> Iterator[tuple[Mixer, int]]:
    """Each kind of mixer, and how many layers have it."""
    return ((layer.mixer, count) for layer, count in kinds_of_layers(spec))


def visible_tokens(mixer: Mixer) -> int:
    """Return how many tokens one sees at most; 0: all."""
    if not isinstance(mixer, Attention):
        return 0
    return mixer.window if mixer.causal or not mixer.window else 2 * mixer.window + 1
