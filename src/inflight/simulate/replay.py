"""Replay a record on a new scheduler with the record's own times: it must make the same plans.

Tokens, drafts, seconds and ends of transfers are the record's, and commands come between the same plans and commits.
Plans and requests' ends are compared; waiting times are not. With async scheduling and drafts the blocks may differ
where windows slide. Records of older versions lack attempts at plans that yielded none: of those, buckets of dynamic
batching may differ where waiting requests were aborted, and swapped blocks where requests came while a plan waited.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

from msgspec import structs

from inflight.core.scheduling.requests import Numbers
from inflight.core.scheduling.scheduler import Scheduler
from inflight.core.scheduling.stats import SchedulerStats
from inflight.core.speculation.speculation import Speculation
from inflight.core.stopping import StopTextFactory
from inflight.core.types.events import Event, Finish, FinishedEvent
from inflight.core.types.plan import BatchPlan, Chunk, Pooled, Sampled, Scored, StepResult, TransferKind, Transferred
from inflight.core.types.request import RequestRefused
from inflight.core.types.timings import Timings
from inflight.counted import counted
from inflight.records.between_steps import (
    AttemptsRecord,
    CacheResetRecord,
    RecoveryRecord,
    ServiceRecord,
    TransfersRecord,
)
from inflight.records.schema import (
    RecordError,
    Records,
    RequestRecord,
    StepRecord,
    header_of,
    of_kind,
    recorded_plan,
    values_of,
)
from inflight.simulate.recorded_run import (
    RecordedDrafts,
    RecordedStops,
    rebuild_request,
    recorded_scheduler,
    recorded_settings,
)

COMPARED = (
    "step",
    "within",
    "chunks",
    "new_requests",
    "freed_rows",
    "padding",
    "adapter_loads",
)  # and the host's copies
COPIES: tuple[TransferKind, ...] = ("store", "load")


class Replay:
    """Drives a new scheduler with a record alone."""

    def __init__(self, records: Records, make: MakeScheduler, depth: int):
        """Prepare a replay. make: called with the stop texts and the drafts of the record. Raises RecordError."""
        # Interim steps are committed before the step within which they are.
        self.steps = sorted(of_kind(records, "step"), key=lambda one: one.plan.step)
        self.requests = of_kind(records, "request")
        recoveries = of_kind(records, "recovery")
        self.recoveries = {one.error for one in recoveries}
        _check(self.steps, self.requests, {one.next_step for one in recoveries})
        self._numbers = [step.plan.step for step in self.steps]
        self.events: list[tuple[float, list[Event]]] = []  # of each commit and abort, with its time
        self._depth, self._has_attempts = depth, header_of(records).has_attempts
        self.unexpected: str | None = None  # a sentence: an attempt yielded a plan, where the record's did not
        self._flights: deque[BatchPlan] = deque()
        self._tokens = {sample.sequence_id: iter(sample.token_ids) for one in self.requests for sample in one.samples}
        drafts = RecordedDrafts(self.steps)
        speculated = bool(drafts) or values_of(header_of(records)).get("speculation", "off") != "off"
        self._scheduler = make(RecordedStops(self.requests), drafts if speculated else None)
        self._commands = self._in_order(records)

    def plans(self) -> Iterator[BatchPlan]:
        """Yield plans as they are made; ends early where the record's next plan cannot be made."""
        flights, planned = self._flights, 0
        for committed in count():
            self._run_commands(planned, committed)
            while self.unexpected is None and self._is_next(planned, committed):
                plan = self._plan(planned)
                if not isinstance(plan, BatchPlan):
                    break  # in an older record, the run had nothing to plan before the next commit either
                yield plan
                flights.append(plan)
                planned += 1
                self._run_commands(planned, committed)
            if not flights or self.unexpected is not None:
                return
            self._commit(flights.popleft() if flights[-1].within is None else flights.pop())

    def _is_next(self, planned: int, committed: int) -> bool:
        """Return whether the record's next step was planned before the next commit."""
        if planned == len(self.steps):
            return False
        if self._has_attempts:
            return self.steps[planned].before_commit == committed
        return len(self._flights) < self._depth or self._is_interim(planned)

    def _is_interim(self, planned: int) -> bool:
        """Return whether the record's next step was computed within the one in flight."""
        return len(self._flights) == 1 and self.steps[planned].plan.within == self._flights[0].step

    def _plan(self, planned: int) -> object:
        record = self.steps[planned]
        if self._is_interim(planned):
            return self._scheduler.plan_interim(self._flights[0], record.planned)
        return self._scheduler.plan(record.planned)

    @property
    def ends(self) -> list[End]:
        """Every request that ended."""
        return [
            _end(event.request_id, event.finishes, event.timings, self.recoveries)
            for _, events in self.events
            for event in events
            if isinstance(event, FinishedEvent)
        ]

    def stats(self) -> SchedulerStats:
        return self._scheduler.stats()

    def _in_order(self, records: Records) -> dict[tuple[int, int], list[Command]]:
        """Return the commands by the numbers of plans and of commits before them."""
        found: defaultdict[tuple[int, int], list[Command]] = defaultdict(list)
        for one in self.requests:
            found[self._at(one)].append((one.command, partial(self._add, one)))
            if "abort" in [sample.finish.reason for sample in one.samples]:
                went = self._index(one.ended_before_step), one.ended_before_commit
                found[went].append((one.ended_command, partial(self._abort, one)))
        for ended in of_kind(records, "transfers"):
            found[self._at(ended)].append((ended.command, partial(self._end_transfers, ended)))
        for usage in of_kind(records, "service"):
            use = partial(self._scheduler.sync_tenant_usage, usage.elsewhere)
            found[self._at(usage)].append((usage.command, use))
        for reset in of_kind(records, "cache_reset"):
            found[self._at(reset)].append((reset.command, partial(self._reset_cache, reset)))
        for attempts in of_kind(records, "attempts"):
            found[self._at(attempts)].append((attempts.command, partial(self._attempt, attempts)))
        for recovery in of_kind(records, "recovery"):
            found[self._at(recovery)].append((recovery.command, partial(self._recover, recovery)))
        for commands in found.values():
            commands.sort(key=lambda command: command[0])
        return found

    def _at(self, one: Between) -> tuple[int, int]:
        return self._index(one.before_step), one.before_commit

    def _index(self, step: int) -> int:
        """Return the steps before the one of this number."""
        return bisect_left(self._numbers, step)

    def _run_commands(self, planned: int, committed: int) -> None:
        """Run the commands that came when so many steps were planned, and so many of them committed."""
        for _, do in self._commands.get((planned, committed), ()):
            do()

    def _add(self, one: RequestRecord) -> None:
        try:
            self._scheduler.add(rebuild_request(one), one.added)
        except RequestRefused as refusal:
            raise RecordError(f"The recorded request {one.request.request_id!r} is refused: {refusal}") from None

    def _abort(self, one: RequestRecord) -> None:
        self.events.append((one.ended, self._scheduler.abort(one.request.request_id, one.ended)))

    def _end_transfers(self, one: TransfersRecord) -> None:
        if not self._has_attempts:  # as the run did, which then waited: it may have preempted for the next plan
            self._scheduler.plan(one.ended)
        events = self._scheduler.transferred(self._transferred(one.transferred), one.ended)
        self.events.append((one.ended, events))

    def _reset_cache(self, one: CacheResetRecord) -> None:
        if not self._scheduler.idle or self._scheduler.transfers_out:
            raise RecordError(
                f"The record resets the prefix cache at {one.dropped:g} s, while there would be work: "
                "lines are missing, or changed."
            )
        self._scheduler.reset_prefix_cache()

    def _attempt(self, one: AttemptsRecord) -> None:
        for at in one.attempted:
            if one.within is None:
                found: object = self._scheduler.plan(at)
            elif self._flights and self._flights[0].step == one.within:
                found = self._scheduler.plan_interim(self._flights[0], at)
            else:
                raise RecordError(f"The record attempts a step within step {one.within}, which is not in flight there.")
            if isinstance(found, BatchPlan) and self.unexpected is None:
                self.unexpected = f"At {at:g} s step {found.step} is planned, where the record's run found none."

    def _recover(self, one: RecoveryRecord) -> None:
        self._flights.clear()
        numbers = Numbers(one.next_step, one.next_sequence)
        self.events.append((one.recovered, self._scheduler.recover(one.error, one.recovered, numbers)))

    def _transferred(self, records: Sequence[Transferred], begun: Iterable[int] = ()) -> tuple[Transferred, ...]:
        """Return ended transfers. begun: transfer_ids of the step itself. Raises RecordError for one not in flight."""
        out = {*self._scheduler.transfers_out, *begun}
        for one in records:
            if one.transfer_id not in out:
                others = counted(len(out), "other", "others")
                raise RecordError(
                    f"The record says that transfer {one.transfer_id} ended, but {others} would be in flight there: "
                    "lines are missing, or changed."
                )
            out.remove(one.transfer_id)
        return tuple(records)

    def _commit(self, plan: BatchPlan) -> None:
        record = self.steps[self._index(plan.step)]
        faults = {fault.sequence_id: fault.error for fault in record.faults}
        chunks = () if record.error is not None else plan.chunks
        accepted = dict(record.accepted)
        waits = dict(record.waits)
        sampled = tuple(
            Sampled(chunk.sequence_id, (), waits_for=waits[chunk.sequence_id])
            if chunk.sequence_id in waits
            else self._sampled(chunk, faults, accepted.get(chunk.sequence_id, 0))
            for chunk in chunks
            if chunk.sample
        )
        faulty = [(chunk, faults[chunk.sequence_id]) for chunk in chunks if chunk.sequence_id in faults]
        scored = tuple(Scored(chunk.sequence_id, 0, (), fault) for chunk, fault in faulty if chunk.score)
        pooled = tuple(Pooled(chunk.sequence_id, (), fault) for chunk, fault in faulty if chunk.pool)
        result = StepResult(
            plan.step,
            sampled,
            record.seconds,
            record.error,
            scored,
            self._transferred(record.transferred, waits.values()),
            pooled,
            draft_seconds=record.draft_seconds,
            out_of_memory=record.out_of_memory,
            undrafted=tuple(one.sequence_id for one in chunks if _lacks_drafts(one, accepted)),
            lengths=record.lengths,
        )
        self.events.append((record.committed, self._scheduler.commit(plan, result, record.committed)))

    def _sampled(self, chunk: Chunk, faults: Mapping[int, str], accepted: int) -> Sampled:
        """Return a chunk's recorded tokens. accepted: drafts of the executor; of known ones the tokens say it."""
        sequence = chunk.sequence_id
        if sequence in faults:
            return Sampled(sequence, (), error=faults[sequence])
        drawn = self._tokens.get(sequence, iter(()))
        if not chunk.draft_token_ids:
            return Sampled(sequence, tuple(next(drawn, 0) for _ in range(1 + accepted)))  # 0: of a dropped step
        tokens: list[int] = []
        while tokens == [*chunk.draft_token_ids[: len(tokens)]] and len(tokens) < chunk.sample:
            tokens.append(next(drawn, 0))
        return Sampled(sequence, tuple(tokens))


MakeScheduler = Callable[[StopTextFactory, Speculation | None], Scheduler]
End = tuple[str, list[str], dict[str, Any]]  # a request's id, its finish reasons, and timings
Command = tuple[int, Callable[[], object]]  # its number, and what it does
Between = RequestRecord | TransfersRecord | ServiceRecord | CacheResetRecord | AttemptsRecord | RecoveryRecord


def _lacks_drafts(chunk: Chunk, accepted: Mapping[int, int]) -> bool:
    """Return whether the executor was to make drafts, and made none."""
    return chunk.num_drafts > len(chunk.draft_token_ids) and chunk.sequence_id not in accepted


def _check(steps: Sequence[StepRecord], requests: Sequence[RequestRecord], resumed: Set[int]) -> None:
    """Check that the lines go together. resumed: numbers of steps that recoveries went on with. Raises RecordError."""
    last = -1
    for step in steps:
        number = step.plan.step
        if number != last + 1 and number not in resumed:
            raise RecordError(f"The record goes from step {last} to step {number}: lines are missing.")
        last = number
    numbers = [sample.sequence_id for one in requests for sample in one.samples]
    if len(set(numbers)) < len(numbers):
        raise RecordError(f"The record has {len(numbers)} samples of {len(set(numbers))} sequences; each has its own.")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a replay. difference: a sentence about the first one; None: none. steps: of equal plans."""

    steps: int
    recorded_steps: int
    requests: int
    prefix_hits: int
    preemptions: int
    moved_blocks: int
    difference: str | None


def replay(records: Records, make: MakeScheduler | None = None) -> tuple[Replay, Outcome]:
    """Replay a record and compare plans and ends. make: as of `Replay`; None: as the record's header says."""
    if make is None:
        settings = recorded_settings(header_of(records))
        make, depth = partial(recorded_scheduler, settings), settings.depth
    else:
        depth = values_of(header_of(records))["depth"]
    again, version = Replay(records, make, depth), header_of(records).version
    difference, alike = None, 0  # the first difference, and the plans before it
    for plan, record in zip(again.plans(), again.steps, strict=False):
        difference = _difference(_as_recorded(plan, version), record.plan)
        if difference is not None:
            break
        alike += 1
    difference = difference or again.unexpected
    if difference is None and alike < len(again.steps):
        difference = f"After step {alike - 1} nothing is planned, but the record has {len(again.steps)} steps."
    if difference is None:
        difference = _different_end(again)
    last = again.stats()
    moved = sum(len(one.blocks) for step in again.steps for one in step.plan.transfers)
    hits = sum(one.timings.cached_tokens for one in again.requests)
    return again, Outcome(alike, len(again.steps), len(again.requests), hits, last.preemptions, moved, difference)


def _as_recorded(plan: BatchPlan, version: int) -> BatchPlan:
    """Return what a record of this version holds of a plan: version 1 does not say which chunks pool."""
    plan = recorded_plan(plan)
    if version > 1 or not any(chunk.pool for chunk in plan.chunks):
        return plan
    return structs.replace(plan, chunks=tuple(structs.replace(chunk, pool=False) for chunk in plan.chunks))


def _difference(mine: BatchPlan, recorded: BatchPlan) -> str | None:
    """Return a sentence about the first difference; None where there is none."""
    compared = {name: (getattr(mine, name), getattr(recorded, name)) for name in COMPARED}
    compared |= {f"{kind} copies": (mine.copies(kind), recorded.copies(kind)) for kind in COPIES}
    for name, (own, other) in compared.items():
        if own != other:
            first = f"{own} against the record's {other}"
            if not isinstance(own, int):
                pairs = enumerate(zip(own, other, strict=False))
                found = (f"entry {at}: {one} against the record's {two}" for at, (one, two) in pairs if one != two)
                first = next(found, first)
            return f"Step {recorded.step} differs in its {name.replace('_', ' ')}, {first}."
    return None


def _end(request_id: str, finishes: Sequence[Finish], timings: Timings, recoveries: Set[str]) -> End:
    """Return the end of a request: its id, finish reasons, and the timings that depend on memory, but of a recovery,
    since the verb that was broken off may have counted some. recoveries: errors of recoveries."""
    reasons: list[str] = [finish.reason for finish in finishes]
    found = timings.to_json()
    if any(finish.detail in recoveries for finish in finishes):
        return request_id, reasons, {}
    names = ("ttft_ms", "cached_tokens", "recomputed_tokens", "swapped_blocks")
    return request_id, reasons, {name: found[name] for name in names}


def _different_end(again: Replay) -> str | None:
    ends = [
        _end(one.request.request_id, [sample.finish for sample in one.samples], one.timings, again.recoveries)
        for one in again.requests
    ]
    mine = again.ends
    for one, other in zip(mine, ends, strict=False):
        if one != other:
            return f"Request {other[0]!r} ends as {one}, in the record as {other[1:]}."
    if len(mine) != len(ends):
        return f"{len(mine)} requests ended, in the record {len(ends)}."
    return None
