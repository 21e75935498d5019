"""Request slots in host memory: what is kept of each running sequence between passes, as arrays indexed by row.

Knows plans and arrays; not models. Tokens, block tables and sampling settings live here, so that preparing a pass is a
few array operations whatever the batch: its inputs are gathered by row, and sampled tokens are scattered back.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from inflight.core.types.plan import Capacity, Chunk, NewRow
from inflight.execution.backends.protocol import Array, AttentionMetadata, SamplingBatch, StateCache, StateMetadata
from inflight.execution.backends.token_bias import NO_BIAS, TokenBias, token_bias

# One line of an array for each, so that those of a batch are gathered at once.
_FLOATS = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
_ROW, _START, _LENGTH = attrgetter("row"), attrgetter("start"), attrgetter("length")


class PassInputs(NamedTuple):
    """What one forward pass computes."""

    rows: Array  # int32[C], the slot of each chunk
    chunk_of: Array  # int32[T], the chunk of each token
    token_ids: Array  # int32[T]
    metadata: AttentionMetadata
    states: StateMetadata | None = None  # of a model with recurrent layers


class RequestSlots:
    def __init__(self, capacity: Capacity, padding_block: int, states: StateCache | None = None):
        """padding_block: where padding writes its keys and values; nobody reads them. states: of a model with recurrent
        layers."""
        rows = capacity.max_rows + 1
        self._block_size = capacity.block_size
        self._vocab_size = capacity.vocab_size
        self._padding_block = padding_block
        # Untouched pages of these cost nothing: they come zeroed from the kernel when first written.
        self._tokens = np.zeros((rows, capacity.max_model_len + 1), np.int32)
        self._groups = len(capacity.windows)
        width = -(-capacity.max_model_len // capacity.block_size)
        self._block_tables = np.zeros((self._groups, rows, width), np.int32)
        self._num_blocks = np.zeros((self._groups, rows), np.int32)  # entries used of each table
        self._floats = np.zeros((len(_FLOATS), rows), np.float32)
        self._integers = np.zeros((4, rows), np.int32)
        self._num_tokens, self._prompt_lengths, self._top_k, self._top_logprobs = self._integers
        self._seed = np.zeros(rows, np.uint64)
        self._sample_index = np.zeros(rows, np.uint32)
        self._want_logprobs = np.zeros(rows, np.bool_)
        self._prompt_logprobs = np.zeros(rows, np.int32)
        self._histories: set[int] = set()  # rows whose draws depend on which tokens came before
        self._biases: dict[int, TokenBias] = {}
        self._normalize = np.zeros(rows, np.bool_)  # of a vector
        self.states = states
        self._state_positions = np.zeros(rows, np.int32)  # at which a row's state stands; -1: where its snapshot stood
        self._void = {capacity.max_rows}  # rows whose blocks are not theirs
        self._block_tables[:, capacity.max_rows] = padding_block

    def start(self, new: NewRow) -> None:
        """A sequence takes the row; whatever was there before is gone."""
        row, params = new.row, new.params
        count = len(new.token_ids)
        self._void.discard(row)
        self._tokens[row, :count] = new.token_ids
        self._num_tokens[row] = count
        self._num_blocks[:, row] = 0
        self._prompt_lengths[row] = new.prompt_length
        self._floats[:, row] = [getattr(params, name) for name in _FLOATS]
        # More candidates may be asked for than there are tokens, in numbers that no array holds.
        self._top_k[row] = min(params.top_k, self._vocab_size)
        self._seed[row] = new.seed % 2**64
        self._sample_index[row] = new.sample_index
        self._want_logprobs[row] = params.logprobs is not None
        self._top_logprobs[row] = params.logprobs or 0
        self._prompt_logprobs[row] = params.prompt_logprobs or 0
        self._normalize[row] = new.pooling is not None and new.pooling.normalize
        self._state_positions[row] = -1 if new.snapshot >= 0 else 0
        if self.states is not None and new.snapshot >= 0:
            self.states.begin(row, new.snapshot)
        self.free(row)
        if params.needs_history:
            self._histories.add(row)
        if bias := token_bias(new, self._vocab_size):
            self._biases[row] = bias

    def free(self, row: int) -> None:
        self._biases.pop(row, None)
        self._histories.discard(row)

    def discard(self, rows: Sequence[int]) -> None:
        """What is computed for these rows from now on is padding, until they are taken anew: their tables may lack the
        blocks of a step that failed, and what stands there instead belongs to others."""
        for row in rows:
            self._void.add(row)
            self._block_tables[:, row] = self._padding_block
            self._tokens[row] = 0
            self._num_tokens[row] = self._prompt_lengths[row]

    def gather(self, chunks: Sequence[Chunk]) -> PassInputs:
        """The tokens of a pass, and where they lie. Appends the chunks' new blocks to their tables, and puts drafts
        behind the known tokens."""
        for chunk in chunks:
            if chunk.draft_token_ids and chunk.row not in self._void:
                known = self._num_tokens[chunk.row]
                self._tokens[chunk.row, known : known + len(chunk.draft_token_ids)] = chunk.draft_token_ids
            if chunk.new_blocks:
                self._extend_table(0, chunk.row, chunk.new_blocks)
        if self._groups > 1:
            for chunk in chunks:
                for group, blocks in enumerate(chunk.window_blocks, 1):
                    self._extend_table(group, chunk.row, blocks)
        count = len(chunks)
        rows = np.fromiter(map(_ROW, chunks), np.int32, count)
        context_len = np.fromiter(map(_START, chunks), np.int32, count)
        lengths = np.fromiter(map(_LENGTH, chunks), np.int32, count)
        query_start = np.zeros(count + 1, np.int32)
        np.cumsum(lengths, out=query_start[1:])
        chunk_of = np.arange(count, dtype=np.int32)
        positions, slots = context_len, rows
        if query_start[-1] != count:  # not decodes alone
            chunk_of = np.repeat(chunk_of, lengths)
            slots = rows[chunk_of]
            positions = (context_len - query_start[:-1])[chunk_of] + np.arange(query_start[-1], dtype=np.int32)
        width = -(-int((context_len + lengths).max(initial=0)) // self._block_size)
        if self._groups == 1:
            tables = np.ascontiguousarray(self._block_tables[0, rows, :width])[None]
        else:
            tables = np.ascontiguousarray(self._block_tables[:, rows, :width])
        metadata = AttentionMetadata(positions, query_start, context_len, tables)
        states = None if self.states is None else self._states_of(chunks, rows, context_len, lengths)
        return PassInputs(rows, chunk_of, self._tokens[slots, positions], metadata, states)

    def _states_of(self, chunks: Sequence[Chunk], rows: Array, starts: Array, lengths: Array) -> StateMetadata:
        """Raises ValueError for a chunk that does not go on where its row's state stands. What is void goes on anywhere
        and leaves no snapshot, since the slot may be another's by now."""
        stand = self._state_positions[rows]
        for index in np.flatnonzero((stand != starts) & (stand >= 0)).tolist():
            if chunks[index].row not in self._void:
                raise ValueError(
                    f"row {chunks[index].row} computes from position {starts[index]}, but its recurrent state stands "
                    f"at {stand[index]}; a state goes on from there, or from a snapshot"
                )
        self._state_positions[rows] = starts + lengths
        due = [() if chunk.row in self._void else chunk.snapshots for chunk in chunks]
        entries = np.array([entry for one in due for entry in one], np.int32).reshape(-1, 2)
        snapshot_start = np.zeros(len(chunks) + 1, np.int32)
        np.cumsum([len(one) for one in due], out=snapshot_start[1:])
        return StateMetadata(
            rows, snapshot_start, np.ascontiguousarray(entries[:, 0]), np.ascontiguousarray(entries[:, 1])
        )

    def _extend_table(self, group: int, row: int, blocks: Sequence[int]) -> None:
        if row in self._void:
            return
        used = self._num_blocks[group, row]
        end = used + len(blocks)
        self._block_tables[group, row, used:end] = blocks
        self._num_blocks[group, row] = end

    def sampling(self, rows: Array, positions: Array) -> SamplingBatch:
        """Settings for draws behind positions int32[S] of rows int32[S]; what stands up to there counts as known."""
        _, prompt_lengths, top_k, top_logprobs = self._integers.take(rows, axis=1)
        num_tokens = np.maximum(positions + 1, prompt_lengths)  # of a row that was discarded there may be fewer
        histories: list[Array | None] = [None] * len(rows)
        allowed: list[Array | None] = [None] * len(rows)
        offsets, biases = np.zeros(len(rows) + 1, np.int32), [NO_BIAS]
        if self._histories or self._biases:
            for index, row in enumerate(rows.tolist()):
                if row in self._histories:
                    histories[index] = self._tokens[row, : num_tokens[index]]
                if rule := self._biases.get(row):
                    bias, allowed[index] = rule.at(self._tokens[row, prompt_lengths[index] : num_tokens[index]])
                    biases.append(bias)
                    offsets[index + 1] = len(bias[0])
            np.cumsum(offsets, out=offsets)
        bias_ids, bias_values = map(np.concatenate, zip(*biases, strict=True)) if len(biases) > 1 else NO_BIAS
        return SamplingBatch(
            **dict(zip(_FLOATS, self._floats.take(rows, axis=1), strict=True)),
            top_k=top_k,
            seed=self._seed[rows],
            sample_index=self._sample_index[rows],
            draw_index=(num_tokens - prompt_lengths).astype(np.uint32),
            histories=histories,
            prompt_lengths=prompt_lengths,
            bias_offsets=offsets,
            bias_ids=bias_ids,
            bias_values=bias_values,
            allowed=allowed,
            want_logprobs=self._want_logprobs[rows],
            top_logprobs=top_logprobs,
        )

    def scoring(self, rows: Array, positions: Array) -> tuple[Array, Array]:
        """Of positions int32[S] of rows int32[S]: the tokens that follow, int32[S], and the alternatives wanted beside
        each, int32[S]."""
        return self._tokens[rows, positions + 1], self._prompt_logprobs[rows]

    def append(self, rows: Array, token_ids: Array) -> None:
        """A sampled token of each row becomes known. rows, token_ids: int32[S]."""
        self._tokens[rows, self._num_tokens[rows]] = token_ids
        self._num_tokens[rows] += 1

    def extend(self, row: int, token_ids: Sequence[int]) -> None:
        """So do several of one row."""
        known = self._num_tokens[row]
        self._tokens[row, known : known + len(token_ids)] = token_ids
        self._num_tokens[row] += len(token_ids)

    def normalizes(self, rows: Array) -> Array:
        """Whether the vectors of these rows are to have length 1, bool[S]."""
        return self._normalize[rows]
