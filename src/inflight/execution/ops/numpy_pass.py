"""The pass that a numpy definition runs in: its tokens, the memory of layers, adapters, and how numbers are rounded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from inflight.execution.backends import fp8, int8
from inflight.execution.backends.bf16 import from_bf16, to_bf16
from inflight.execution.backends.protocol import Array, AttentionMetadata, StateMetadata
from inflight.execution.program import Program

Slots = tuple[Array, Array]  # of positions: their blocks, and their slots in these


@dataclass(frozen=True, slots=True)
class Act:
    """The format of `act`. Between `store` and `load` all is float32: backends round nowhere else."""

    dtype: str  # "bfloat16", whose arrays are the upper halves of float32, "float32" or "float16"

    @property
    def item(self) -> np.dtype[Any]:
        """Return the numpy type of arrays of `act`."""
        return np.dtype(np.uint16 if self.dtype == "bfloat16" else self.dtype)

    def store(self, values: Array) -> Array:
        """float32 → `act`, to nearest even."""
        return to_bf16(values) if self.dtype == "bfloat16" else np.asarray(values, self.item)

    def load(self, stored: Array) -> Array:
        """`act` → float32, exactly."""
        return from_bf16(stored) if self.dtype == "bfloat16" else np.asarray(stored, np.float32)

    def rounded(self, values: Array) -> Array:
        """float32 → the float32 that `act` keeps of it."""
        return self.load(self.store(values))


@dataclass(slots=True)
class NumpyActivation:
    """Memory for rows of numbers, `act` or float32. rows: those that were written last."""

    array: Array  # [capacity, width]
    rows: int

    @property
    def nbytes(self) -> int:
        return int(self.array.nbytes)

    @property
    def width(self) -> int:
        return int(self.array.shape[1])

    @property
    def written(self) -> Array:
        return self.array[: self.rows]

    def write(self, values: Array) -> None:
        self.rows = len(values)
        self.array[: self.rows] = values


@dataclass(frozen=True, slots=True)
class CachedVectors:
    """Keys or values of a layer in all blocks: [blocks, B, G, D] of `act`, int8, or uint8 (the codes of fp8), the
    latter two with scales float32[blocks, B, G]."""

    numbers: Array
    scales: Array | None
    act: Act

    def write(self, at: Slots, x: Array) -> None:
        """act[N, G, D] → slots."""
        if self.scales is None:
            self.numbers[at] = x
            return
        quantize = int8.quantize if self.numbers.dtype == np.int8 else fp8.quantize
        codes, scales = quantize(self.act.load(x).reshape(-1, x.shape[-1]))
        self.numbers[at], self.scales[at] = codes.reshape(x.shape), scales.reshape(x.shape[:-1])

    def read(self, at: Slots) -> Array:
        """float32[G, N, D] of what was written."""
        x = self.numbers[at]
        if self.scales is None:
            return self.act.load(x).transpose(1, 0, 2)
        numbers = x.astype(np.float32) if x.dtype == np.int8 else fp8.E4M3[x]
        return np.asarray(numbers * self.scales[at][..., None]).transpose(1, 0, 2)


class CachedLayer(NamedTuple):
    """A layer's keys and values in the blocks of its KV group. values None: they are the keys' first numbers."""

    group: int
    keys: CachedVectors
    values: CachedVectors | None

    def slots(self, positions: Array, table: Array) -> Slots:
        """Return the slots of a sequence's positions: p is in block table[p // B], at p % B."""
        block_size = self.keys.numbers.shape[1]
        return table[positions // block_size], positions % block_size


class RecurrentStates(NamedTuple):
    """One recurrent layer's states: those of request slots, then state checkpoints."""

    inputs: Array  # act[states, inputs, channels]
    matrices: Array  # float32[states, heads, key_dim, value_dim]


class LayerMemory(Protocol):
    """Memory of layers, of one kind."""

    def layer(self, layer: int) -> Any:
        """Return a layer's part. Raises ValueError for a layer that has none."""


class StateChunk(NamedTuple):
    """One chunk, as a recurrent layer reads it. tokens: rows of the pass. state: its index among a layer's states.
    is_first: the chunk begins at position 0. due: after how many of its tokens which states get a copy."""

    tokens: slice
    state: int
    is_first: bool
    due: dict[int, int]

    @property
    def length(self) -> int:
        return int(self.tokens.stop - self.tokens.start)

    def before(self, states: Array) -> Array:
        """Return the state before the chunk, of [states, …]; zeros where there is none."""
        return np.zeros_like(states[self.state]) if self.is_first else states[self.state]


@dataclass(slots=True)
class NumpyPass:
    """A pass in numpy. Definitions take it as their first parameter, where callers of operations give a `Program`.

    Attributes:
        token_types: Returns the text of a pair that each token is of, int32[T].
        kv_cache: Has a `CachedLayer` for each layer.
        states: Has `RecurrentStates` for each layer. None: the model has no recurrent layers.
        state_moves: What the chunks read and leave of these; `slots` are indices among a layer's states.
        adapted: Rows of the pass's activations, a slice or indices, and the adapter that they are computed with.
        places: Rows that `gather` reads.
        texts: Ranges of rows that `mean` reads.
    """

    act: Act
    token_ids: Array  # int32[T]
    metadata: AttentionMetadata
    token_types: Callable[[], Array]
    kv_cache: LayerMemory
    states: LayerMemory | None = None
    state_moves: StateMetadata | None = None
    adapted: Iterable[tuple[Any, Any]] = ()
    places: Sequence[int] = ()
    texts: Sequence[range] = ()

    def run(self, program: Program, places: Sequence[int] = (), texts: Sequence[range] = ()) -> None:
        """Run the definitions of a program's operations, in order. Rows of padding may have any numbers, about which
        numpy would warn."""
        self.places, self.texts = places, texts
        with np.errstate(all="ignore"):
            for operation, arguments in program:
                operation.definition(self, *arguments)

    def load(self, x: NumpyActivation) -> Array:
        """Return the rows of an activation that were written last, as float32."""
        return x.written if x.array.dtype == np.float32 else self.act.load(x.written)

    def store(self, values: Array, out: NumpyActivation) -> None:
        """Write float32 values, rounded to the activation's format."""
        out.write(values if out.array.dtype == np.float32 else self.act.store(values))

    def recurrent(self, layer: int) -> RecurrentStates:
        """Return a recurrent layer's states. Raises ValueError where there are none."""
        if self.states is None:
            raise ValueError("the batch of this pass was made without states of recurrent layers")
        found: RecurrentStates = self.states.layer(layer)
        return found

    def state_chunks(self) -> list[StateChunk]:
        """Return the states of each chunk that has tokens."""
        assert self.state_moves is not None
        moves, starts = self.state_moves, self.metadata.query_start.tolist()
        entries, found = moves.snapshot_start.tolist(), []
        for chunk, (row, context) in enumerate(
            zip(moves.rows.tolist(), self.metadata.context_len.tolist(), strict=True)
        ):
            due = range(entries[chunk], entries[chunk + 1])
            if starts[chunk] < starts[chunk + 1]:
                copies = {int(moves.positions[one]) - context: int(moves.slots[one]) for one in due}
                found.append(StateChunk(slice(starts[chunk], starts[chunk + 1]), row, context == 0, copies))
        return found
