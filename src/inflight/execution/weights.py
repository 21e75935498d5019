"""A model's weights as the backend holds them: packed once, then only read.

Knows in which order to pack them so that memory never peaks above the packed model, and refuses what this memory cannot
hold. Which tensors a layer has stands in `layers`, where they come from in `checkpoints`.
"""

from __future__ import annotations

from dataclasses import dataclass

from inflight.execution.backends.protocol import Backend, Linear, Quantization, Rope, Table, Vector
from inflight.execution.checkpoints.expert_names import ExpertNames
from inflight.execution.layers.attention import AttentionWeights
from inflight.execution.layers.dense import DenseWeights
from inflight.execution.layers.moe import MoEWeights
from inflight.execution.memory import MachineMemory, gib, machine_memory
from inflight.execution.packer import Packer, Progress, TensorSource
from inflight.execution.rope import rope_settings, rope_table
from inflight.execution.sizes import parts, weight_bytes
from inflight.models.arithmetic import parameters
from inflight.models.errors import ModelError
from inflight.models.spec import ModelSpec, MoE


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. Norms are float32[E]."""

    mixer_norm: Vector
    mixer: AttentionWeights
    mlp_norm: Vector
    mlp: DenseWeights | MoEWeights


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """A whole model, ready to run."""

    table: Table
    layers: tuple[LayerWeights, ...]
    final_norm: Vector
    output: Linear  # the projection to logits; of a tied model the table's own
    rope: Rope
    nbytes: int  # of everything above


def load_weights(
    model: ModelSpec,
    source: TensorSource,
    backend: Backend,
    max_positions: int,
    progress: Progress | None = None,
    quantization: Quantization = "none",
    memory: MachineMemory | None = None,
) -> ModelWeights:
    """Packs every tensor of the model once and lets its source go.

    `max_positions` is the longest sequence that will be computed, in tokens. `progress` is called after each tensor.
    `quantization` says which matrices are packed in int8, whatever the source holds. `memory` defaults to this
    machine's. Raises ModelError for a missing or misshapen tensor, for more positions than the model's embedding makes
    sense, and, before anything is allocated, for a model that this memory cannot hold.
    """
    if not 1 <= max_positions <= model.longest_model_len:
        raise ModelError(
            f"the model has positions for {model.longest_model_len} tokens, not for {max_positions}; "
            f"set --max-model-len between 1 and {model.longest_model_len}."
        )
    _check_memory(model, backend, max_positions, quantization, (memory or machine_memory()).total)
    packer = Packer(model, ExpertNames(source, model), backend, progress, quantization)
    rope = rope_table(rope_settings(model), max_positions)
    rotation = backend.pack_rope(rope)
    # The tables first: while one of them is packed its source is in memory too, and nothing else should be yet.
    table, output = packer.tables()
    layers = tuple(_layer(packer, index, rotation) for index in range(len(model.layers)))
    final_norm = packer.norm("model.norm.weight", model.hidden_size)
    return ModelWeights(table, layers, final_norm, output, rotation, packer.nbytes + rope.cos.nbytes + rope.sin.nbytes)


def _layer(packer: Packer, index: int, rope: Rope) -> LayerWeights:
    attention, mlp = parts(packer.model.layers[index])
    prefix, hidden = f"model.layers.{index}.", packer.model.hidden_size
    return LayerWeights(
        mixer_norm=packer.norm(prefix + "input_layernorm.weight", hidden),
        mixer=AttentionWeights.load(packer, attention, index, rope),
        mlp_norm=packer.norm(prefix + "post_attention_layernorm.weight", hidden),
        mlp=MoEWeights.load(packer, mlp, index) if isinstance(mlp, MoE) else DenseWeights.load(packer, mlp, index),
    )


def _check_memory(model: ModelSpec, backend: Backend, positions: int, quantization: Quantization, total: int) -> None:
    # Weights, and a cosine and a sine for every other value of a head.
    needed = weight_bytes(model, backend.dtype, quantization) + positions * rope_settings(model).head_dim * 4
    if needed > total:
        raise ModelError(
            f"the model needs {gib(needed)} for {parameters(model):,} weights and {positions:,} positions, but there "
            f"are {gib(total)} of memory in all; take a smaller model, --quantization int8 or a lower --max-model-len."
        )
