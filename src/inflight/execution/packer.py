"""Pack tensors from a source: take each by its name, give it to the backend, release it, and count."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from inflight.execution.backends.bf16 import from_bf16
from inflight.execution.backends.matrices import Matrix, Rows, dequantized, in_int8, in_order, rows_of
from inflight.execution.backends.position_bias import of_buckets
from inflight.execution.backends.protocol import (
    Array,
    Backend,
    Experts,
    GateUp,
    Gating,
    Heads,
    Hold,
    Linear,
    Quantization,
    Rope,
    Routing,
    Table,
    Vector,
)
from inflight.execution.sizes import hold_of, holds, token_table_is_quantized
from inflight.models.arithmetic import parameters
from inflight.models.errors import ModelError
from inflight.models.rope import RopeSettings
from inflight.models.spec import ModelSpec, NextTokens

_TABLE, _HEAD, _BIAS = "model.embed_tokens.weight", "lm_head.weight", "lm_head.bias"
_OF_EXPERTS = ".experts."
_COMPARED_ROWS = 4096  # of two tables at a time: the comparison must not cost a table of memory itself

Progress = Callable[[int, int], None]  # elements packed, elements in all


class TensorSource(Protocol):
    """Where tensors come from: a checkpoint, or random numbers."""

    def __contains__(self, name: str) -> bool: ...

    def tensor(self, name: str, shape: Sequence[int]) -> Array:
        """Plain numbers, float32, float16 or uint16 (bf16), of exactly this shape. Raises ModelError."""

    def matrix(self, name: str, shape: tuple[int, int]) -> Matrix:
        """Return a matrix of this shape as it is stored, plain or quantized. Raises ModelError."""

    def pieces(self, name: str, shape: tuple[int, int]) -> Iterable[Rows]:
        """Yield the rows of `tensor` a few at a time, or the blocks that stand for them, so that a packed tensor is
        never whole in memory beside the file. Raises ModelError."""

    def release(self, name: str) -> None:
        """Release the memory of a tensor that has been packed."""


class WeightSlice(NamedTuple):
    """Where the outputs of a tensor lie in what a pass multiplies by: from `first` on, of gate and up those of gate
    first."""

    weight: Linear | GateUp
    first: int
    rows: int
    columns: int


class Packer:
    """Packs a model's tensors by their names.

    Attributes:
        nbytes: Of all that it has packed.
        weight_slices: Of the matrices that passes multiply all of their tokens by, by name.
    """

    def __init__(
        self,
        model: ModelSpec,
        source: TensorSource,
        backend: Backend,
        progress: Progress | None,
        quantization: Quantization,
        group_size: int = 32,
        ropes: Mapping[RopeSettings, Rope] | None = None,
    ) -> None:
        """group_size: inputs that share a scale where plain matrices become int4. ropes: the model's rotations."""
        self.model = model
        self.nbytes = 0
        self.weight_slices: dict[str, WeightSlice] = {}
        self._source, self._backend, self._progress = source, backend, progress
        self._quantization = quantization
        self._layers, self._output = holds(quantization)
        self._group_size = group_size
        self._ropes = ropes or {}
        self._packed, self._parameters = 0, parameters(model)

    def tables(self) -> tuple[Table, Linear | None]:
        """Pack the embedding table, and the output projection: the same memory where the model ties them; None for a
        model without a head."""
        model, backend, source = self.model, self._backend, self._source
        shape = (model.vocab_size, model.hidden_size)
        if model.head is None:
            return self.vectors(_TABLE, model.vocab_size), None
        name = self._output_name(model.head.tied)
        if model.head.tied and (name == _TABLE or _TABLE not in source):
            table = backend.pack_table(source.matrix(name, shape), self._output, self._group_size)
            self._done(table.nbytes, (name, shape))
            return table, table.linear
        table = backend.pack_rows(source.pieces(_TABLE, shape), *shape)
        self._done(table.nbytes, (_TABLE, shape))
        bias = [(_BIAS, model.vocab_size)] if model.head.bias else []
        return table, self._linear([(_HEAD, shape)], bias, self._output)

    def rope(self, settings: RopeSettings | None) -> Rope | None:
        """Return the rotation with these settings, one for all layers that have it; None for none."""
        return None if settings is None else self._ropes[settings]

    def position_bias(self, name: str, buckets: int, heads: int) -> Vector:
        """Pack the bias that attention adds to scores by a key's distance (`ops.attention`), from a table of learnt
        numbers [buckets, heads]."""
        return self._packed_vector(of_buckets(self._floats(name, (buckets, heads)), self.model.longest_model_len))

    def next_tokens(self, tokens: NextTokens, has_bias: bool) -> Linear:
        """Pack a product with one output: a token's logit less another's. It is never quantized."""
        name, width = self._output_name(tokens.tied), self.model.hidden_size
        whole = self._source.matrix(name, (self.model.vocab_size, width))
        first, second = (_floats_of(rows_of(whole, slice(one, one + 1))) for one in (tokens.token_id, tokens.other_id))
        bias = None
        if has_bias:
            every = self.array(_BIAS, self.model.vocab_size)
            bias = tokens.scale * (every[[tokens.token_id]] - every[[tokens.other_id]])
        difference = np.ascontiguousarray((first - second) * np.float32(tokens.scale))
        packed = self._backend.pack_linear([difference], bias, "act", self._group_size)
        self._done(packed.nbytes, (name, (1, width)))
        return packed

    def vectors(self, name: str, rows: int) -> Table:
        """Pack a table of vectors of tokens, positions or token types, act[rows, E], of which only rows are read."""
        shape = (rows, self.model.hidden_size)
        table = self._backend.pack_rows(self._source.pieces(name, shape), *shape)
        self._done(table.nbytes, (name, shape))
        return table

    def norm(self, name: str, length: int) -> Vector:
        """Pack a norm's weight, float32[length]; adds the 1 that some checkpoints leave out."""
        return self._packed_vector(self.array(name, length) + np.float32(1 if self.model.norm.offset else 0))

    def vector(self, name: str, length: int, factor: float = 1.0) -> Vector:
        """Pack float32[length], times a factor."""
        return self._packed_vector(self.array(name, length) * np.float32(factor))

    def xielu(self, name: str) -> Vector:
        """float32[2], the p and n of the activation function, of which the inverse of softplus is stored, of n less
        1/2."""
        learnt = (self.array(f"{name}.{part}", 1)[0] for part in ("alpha_p", "alpha_n"))
        above, below = (np.logaddexp(0, float(one)) for one in learnt)
        return self._packed_vector(np.array([above, below + 0.5], np.float32))

    def decay(self, name: str, length: int) -> Vector:
        """float32[length]: -eˣ of what is stored, in float32."""
        return self._packed_vector(-np.exp(self.array(name, length)))

    def convolution(self, name: str, channels: int, kernel: int) -> Vector:
        """Pack a depthwise convolution, stored as [channels, 1, kernel] with the newest input last, as float32[kernel ·
        channels], the oldest input of all channels first."""
        weight = self._floats(name, (channels, 1, kernel))
        return self._packed_vector(np.ascontiguousarray(weight[:, 0].T).ravel())

    def ones(self, length: int) -> Vector:
        """Pack ones, float32[length]: the weight of a norm that has none."""
        return self._packed_vector(np.ones(length, np.float32))

    def rows(self, name: str, shape: tuple[int, int], share: int) -> Table:
        """Pack a table of which rows are read. Where layers' matrices are quantized, in whatever format, it is in int8,
        with a scale for each `share` columns of a row."""
        quantized = token_table_is_quantized(self.model, self._quantization)
        packed = self._backend.pack_rows(self._source.pieces(name, shape), *shape, share if quantized else 0)
        self._done(packed.nbytes, (name, shape))
        return packed

    def linear(self, parts: Sequence[tuple[str, tuple[int, int]]], biases: Sequence[tuple[str, int]] = ()) -> Linear:
        """Pack a layer's matrix. parts: names and shapes, stacked along the outputs; biases: the same of their
        biases."""
        return self._linear(parts, biases, self._layers)

    def gate_up(
        self,
        gate: tuple[str, tuple[int, int]],
        up: tuple[str, tuple[int, int]],
        biases: Sequence[tuple[str, int]] = (),
    ) -> GateUp:
        """Pack gate and up projections. biases: of gate and of up, or none."""
        bias = np.stack([self.array(name, length) for name, length in biases]) if biases else None
        packed = self._backend.pack_gate_up(
            self._source.matrix(*gate), self._source.matrix(*up), self._layers, self._group_size, bias
        )
        self._done(packed.nbytes, gate, up)
        self._note(packed, gate, up)
        return packed

    def plain(self, parts: Sequence[tuple[str, tuple[int, int]]], biases: Sequence[tuple[str, int]] = ()) -> Linear:
        """Pack a matrix as `linear` does, but never quantize it."""
        return self._linear(parts, biases, "act")

    def experts(self, gate_up: Sequence[GateUp], down: Sequence[Linear], routing: Routing, gating: Gating) -> Experts:
        """Pack experts of packed matrices. Raises ModelError where a backend cannot compute with them together."""
        try:
            return self._backend.pack_experts(gate_up, down, routing, gating)
        except ValueError as error:
            raise ModelError(
                f"the {len(down)} experts of a layer cannot be computed together ({error}); take a checkpoint in which "
                "all of them are quantized in one way."
            ) from error

    def heads(self, weight: tuple[str, tuple[int, int]], count: int, first: int) -> tuple[Heads, Heads]:
        """Pack a matrix [count · rows, K] head by head, cut in two: each head's `first` rows transposed, [K, first],
        and its other rows. Quantized rows have no scales across, and are transposed as plain numbers."""
        rows = weight[1][0]
        whole, pack, group = self._source.matrix(*weight), self._backend.pack_linear, self._group_size
        turned, others = [], []
        for start in range(0, rows, rows // count):
            above = rows_of(whole, slice(start, start + first))
            hold: Hold = self._layers if isinstance(above, np.ndarray) else "act"
            across = np.ascontiguousarray((above if isinstance(above, np.ndarray) else dequantized(above)).T)
            turned.append(pack([across], hold=hold, group=group))
            below = in_order(rows_of(whole, slice(start + first, start + rows // count)))
            others.append(pack([below], hold=self._layers, group=group))
        packed = self._backend.pack_heads(turned), self._backend.pack_heads(others)
        self._done(sum(one.nbytes for one in packed), weight)
        return packed

    def _packed_vector(self, vector: Array) -> Vector:
        self.nbytes += vector.nbytes
        return self._backend.pack_vector(vector)

    def array(self, name: str, length: int) -> Array:
        """Return a norm or bias: a float32 copy [length]."""
        return self._floats(name, (length,))

    def _floats(self, name: str, shape: tuple[int, ...]) -> Array:
        copy = _floats_of(self._source.tensor(name, shape))
        self._done(0, (name, shape))
        return copy

    def _linear(
        self, parts: Sequence[tuple[str, tuple[int, int]]], biases: Sequence[tuple[str, int]], hold: Hold
    ) -> Linear:
        bias = np.concatenate([self.array(name, length) for name, length in biases]) if biases else None
        matrices = [_held_first(name, self._source.matrix(name, shape), hold) for name, shape in parts]
        packed = self._backend.pack_linear(matrices, bias, hold, self._group_size)
        self._done(packed.nbytes, *parts)
        self._note(packed, *parts)
        return packed

    def _note(self, packed: Linear | GateUp, *parts: tuple[str, tuple[int, int]]) -> None:
        first = 0
        for name, (rows, columns) in parts:
            if _OF_EXPERTS not in name:  # those are multiplied with some tokens each
                self.weight_slices[name] = WeightSlice(packed, first, rows, columns)
            first += rows

    def _done(self, nbytes: int, *tensors: tuple[str, tuple[int, ...]]) -> None:
        self.nbytes += nbytes
        for name, shape in tensors:
            self._source.release(name)
            self._packed += int(np.prod(shape))
        if self._progress is not None:
            self._progress(self._packed, max(self._packed, self._parameters))

    def _output_name(self, tied: bool) -> str:
        """Return the output projection's name. A tied model may have been saved under either name, or under both."""
        if not tied or (_TABLE not in self._source and _HEAD in self._source):
            return _HEAD
        shape = (self.model.vocab_size, self.model.hidden_size)
        return _HEAD if _HEAD in self._source and _heads_differ(self._source, shape) else _TABLE


def _held_first(name: str, matrix: Matrix, hold: Hold) -> Matrix:
    """Return a matrix that is held otherwise than what it is stacked with as it is held; any other as it is."""
    return in_int8(matrix) if isinstance(matrix, np.ndarray) and hold_of(name, hold) != hold else matrix


def _heads_differ(source: TensorSource, shape: tuple[int, int]) -> bool:
    """Return whether a checkpoint that should be tied holds two different tables; then, as in transformers, it is
    not."""
    table, head = source.tensor(_TABLE, shape), source.tensor(_HEAD, shape)
    starts = range(0, shape[0], _COMPARED_ROWS)
    differ = any(
        not np.array_equal(table[start : start + _COMPARED_ROWS], head[start : start + _COMPARED_ROWS])
        for start in starts
    )
    source.release(_TABLE)
    source.release(_HEAD)
    return differ


def _floats_of(rows: Matrix) -> Array:
    """float32, however they are held."""
    if not isinstance(rows, np.ndarray):
        return dequantized(in_order(rows))
    return from_bf16(rows) if rows.dtype == np.uint16 else rows.astype(np.float32)
