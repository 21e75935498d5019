"""Rows' settings for draws, scores and vectors, in host memory, as arrays indexed by row.

Knows sampling settings; not a row's tokens or blocks, nor who draws.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from inflight.core.types.plan import NewRequest
from inflight.core.types.sampling import PoolingParams
from inflight.execution.backends.protocol import Array
from inflight.execution.backends.token_bias import TokenBias, token_bias

# One line of an array for each, so that those of a batch are gathered at once.
FLOATS = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
AS_IT_IS = PoolingParams(normalize=False)
ONE_TEXT = 2**31 - 1  # in the place of where a second one begins
INTEGERS = ("prompt_length", "top_k", "top_logprobs")


class AdaptedRows(NamedTuple):
    """Rows of a pass's activations, and the packed adapter that they are computed with."""

    rows: slice
    adapter: Any


class RowSettings:
    """floats: float32[FLOATS, rows]. integers: int32[INTEGERS, rows]. histories: rows whose draws depend on which
    tokens came before. biases: of rows that have any."""

    def __init__(self, rows: int, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.floats = np.zeros((len(FLOATS), rows), np.float32)
        self.integers = np.zeros((len(INTEGERS), rows), np.int32)
        self.prompt_lengths = self.integers[0]
        self.seed = np.zeros(rows, np.uint64)
        self.sample_index = np.zeros(rows, np.uint32)
        self.want_logprobs = np.zeros(rows, np.bool_)
        self.prompt_logprobs = np.zeros(rows, np.int32)
        self.second_text_at = np.full(rows, ONE_TEXT, np.int32)
        self.adapter_slot = np.full(rows, -1, np.int32)
        self._adapters: dict[int, Any] = {}  # packed, by slot
        self.pooling: dict[int, PoolingParams] = {}  # of rows that are pooled
        self.histories: set[int] = set()
        self.biases: dict[int, TokenBias] = {}

    def start(self, new: NewRequest) -> None:
        row, params = new.row, new.params
        self.floats[:, row] = [getattr(params, name) for name in FLOATS]
        # More candidates may be asked for than there are tokens, in numbers that no array holds.
        self.integers[:, row] = new.prompt_length, min(params.top_k, self.vocab_size), params.logprobs or 0
        self.seed[row] = new.seed % 2**64
        self.sample_index[row] = new.sample_index
        self.want_logprobs[row] = params.logprobs is not None
        self.prompt_logprobs[row] = params.prompt_logprobs or 0
        self.second_text_at[row] = ONE_TEXT if new.second_text_at is None else new.second_text_at
        self.adapter_slot[row] = new.adapter_slot
        self.free(row)
        if new.pooling is not None:
            self.pooling[row] = new.pooling
        if params.needs_history:
            self.histories.add(row)
        if bias := token_bias(new, self.vocab_size):
            self.biases[row] = bias

    def pooling_of(self, rows: Array) -> list[PoolingParams]:
        """Return the settings of pooled rows. A row of padding keeps its vector as it is."""
        return [self.pooling.get(row, AS_IT_IS) for row in rows.tolist()]

    def place_adapter(self, slot: int, adapter: Any | None) -> None:
        """adapter: packed; None: the slot is empty."""
        if adapter is None:
            self._adapters.pop(slot, None)
        else:
            self._adapters[slot] = adapter

    def adapted(self, rows: Array, query_start: Array) -> tuple[AdaptedRows, ...]:
        """Return the adapted rows of a pass over chunks of these rows, int32[C], whose tokens begin at int32[C + 1];
        neighbours with the same adapter are joined."""
        found: list[AdaptedRows] = []
        if not self._adapters:
            return ()
        starts = query_start.tolist()
        for slot, first, last in zip(self.adapter_slot[rows].tolist(), starts[:-1], starts[1:], strict=True):
            adapter = self._adapters.get(slot)
            if adapter is None or first == last:
                continue
            if found and found[-1].adapter is adapter and found[-1].rows.stop == first:
                first = found.pop().rows.start
            found.append(AdaptedRows(slice(first, last), adapter))
        return tuple(found)

    def free(self, row: int) -> None:
        self.biases.pop(row, None)
        self.pooling.pop(row, None)
        self.histories.discard(row)
