"""The rows of a batch, the times of sequences, and the KV blocks of owners, from the lines of a record.

Work in a row is kept as maximal runs, so that a thousand decodes are one entry; blocks are kept as changes.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Container, Iterator
from dataclasses import dataclass, field

from inflight.records.block_owners import BlockOwners, Moved
from inflight.records.computed import Work, computed
from inflight.records.drafts import rejected, verified
from inflight.records.schema import StepRecord


@dataclass(slots=True)
class RowRun:
    """Consecutive steps in which a row did the same for the same sequence. padded: token slots beside its own tokens
    (prompts shorter than the batch's longest)."""

    row: int
    sequence: int
    state: Work
    start: float
    end: float
    tokens: int = 0
    padded: int = 0


@dataclass(slots=True)
class SequenceTimeline:
    """joined: each time at which it got a row. left: each time at which it lost it; one fewer while it has one.
    token_times: of its tokens, in seconds. prompt_tokens: as of its first row."""

    prompt_tokens: int
    joined: list[float] = field(default_factory=list)
    left: list[float] = field(default_factory=list)
    token_times: array[float] = field(default_factory=lambda: array("d"))

    @property
    def preemptions(self) -> int:
        """Return how often it came back to a row."""
        return len(self.joined) - 1


@dataclass(slots=True)
class _Holder:
    sequence: int
    prompt_tokens: int
    timeline: SequenceTimeline
    last: RowRun | None = None


@dataclass(frozen=True, slots=True)
class StepTokens:
    """Token slots of one step by kind. rejected: drafts."""

    prompt: int
    recomputed: int
    decode: int
    padding: int
    rejected: int


class RowHistory:
    """runs: of rows, as they ended. timelines: of sequences by number."""

    def __init__(self) -> None:
        self.runs: list[RowRun] = []
        self.timelines: dict[int, SequenceTimeline] = {}
        self._held: dict[int, _Holder] = {}
        self._computed: dict[int, int] = {}  # sequence → tokens ever computed at once

    @property
    def held(self) -> int:
        return len(self._held)

    def step(self, record: StepRecord, began: float, before: float) -> StepTokens:
        """Read a step. began: its time; before: when the one before it ended and released its rows."""
        for row in record.plan.freed_rows:
            self._held.pop(row).timeline.left.append(before)
        prompts = {new.row: new.prompt_length for new in record.plan.new_requests}
        chunks = record.plan.chunks
        for chunk in chunks:
            if chunk.row in prompts:
                length = prompts[chunk.row]
                timeline = self.timelines.setdefault(chunk.sequence_id, SequenceTimeline(length))
                timeline.joined.append(began)
                self._held[chunk.row] = _Holder(chunk.sequence_id, length, timeline)
        padding = record.plan.padding
        longest = max((chunk.length for chunk in chunks), default=0)
        prompt = recomputed = decode = 0
        wrong, accepted = rejected(record), {one.sequence: one.accepted for one in verified(record)}
        for chunk in chunks:
            short = longest - chunk.length if padding else 0
            holder, in_vain = self._held[chunk.row], wrong.get(chunk.sequence_id, 0)
            sequence, start, length = chunk.sequence_id, chunk.start, chunk.length
            most = self._computed.get(sequence, 0)
            state, first, repeated = computed(most, start, length, in_vain, holder.prompt_tokens)
            self._computed[sequence] = max(most, start + length - in_vain)
            recomputed += repeated
            if state is Work.DECODE:
                decode += first - in_vain
            else:
                prompt += first
            self._extend(chunk.row, state, began, record.committed, chunk.length, short)
            if chunk.sample and record.error is None:
                holder.timeline.token_times.extend([record.committed] * (1 + accepted.get(sequence, 0)))
        if len(chunks) < len(self._held):
            served = {chunk.row for chunk in chunks}
            for row in self._held.keys() - served:
                state, padded = (Work.PADDING, longest) if padding else (Work.IDLE, 0)
                self._extend(row, state, began, record.committed, 0, padded)
        return StepTokens(prompt, recomputed, decode, sum(padding), sum(wrong.values()))

    def _extend(self, row: int, state: Work, start: float, end: float, tokens: int, padded: int) -> None:
        holder = self._held[row]
        last = holder.last
        if last is not None and last.state is state and (padded > 0) == (last.padded > 0):
            last.end = end
            last.tokens += tokens
            last.padded += padded
            return
        holder.last = RowRun(row, holder.sequence, state, start, end, tokens, padded)
        self.runs.append(holder.last)


class BlockHistory:
    def __init__(self, owners: BlockOwners):
        # Time, owner and difference in blocks of each change. There may be millions.
        self._times, self._owned_by, self._blocks = array("d"), array("q"), array("q")
        self._owners = owners

    @property
    def changes(self) -> Iterator[tuple[float, int, int]]:
        """Return (time, owner, difference in blocks) of each change."""
        return zip(self._times, self._owned_by, self._blocks, strict=True)

    @property
    def allocated(self) -> int:
        """Return the blocks in use, shared ones once."""
        return self._owners.allocated

    @property
    def used_slots(self) -> int:
        return self._owners.used_slots

    def step(self, record: StepRecord, began: float, before: float) -> None:
        self._note(before, self._owners.free(record))
        self._note(began, self._owners.allocate(record))

    def finish(self, ended: Container[int], time: float) -> None:
        """Free the blocks of ended sequences, which no later plan frees."""
        moved: Moved = Counter()
        for row, sequence in self._owners.sequences.items():
            if sequence in ended:
                self._owners.free_row(row, moved)
        self._note(time, moved)

    def _note(self, time: float, moved: Moved) -> None:
        for owner, change in moved.items():
            if change:
                self._times.append(time)
                self._owned_by.append(owner)
                self._blocks.append(change)
