"""An engine's run, from the lines of its record."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from inflight.core.types.plan import Capacity
from inflight.core.types.timings import Timings
from inflight.records.block_owners import BlockOwners
from inflight.records.drafts import DraftCounts, verified
from inflight.records.schema import StepRecord
from inflight.report.steps.rows import BlockHistory, RowHistory
from inflight.report.steps.series import StepSeries


@dataclass(frozen=True, slots=True)
class EndedRequest:
    """An ended request. sequences: numbers of its samples. arrival, ended: seconds on the engine's clock. reason: how
    it ended, the worst of its samples'. outgrown: whether it ended because memory could not hold it. repeated_tokens:
    of its prompt's beginning, that were the beginning of an earlier prompt too, in whole blocks."""

    request_id: str
    sequences: tuple[int, ...]
    lane: str
    tenant: str
    arrival: float
    ended: float
    prompt_tokens: int
    output_tokens: int
    reason: str
    timings: Timings
    outgrown: bool = False
    repeated_tokens: int = 0


class SnapshotHistory:
    """Counts of snapshots of recurrent state so far.

    taken: all. hits: sequences that began from one. evicted: overwritten by another sequence's. used: slots. A record
    does not say when the prefix cache lost the blocks before a snapshot: a slot counts as used from its first one on.
    """

    def __init__(self) -> None:
        self.taken = self.hits = self.evicted = 0
        self._owners: dict[int, int] = {}  # slot → sequence

    @property
    def used(self) -> int:
        return len(self._owners)

    def step(self, record: StepRecord) -> None:
        self.hits += sum(new.snapshot >= 0 for new in record.plan.new_requests)
        for chunk in record.plan.chunks:
            for _, slot in chunk.snapshots:
                self.taken += 1
                self.evicted += self._owners.get(slot, chunk.sequence_id) != chunk.sequence_id
                self._owners[slot] = chunk.sequence_id


class DraftHistory:
    """drafted, accepted: drafts of each step. counts: of the run, by chunk. seconds: of executors making drafts."""

    def __init__(self) -> None:
        self.drafted, self.accepted = array("q"), array("q")
        self.counts = DraftCounts()
        self.seconds = 0.0

    def step(self, record: StepRecord) -> None:
        every = list(verified(record))
        for one in every:
            self.counts.add(one)
        self.drafted.append(sum(one.drafts for one in every))
        self.accepted.append(sum(one.accepted for one in every))
        self.seconds += record.draft_seconds


@dataclass(slots=True)
class EngineRun:
    """capacity: of the record's header."""

    capacity: Capacity
    keeps_content: bool = True
    steps: StepSeries = field(default_factory=StepSeries)
    rows: RowHistory = field(default_factory=RowHistory)
    requests: list[EndedRequest] = field(default_factory=list)
    snapshots: SnapshotHistory = field(default_factory=SnapshotHistory)
    drafts: DraftHistory = field(default_factory=DraftHistory)
    blocks: BlockHistory = field(init=False)

    def __post_init__(self) -> None:
        size, windows = self.capacity.block_size, self.capacity.windows
        self.blocks = BlockHistory(BlockOwners(size, self.keeps_content, windows, self.capacity.num_blocks))

    def step(self, record: StepRecord) -> None:
        """Read a line of a record. Raises KeyError where a line before it is missing."""
        steps, plan = self.steps, record.plan
        moved_out, moved_back = len(plan.copies("store")), len(plan.copies("load"))
        before = steps.ended[-1] if steps else record.planned
        began = max(record.planned, before)
        work = self.rows.step(record, began, before)
        self.blocks.step(record, began, before)
        self.snapshots.step(record)
        self.drafts.step(record)
        steps.began.append(began)
        steps.ended.append(record.committed)
        steps.seconds.append(record.seconds)
        steps.prompt.append(work.prompt)
        steps.recomputed.append(work.recomputed)
        steps.decode.append(work.decode)
        steps.padding.append(work.padding)
        steps.rejected.append(work.rejected)
        steps.rows.append(self.rows.held)
        steps.held_blocks.append(self.blocks.allocated)
        steps.allocated.append(self.blocks.allocated * self.capacity.block_size)
        steps.used.append(self.blocks.used_slots)
        steps.moved_out += moved_out
        steps.moved_back += moved_back
        steps.failed += record.error is not None

    def finish(self) -> None:
        """Free the blocks of ended sequences after the last line."""
        if self.steps:
            self.blocks.finish(self.owner_of(), self.steps.end)

    @property
    def preemptions(self) -> int:
        """Return how often sequences came back to a row after having lost it."""
        return sum(timeline.preemptions for timeline in self.rows.timelines.values())

    def owner_of(self) -> dict[int, EndedRequest]:
        """Return the request of each sequence, of requests that have ended."""
        return {number: request for request in self.requests for number in request.sequences}
