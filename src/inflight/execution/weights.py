"""A model's weights as the backend holds them: named as Hugging Face names them, packed once, then only read.

Knows the tensor names of the supported families and the order in which to pack them so that memory never peaks above
the packed model. Does not know where tensors come from (`checkpoint`, `dummy`) or how a forward pass uses them
(`decoder`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from inflight.execution.backends.bf16 import from_bf16
from inflight.execution.backends.protocol import Array, Backend, GateUp, Linear, Quantization, Rope, Table, Vector
from inflight.execution.memory import MachineMemory, gib, machine_memory
from inflight.execution.rope import rope_settings, rope_table
from inflight.execution.sizes import parts, weight_bytes
from inflight.models.arithmetic import parameters
from inflight.models.errors import ModelError
from inflight.models.spec import ModelSpec

_TABLE, _HEAD, _FINAL_NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"
_COMPARED_ROWS = 4096  # of two tables at a time: the comparison must not cost a table of memory itself

Progress = Callable[[int, int], None]  # elements packed, elements in all


class TensorSource(Protocol):
    """Where tensors come from: a checkpoint, or random numbers."""

    def __contains__(self, name: str) -> bool: ...

    def tensor(self, name: str, shape: Sequence[int]) -> Array:
        """float32, float16 or uint16 (bf16), of exactly this shape. Raises ModelError."""

    def release(self, name: str) -> None:
        """The tensor has been packed; its memory may go."""


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. Norms are float32[E], or float32[D] where they act on heads."""

    attention_norm: Vector
    qkv: Linear
    q_norm: Vector | None
    k_norm: Vector | None
    output: Linear
    mlp_norm: Vector
    gate_up: GateUp
    down: Linear
    window: int  # tokens, 0 sees all


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
    packer = _Packer(model, source, backend, progress, quantization)
    # The tables first: while one of them is packed its source is in memory too, and nothing else should be yet.
    table, output = packer.tables()
    layers = tuple(packer.layer(index) for index in range(len(model.layers)))
    final_norm = packer.norm(_FINAL_NORM, model.hidden_size)
    rope = rope_table(rope_settings(model), max_positions)
    nbytes = packer.nbytes + rope.cos.nbytes + rope.sin.nbytes
    return ModelWeights(table, layers, final_norm, output, backend.pack_rope(rope), nbytes)


def _check_memory(model: ModelSpec, backend: Backend, positions: int, quantization: Quantization, total: int) -> None:
    # Weights, and a cosine and a sine for every other value of a head.
    needed = weight_bytes(model, backend.dtype, quantization) + positions * rope_settings(model).head_dim * 4
    if needed > total:
        raise ModelError(
            f"the model needs {gib(needed)} for {parameters(model):,} weights and {positions:,} positions, but there "
            f"are {gib(total)} of memory in all; take a smaller model, --quantization int8 or a lower --max-model-len."
        )


class _Packer:
    """Takes tensors from the source, hands them to the backend, and counts."""

    def __init__(
        self,
        model: ModelSpec,
        source: TensorSource,
        backend: Backend,
        progress: Progress | None,
        quantization: Quantization,
    ) -> None:
        self._model, self._source, self._backend, self._progress = model, source, backend, progress
        self._int8_layers, self._int8_output = quantization != "none", quantization == "int8-all"
        self._packed, self._parameters = 0, parameters(model)
        self.nbytes = 0

    # -- pieces of a model ------------------------------------------------------------------------------------------
    def tables(self) -> tuple[Table, Linear]:
        """The embedding table, and the output projection: the same memory where the model ties them."""
        model, backend, source = self._model, self._backend, self._source
        shape = (model.vocab_size, model.hidden_size)
        # A tied model may have been saved under either name, or under both.
        name = _HEAD if model.head.tied and _TABLE not in source and _HEAD in source else _TABLE
        tied = model.head.tied and not (name == _TABLE and _HEAD in source and self._heads_differ(shape))
        table = backend.pack_table(source.tensor(name, shape), tied, tied and self._int8_output)
        self._done(table.nbytes, (name, shape))
        if tied:
            return table, table.linear
        return table, self._linear([(_HEAD, shape)], quantized=self._int8_output)

    def layer(self, index: int) -> LayerWeights:
        attention, mlp = parts(self._model.layers[index])
        prefix = f"model.layers.{index}."
        at, mlp_at = prefix + "self_attn.", prefix + "mlp."
        hidden, width, inner = self._model.hidden_size, attention.head_dim, mlp.width
        query, keys = attention.heads * width, attention.kv_heads * width
        normed = attention.qk_norm == "head"
        int8 = self._int8_layers
        rows = {"q_proj": query, "k_proj": keys, "v_proj": keys}
        return LayerWeights(
            attention_norm=self.norm(prefix + "input_layernorm.weight", hidden),
            qkv=self._linear(
                [(f"{at}{part}.weight", (count, hidden)) for part, count in rows.items()],
                [(f"{at}{part}.bias", count) for part, count in rows.items()] if attention.qkv_bias else [],
                int8,
            ),
            q_norm=self.norm(at + "q_norm.weight", width) if normed else None,
            k_norm=self.norm(at + "k_norm.weight", width) if normed else None,
            output=self._linear(
                [(at + "o_proj.weight", (hidden, query))],
                [(at + "o_proj.bias", hidden)] if attention.output_bias else [],
                int8,
            ),
            mlp_norm=self.norm(prefix + "post_attention_layernorm.weight", hidden),
            gate_up=self._gate_up(
                (mlp_at + "gate_proj.weight", (inner, hidden)), (mlp_at + "up_proj.weight", (inner, hidden))
            ),
            down=self._linear([(mlp_at + "down_proj.weight", (hidden, inner))], quantized=int8),
            window=attention.window,
        )

    def norm(self, name: str, length: int) -> Vector:
        vector = self._vector(name, length)
        self.nbytes += vector.nbytes
        return self._backend.pack_vector(vector)

    # -- packing ----------------------------------------------------------------------------------------------------
    def _vector(self, name: str, length: int) -> Array:
        """A norm or bias: a float32 copy [length]."""
        values = self._source.tensor(name, (length,))
        copy = from_bf16(values) if values.dtype == np.uint16 else values.astype(np.float32)
        self._done(0, (name, (length,)))
        return copy

    def _linear(
        self,
        parts: Sequence[tuple[str, tuple[int, int]]],
        biases: Sequence[tuple[str, int]] = (),
        quantized: bool = False,
    ) -> Linear:
        bias = np.concatenate([self._vector(name, length) for name, length in biases]) if biases else None
        packed = self._backend.pack_linear([self._source.tensor(name, shape) for name, shape in parts], bias, quantized)
        self._done(packed.nbytes, *parts)
        return packed

    def _gate_up(self, gate: tuple[str, tuple[int, int]], up: tuple[str, tuple[int, int]]) -> GateUp:
        packed = self._backend.pack_gate_up(self._source.tensor(*gate), self._source.tensor(*up), self._int8_layers)
        self._done(packed.nbytes, gate, up)
        return packed

    def _done(self, nbytes: int, *tensors: tuple[str, tuple[int, ...]]) -> None:
        self.nbytes += nbytes
        for name, shape in tensors:
            self._source.release(name)
            self._packed += int(np.prod(shape))
        if self._progress is not None:
            self._progress(self._packed, max(self._packed, self._parameters))

    def _heads_differ(self, shape: tuple[int, int]) -> bool:
        """Whether a checkpoint that should be tied holds two different tables; then, as in transformers, it is not."""
        table, head = self._source.tensor(_TABLE, shape), self._source.tensor(_HEAD, shape)
        starts = range(0, shape[0], _COMPARED_ROWS)
        differ = any(
            not np.array_equal(table[start : start + _COMPARED_ROWS], head[start : start + _COMPARED_ROWS])
            for start in starts
        )
        self._source.release(_TABLE)
        self._source.release(_HEAD)
        return differ
