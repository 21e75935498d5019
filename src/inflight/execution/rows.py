"""Row state: what the executor keeps of each running sequence between plans, as arrays indexed by row.

Knows plans and arrays; not models. Tokens, block tables and sampling settings live here, so that preparing a step is a
few array operations whatever the batch: a step's inputs are gathered by row, and sampled tokens are scattered back.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from inflight.core.types.plan import Capacity, Chunk, NewRow
from inflight.core.types.sampling import SamplingParams
from inflight.execution.ops.protocol import Array, SamplingBatch, StepLayout
from inflight.execution.row_bias import NO_BIAS, RowBias, row_bias

_SETTINGS = {
    "temperature": np.float32,
    "top_k": np.int32,
    "top_p": np.float32,
    "min_p": np.float32,
    "repetition_penalty": np.float32,
    "presence_penalty": np.float32,
    "frequency_penalty": np.float32,
}


class RowStore:
    def __init__(self, capacity: Capacity, scratch_block: int):
        """scratch_block: where padding writes its keys and values; nobody reads them."""
        self.padding_row = capacity.max_rows
        rows = capacity.max_rows + 1
        self._block_size = capacity.block_size
        self._vocab_size = capacity.vocab_size
        # Untouched pages of these cost nothing: they come zeroed from the kernel when first written.
        self._tokens = np.zeros((rows, capacity.max_model_len + 1), np.int32)
        self._tables = np.zeros((rows, -(-capacity.max_model_len // capacity.block_size)), np.int32)
        self._tables[self.padding_row] = scratch_block
        self._known = np.zeros(rows, np.int32)
        self._blocks = np.zeros(rows, np.int32)  # entries used of each table
        self._prompt_lengths = np.zeros(rows, np.int32)
        self._settings = {name: np.zeros(rows, dtype) for name, dtype in _SETTINGS.items()}
        self._seed = np.zeros(rows, np.uint64)
        self._sample_index = np.zeros(rows, np.uint32)
        self._want_logprobs = np.zeros(rows, np.bool_)
        self._top_logprobs = np.zeros(rows, np.int32)
        self._prompt_logprobs = np.zeros(rows, np.int32)
        self._params: list[SamplingParams | None] = [None] * rows
        self._biases: list[RowBias | None] = [None] * rows

    def start(self, new: NewRow) -> None:
        """A sequence takes the row; whatever was there before is gone."""
        row, params = new.row, new.params
        known = len(new.token_ids)
        self._tokens[row, :known] = new.token_ids
        self._known[row] = known
        self._blocks[row] = 0
        self._prompt_lengths[row] = new.prompt_length
        for name, values in self._settings.items():
            value = getattr(params, name)
            # More candidates may be asked for than there are tokens, in numbers that no array holds.
            values[row] = min(value, self._vocab_size) if name == "top_k" else value
        self._seed[row] = new.seed % 2**64
        self._sample_index[row] = new.sample_index
        self._want_logprobs[row] = params.logprobs is not None
        self._top_logprobs[row] = params.logprobs or 0
        self._prompt_logprobs[row] = params.prompt_logprobs or 0
        self._params[row] = params
        self._biases[row] = row_bias(new, self._vocab_size)

    def free(self, row: int) -> None:
        self._params[row] = None
        self._biases[row] = None

    def layout(self, chunks: Sequence[Chunk]) -> tuple[Array, StepLayout]:
        """Token ids int32[T] of the step, and where they lie. Appends the chunks' new blocks to their tables."""
        for chunk in chunks:
            if chunk.new_blocks:
                used = self._blocks[chunk.row]
                end = used + len(chunk.new_blocks)
                self._tables[chunk.row, used:end] = chunk.new_blocks
                self._blocks[chunk.row] = end
        count = len(chunks)
        rows = np.fromiter((chunk.row for chunk in chunks), np.int32, count)
        starts = np.fromiter((chunk.start for chunk in chunks), np.int32, count)
        lengths = np.fromiter((chunk.length for chunk in chunks), np.int32, count)
        offsets = np.zeros(count + 1, np.int32)
        np.cumsum(lengths, out=offsets[1:])
        positions = np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1], dtype=np.int32)
        token_ids = self._tokens[np.repeat(rows, lengths), positions]
        width = -(-int((starts + lengths).max()) // self._block_size)
        tables = np.ascontiguousarray(self._tables[rows, :width])
        return token_ids, StepLayout(positions, offsets, starts, tables)

    def sampling(self, rows: Array) -> SamplingBatch:
        """Settings of the rows to sample, int32[S]."""
        histories: list[Array | None] = []
        biases: list[tuple[Array, Array]] = []
        for row in rows.tolist():
            params = self._params[row]
            assert params is not None
            histories.append(self._tokens[row, : self._known[row]] if params.needs_history else None)
            bias = self._biases[row]
            biases.append(
                NO_BIAS if bias is None else bias.at(self._tokens[row, self._prompt_lengths[row] : self._known[row]])
            )
        offsets = np.zeros(len(biases) + 1, np.int32)
        np.cumsum([len(ids) for ids, _ in biases], out=offsets[1:])
        outputs = self._known[rows] - self._prompt_lengths[rows]
        return SamplingBatch(
            **{name: values[rows] for name, values in self._settings.items()},
            seed=self._seed[rows],
            sample_index=self._sample_index[rows],
            draw_index=outputs.astype(np.uint32),
            histories=histories,
            prompt_lengths=self._prompt_lengths[rows],
            bias_offsets=offsets,
            bias_ids=np.concatenate([ids for ids, _ in biases or [NO_BIAS]]),
            bias_values=np.concatenate([values for _, values in biases or [NO_BIAS]]),
            want_logprobs=self._want_logprobs[rows],
            top_logprobs=self._top_logprobs[rows],
        )

    def scoring(self, chunks: Sequence[Chunk]) -> tuple[Array, Array]:
        """The tokens that follow the chunks' scored positions, int32[S], and the alternatives wanted beside each,
        int32[S]."""
        following = [self._tokens[chunk.row, chunk.score.start + 1 : chunk.score.stop + 1] for chunk in chunks]
        rows = np.fromiter((chunk.row for chunk in chunks), np.int32, len(chunks))
        return np.concatenate(following), np.repeat(self._prompt_logprobs[rows], [len(chunk.score) for chunk in chunks])

    def append(self, rows: Array, token_ids: Array) -> None:
        """The sampled tokens become known. rows, token_ids: int32[S]."""
        self._tokens[rows, self._known[rows]] = token_ids
        self._known[rows] += 1
