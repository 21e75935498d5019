"""Count a model's parameters, the bytes of its weights and its operations, from its spec alone.

Every count is a sum over layers of what each mixer and MLP answers about itself (`parts`). Of operations, a
multiply-add counts two.
"""

from __future__ import annotations

from msgspec import Struct

from inflight.models.parts import Part, Weights
from inflight.models.spec import LayerSpec, ModelSpec


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
def layer_matrix_parameters(spec: ModelSpec, layer: LayerSpec, experts: float | None = None) -> float:
    """Elements of a layer's matrices: all, or with so many experts of each mixture."""
    found: float = sum(weights.elements for weights in _weights(spec, layer))
    expert = layer.mlp.expert_weights(spec.hidden_size)
    return found + expert.elements * (layer.mlp.experts if experts is None else experts)


def layer_other_parameters(spec: ModelSpec, layer: LayerSpec) -> int:
    """Elements of a layer's norms, biases and the like; its scalar, a setting of the layer, is not counted."""
    experts = layer.mlp.experts * layer.mlp.expert_weights(spec.hidden_size).others
    parts = sum(weights.others for weights in _weights(spec, layer))
    return len(layer.norms) * _norm_elements(spec) + parts + experts


def _weights(spec: ModelSpec, layer: LayerSpec) -> list[Weights]:
    """List the weights of a layer's parts, without those of experts."""
    parts: list[Part] = [layer.mixer, layer.mlp]
    found = [part.weights(spec.hidden_size) for part in parts]
    return found if layer.token_input is None else [*found, layer.token_input.weights(spec.hidden_size)]


def adapter_parameters(spec: ModelSpec, rank: int) -> int:
    """Elements of a low-rank adapter for every matrix that all tokens pass: rank · (outputs + inputs) of each."""
    hidden, found = spec.hidden_size, 0
    for layer, count in spec.kinds_of_layers:
        matrices = (*layer.mixer.adapter_matrices(hidden), *layer.mlp.adapter_matrices(hidden))
        found += count * sum(rank * (outputs + inputs) for outputs, inputs in matrices)
    return found


def matrix_parameters(spec: ModelSpec) -> int:
    """Elements of the matrices of all layers, without tables and head."""
    return sum(count * round(layer_matrix_parameters(spec, layer)) for layer, count in spec.kinds_of_layers)


def other_parameters(spec: ModelSpec) -> int:
    """Elements of all norms, biases and the like, those around the layers included."""
    head = spec.vocab_size if spec.head is not None and spec.head.bias else 0
    layers = sum(count * layer_other_parameters(spec, layer) for layer, count in spec.kinds_of_layers)
    inputs = spec.token_input.width if spec.token_input is not None else 0  # a norm that all layers share
    norms = (spec.embedding_norm + spec.final_norm) * _norm_elements(spec)
    shared = max((layer.mixer.shared_elements for layer, _ in spec.kinds_of_layers), default=0)
    return layers + norms + head + inputs + shared + _pooler(spec).others


def table_parameters(spec: ModelSpec) -> int:
    """Elements of one embedding table [vocab_size, hidden_size]."""
    return spec.vocab_size * spec.hidden_size


def position_table_parameters(spec: ModelSpec) -> int:
    """Elements of the tables of positions and of token types."""
    return ((0 if spec.positions is None else spec.positions.rows) + spec.token_types) * spec.hidden_size


def _pooler(spec: ModelSpec) -> Weights:
    layers = () if spec.pooler is None else spec.pooler.layers
    norms = sum(one.outputs * (1 + one.norm_bias) for one in layers if one.norm)
    biases = sum(one.outputs for one in layers if one.bias)
    return Weights(tuple((one.outputs, one.inputs) for one in layers), norms + biases)


def token_table_parameters(spec: ModelSpec) -> int:
    """Elements of the table that layers' token inputs are rows of."""
    inputs = ((layer.token_input, count) for layer, count in spec.kinds_of_layers)
    return sum(count * one.vocab_size * one.width for one, count in inputs if one is not None)


def parameters(spec: ModelSpec) -> int:
    """Elements of all weights; a tied table counts once."""
    own_head = spec.head is not None and not spec.head.tied
    tables = table_parameters(spec) * (1 + own_head) + token_table_parameters(spec) + position_table_parameters(spec)
    return matrix_parameters(spec) + other_parameters(spec) + tables + _pooler(spec).elements


def active_parameters(spec: ModelSpec) -> int:
    """Elements of the weights that one token passes: of the experts only its own, and none of a table of which it reads
    a row for each layer."""
    unused = token_table_parameters(spec)
    for layer, count in spec.kinds_of_layers:
        expert = layer.mlp.expert_weights(spec.hidden_size)
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
    return step_weight_bytes(spec, packing) + of_inputs + of_tokens + position_table_parameters(spec) * packing.table


def step_weight_bytes(spec: ModelSpec, packing: Packing, tokens: float | None = None) -> float:
    """Bytes of weights that a step reads at least once: all but the input table, of which it reads rows; with `tokens`
    in the step, of each mixture only the experts that they touch."""
    read = 0.0 if spec.head is None else table_parameters(spec) * packing.head + spec.vocab_size * packing.head_scale
    read += other_parameters(spec) * packing.other + _pooler(spec).elements * packing.table
    for layer, count in spec.kinds_of_layers:
        experts = None if tokens is None else layer.mlp.touched_experts(tokens)
        read += count * layer_matrix_bytes(spec, layer, packing, experts)
    return read


def layer_matrix_bytes(spec: ModelSpec, layer: LayerSpec, packing: Packing, experts: float | None = None) -> float:
    """Bytes of a layer's matrices: all, or with so many experts of each mixture."""
    every = layer_matrix_parameters(spec, layer, 0)
    of_experts = layer_matrix_parameters(spec, layer, experts) - every
    expert = packing.matrix if packing.expert is None else packing.expert
    read = every * packing.matrix + of_experts * expert
    read += _plain_outputs(layer) * spec.hidden_size * (packing.table - packing.matrix)
    if packing.values is not None:
        read += layer.mixer.value_elements(spec.hidden_size) * (packing.values - packing.matrix)
    if packing.matrix_scale:
        plain = 0 if packing.expert is None else _outputs(spec, layer, 0)
        read += (_outputs(spec, layer, experts) - plain) * packing.matrix_scale
    return read


def _plain_outputs(layer: LayerSpec) -> int:
    """Count outputs of a layer's matrices that are never quantized."""
    return layer.mixer.plain_outputs + layer.mlp.plain_outputs


def _outputs(spec: ModelSpec, layer: LayerSpec, experts: float | None) -> float:
    """Count the outputs of all quantized matrices of a layer; with `experts`, of so many of its experts."""
    found: float = sum(weights.outputs for weights in _weights(spec, layer)) - _plain_outputs(layer)
    expert = layer.mlp.expert_weights(spec.hidden_size)
    return found + expert.outputs * (layer.mlp.experts if experts is None else experts)


# -- operations --------------------------------------------------------------------------------------------------------
def layer_flops_per_token(spec: ModelSpec) -> float:
    """Operations of the layers' matrices for one token, of experts its own, and of recurrent states."""
    return sum(count * layer_flops(spec, layer) for layer, count in spec.kinds_of_layers)


def layer_flops(spec: ModelSpec, layer: LayerSpec) -> float:
    """Operations of one layer's matrices for one token, of experts its own, and of its recurrent state."""
    return 2.0 * layer_matrix_parameters(spec, layer, layer.mlp.top_k) + layer.mixer.state_flops


def logit_flops_per_token(spec: ModelSpec) -> int:
    """Operations of the output projection for one token that is sampled or scored."""
    return 0 if spec.head is None else 2 * table_parameters(spec)


def attention_flops_per_token(spec: ModelSpec, context: float, compressed: bool = False) -> float:
    """Operations of attention over all layers for one token that sees `context` tokens. compressed: as in
    `Mixer.pair_flops`."""
    return sum(
        count * layer.mixer.pair_flops(compressed) * min(context, layer.mixer.visible_tokens or context)
        for layer, count in spec.kinds_of_layers
    )
