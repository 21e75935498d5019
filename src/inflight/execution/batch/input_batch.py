"""The input batch: state of each running sequence from step to step, in host memory, as arrays indexed by request slot.

A plan changes it once a step (`update`); each pass gathers its inputs from it (`gather`, `sampling`, `scoring`,
`pooling`), and tokens that the host draws are kept in it (`keep`). A device keeps a mirror, which reads what changed
(`Changes`), and keeps the tokens that it draws itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import numpy as np

from inflight.core.types.plan import Capacity, Chunk, NewRequest
from inflight.core.types.sampling import PoolingParams
from inflight.execution.backends.protocol import Array, AttentionMetadata, SamplingBatch, StateCache, StateMetadata
from inflight.execution.batch.pass_layout import ONE_TEXT, AdaptedRows, PassInputs, PassLayout, laid_out
from inflight.execution.batch.token_bias import NO_BIAS, Bias, TokenBias, both, token_bias

# One line of an array for each, so that those of a pass are gathered at once.
FLOATS = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
INTEGERS = ("prompt_length", "top_k", "top_logprobs")
_RAW_VECTOR = PoolingParams(normalize=False)  # of a slot of padding


@dataclass(slots=True)
class Changes:
    """Changes of an input batch since its device mirror read them.

    Attributes:
        started: Slots of new sequences, whose settings are new.
        discarded: Slots whose tokens and tables were cleared, before all that follows.
        tokens: (slot, start, end) of tokens that are new.
        blocks: (group, slot, index, block) of block tables.
        adapters: Adapter slots whose adapter is another.
    """

    started: list[int] = field(default_factory=list)
    discarded: list[int] = field(default_factory=list)
    tokens: list[tuple[int, int, int]] = field(default_factory=list)
    blocks: list[tuple[int, int, int, int]] = field(default_factory=list)
    adapters: set[int] = field(default_factory=set)

    def clear(self) -> None:
        for one in (self.started, self.discarded, self.tokens, self.blocks, self.adapters):
            one.clear()

    def discard(self, slots: Iterable[int]) -> None:
        gone = set(slots)
        self.discarded += gone
        self.tokens = [one for one in self.tokens if one[0] not in gone]
        self.blocks = [one for one in self.blocks if one[1] not in gone]


class DrawLimits(NamedTuple):
    """Tokens that settings, grammars and scripts favour or ban, for S draws: as `SamplingBatch` has them."""

    bias_offsets: Array
    bias_ids: Array
    bias_values: Array
    allowed: list[Array | None]


class InputBatch:
    """State of running sequences by request slot; `capacity.max_rows` is the slot of padding.

    Attributes:
        tokens: int32[slots, longest sequence + 1], known tokens and drafts; behind them no number has a meaning.
        block_tables: int32[groups, slots, blocks of the longest sequence], of which each uses the first `num_blocks`.
        discarded: Slots whose blocks may be other sequences': they read and write the padding block alone.
        floats: float32[FLOATS, slots]; integers: int32[INTEGERS, slots]; numbers: the bits of both.
        histories: Slots whose draws depend on which tokens came before.
        adapters: Packed adapters by adapter slot.
        states: Live states and checkpoints of a model with recurrent layers.
        mirror: The same on a device, where a backend has one; changes: what it has not read yet.
    """

    def __init__(self, capacity: Capacity, padding_block: int, states: StateCache | None = None) -> None:
        """padding_block: the block to which padding writes its keys and values; it is never read."""
        slots, self.padding_slot = capacity.max_rows + 1, capacity.max_rows
        self.vocab_size, self.block_size = capacity.vocab_size, capacity.block_size
        self.max_len = capacity.max_model_len
        self.states, self.padding_block = states, padding_block
        self.mirror: Any = None
        self.changes = Changes()
        # Untouched pages of these cost nothing: they come zeroed from the kernel when first written.
        self.tokens = np.zeros((slots, capacity.max_model_len + 1), np.int32)
        width = -(-capacity.max_model_len // capacity.block_size)
        self.block_tables = np.zeros((len(capacity.windows), slots, width), np.int32)
        self.block_tables[:, self.padding_slot] = padding_block
        self.num_blocks = np.zeros((len(capacity.windows), slots), np.int32)
        self.discarded = {self.padding_slot}
        self.numbers = np.zeros((len(FLOATS) + len(INTEGERS), slots), np.int32)
        self.floats, self.integers = self.numbers[: len(FLOATS)].view(np.float32), self.numbers[len(FLOATS) :]
        self.seed = np.zeros(slots, np.uint64)
        self.sample_index = np.zeros(slots, np.uint32)
        self.want_logprobs = np.zeros(slots, np.bool_)
        self.prompt_logprobs = np.zeros(slots, np.int32)
        self.second_text_at = np.full(slots, ONE_TEXT, np.int32)
        self.adapter_slots = np.full(slots, -1, np.int32)
        self.histories: set[int] = set()
        self.biases: dict[int, TokenBias] = {}
        self.adapters: dict[int, Any] = {}
        self._pooling: dict[int, PoolingParams] = {}
        self._pairs: set[int] = set()  # slots with a second text
        self._state_positions = np.zeros(slots, np.int32)  # -1: where its snapshot stood
        self._ahead = 0
        self._last_drawn: bytes | None = None  # slots whose settings were gathered last
        self._last_settings: tuple[Array, ...] = ()

    def attach(self, mirror: Any) -> None:
        """Note changes for a mirror from now on."""
        self.mirror = mirror

    def shifted(self, ahead: int) -> Self:
        """Return the same batch for a pass that at position p reads the token at p + `ahead` and draws the one behind
        it, as a draft head does, which combines a token with the state before it."""
        seen = copy(self)
        seen._ahead = ahead
        return seen

    @property
    def ahead(self) -> int:
        return self._ahead

    # -- as plans change it -----------------------------------------------------------------------------------------
    def update(self, chunks: Sequence[Chunk], new: Sequence[NewRequest] = (), freed: Sequence[int] = ()) -> None:
        """Apply a plan: end the sequences of freed slots, start new ones, append the chunks' blocks to their tables.

        Raises:
            ValueError: For more tokens or blocks than a sequence can have. No new sequence has started then.
        """
        for slot in freed:
            self._free(slot)
        try:
            for one in new:
                self._start(one)
        except BaseException:  # later passes over these slots may be in flight
            self.discard([one.row for one in new])
            raise
        for chunk in chunks:
            if chunk.new_blocks:
                self._append(0, chunk.row, chunk.new_blocks)
            if chunk.window_blocks:
                for group, blocks in enumerate(chunk.window_blocks, 1):
                    self._append(group, chunk.row, blocks)

    def discard(self, slots: Sequence[int]) -> None:
        """Treat these slots as padding until a new sequence starts in them: their tables may lack a failed step's
        blocks, and the blocks there instead belong to other requests."""
        self.discarded.update(slots)
        self.block_tables[:, list(slots)] = self.padding_block
        self.tokens[list(slots)] = 0
        if self.mirror is not None:
            self.changes.discard(slots)

    def set_adapter(self, slot: int, adapter: Any | None) -> None:
        """Compute sequences that name this adapter slot with a packed adapter from the next pass on; None: with none.
        Passes before may still be in flight."""
        if adapter is None:
            self.adapters.pop(slot, None)
        else:
            self.adapters[slot] = adapter
        if self.mirror is not None:
            self.changes.adapters.add(slot)

    def _start(self, new: NewRequest) -> None:
        slot, params, count = new.row, new.params, len(new.token_ids)
        if count > self.max_len:
            raise ValueError(f"row {slot} begins with {count:,} tokens, but a sequence has {self.max_len:,} at most")
        self._free(slot)
        self._last_drawn = None
        self.discarded.discard(slot)
        self.tokens[slot, :count] = new.token_ids
        self.num_blocks[:, slot] = 0
        self.floats[:, slot] = [getattr(params, name) for name in FLOATS]
        # More candidates may be asked for than there are tokens, in numbers that no array holds.
        self.integers[:, slot] = new.prompt_length, min(params.top_k, self.vocab_size), params.logprobs or 0
        self.seed[slot] = new.seed % 2**64
        self.sample_index[slot] = new.sample_index
        self.want_logprobs[slot] = params.logprobs is not None
        self.prompt_logprobs[slot] = params.prompt_logprobs or 0
        self.second_text_at[slot] = ONE_TEXT if new.second_text_at is None else new.second_text_at
        self.adapter_slots[slot] = new.adapter_slot
        if new.second_text_at is not None:
            self._pairs.add(slot)
        if new.pooling is not None:
            self._pooling[slot] = new.pooling
        if params.needs_history:
            self.histories.add(slot)
        if bias := token_bias(new, self.vocab_size):
            self.biases[slot] = bias
        self._state_positions[slot] = -1 if new.snapshot >= 0 else 0
        if self.states is not None and new.snapshot >= 0:
            self.states.begin(slot, new.snapshot)
        if self.mirror is not None:
            self.changes.started.append(slot)
            self.changes.tokens.append((slot, 0, count))

    def _free(self, slot: int) -> None:
        self.biases.pop(slot, None)
        self._pooling.pop(slot, None)
        self._pairs.discard(slot)
        self.histories.discard(slot)
        self.adapter_slots[slot] = -1

    def _append(self, group: int, slot: int, blocks: Sequence[int]) -> None:
        if slot in self.discarded:
            return
        used = int(self.num_blocks[group, slot])
        end, width = used + len(blocks), self.block_tables.shape[2]
        if end > width:
            raise ValueError(f"a table of {end:,} blocks is longer than the {width:,} of {self.max_len:,} tokens")
        self.block_tables[group, slot, used:end] = blocks
        self.num_blocks[group, slot] = end
        if self.mirror is not None:
            self.changes.blocks += [(group, slot, index, block) for index, block in enumerate(blocks, used)]

    # -- as passes read it ------------------------------------------------------------------------------------------
    def gather(self, chunks: Sequence[Chunk], groups: int | None = None) -> PassInputs:
        """Gather the tokens of a pass, and their positions in the blocks of the first so many KV groups, or of all."""
        self.put_drafts(chunks)
        layout = laid_out(chunks)
        width = -(-layout.longest_context // self.block_size)
        groups = len(self.block_tables) if groups is None else groups
        if groups == 1:
            tables = np.ascontiguousarray(self.block_tables[0, layout.rows, :width])[None]
        else:
            tables = np.ascontiguousarray(self.block_tables[:groups, layout.rows, :width])
        return PassInputs(
            layout.rows,
            layout.chunk_of,
            self.tokens[layout.row_of, layout.positions + self._ahead if self._ahead else layout.positions],
            AttentionMetadata(layout.positions, layout.query_start, layout.context_len, tables),
            None if self.states is None else self.move_states(chunks, layout),
            self.second_text_at[layout.rows] if self._pairs else None,
            self._adapted(layout) if self.adapters else (),
        )

    def put_drafts(self, chunks: Sequence[Chunk]) -> None:
        """Put the chunks' drafts behind the known tokens."""
        for chunk in chunks:
            if chunk.draft_token_ids and chunk.row not in self.discarded:
                end = chunk.start + chunk.length
                start = end - len(chunk.draft_token_ids)
                self.tokens[chunk.row, start:end] = chunk.draft_token_ids
                if self.mirror is not None:
                    self.changes.tokens.append((chunk.row, start, end))

    def move_states(self, chunks: Sequence[Chunk], layout: PassLayout) -> StateMetadata:
        """Move the slots' recurrent states on to their chunks' ends. Slots that were discarded start anywhere and leave
        no snapshot, since another request may own the snapshot's slot by now.

        Raises:
            ValueError: For a chunk that does not start where its slot's state stands.
        """
        starts, stand = layout.context_len, self._state_positions[layout.rows]
        for index in np.flatnonzero((stand != starts) & (stand >= 0)).tolist():
            if chunks[index].row not in self.discarded:
                raise ValueError(
                    f"row {chunks[index].row} computes from position {starts[index]}, but its recurrent state stands "
                    f"at {stand[index]}; a state goes on from there, or from a snapshot"
                )
        self._state_positions[layout.rows] = starts + layout.lengths
        due = [() if chunk.row in self.discarded else chunk.snapshots for chunk in chunks]
        entries = np.array([entry for one in due for entry in one], np.int32).reshape(-1, 2)
        snapshot_start = np.zeros(len(chunks) + 1, np.int32)
        np.cumsum([len(one) for one in due], out=snapshot_start[1:])
        positions, slots = np.ascontiguousarray(entries[:, 0]), np.ascontiguousarray(entries[:, 1])
        return StateMetadata(layout.rows, snapshot_start, positions, slots)

    def _adapted(self, layout: PassLayout) -> tuple[AdaptedRows, ...]:
        """Return the rows of a pass with an adapter; neighbours with the same one are joined."""
        found: list[AdaptedRows] = []
        starts = layout.query_start.tolist()
        wanted = self.adapter_slots[layout.rows].tolist()
        for slot, first, last in zip(wanted, starts[:-1], starts[1:], strict=True):
            adapter = self.adapters.get(slot)
            if adapter is None or first == last:
                continue
            if found and found[-1].adapter is adapter and found[-1].rows.stop == first:
                first = found.pop().rows.start
            found.append(AdaptedRows(slice(first, last), adapter))
        return tuple(found)

    def sampling(self, slots: Array, positions: Array, masks: Sequence[Array | None] | None = None) -> SamplingBatch:
        """Gather settings for draws behind positions int32[S] of slots int32[S]; tokens up to there count as known.
        masks: bits of what may be drawn, beside what the settings allow."""
        if (key := slots.tobytes()) != self._last_drawn:  # the same slots draw in many steps, one behind the other
            numbers = self.numbers.take(slots, axis=1)
            of_slots = self.seed[slots], self.sample_index[slots], self.want_logprobs[slots]
            self._last_drawn = key
            self._last_settings = *numbers[: len(FLOATS)].view(np.float32), *numbers[len(FLOATS) :], *of_slots
        temperature, top_p, min_p, repetition, presence, frequency, *others = self._last_settings
        prompt_lengths, top_k, top_logprobs, seed, sample_index, want_logprobs = others
        num_tokens = self.num_tokens(positions, prompt_lengths)
        counts = num_tokens - prompt_lengths
        histories: list[Array | None] = [None] * len(slots)
        if self.histories:
            for index, slot in enumerate(slots.tolist()):
                if slot in self.histories:
                    histories[index] = self.tokens[slot, : num_tokens[index]]
        return SamplingBatch(
            temperature,
            top_k,
            top_p,
            min_p,
            repetition,
            presence,
            frequency,
            seed,
            sample_index,
            counts.astype(np.uint32),
            histories,
            prompt_lengths,
            *self.limits(slots, counts, masks, knows_tokens=True),
            want_logprobs,
            top_logprobs,
        )

    def num_tokens(self, positions: Array, prompt_lengths: Array) -> Array:
        """Return how many tokens stand before draws behind these positions; of a discarded slot, its prompt's."""
        found: Array = np.maximum(positions + np.int32(1 + self._ahead), prompt_lengths)
        return found

    def limits(
        self, slots: Array, counts: Array, masks: Sequence[Array | None] | None, knows_tokens: bool
    ) -> DrawLimits:
        """Gather the limits of draws behind so many output tokens. knows_tokens: whether the host knows these, so that
        bad sequences that they begin are among the biases."""
        offsets, biases = np.zeros(len(slots) + 1, np.int32), list[Bias]()
        allowed: list[Array | None] = [None] * len(slots) if masks is None else list(masks)
        if self.biases:
            for index, (slot, count) in enumerate(zip(slots.tolist(), counts.tolist(), strict=True)):
                if rule := self.biases.get(slot):
                    bias, own = rule.after(count)
                    if knows_tokens:
                        first = int(self.integers[0, slot])
                        bias = rule.with_bad(bias, self.tokens[slot, first : first + count])
                    biases.append(bias)
                    offsets[index + 1] = len(bias[0])
                    allowed[index] = both(own, allowed[index])
            np.cumsum(offsets, out=offsets)
        ids, values = map(np.concatenate, zip(*biases, strict=True)) if biases else NO_BIAS
        return DrawLimits(offsets, ids, values, allowed)

    def scoring(self, slots: Array, positions: Array) -> tuple[Array, Array]:
        """Return, for positions int32[S] of slots int32[S], the tokens that follow, int32[S], and how many alternatives
        are wanted beside each, int32[S]."""
        return self.tokens[slots, positions + 1], self.prompt_logprobs[slots]

    def pooling(self, slots: Array) -> list[PoolingParams]:
        """Return the pooling settings of these slots. One of padding keeps its vector as it is."""
        return [self._pooling.get(slot, _RAW_VECTOR) for slot in slots.tolist()]

    def keep(self, slots: Array, positions: Array, token_ids: Array) -> None:
        """Keep tokens token_ids int32[S] drawn behind positions int32[S] of slots int32[S]. Behind a wrong draft the
        token is meaningless, and the next step overwrites it."""
        self.tokens[slots, positions + (1 + self._ahead)] = token_ids
