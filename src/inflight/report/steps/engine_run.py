"""All that a record tells of an engine's run. Knows the parts; pictures and figures are made of them elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, field

from inflight.core.types.plan import Capacity
from inflight.core.types.timings import Timings
from inflight.records.block_owners import BlockOwners
from inflight.records.schema import StepRecord
from inflight.report.steps.drafts import DraftHistory
from inflight.report.steps.rows import BlockHistory, RowHistory, SequenceHistory
from inflight.report.steps.series import StepSeries
from inflight.report.steps.snapshots import SnapshotHistory


@dataclass(frozen=True, slots=True)
class EndedRequest:
    """One ended request, as the engine told it. sequences: numbers of its samples. arrival, ended: seconds on the
    engine's clock. reason: how it ended, the worst of its samples'. outgrown: whether it ended because memory could not
    hold it. repeated_tokens: of its prompt's beginning, that were the beginning of an earlier prompt too, in whole
    blocks."""

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


@dataclass(slots=True)
class EngineRun:
    """capacity: of the record's header."""

    capacity: Capacity
    keeps_content: bool = True
    steps: StepSeries = field(default_factory=StepSeries)
    rows: RowHistory = field(default_factory=RowHistory)
    sequences: SequenceHistory = field(default_factory=SequenceHistory)
    requests: list[EndedRequest] = field(default_factory=list)
    snapshots: SnapshotHistory = field(default_factory=SnapshotHistory)
    drafts: DraftHistory = field(default_factory=DraftHistory)
    blocks: BlockHistory = field(init=False)

    def __post_init__(self) -> None:
        size, windows = self.capacity.block_size, self.capacity.windows
        owners = BlockOwners(size, self.keeps_content, windows, self.capacity.num_blocks)
        self.blocks = BlockHistory(owners)

    def step(self, record: StepRecord) -> None:
        """Take in one line of a record. Raises KeyError, where a line before it is missing."""
        steps, committed, seconds = self.steps, record.committed, record.seconds
        moves_out, moves_back = record.plan.copies("store"), record.plan.copies("load")
        before = steps.ended[-1] if steps else record.planned
        began = max(record.planned, before)
        work = self.rows.step(record, began, before)
        self.blocks.step(record, began, before)
        self.sequences.step(record, began, before)
        self.snapshots.step(record)
        self.drafts.step(record)
        steps.began.append(began)
        steps.ended.append(committed)
        steps.seconds.append(seconds)
        steps.prompt.append(work.prompt)
        steps.recomputed.append(work.recomputed)
        steps.decode.append(work.decode)
        steps.padding.append(work.padding)
        steps.rejected.append(work.rejected)
        steps.rows.append(self.rows.held)
        steps.served.append(len(record.plan.chunks))
        steps.held_blocks.append(self.blocks.allocated)
        steps.allocated.append(self.blocks.allocated * self.capacity.block_size)
        steps.used.append(self.blocks.used_slots)
        steps.moved_out += len(moves_out)
        steps.moved_back += len(moves_back)
        steps.failed += record.error is not None

    def finish(self) -> None:
        """No line comes any more."""
        if self.steps:
            self.blocks.finish(self.owner_of(), self.steps.end)

    @property
    def preemptions(self) -> int:
        """Returns to a row after having lost it."""
        return sum(timeline.preemptions for timeline in self.sequences.timelines.values())

    def owner_of(self) -> dict[int, EndedRequest]:
        """Whose each sequence is, of requests that have ended."""
        return {number: request for request in self.requests for number in request.sequences}
