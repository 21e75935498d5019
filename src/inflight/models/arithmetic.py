"""What follows from a model's spec alone: parameters, bytes of weights and of what a sequence keeps, operations.

Every count is a sum over layers of a few tables: the matrices and the smaller weights of each mixer and MLP. Knows no
device, no kernel and no split over several.

Published totals leave out layers that only predict further tokens for speculation, and so does this. Of operations, a
multiply-add counts two.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

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

_STATE_BYTES = 4  # of an element of recurrent state: it is a sum over all tokens, and is kept in float32
_CONVOLUTION_BYTES = 2  # of an element that a short convolution keeps: activations, in bf16


class Weights(Struct, frozen=True):
    """matrices: (outputs, inputs) of each. others: elements of norms, biases, depthwise convolutions and the like."""

    matrices: tuple[tuple[int, int], ...]
    others: int = 0

    @property
    def elements(self) -> int:
        """Of the matrices."""
        return sum(outputs * inputs for outputs, inputs in self.matrices)

    @property
    def outputs(self) -> int:
        return sum(outputs for outputs, _ in self.matrices)


class Packing(Struct, frozen=True):
    """Bytes of an element, by what it is part of: matrices of layers, the output projection (of a tied model the
    table), an input table of its own and routers, norms and biases. scales: bytes beside each output of a matrix or of
    the head. expert: of experts' matrices, where these are quantized and the others are not; then `matrix_scale` is
    theirs alone. token_table: of the table that layers' token inputs are rows of, scales included; None: as `table`.
    values: of attention's projections to values; None: as `matrix`."""

    matrix: float
    head: float
    table: float
    other: float
    matrix_scale: int = 0
    head_scale: int = 0
    expert: float | None = None
    token_table: float | None = None
    values: float | None = None


# -- the tables --------------------------------------------------------------------------------------------------------
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
    """Of what every token passes: an MLP, or router and shared experts of a mixture."""
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
    return Weights(tuple(matrices), of_experts + hidden * (router.norm + 3 * mlp.apart))


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
    """Of a layer's token input: the projection of the embedding, the gate, and back, with its norm."""
    if layer.token_input is None:
        return Weights(())
    width = layer.token_input.width
    return Weights(((width, hidden), (width, hidden), (hidden, width)), hidden)


def router_outputs(mlp: Mlp) -> int:
    """Outputs, over all inputs, that decide which experts a token passes and how much a shared one counts: whatever
    else is quantized, these are not."""
    return mlp.experts + (1 if mlp.shared_gate else 0) if isinstance(mlp, MoE) else 0


def plain_outputs(layer: LayerSpec) -> int:
    """Outputs of a layer's matrices that are never quantized: of routers, and what linear attention writes and keeps
    by."""
    return router_outputs(layer.mlp) + (2 * layer.mixer.value_heads if isinstance(layer.mixer, LinearAttention) else 0)


def expert_weights(mlp: MoE, hidden: int) -> Weights:
    """Of one expert."""
    return Weights(((2 * mlp.width, hidden), (hidden, mlp.width)), 2 * mlp.width + hidden if mlp.bias else 0)


def kinds_of_layers(spec: ModelSpec) -> Iterator[tuple[LayerSpec, int]]:
    """Each different layer, and how many of it there are."""
    counts: dict[int, list[int]] = {}
    for index, layer in enumerate(spec.layers):
        counts.setdefault(id(layer), []).append(index)
    for numbers in counts.values():
        yield spec.layers[numbers[0]], len(numbers)


# -- parameters --------------------------------------------------------------------------------------------------------
def touched_experts(mlp: MoE, tokens: float) -> float:
    """Distinct experts of a layer that `tokens` tokens use, E(1 - (1 - k/E)^T): tokens choose independently."""
    return mlp.experts * (1 - math.pow(1 - mlp.top_k / mlp.experts, tokens))


def layer_matrix_parameters(spec: ModelSpec, layer: LayerSpec, experts: float | None = None) -> float:
    """Elements of a layer's matrices: all, or with so many experts of each mixture."""
    hidden = spec.hidden_size
    found: float = mixer_weights(layer.mixer, hidden).elements + mlp_weights(layer.mlp, hidden).elements
    found += token_input_weights(layer, hidden).elements
    if isinstance(layer.mlp, MoE):
        found += expert_weights(layer.mlp, spec.hidden_size).elements * (
            layer.mlp.experts if experts is None else experts
        )
    return found


def layer_other_parameters(spec: ModelSpec, layer: LayerSpec) -> int:
    """Elements of a layer's norms, biases and the like; its scalar, a setting of the layer, is not counted."""
    hidden = spec.hidden_size
    norms = len(layer.norms) * _norm_elements(spec)
    experts = layer.mlp.experts * expert_weights(layer.mlp, hidden).others if isinstance(layer.mlp, MoE) else 0
    parts = mixer_weights(layer.mixer, hidden), mlp_weights(layer.mlp, hidden), token_input_weights(layer, hidden)
    return norms + sum(part.others for part in parts) + experts


def matrix_parameters(spec: ModelSpec) -> int:
    """Elements of the matrices of all layers, without tables and head."""
    return sum(count * round(layer_matrix_parameters(spec, layer)) for layer, count in kinds_of_layers(spec))


def other_parameters(spec: ModelSpec) -> int:
    """Elements of all norms, biases and the like, those around the layers included."""
    head = spec.vocab_size if spec.head is not None and spec.head.bias else 0
    layers = sum(count * layer_other_parameters(spec, layer) for layer, count in kinds_of_layers(spec))
    inputs = spec.token_input.width if spec.token_input is not None else 0  # a norm that all layers share
    norms = (spec.embedding_norm + spec.final_norm) * _norm_elements(spec)
    mixers = (layer.mixer for layer, _ in kinds_of_layers(spec))
    relative = max((one.relative_buckets * one.heads for one in mixers if isinstance(one, Attention)), default=0)
    return layers + norms + head + inputs + relative + _pooler(spec).others


def table_parameters(spec: ModelSpec) -> int:
    """Elements of one embedding table [vocab_size, hidden_size]."""
    return spec.vocab_size * spec.hidden_size


def place_table_parameters(spec: ModelSpec) -> int:
    """Elements of the tables of positions and of token types."""
    return ((0 if spec.positions is None else spec.positions.rows) + spec.token_types) * spec.hidden_size


def _pooler(spec: ModelSpec) -> Weights:
    layers = () if spec.pooler is None else spec.pooler.layers
    norms = sum(one.outputs * (1 + one.norm_bias) for one in layers if one.norm)
    biases = sum(one.outputs for one in layers if one.bias)
    return Weights(tuple((one.outputs, one.inputs) for one in layers), norms + biases)


def token_table_parameters(spec: ModelSpec) -> int:
    """Elements of the table that layers' token inputs are rows of."""
    inputs = ((layer.token_input, count) for layer, count in kinds_of_layers(spec))
    return sum(count * one.vocab_size * one.width for one, count in inputs if one is not None)


def parameters(spec: ModelSpec) -> int:
    """Elements of all weights; a tied table counts once."""
    own_head = spec.head is not None and not spec.head.tied
    tables = table_parameters(spec) * (1 + own_head) + token_table_parameters(spec) + place_table_parameters(spec)
    return matrix_parameters(spec) + other_parameters(spec) + tables + _pooler(spec).elements


def active_parameters(spec: ModelSpec) -> int:
    """Elements of the weights that one token passes: of the experts only its own, and none of a table of which it reads
    a row for each layer."""
    unused = token_table_parameters(spec)
    for layer, count in kinds_of_layers(spec):
        if isinstance(layer.mlp, MoE):
            expert = expert_weights(layer.mlp, spec.hidden_size)
            unused += count * (layer.mlp.experts - layer.mlp.top_k) * (expert.elements + expert.others)
    return parameters(spec) - unused


def _norm_elements(spec: ModelSpec) -> int:
    return spec.hidden_size * (2 if spec.norm.kind == "layer" else 1)


# -- bytes of weights --------------------------------------------------------------------------------------------------
def weight_bytes(spec: ModelSpec, packing: Packing) -> float:
    """Bytes of all weights, but for what a backend adds in padding."""
    of_inputs = token_table_parameters(spec) * (packing.table if packing.token_table is None else packing.token_table)
    tied = spec.head is not None and spec.head.tied
    of_tokens = 0 if tied else table_parameters(spec) * packing.table
    return step_weight_bytes(spec, packing) + of_inputs + of_tokens + place_table_parameters(spec) * packing.table


def step_weight_bytes(spec: ModelSpec, packing: Packing, tokens: float | None = None) -> float:
    """Bytes of weights that a step reads at least once: all but the input table, of which it reads rows; with `tokens`
    in the step, of each mixture only the experts that they touch."""
    read = 0.0 if spec.head is None else table_parameters(spec) * packing.head + spec.vocab_size * packing.head_scale
    read += other_parameters(spec) * packing.other + _pooler(spec).elements * packing.table
    for layer, count in kinds_of_layers(spec):
        experts = touched_experts(layer.mlp, tokens) if isinstance(layer.mlp, MoE) and tokens is not None else None
        every = layer_matrix_parameters(spec, layer, 0)
        of_experts = layer_matrix_parameters(spec, layer, experts) - every
        expert = packing.matrix if packing.expert is None else packing.expert
        read += count * (every * packing.matrix + of_experts * expert)
        read += count * plain_outputs(layer) * spec.hidden_size * (packing.table - packing.matrix)
        if packing.values is not None:
            read += count * value_parameters(spec, layer) * (packing.values - packing.matrix)
        if packing.matrix_scale:
            plain = 0 if packing.expert is None else _outputs(spec, layer, 0)
            read += count * (_outputs(spec, layer, experts) - plain) * packing.matrix_scale
    return read


def value_parameters(spec: ModelSpec, layer: LayerSpec) -> int:
    """Elements of the projection to values, where a layer's attention has one of its own."""
    mixer = layer.mixer
    if not isinstance(mixer, Attention) or mixer.projected < 2:
        return 0
    return mixer.kv_heads * mixer.head_dim * spec.hidden_size


def _outputs(spec: ModelSpec, layer: LayerSpec, experts: float | None) -> float:
    """Outputs of all matrices of a layer that are quantized; with `experts`, of so many."""
    hidden, mlp = spec.hidden_size, layer.mlp
    found: float = mixer_weights(layer.mixer, hidden).outputs + mlp_weights(mlp, hidden).outputs - plain_outputs(layer)
    found += token_input_weights(layer, hidden).outputs
    if isinstance(mlp, MoE):
        found += expert_weights(mlp, hidden).outputs * (mlp.experts if experts is None else experts)
    return found


# -- what a sequence keeps ---------------------------------------------------------------------------------------------
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
    return sum(count * cached_elements(mixer) for mixer, count in mixers(spec) if not _window(mixer)) * item_bytes


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
    ]  # of whole texts, those that the step has just written
    return sum(
        count * _cached_bytes(cached, item_bytes, scale_bytes) * min(tokens, _window(mixer) or tokens)
        for cached, (mixer, count) in zip(own, mixers(spec), strict=True)
    )


def kept_bytes(spec: ModelSpec, tokens: float, item_bytes: float = 2, scale_bytes: float = 0) -> float:
    """Bytes of keys and values that a sequence of `tokens` tokens needs: of a layer with a window its window's."""
    return sum(
        count * _cached_bytes(mixer, item_bytes, scale_bytes) * min(tokens, _window(mixer) or tokens)
        for mixer, count in mixers(spec)
    )


def _cached_bytes(mixer: Mixer, item_bytes: float, scale_bytes: float) -> float:
    """Of one token in one layer."""
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
        state, convolved = _state(mixer, spec.hidden_size)
        found += count * (state * _STATE_BYTES + convolved * _CONVOLUTION_BYTES)
    return found


def _state(mixer: Mixer, hidden: int) -> tuple[int, int]:
    """Elements of state, and of inputs that a convolution keeps."""
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


def _window(mixer: Mixer) -> int:
    """Most tokens that one sees; 0: all."""
    if not isinstance(mixer, Attention):
        return 0
    return mixer.window if mixer.causal or not mixer.window else 2 * mixer.window + 1


# -- operations --------------------------------------------------------------------------------------------------------
def layer_flops_per_token(spec: ModelSpec) -> float:
    """Operations of the layers' matrices for one token, of experts its own, and of recurrent states."""
    found = 0.0
    for layer, count in kinds_of_layers(spec):
        picked = layer.mlp.top_k if isinstance(layer.mlp, MoE) else None
        found += count * (2 * layer_matrix_parameters(spec, layer, picked) + state_flops(layer.mixer))
    return found


def logit_flops_per_token(spec: ModelSpec) -> int:
    """Operations of the output projection for one token that is sampled or scored."""
    return 0 if spec.head is None else 2 * table_parameters(spec)


def attention_flops_per_token(spec: ModelSpec, context: float, compressed: bool = False) -> float:
    """Operations of attention over all layers for one token that sees `context` tokens. compressed: as in
    `pair_flops`."""
    return sum(
        count * pair_flops(mixer, compressed) * min(context, _window(mixer) or context) for mixer, count in mixers(spec)
    )


def pair_flops(mixer: Mixer, compressed: bool = False) -> int:
    """Operations of one query that sees one position, over all heads: scores and values.

    compressed: latent attention over the cached vectors as they lie, which is how one query is computed; for many at
    once keys and values are made of them first.
    """
    if isinstance(mixer, Attention):
        return 4 * mixer.heads * mixer.head_dim
    if isinstance(mixer, LatentAttention):
        plain = mixer.qk_nope_head_dim + mixer.qk_rope_head_dim + mixer.v_head_dim
        return 2 * mixer.heads * (2 * mixer.kv_lora_rank + mixer.qk_rope_head_dim if compressed else plain)
    return 0


def state_flops(mixer: Mixer) -> int:
    """Operations on a recurrent state for one token: it is read against the key, written, and read by the query, a
    multiply-add for each element each time."""
    state, _ = _state(mixer, 0)
    return 6 * state
