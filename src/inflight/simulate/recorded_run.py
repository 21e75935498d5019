"""Rebuild a recorded run: its settings and scheduler, its requests and its drafts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import msgspec
from msgspec import structs

from inflight.config.assembly import make_rules, make_scheduler, make_speculation
from inflight.config.engine import EngineSettings, EvictionChoice
from inflight.config.scheduling import SCHEDULING_NAMES, SchedulingSettings
from inflight.core.estimation.registry import QUANTILES
from inflight.core.scheduling.scheduler import Scheduler
from inflight.core.sequence import SequenceView
from inflight.core.speculation.speculation import Allotment, DraftCandidate, Drafter, ExecutorDrafter, Speculation
from inflight.core.stopping import StopTextFactory
from inflight.core.types.plan import Capacity, Chunk
from inflight.core.types.request import Request
from inflight.records.checked import Malformed, converted, decoded
from inflight.records.schema import Header, RecordError, RequestRecord, StepRecord, values_of

Depth = Annotated[int, msgspec.Meta(ge=1, le=2)]
_TABLE = msgspec.json.Decoder(dict[str, Any])


@dataclass(frozen=True, slots=True)
class RecordedSettings:
    """The settings of a recorded run that decide plans."""

    capacity: Capacity
    engine: EngineSettings
    scheduling: SchedulingSettings
    token_budget: int
    depth: int


class _Sizes(msgspec.Struct):
    """Settings of a record that decide plans, beside capacity and `SchedulingSettings`."""

    prefix_caching: bool
    watermark: float
    max_num_batched_tokens: int
    depth: Depth
    kv_cache_host: float | None = None
    kv_eviction: EvictionChoice = "lru"


def recorded_settings(header: Header) -> RecordedSettings:
    """Read the settings of a record's header.

    Raises:
        RecordError: the record lacks something that decides plans.
        SettingsError: the settings do not go together.
    """
    values, capacity = values_of(header), header.capacity
    if "kv_cache_dir" in values:
        raise RecordError(
            f"The record is of an engine with --kv-cache-dir {values['kv_cache_dir']}, whose blocks are not in the "
            "record; record a run without one."
        )
    if "role" in values:
        raise RecordError(
            f"The record is of an engine with --role {values['role']}, whose peers' blocks are not in the record; "
            "record a run without one."
        )
    try:
        sizes = converted(values, _Sizes)
        scheduling = SchedulingSettings.of(**_scheduling(values))
    except Malformed as fault:
        raise RecordError(
            f"The record's header {fault.cause}, which decides plans; record the run again with this version."
        ) from None
    engine = EngineSettings(
        max_num_seqs=capacity.max_rows,
        max_model_len=capacity.max_model_len,
        block_size=capacity.block_size,
        num_blocks=capacity.num_blocks,
        enable_prefix_caching=sizes.prefix_caching,
        watermark=sizes.watermark,
        kv_cache_host=sizes.kv_cache_host,
        kv_eviction=sizes.kv_eviction,
    )
    return RecordedSettings(capacity, engine, scheduling, sizes.max_num_batched_tokens, sizes.depth)


def _scheduling(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scheduling settings of a record, also of older versions. Raises Malformed."""
    given = {name: value for name, value in values.items() if name in SCHEDULING_NAMES}
    for name in ("lanes", "tenant_weights"):
        if isinstance(given.get(name), str):
            given[name] = decoded(_TABLE, given[name].encode())
    given.setdefault("early_end_tokens", 0)  # records of versions that filled every step do not have it
    given.setdefault("lane_floor", 0.0)  # nor this, of versions without a minimum share of background lanes
    given.setdefault("speculation", "off")  # nor this, of versions that drafted nothing
    if given.get("predictor") == QUANTILES.name:
        del given["predictor"]  # the default, where it is asked at all
    given.pop("probe_file", None)  # its predictions are in the record
    return given


def recorded_scheduler(
    settings: RecordedSettings,
    stop_text: StopTextFactory | None = None,
    speculation: Speculation | None = None,
    drafter: Drafter | ExecutorDrafter | None = None,
) -> Scheduler:
    """Make a new scheduler as of the recorded run. drafter: instead of speculation."""
    capacity, scheduling = settings.capacity, settings.scheduling
    rules = make_rules(scheduling, settings.token_budget, capacity.max_model_len, capacity.max_rows)
    if drafter is not None:
        speculation = make_speculation(drafter, scheduling, rules, capacity.vocab_size)
    return make_scheduler(capacity, rules, settings.engine, scheduling, stop_text=stop_text, speculation=speculation)


class RecordedStops:
    """A factory of stop texts that end each sample after as many tokens as it had in the record."""

    def __init__(self, requests: Sequence[RequestRecord], reasons: tuple[str, ...] = ("stop",)):
        """reasons: samples with these finish reasons are ended; others end by themselves, as they did."""
        self._lengths = {
            record.request.request_id: iter(
                [len(one.token_ids) if one.finish.reason in reasons else None for one in record.samples]
            )
            for record in requests
        }

    def __call__(self, of: Request) -> RecordedStop:
        return RecordedStop(next(self._lengths[of.request_id]))  # samples are made in their order


class RecordedStop:
    """A stop text that matches after so many tokens; None: never."""

    def __init__(self, after: int | None):
        self._after = after
        self._tokens = 0

    def push(self, token_id: int) -> str | None:
        self._tokens += 1
        return "recorded" if self._tokens == self._after else None


def rebuild_request(record: RequestRecord) -> Request:
    """Rebuild the request of a record, with the recorded end instead of its own stop rules. Raises RecordError."""
    request = record.request
    if request.params.n != len(record.samples):
        raise RecordError(
            f"The request {request.request_id!r} asks for {request.params.n} samples, but the record has "
            f"{len(record.samples)}; record the run again."
        )
    if request.pooling is not None:
        return request
    params = replace(request.params, stop=("recorded",), stop_token_ids=(), min_tokens=0, ignore_eos=True)
    return structs.replace(request, params=params, bad_token_ids=(), grammar=None, reasoning=None)


class RecordedDrafts(Speculation):
    """Speculation with the drafts of a record: those that its steps had."""

    def __init__(self, steps: Sequence[StepRecord]):
        self._drafts = {
            (step.plan.step, chunk.sequence_id): (chunk.num_drafts, chunk.draft_token_ids)
            for step in steps
            for chunk in step.plan.chunks
            if chunk.num_drafts
        }
        self._ahead = _planned_ahead(steps)
        self._held = {step.plan.step: set(step.plan.held_back) for step in steps}
        self._due = {step: set(held) for step, held in self._held.items()}
        for step, sequence in self._drafts:  # none of these has a token in flight
            self._due[step].add(sequence)

    def __bool__(self) -> bool:
        return bool(self._drafts) or any(self._held.values())

    def waits(self, step: int) -> bool:
        return step not in self._ahead

    def due(self, step: int) -> set[int]:
        return self._due.get(step, set())

    def hold_back(self, step: int, views: Sequence[SequenceView], running: int) -> set[int]:
        return {view.number for view in views}

    def allot(
        self, step: int, chunks: Sequence[Chunk], candidates: Sequence[DraftCandidate], budget: int
    ) -> list[Allotment]:
        of = {view.number: min(room, budget) for view, room in candidates}
        drafted = [(number, *self._drafts.get((step, number), (0, ()))) for number in of]
        return [Allotment(number, count, token_ids) for number, count, token_ids in drafted if 0 < count <= of[number]]


def _planned_ahead(steps: Sequence[StepRecord]) -> set[int]:
    """Return the numbers of steps that were planned while another one was computed."""
    found, lost, recently = set[int](), 0, 0  # steps that were lost to recoveries, and those that may be in flight
    for index, step in enumerate(steps):
        if not step.lost:
            lost, recently = lost + recently, 0
        if step.plan.within is not None:  # within a suspended step, at depth 1
            continue
        if step.before_commit is not None:
            ahead = step.before_commit + lost < index
        else:
            ahead = index > 0 and step.planned < steps[index - 1].committed
        if ahead:
            found.add(step.plan.step)
        recently += step.lost
    return found
