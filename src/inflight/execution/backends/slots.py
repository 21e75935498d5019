"""Request slots in host memory: what is kept of each running sequence between passes, as arrays indexed by row.

Knows plans and arrays; not models. Tokens, block tables and sampling settings live here, so that preparing a pass is a
few array operations whatever the batch: its inputs are gathered by row, and sampled tokens are scattered back.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any, NamedTuple, Self

import numpy as np

from inflight.core.types.plan import Capacity, Chunk, NewRequest
from inflight.core.types.sampling import PoolingParams
from inflight.execution.backends.pass_layout import StatePositions, laid_out
from inflight.execution.backends.protocol import Array, AttentionMetadata, SamplingBatch, StateCache, StateMetadata
from inflight.execution.backends.row_settings import FLOATS, AdaptedRows, RowSettings
from inflight.execution.backends.token_bias import NO_BIAS, both


class PassInputs(NamedTuple):
    """Inputs of one forward pass."""

    rows: Array  # int32[C], the slot of each chunk
    chunk_of: Array  # int32[T], the chunk of each token
    token_ids: Array  # int32[T]
    metadata: AttentionMetadata
    states: StateMetadata | None = None  # of a model with recurrent layers
    second_text_at: Array | None = None  # int32[C], the position at which the second text of a pair begins
    adapted: tuple[AdaptedRows, ...] = ()

    def token_types(self) -> Array:
        """int32[T]: 1 for tokens of the second text of a pair."""
        if self.second_text_at is None:
            return np.zeros_like(self.metadata.positions)
        return (self.metadata.positions >= self.second_text_at[self.chunk_of]).astype(np.int32)


class RequestSlots:
    def __init__(self, capacity: Capacity, padding_block: int, states: StateCache | None = None):
        """padding_block: the block to which padding writes its keys and values; it is never read. states: of a model
        with recurrent layers."""
        rows = capacity.max_rows + 1
        self._block_size = capacity.block_size
        self._padding_block = padding_block
        # Untouched pages of these cost nothing: they come zeroed from the kernel when first written.
        self._tokens = np.zeros((rows, capacity.max_model_len + 1), np.int32)
        self._groups = len(capacity.windows)
        width = -(-capacity.max_model_len // capacity.block_size)
        self._block_tables = np.zeros((self._groups, rows, width), np.int32)
        self._num_blocks = np.zeros((self._groups, rows), np.int32)  # entries used of each table
        self._settings = RowSettings(rows, capacity.vocab_size)
        self.states = states
        self._state_positions = StatePositions(rows)
        self._void = {capacity.max_rows}  # rows whose blocks are not theirs
        self._block_tables[:, capacity.max_rows] = padding_block
        self._ahead = 0

    def place_adapter(self, slot: int, adapter: Any | None) -> None:
        """adapter: packed; None: the slot is empty."""
        self._settings.place_adapter(slot, adapter)

    def shifted(self, ahead: int) -> Self:
        """Return the same slots for a pass that at position p reads the token at p + `ahead` and draws the one behind
        it, as a draft head does, which combines a token with the state before it."""
        seen = copy(self)
        seen._ahead = ahead
        return seen

    def start(self, new: NewRequest) -> None:
        """Start a sequence in the row, and drop the row's earlier contents."""
        row = new.row
        self._void.discard(row)
        self._tokens[row, : len(new.token_ids)] = new.token_ids
        self._num_blocks[:, row] = 0
        self._settings.start(new)
        self._state_positions.start(row, new.snapshot)
        if self.states is not None and new.snapshot >= 0:
            self.states.begin(row, new.snapshot)

    def free(self, row: int) -> None:
        self._settings.free(row)

    def discard(self, rows: Sequence[int]) -> None:
        """Treat these rows as padding until a new sequence starts in them: their tables may lack a failed step's
        blocks, and the blocks there instead belong to other requests."""
        for row in rows:
            self._void.add(row)
            self._block_tables[:, row] = self._padding_block
            self._tokens[row] = 0

    def append_blocks(self, chunks: Sequence[Chunk]) -> None:
        """Append the chunks' new blocks to their tables."""
        for chunk in chunks:
            if chunk.new_blocks:
                self._extend_table(0, chunk.row, chunk.new_blocks)
        if self._groups > 1:
            for chunk in chunks:
                for group, blocks in enumerate(chunk.window_blocks, 1):
                    self._extend_table(group, chunk.row, blocks)

    def gather(self, chunks: Sequence[Chunk], groups: int | None = None) -> PassInputs:
        """Gather the tokens of a pass, and their positions in the blocks of the first so many KV groups, or of all.
        Appends the chunks' new blocks to their tables, and puts drafts behind the known tokens."""
        for chunk in chunks:
            if chunk.draft_token_ids and chunk.row not in self._void:
                end = chunk.start + chunk.length
                self._tokens[chunk.row, end - len(chunk.draft_token_ids) : end] = chunk.draft_token_ids
        self.append_blocks(chunks)
        layout = laid_out(chunks)
        width = -(-layout.longest_context // self._block_size)
        groups = self._groups if groups is None else groups
        if groups == 1:
            tables = np.ascontiguousarray(self._block_tables[0, layout.rows, :width])[None]
        else:
            tables = np.ascontiguousarray(self._block_tables[:groups, layout.rows, :width])
        metadata = AttentionMetadata(layout.positions, layout.query_start, layout.context_len, tables)
        states = None if self.states is None else self._state_positions.advance(chunks, layout, self._void)
        token_ids = self._tokens[layout.row_of, layout.positions + self._ahead]
        second = self._settings.second_text_at[layout.rows]
        adapted = self._settings.adapted(layout.rows, layout.query_start)
        return PassInputs(layout.rows, layout.chunk_of, token_ids, metadata, states, second, adapted)

    def _extend_table(self, group: int, row: int, blocks: Sequence[int]) -> None:
        if row in self._void:
            return
        used = self._num_blocks[group, row]
        end = used + len(blocks)
        self._block_tables[group, row, used:end] = blocks
        self._num_blocks[group, row] = end

    def sampling(self, rows: Array, positions: Array, masks: Sequence[Array | None] | None = None) -> SamplingBatch:
        """Gather settings for draws behind positions int32[S] of rows int32[S]; tokens up to there count as known.
        masks: bits of what may be drawn, beside what the settings allow."""
        settings, positions = self._settings, positions + self._ahead
        prompt_lengths, top_k, top_logprobs = settings.integers.take(rows, axis=1)
        num_tokens = np.maximum(positions + 1, prompt_lengths)  # of a row that was discarded there may be fewer
        histories: list[Array | None] = [None] * len(rows)
        allowed: list[Array | None] = [None] * len(rows)
        offsets, biases = np.zeros(len(rows) + 1, np.int32), [NO_BIAS]
        if settings.histories or settings.biases:
            for index, row in enumerate(rows.tolist()):
                if row in settings.histories:
                    histories[index] = self._tokens[row, : num_tokens[index]]
                if rule := settings.biases.get(row):
                    bias, allowed[index] = rule.at(self._tokens[row, prompt_lengths[index] : num_tokens[index]])
                    biases.append(bias)
                    offsets[index + 1] = len(bias[0])
            np.cumsum(offsets, out=offsets)
        if masks is not None:
            allowed = [both(one, mask) for one, mask in zip(allowed, masks, strict=True)]
        bias_ids, bias_values = map(np.concatenate, zip(*biases, strict=True)) if len(biases) > 1 else NO_BIAS
        return SamplingBatch(
            **dict(zip(FLOATS, settings.floats.take(rows, axis=1), strict=True)),
            top_k=top_k,
            seed=settings.seed[rows],
            sample_index=settings.sample_index[rows],
            draw_index=(num_tokens - prompt_lengths).astype(np.uint32),
            histories=histories,
            prompt_lengths=prompt_lengths,
            bias_offsets=offsets,
            bias_ids=bias_ids,
            bias_values=bias_values,
            allowed=allowed,
            want_logprobs=settings.want_logprobs[rows],
            top_logprobs=top_logprobs,
        )

    def scoring(self, rows: Array, positions: Array) -> tuple[Array, Array]:
        """Return, for positions int32[S] of rows int32[S], the tokens that follow, int32[S], and how many alternatives
        are wanted beside each, int32[S]."""
        return self._tokens[rows, positions + 1], self._settings.prompt_logprobs[rows]

    def keep(self, rows: Array, positions: Array, token_ids: Array) -> None:
        """Store tokens token_ids int32[S] drawn behind positions int32[S] of rows int32[S]. Behind a wrong draft the
        token is meaningless, and the next step overwrites it."""
        self._tokens[rows, positions + self._ahead + 1] = token_ids

    def pooling(self, rows: Array) -> list[PoolingParams]:
        """Return the pooling settings of these rows."""
        return self._settings.pooling_of(rows)
