"""Who held which row when, and what was computed there: maximal runs, so that a thousand decodes are one entry.

And when each sequence was computed and its tokens came, from chunks that sampled. Knows rows and the sequences in them,
by number; nothing of queues or requests.

And who holds the KV blocks, from tables as plans extend them: every block has one owner at a time: a sequence, several
(shared), nobody but with content (cached), or nobody at all. Whether the content of a block that was given up is still
findable, a record does not say: full blocks count as cached until somebody takes them, which is the most that can be.
Nor does it say when a table of a KV group with a window has given up what is behind that: as soon as it could.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from enum import Enum

from inflight.records.drafts import rejected, verified
from inflight.records.schema import ChunkRecord, StepRecord


class State(Enum):
    """What a row did during a step."""

    PREFILL = "prefill"  # prompt tokens, computed for the first time
    RECOMPUTE = "recomputed"  # tokens that a preemption took
    DECODE = "decode"
    PADDING = "padding"  # ended, and computed all the same until its batch ends
    IDLE = "held, not computed"  # waits for its turn with its row and blocks


@dataclass(slots=True)
class RowRun:
    """Consecutive steps in which a row did the same for the same sequence. padded: token slots beside its own tokens
    that were computed for nothing (prompts shorter than the batch's longest)."""

    row: int
    sequence: int
    state: State
    start: float
    end: float
    tokens: int = 0
    padded: int = 0
    steps: int = 1


@dataclass(slots=True)
class _Holder:
    sequence: int
    prompt_tokens: int
    last: RowRun | None = None


@dataclass(frozen=True, slots=True)
class Work:
    """Token slots of one step by what they were for. rejected: drafts that were wrong."""

    prompt: int
    recomputed: int
    decode: int
    padding: int
    rejected: int


class RowHistory:
    def __init__(self) -> None:
        self.runs: list[RowRun] = []
        self._held: dict[int, _Holder] = {}
        self._computed: dict[int, int] = {}  # sequence → most tokens ever computed
        self.left: dict[int, float] = {}  # sequences without a row → since when

    @property
    def held(self) -> int:
        return len(self._held)

    def step(self, record: StepRecord, began: float, before: float) -> Work:
        """began: when the step did; before: when the one before it ended, which is when its rows were given up."""
        for row in record["freed_rows"]:
            self.left[self._held.pop(row).sequence] = before
        prompts = {new["row"]: new["prompt_tokens"] for new in record["new_rows"]}
        chunks = record["chunks"]
        for chunk in chunks:
            if chunk["row"] in prompts:
                self._held[chunk["row"]] = _Holder(chunk["sequence"], prompts[chunk["row"]])
                self.left.pop(chunk["sequence"], None)
        padding = record["padding"]
        longest = max((chunk["length"] for chunk in chunks), default=0)
        prompt = recomputed = decode = 0
        wrong = rejected(record)
        for chunk in chunks:
            short = longest - chunk["length"] if padding else 0
            in_vain = wrong.get(chunk["sequence"], 0)
            state, first, repeated = self._computes(chunk, in_vain)
            recomputed += repeated
            if state is State.DECODE:
                decode += first - in_vain
            else:
                prompt += first
            self._extend(chunk["row"], state, began, record["committed"], chunk["length"], short)
        if len(chunks) < len(self._held):
            served = {chunk["row"] for chunk in chunks}
            for row in self._held.keys() - served:
                state, padded = (State.PADDING, longest) if padding else (State.IDLE, 0)
                self._extend(row, state, began, record["committed"], 0, padded)
        return Work(prompt, recomputed, decode, sum(padding), sum(wrong.values()))

    def _computes(self, chunk: ChunkRecord, in_vain: int) -> tuple[State, int, int]:
        """What a chunk is, its tokens that are new, and those that had been computed before. in_vain: of its tokens the
        last ones, which were taken back."""
        sequence, start = chunk["sequence"], chunk["start"]
        end = start + chunk["length"]
        most = self._computed.get(sequence, 0)
        repeated = max(0, min(end, most) - start)
        self._computed[sequence] = max(most, end - in_vain)
        if repeated:
            return State.RECOMPUTE, chunk["length"] - repeated, repeated
        inside = start < self._held[chunk["row"]].prompt_tokens
        return State.PREFILL if inside else State.DECODE, chunk["length"], 0

    def _extend(self, row: int, state: State, start: float, end: float, tokens: int, padded: int) -> None:
        holder = self._held[row]
        last = holder.last
        if last is not None and last.state is state and (padded > 0) == (last.padded > 0):
            last.end = end
            last.tokens += tokens
            last.padded += padded
            last.steps += 1
            return
        holder.last = RowRun(row, holder.sequence, state, start, end, tokens, padded)
        self.runs.append(holder.last)


@dataclass(slots=True)
class SequenceTimeline:
    """joined: when it got a row, each time. left: when it lost it, each time; one fewer while it still has it.
    token_times: when each of its tokens was there, in seconds. prompt_tokens: as its first row said."""

    prompt_tokens: int
    joined: list[float] = field(default_factory=list)
    left: list[float] = field(default_factory=list)
    token_times: array[float] = field(default_factory=lambda: array("d"))
    failed: bool = False

    @property
    def preemptions(self) -> int:
        """Times that it came back to a row."""
        return len(self.joined) - 1


class SequenceHistory:
    def __init__(self) -> None:
        self.timelines: dict[int, SequenceTimeline] = {}
        self._rows: dict[int, SequenceTimeline] = {}

    def step(self, record: StepRecord, began: float, before: float) -> None:
        for row in record["freed_rows"]:
            self._rows.pop(row).left.append(before)
        prompts = {new["row"]: new["prompt_tokens"] for new in record["new_rows"]}
        broken = "error" in record
        accepted = {one.sequence: one.accepted for one in verified(record)}
        for chunk in record["chunks"]:
            row = chunk["row"]
            if row in prompts:
                timeline = self.timelines.setdefault(chunk["sequence"], SequenceTimeline(prompts[row]))
                timeline.joined.append(began)
                self._rows[row] = timeline
            if broken:
                self._rows[row].failed = True
            elif chunk["sample"]:
                tokens = 1 + accepted.get(chunk["sequence"], 0)
                self._rows[row].token_times.extend([record["committed"]] * tokens)


SHARED = -1  # owner of blocks that several sequences hold
CACHED = -2  # of full blocks that nobody holds


class BlockHistory:
    def __init__(self, block_size: int, keeps_content: bool, windows: Sequence[int] = (0,), nothing: int | None = None):
        """keeps_content: whether full blocks stay findable when their holder is gone (prefix caching). windows: of each
        KV group, in tokens; 0: none. nothing: what stands in a table in the place of a block that is not held."""
        self.changes: list[tuple[float, int, int]] = []  # time, owner, blocks more (or fewer)
        self.allocated = 0  # blocks held, shared ones once
        self._size = block_size
        self._keeps_content = keeps_content
        self._windows = windows
        self._nothing = nothing if any(windows) else None
        self._tables: dict[int, list[list[int]]] = {}  # row → block table of each group
        self._passed: dict[int, list[int]] = {}  # row → leading entries of each that are not held
        self._computed: dict[int, int] = {}  # row → tokens with keys and values
        self._rows_of: dict[int, list[int]] = {}  # block → rows
        self._owner: dict[int, int] = {}  # block → sequence, SHARED or CACHED
        self._sequences: dict[int, int] = {}  # row → sequence

    @property
    def used_slots(self) -> int:
        """Token slots with keys and values, shared ones once: what several hold is full."""
        held = used = 0
        for row, tables in self._tables.items():
            for table, passed in zip(tables, self._passed[row], strict=True):
                held += len(table) - passed
                used += self._computed.get(row, 0) - passed * self._size
        return used - (held - self.allocated) * self._size

    def step(self, record: StepRecord, began: float, before: float) -> None:
        moved: Counter[int] = Counter()
        for row in record["freed_rows"]:
            self._give_up(row, moved)
        if any(self._windows):
            for row in self._tables:
                self._slide(row, moved)
        self._note(before, moved)
        moved = Counter()
        wrong = rejected(record)
        for chunk in record["chunks"]:
            row = chunk["row"]
            self._sequences[row] = chunk["sequence"]
            self._computed[row] = chunk["start"] + chunk["length"] - wrong.get(chunk["sequence"], 0)
            self._extend(row, (chunk["new_blocks"], *chunk.get("window_blocks", ())), moved)
        self._note(began, moved)

    def finish(self, ended: Container[int], time: float) -> None:
        """The record is over: sequences that have ended hold nothing any more, which no plan after them could say."""
        moved: Counter[int] = Counter()
        for row, sequence in tuple(self._sequences.items()):
            if sequence in ended:
                self._give_up(row, moved)
        self._note(time, moved)

    def _extend(self, row: int, told: Sequence[Sequence[int]], moved: Counter[int]) -> None:
        """By what a chunk told of each group."""
        tables = self._tables.setdefault(row, [[] for _ in self._windows])
        passed = self._passed.setdefault(row, [0] * len(tables))
        for group, (table, blocks) in enumerate(zip(tables, told, strict=False)):
            table.extend(blocks)
            for block in blocks:
                if block == self._nothing:
                    passed[group] += 1
                else:
                    self._take(block, row, moved)

    def _slide(self, row: int, moved: Counter[int]) -> None:
        for group, window in enumerate(self._windows):
            table, passed = self._tables[row][group], self._passed[row][group]
            first = min(len(table), max(0, self._computed.get(row, 0) - window + 1) // self._size) if window else 0
            for block in table[passed:first]:
                self._release(block, row, self._keeps_content, moved)
            self._passed[row][group] = max(passed, first)

    def _take(self, block: int, row: int, moved: Counter[int]) -> None:
        rows = self._rows_of.setdefault(block, [])
        rows.append(row)
        if len(rows) == 1:
            self.allocated += 1
        self._own(block, self._sequences[row] if len(rows) == 1 else SHARED, moved)

    def _give_up(self, row: int, moved: Counter[int]) -> None:
        full = self._computed.pop(row, 0) // self._size
        self._sequences.pop(row, None)
        for table, passed in zip(self._tables.pop(row, ()), self._passed.pop(row, ()), strict=True):
            for place, block in enumerate(table[passed:], passed):
                self._release(block, row, self._keeps_content and place < full, moved)

    def _release(self, block: int, row: int, keeps_content: bool, moved: Counter[int]) -> None:
        rows = self._rows_of[block]
        rows.remove(row)
        if len(rows) == 1:
            self._own(block, self._sequences.get(rows[0]), moved)  # a damaged record gives a row a block twice
        elif not rows:
            self.allocated -= 1
            self._own(block, CACHED if keeps_content else None, moved)

    def _own(self, block: int, owner: int | None, moved: Counter[int]) -> None:
        before = self._owner.pop(block, None)
        if before is not None:
            moved[before] -= 1
        if owner is not None:
            self._owner[block] = owner
            moved[owner] += 1

    def _note(self, time: float, moved: Counter[int]) -> None:
        self.changes += [(time, owner, change) for owner, change in moved.items() if change]
