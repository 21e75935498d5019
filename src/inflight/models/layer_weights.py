"""The weights of each mixer and MLP: the shapes of their matrices, and how many smaller numbers go with them.

Knows no device, no kernel and no split over several. Published totals leave out layers that only predict further tokens
for speculation, and so does this.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from inflight.models.spec import (
    Attention,
    Dense,
    LatentAttention,
    LayerSpec,
    LinearAttention,
    Mamba,
    Mixer,
    Mlp,
    ModelSpec,
    MoE,
)


class Weights(Struct, frozen=True):
    """matrices: (outputs, inputs) of each. others: elements of norms, biases, depthwise convolutions and the like."""

    matrices: tuple[tuple[int, int], ...]
    others: int = 0

    @property
    def elements(self) -> int:
        """Count the elements of the matrices."""
        return sum(outputs * inputs for outputs, inputs in self.matrices)

    @property
    def outputs(self) -> int:
        return sum(outputs for outputs, _ in self.matrices)


def mixer_weights(mixer: Mixer, hidden: int) -> Weights:
    if isinstance(mixer, Attention):
        return _attention(mixer, hidden)
    if isinstance(mixer, LatentAttention):
        return _latent(mixer, hidden)
    if isinstance(mixer, LinearAttention):
        keys, values = mixer.key_heads * mixer.key_dim, mixer.value_heads * mixer.value_dim
        matrices = ((2 * keys + 2 * values, hidden), (2 * mixer.value_heads, hidden), (hidden, values))
        return Weights(matrices, (2 * keys + values) * mixer.kernel + 2 * mixer.value_heads + mixer.value_dim)
    if isinstance(mixer, Mamba):
        return _mamba(mixer, hidden)
    bias = 5 * hidden if mixer.bias else 0  # of the projection to three streams, the convolution, the projection back
    return Weights(((3 * hidden, hidden), (hidden, hidden)), hidden * mixer.kernel + bias)


def _attention(mixer: Attention, hidden: int) -> Weights:
    queries, keys = mixer.heads * mixer.head_dim, mixer.kv_heads * mixer.head_dim
    has_keys = mixer.projected > 0
    others = {"none": 0, "head": (1 + has_keys) * mixer.head_dim, "all": queries + has_keys * keys}[mixer.qk_norm]
    others += mixer.qkv_rows if mixer.qkv_bias else 0
    others += hidden if mixer.output_bias else 0
    others += mixer.heads if mixer.sinks else 0
    return Weights(((mixer.qkv_rows, hidden), (hidden, queries)), others)


def _latent(mixer: LatentAttention, hidden: int) -> Weights:
    queries = mixer.heads * (mixer.qk_nope_head_dim + mixer.qk_rope_head_dim)
    compressed = mixer.kv_lora_rank + mixer.qk_rope_head_dim
    matrices = [
        (compressed, hidden),
        (mixer.heads * (mixer.qk_nope_head_dim + mixer.v_head_dim), mixer.kv_lora_rank),
        (hidden, mixer.heads * mixer.v_head_dim),
    ]
    rank = mixer.q_lora_rank
    matrices += [(rank, hidden), (queries, rank)] if rank else [(queries, hidden)]
    bias = rank + compressed + hidden if mixer.bias else 0
    return Weights(tuple(matrices), rank + mixer.kv_lora_rank + bias)


def _mamba(mixer: Mamba, hidden: int) -> Weights:
    inner, state, rank = mixer.inner, mixer.state, mixer.dt_rank
    matrices = ((2 * inner, hidden), (rank + 2 * state, inner), (inner, rank), (hidden, inner))
    others = inner * (mixer.kernel + state + 2) + (inner if mixer.conv_bias else 0)  # A, D and the step size's bias too
    others += 2 * inner + hidden if mixer.bias else 0
    return Weights(matrices, others + (rank + 2 * state if mixer.norms else 0))


def mlp_weights(mlp: Mlp, hidden: int) -> Weights:
    """Return the weights that every token passes: an MLP, or the router and shared experts of a mixture."""
    if isinstance(mlp, Dense):
        ups = 2 if mlp.gated else 1
        others = (ups * mlp.width + hidden if mlp.bias else 0) + (2 if mlp.activation == "xielu" else 0)
        return Weights(((ups * mlp.width, hidden), (hidden, mlp.width)), others)
    matrices = [(mlp.experts, hidden)]
    if mlp.shared_width:
        matrices += [(2 * mlp.shared_width, hidden), (hidden, mlp.shared_width)]
    if mlp.shared_gate:
        matrices.append((1, hidden))
    router = mlp.router
    of_experts = mlp.experts * (router.bias + router.correction + router.expert_scale)
    return Weights(tuple(matrices), of_experts + hidden * (router.norm + 3 * mlp.separate_shared))


def adapter_parameters(model: ModelSpec, rank: int) -> int:
    """Elements of a low-rank adapter for every matrix that all tokens pass: rank · (outputs + inputs) of each."""
    return sum(rank * (outputs + inputs) for layer in model.layers for outputs, inputs in _modules(layer, model))


def _modules(layer: LayerSpec, model: ModelSpec) -> Iterator[tuple[int, int]]:
    """Matrices as a checkpoint has them, one by one."""
    mixer, mlp, hidden = layer.mixer, layer.mlp, model.hidden_size
    if isinstance(mixer, Attention):
        queries, keys = mixer.heads * mixer.head_dim, mixer.kv_heads * mixer.head_dim
        yield from ((queries, hidden), *((keys, hidden),) * mixer.projected, (hidden, queries))
    else:
        yield from mixer_weights(mixer, hidden).matrices
    if isinstance(mlp, Dense):
        yield from (*((mlp.width, hidden),) * (2 if mlp.gated else 1), (hidden, mlp.width))
    else:
        yield from mlp_weights(mlp, hidden).matrices


def token_input_weights(layer: LayerSpec, hidden: int) -> Weights:
    """Return a layer's weights for its token input: the embedding's projection, the gate, and back, with its norm."""
    if layer.token_input is None:
        return Weights(())
    width = layer.token_input.width
    return Weights(((width, hidden), (width, hidden), (hidden, width)), hidden)


def router_outputs(mlp: Mlp) -> int:
    """Count the outputs that choose a token's experts and weigh shared ones; they are never quantized."""
    return mlp.experts + (1 if mlp.shared_gate else 0) if isinstance(mlp, MoE) else 0


def plain_outputs(layer: LayerSpec) -> int:
    """Count outputs of a layer's matrices that are never quantized: routers, and linear attention's write and decay
    gates."""
    return router_outputs(layer.mlp) + (2 * layer.mixer.value_heads if isinstance(layer.mixer, LinearAttention) else 0)


def expert_weights(mlp: MoE, hidden: int) -> Weights:
    """Return the weights of one expert."""
    return Weights(((2 * mlp.width, hidden), (hidden, mlp.width)), 2 * mlp.width + hidden if mlp.bias else 0)


def kinds_of_layers(spec: ModelSpec) -> Iterator[tuple[LayerSpec, int]]:
    """Each different layer, and how many of it there are."""
    counts: dict[int, list[int]] = {}
    for index, layer in enumerate(spec.layers):
        counts.setdefault(id(layer), []).append(index)
    for numbers in counts.values():
        yield spec.layers[numbers[0]], len(numbers)
