"""Runs the numpy definitions of operations over tensors of the CPU: where there is no GPU, and to compare kernels with.

Tensors become arrays over the same memory: bf16 as its upper halves, fp8 as its codes. Packed weights are read as a
GPU's kernels read them: codes of groups are widened to `act`, and x is quantized by token where a matrix has one scale
for each output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from inflight.execution.backends import fp8, int8
from inflight.execution.backends.matrices import by_output
from inflight.execution.backends.packed_adapter import AdapterPart
from inflight.execution.backends.protocol import (
    Array,
    RopeTable,
    Routing,
    SamplingBatch,
    StateMetadata,
)
from inflight.execution.backends.torch.device_pass import DevicePass
from inflight.execution.backends.torch.sampling_tensors import Drawn, Draws, Scores
from inflight.execution.backends.torch.tensors import LayerKV, LayerStates, PassTensors, RopeTensors
from inflight.execution.backends.torch.weights import (
    DeviceExperts,
    DeviceGateUp,
    DeviceHeads,
    DeviceLinear,
    DeviceTable,
    GroupedMatrix,
    PackedMatrix,
    PlainMatrix,
    one_of,
    outputs_of,
)
from inflight.execution.batch.input_batch import FLOATS
from inflight.execution.ops import sampling
from inflight.execution.ops.numpy_pass import (
    Act,
    CachedLayer,
    CachedVectors,
    NumpyActivation,
    NumpyPass,
    RecurrentStates,
)
from inflight.execution.ops.numpy_weights import (
    NumpyExperts,
    NumpyGateUp,
    NumpyHeads,
    NumpyLinear,
    NumpyTable,
    Packed,
)
from inflight.execution.program import Operation

_ITEMS = {torch.bfloat16: (torch.int16, np.uint16), torch.float8_e4m3fn: (torch.uint8, np.uint8)}


class _Metadata:
    """The `AttentionMetadata` of a pass's tensors, read when a definition asks for it: a drafter's pass between the
    layers and the logits of a pass may use the same memory, and logits need none of it."""

    def __init__(self, tensors: PassTensors) -> None:
        self._tensors = tensors

    @property
    def positions(self) -> Array:
        return self._tensors.positions.numpy()

    @property
    def query_start(self) -> Array:
        return self._tensors.query_start.numpy()

    @property
    def context_len(self) -> Array:
        return self._tensors.context_len.numpy()

    @property
    def block_tables(self) -> Array:
        tables: Array = self._tensors.block_tables.numpy()[:, self._tensors.rows.numpy()]
        return tables


class Definitions:
    """A `Launcher`. Packed weights are converted once each."""

    def __init__(self) -> None:
        self._converted: dict[tuple[int, str], tuple[Any, Any]] = {}  # (what a device has, for numpy), by identity
        self._sources: dict[int, Any] = {}  # what a device has, by the identity of what numpy has

    def launch(self, operation: Operation[...], on: DevicePass, arguments: Sequence[Any]) -> None:
        act = Act(str(on.act).removeprefix("torch."))
        with np.errstate(all="ignore"):  # rows of padding may have any numbers
            operation.definition(self._pass(on, act), *(self._argument(one, act) for one in arguments))

    def begin(self, appended: Tensor, tokens: Tensor, pass_: PassTensors) -> None:
        group, slot, at, block = appended.numpy().T
        pass_.block_tables.numpy()[group, slot, at] = block
        rows = pass_.rows.numpy()[pass_.chunk_of.numpy()]
        pass_.token_ids.numpy()[:] = tokens.numpy()[rows, pass_.positions.numpy()]

    def sample(self, logits: Tensor, draws: Draws) -> Drawn:
        untouched, found = logits.numpy(), logits.numpy().copy()
        drawn = sampling.sample(found, _settings_of(draws, logits.shape[1]))
        logit = found[np.arange(len(found)), drawn.token_ids]
        was_banned = (logit == -np.inf) & (untouched > -np.inf).any(axis=1)
        scores = (drawn.logprobs, drawn.top_ids, drawn.top_logprobs)
        return Drawn(
            torch.from_numpy(drawn.token_ids),
            torch.from_numpy(np.isfinite(logit)),
            torch.from_numpy(was_banned),
            *((torch.from_numpy(one) if draws.want_logprobs else None) for one in scores),
        )

    def score(self, logits: Tensor, token_ids: Tensor, top_logprobs: int) -> Scores:
        wanted = np.full(len(token_ids), top_logprobs, np.int32)
        return Scores(*map(torch.from_numpy, sampling.score(logits.numpy(), token_ids.numpy(), wanted)))

    def _pass(self, on: DevicePass, act: Act) -> NumpyPass:
        """Return the same pass in numpy, as its tensors are now."""
        of, moves = on.tensors, None
        rows = of.rows.numpy()
        if on.state_tensors is not None:
            moves = StateMetadata(rows, *(one.numpy() for one in on.state_tensors))
        states = None if on.states is None else _Layers(on.states, _states_of)
        where: Any = _Metadata(of)
        cached = _Layers(on.cached, lambda layer: _cached_of(layer, act))
        adapted = list(self._adapted(on, act))
        return NumpyPass(
            act, of.token_ids.numpy(), where, on.token_types, cached, states, moves, adapted, on.places, on.texts
        )

    def _adapted(self, on: DevicePass, act: Act) -> Iterator[tuple[Array, _SlotAdapter]]:
        """Yield the rows of each adapter."""
        if on.adapter_rows is None:
            return
        slots, rows = on.adapter_rows.slots.numpy(), on.adapter_rows.rows.numpy()
        tiles = rows.reshape(len(slots), -1)
        for slot in np.unique(slots[slots > 0]).tolist():
            numbers = tiles[slots == slot]
            yield numbers[numbers > 0] - 1, _SlotAdapter(slot - 1, on, self._sources)

    def _argument(self, value: Any, act: Act) -> Any:
        if isinstance(value, Tensor):
            array = array_of(value)
            return NumpyActivation(array, len(array)) if array.ndim == 2 else array
        if isinstance(value, RopeTensors):
            return RopeTable(value.cos.numpy(), value.sin.numpy(), _optional(value.q_scale))
        if type(value) not in _CONVERSIONS:
            return value
        key = (id(value), act.dtype)
        if key not in self._converted:
            made = _CONVERSIONS[type(value)](value, act)
            self._converted[key], self._sources[id(made)] = (value, made), value
        return self._converted[key][1]


class _Layers(NamedTuple):
    """Memory of layers, converted."""

    of: Callable[[int], Any]
    convert: Callable[[Any], Any]

    def layer(self, layer: int) -> Any:
        return self.convert(self.of(layer))


class _SlotAdapter(NamedTuple):
    """The adapter of a slot, as a packed adapter. sources: a device's matrices by the identity of numpy's."""

    slot: int
    on: DevicePass
    sources: dict[int, Any]

    def of(self, weight: NumpyLinear | NumpyGateUp) -> list[AdapterPart[NumpyLinear]]:
        adapted = self.on.adapted(self.sources[id(weight)])
        parts = [] if adapted is None else adapted[0].parts(self.slot)
        return [
            AdapterPart(one.first, *(NumpyLinear((array_of(x.cpu()),)) for x in (one.down, one.up))) for one in parts
        ]


def array_of(tensor: Tensor) -> Array:
    """Return an array over a tensor's memory."""
    view, item = _ITEMS.get(tensor.dtype, (None, None))
    found: Array = tensor.numpy() if view is None else tensor.view(view).numpy().view(item)
    return found


def _optional(tensor: Tensor | None) -> Array | None:
    return None if tensor is None else array_of(tensor)


def _cached_of(layer: LayerKV, act: Act) -> CachedLayer:
    def vectors(numbers: Tensor, scales: Tensor | None) -> CachedVectors:
        return CachedVectors(array_of(numbers), _optional(scales), act)

    values = None if layer.values is None else vectors(layer.values, layer.value_scales)
    return CachedLayer(layer.group, vectors(layer.keys, layer.key_scales), values)


def _states_of(states: LayerStates) -> RecurrentStates:
    return RecurrentStates(*map(array_of, states))


@dataclass(frozen=True, slots=True)
class ByTokenMatrix:
    """Codes with a scale for each output, which meet x quantized by token."""

    codes: Array  # int8[N, K], or uint8[N, K] of fp8
    scales: Array  # float32[N]

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], self.codes.shape[1]

    @property
    def nbytes(self) -> int:
        return int(self.codes.nbytes + self.scales.nbytes)

    def rows(self, at: Array) -> Array:
        return np.asarray(self._numbers(self.codes[at]) * self.scales[at, None], np.float32)

    def product(self, x: Array) -> Array:
        """Whole numbers are summed exactly, fp8's in float32."""
        codes, x_scales = (int8 if self.codes.dtype == np.int8 else fp8).quantize(x)
        numbers = self._numbers(self.codes).astype(np.float64 if self.codes.dtype == np.int8 else np.float32)
        sums = np.stack([numbers @ row for row in self._numbers(codes).astype(numbers.dtype)] or [numbers[:0, 0]])
        found: Array = sums.astype(np.float32) * x_scales[:, None] * self.scales
        return found

    def _numbers(self, codes: Array) -> Array:
        return codes if codes.dtype == np.int8 else fp8.E4M3[codes]


@dataclass(frozen=True, slots=True)
class WidenedMatrix:
    """Codes of groups as float32[N, K], which products round to `act`."""

    numbers: Array
    act: Act

    @property
    def shape(self) -> tuple[int, int]:
        return self.numbers.shape[0], self.numbers.shape[1]

    @property
    def nbytes(self) -> int:
        return int(self.numbers.nbytes)

    def rows(self, at: Array) -> Array:
        return np.asarray(self.numbers[at])

    def product(self, x: Array) -> Array:
        matrix, found = self.act.rounded(self.numbers), np.empty((len(x), len(self.numbers)), np.float32)
        for t, token in enumerate(x):
            found[t] = matrix @ token
        return found


def widened(matrix: GroupedMatrix, columns: int) -> Array:
    """Return the numbers of codes of groups, float32[N, columns], in the order of x's columns."""
    codes, scales = matrix.codes.numpy(), matrix.scales.numpy()[..., None]
    codes = codes.reshape(*scales.shape[:2], matrix.group * matrix.bits // 8)
    if matrix.bits == 4:
        codes = np.concatenate([codes & 15, codes >> 4], axis=2)
    if matrix.meanings is not None:
        numbers = matrix.meanings.float().numpy()[codes]
    else:
        numbers = codes.astype(np.float32) - np.float32(8 if matrix.bits == 4 and matrix.offsets is None else 0)
    values = numbers * scales
    if matrix.offsets is not None:
        values = values + matrix.offsets.numpy()[..., None]
    found: Array = values.reshape(len(values), -1)[:, :columns]
    if matrix.permutation is None:
        return np.ascontiguousarray(found)
    in_order: Array = np.empty_like(found)
    in_order[:, matrix.permutation.numpy()] = found
    return in_order


def _packed(matrix: PackedMatrix, columns: int, act: Act) -> Packed:
    if isinstance(matrix, PlainMatrix):
        return array_of(matrix.values)
    if isinstance(matrix, GroupedMatrix):
        return WidenedMatrix(widened(matrix, columns), act)
    return ByTokenMatrix(array_of(matrix.codes), matrix.scales.numpy())


def _linear(weight: DeviceLinear, act: Act) -> NumpyLinear:
    return NumpyLinear(tuple(_packed(part, weight.columns, act) for part in weight.parts), _optional(weight.bias))


def _experts(weight: DeviceExperts, act: Act) -> NumpyExperts:
    hidden = outputs_of(weight.down)
    width = outputs_of(weight.gate_up) // 2

    def each(stack: PackedMatrix, biases: Tensor | None, columns: int) -> Iterator[NumpyLinear]:
        for expert in range(weight.count):
            bias = None if biases is None else array_of(biases[expert])
            yield NumpyLinear((_packed(one_of(stack, expert), columns, act),), bias)

    of = weight.routing
    arrays = {"correction": _optional(of.correction), "expert_scale": _optional(of.expert_scale)}
    routing: Any = {**of._asdict(), **arrays}
    gate_up = tuple(NumpyGateUp(one) for one in each(weight.gate_up, weight.gate_up_bias, hidden))
    return NumpyExperts(gate_up, tuple(each(weight.down, weight.down_bias, width)), Routing(**routing), weight.gating)


def _heads(weight: DeviceHeads, act: Act) -> NumpyHeads:
    each = (one_of(weight.matrix, head) for head in range(weight.count))
    return NumpyHeads(tuple(NumpyLinear((_packed(one, weight.columns, act),)) for one in each))


def _table(weight: DeviceTable, act: Act) -> NumpyTable:
    if weight.share_scales is None:
        return NumpyTable(_packed(weight.matrix, weight.columns, act))
    assert not isinstance(weight.matrix, PlainMatrix)
    scales = weight.share_scales.numpy()
    shares = scales.shape[1]
    codes = weight.matrix.codes.numpy().reshape(-1, weight.columns // shares)
    return NumpyTable(by_output(codes, scales.reshape(-1)), None, shares)


_CONVERSIONS: dict[type, Callable[[Any, Act], Any]] = {
    DeviceLinear: _linear,
    DeviceGateUp: lambda weight, act: NumpyGateUp(_linear(weight.both, act)),
    DeviceExperts: _experts,
    DeviceHeads: _heads,
    DeviceTable: _table,
}


def _settings_of(draws: Draws, vocabulary: int) -> SamplingBatch:
    """Return what is needed for the draws as the definition takes it."""
    rows, num_tokens, of = draws.rows.numpy(), draws.num_tokens.numpy(), draws.settings
    prompt_lengths = of.prompt_length.numpy()[rows]
    known = [draws.tokens.numpy()[row, :count] for row, count in zip(rows.tolist(), num_tokens.tolist(), strict=True)]
    outputs = [tokens[prompt:] for tokens, prompt in zip(known, prompt_lengths.tolist(), strict=True)]
    biases = [_bias_of(draws, draw, output) for draw, output in enumerate(outputs)]
    allowed = None if draws.allowed is None else draws.allowed.numpy().view(np.uint32)
    return SamplingBatch(
        **{name: getattr(of, name).numpy()[rows] for name in FLOATS},
        top_k=of.top_k.numpy()[rows],
        seed=of.seed.numpy().view(np.uint64)[rows],
        sample_index=of.sample_index.numpy()[rows].astype(np.uint32),
        draw_index=(num_tokens - prompt_lengths).astype(np.uint32),
        histories=known if draws.needs_history else [None] * len(rows),
        prompt_lengths=prompt_lengths,
        bias_offsets=np.cumsum([0, *(len(ids) for ids, _ in biases)]).astype(np.int32),
        bias_ids=np.concatenate([ids for ids, _ in biases] or [np.zeros(0, np.int32)]),
        bias_values=np.concatenate([values for _, values in biases] or [np.zeros(0, np.float32)]),
        allowed=[None] * len(rows) if allowed is None else list(allowed),
        want_logprobs=np.full(len(rows), draws.want_logprobs),
        top_logprobs=np.full(len(rows), draws.top_logprobs, np.int32),
    )


def _bias_of(draws: Draws, draw: int, output: Array) -> tuple[Array, Array]:
    """Return the token ids and values of a draw's biases, with the last tokens of bad sequences that its output has
    begun."""
    ids, values = [np.zeros(0, np.int32)], [np.zeros(0, np.float32)]
    if draws.bias is not None:
        start, of_ids, of_values = (one.numpy() for one in draws.bias)
        ids.append(of_ids[start[draw] : start[draw + 1]])
        values.append(of_values[start[draw] : start[draw + 1]])
    if draws.bad is not None:
        start, offsets, tokens = (one.numpy() for one in draws.bad)
        for one in range(start[draw], start[draw + 1]):
            *begun, last = tokens[offsets[one] : offsets[one + 1]].tolist()
            if len(output) >= len(begun) and output[len(output) - len(begun) :].tolist() == begun:
                ids.append(np.array([last], np.int32))
                values.append(np.array([-np.inf], np.float32))
    return np.concatenate(ids), np.concatenate(values)
