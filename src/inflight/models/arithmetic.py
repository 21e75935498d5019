"""Count a model's parameters, the bytes of its weights and its operations, from its spec alone.

Every count is a sum over layers of the matrices and the smaller weights of each mixer and MLP (`layer_weights`). Knows
no device, no kernel and no split over several. Of operations, a multiply-add counts two.
"""

from __future__ import annotations

import math

from msgspec import Struct

from inflight.models.layer_weights import (
    Weights,
    expert_weights,
    kinds_of_layers,
    mixer_weights,
    mlp_weights,
    plain_outputs,
    token_input_weights,
)
from inflight.models.sequence_memory import mixers, state_elements, visible_tokens
from inflight.models.spec import Attention, LatentAttention, LayerSpec, Mixer, ModelSpec, MoE


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
    """Count the outputs of all quantized matrices of a layer; with `experts`, of so many of its experts."""
    hidden, mlp = spec.hidden_size, layer.mlp
    found: float = mixer_weights(layer.mixer, hidden).outputs + mlp_weights(mlp, hidden).outputs - plain_outputs(layer)
    found += token_input_weights(layer, hidden).outputs
    if isinstance(mlp, MoE):
        found += expert_weights(mlp, hidden).outputs * (mlp.experts if experts is None else experts)
    return found


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
        count * pair_flops(mixer, compressed) * min(context, visible_tokens(mixer) or context)
        for mixer, count in mixers(spec)
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
    state, _ = state_elements(mixer, 0)
    return 6 * state
