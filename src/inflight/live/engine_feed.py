"""Make frames of a live engine from its observer's entries and a scheduler dump.

`look` collects them in the engine's thread and is quick; `frame` makes a frame of them in any thread.
"""

from __future__ import annotations

from typing import NamedTuple

from inflight.core.scheduling.stats import LaneDump, SchedulerDump
from inflight.core.types.events import Event, FinishedEvent, TokensEvent
from inflight.core.types.request import Request
from inflight.core.types.timings import Timings
from inflight.engine.loop import EngineLoop
from inflight.live.block_map import folder_tier, host_tier, in_cells, owners_of
from inflight.live.frame_maker import FrameMaker
from inflight.live.frames import MOVING, SHARED, Account, BlocksPart, Frame, Holder, LanePart, RequestInfo
from inflight.live.observer import Added, Entry, Happened, LiveObserver, Stepped
from inflight.live.step_facts import Moment, of_plan

MAP_SECONDS = 0.5  # between two maps of blocks
_WORST_FIRST = ("error", "abort", "length", "stop")


class Look(NamedTuple):
    """The scheduler's state at one time, and the observer's entries since the last look.

    Attributes:
        lost: Entries that a full ring has dropped.
        begins: Whether this is the first look.
    """

    now: float
    dump: SchedulerDump
    entries: list[Entry]
    lost: int
    begins: bool


class Living(NamedTuple):
    """The tenant of a request in flight, and its timings until now."""

    tenant: str
    now: float
    timings: Timings


class SlotInfo(NamedTuple):
    """A request slot in use.

    Attributes:
        slot: Its number.
        computed: Tokens of prompt and output that are computed.
        max_tokens: Of the output; None: what the context leaves.
    """

    slot: int
    number: int
    request_id: str
    lane: str
    tenant: str
    prompt_tokens: int
    computed: int
    output_tokens: int
    max_tokens: int | None
    temperature: float


class EngineFeed:
    """The frames of one live engine."""

    def __init__(self, loop: EngineLoop, observer: LiveObserver):
        """Make a feed. observer: one of the loop's observers."""
        self._loop, self._observer = loop, observer
        self._frames = 0  # made so far, by all makers
        self._maker = FrameMaker()
        self._first: dict[str, int] = {}  # request id → its first sample's number
        self._next_number = 0
        self._before = 0.0
        self._map_at = float("-inf")  # written in the engine's thread
        self._num_blocks = self._shared = self._moving = 0

    # -- in the engine's thread ---------------------------------------------------------------------------------------

    def look(self) -> Look:
        """Collect the entries and a dump; the first call begins to observe."""
        begins = not self._observer.watching
        if begins:
            self._observer.watch(True)
        entries, lost = self._observer.drain()
        now = self._loop.clock.now()
        with_map = begins or now - self._map_at >= MAP_SECONDS
        if with_map:
            self._map_at = now
        return Look(now, self._loop.dump(begins, with_map), entries, lost, begins)

    def leave(self) -> None:
        """Stop observing; the next look begins again."""
        self._observer.watch(False)

    def living(self, request_id: str) -> Living | None:
        """Return the account of a request in flight; None: no such request."""
        found = self._loop.account(request_id)
        return None if found is None else Living(found[0].tenant, self._loop.clock.now(), found[1])

    def slots(self) -> list[SlotInfo]:
        """Return the request slots in use, in their order."""
        found = []
        for one in self._loop.dump(blocks=False).running:
            request, params = one.request, one.request.params
            prompt = len(request.prompt_token_ids)
            counts = (prompt, one.num_computed, one.num_tokens - prompt, params.max_tokens, params.temperature)
            found.append(SlotInfo(one.row, one.number, request.request_id, request.lane, request.tenant, *counts))
        return sorted(found)

    # -- in any thread ------------------------------------------------------------------------------------------------

    @property
    def shown_requests(self) -> list[RequestInfo]:
        """Requests in flight that frames have shown."""
        return self._maker.shown_requests

    def frame(self, look: Look) -> Frame:
        if look.begins:
            self._begin(look)
        for one in look.entries:
            if isinstance(one, Stepped):
                self._maker.step(of_plan(*one))
            elif isinstance(one, Happened):
                self._happened(one.events, one.now)
            else:
                self._added(one)
        frame = self._maker.end_frame(self._before, look.now, self._moment(look), lost=look.lost)
        self._before = look.now
        self._frames += 1
        return frame

    def _begin(self, look: Look) -> None:
        """Start with the requests that are in flight."""
        self._maker = FrameMaker(first_number=self._frames)
        self._first.clear()
        self._before = look.now
        self._next_number = look.dump.next_number
        by_request: dict[str, list[RequestInfo]] = {}
        has_run: set[str] = set()
        for one in look.dump.running:
            request = one.request
            by_request.setdefault(request.request_id, []).append(_info(one.number, request))
            repeats = one.max_computed if one.max_computed > one.num_computed else 0  # with what is in flight
            self._maker.seed(one.row, one.number, len(request.prompt_token_ids), repeats)
            if one.num_tokens > len(request.prompt_token_ids):
                has_run.add(request.request_id)
        for lane in look.dump.lanes:
            for waiting in lane.named:
                by_request.setdefault(waiting.request.request_id, []).append(_info(waiting.number, waiting.request))
                self._maker.rows.seed_waiting(waiting.number, waiting.max_computed)
                if waiting.max_computed:
                    has_run.add(waiting.request.request_id)
        for request_id, infos in by_request.items():
            infos.sort(key=lambda one: one.number)
            self._maker.add(infos, request_id in has_run)
            self._first[request_id] = infos[0].number

    def _added(self, added: Added) -> None:
        request, first = added.request, self._next_number
        self._next_number += request.params.n
        self._first[request.request_id] = first
        self._maker.add([_info(first + sample, request) for sample in range(request.params.n)])

    def _happened(self, events: list[Event], now: float) -> None:
        first_of, tokens = self._first, self._maker.tokens
        for event in events:
            if type(event) is TokensEvent:  # nearly all of them
                first = first_of.get(event.request_id)
                if first is not None:
                    tokens(first + event.sample_index, len(event.token_ids), now)
            elif isinstance(event, FinishedEvent):
                first = first_of.pop(event.request_id, None)
                if first is not None:
                    reasons = {one.reason for one in event.finishes}
                    reason = next((one for one in _WORST_FIRST if one in reasons), "error")
                    self._maker.ended(first, reason, now, account_of(event.timings))

    def _moment(self, look: Look) -> Moment:
        dump = look.dump
        lanes = [_lane(one, look.now) for one in dump.lanes]
        every = len(dump.kv.ref_counts)
        if not every:
            evictable = self._num_blocks - dump.kv.held - dump.kv.free
            counts = (dump.kv.held, self._shared, evictable, dump.kv.free, dump.kv.used_host)
            return Moment(lanes, BlocksPart(*counts, moving=self._moving), ())
        self._num_blocks = every
        tables = [(one.number, one.blocks) for one in dump.running]
        owners, shared_of = owners_of(dump.kv.ref_counts, dump.kv.evictable, tables, dump.kv.moving)
        self._shared, self._moving = owners.count(SHARED), owners.count(MOVING)
        cells, per_cell = in_cells(owners)
        counts = (dump.kv.held, self._shared, len(dump.kv.evictable), dump.kv.free, dump.kv.used_host)
        host = None if dump.kv.host is None else host_tier(dump.kv.host)
        disk = None if dump.folder is None else folder_tier(dump.folder)
        blocks = BlocksPart(*counts, cells, per_cell, self._moving, host, disk)
        holders = [
            Holder(one.number, one.row, one.num_tokens, one.num_computed, len(one.blocks), shared_of[one.number])
            for one in dump.running
        ]
        return Moment(lanes, blocks, holders)


def _lane(lane: LaneDump, now: float) -> LanePart:
    first = [one.number for one in lane.named]
    oldest = max((now - one.request.arrival for one in lane.named), default=0.0)
    reason = lane.blocked_on if lane.waiting else ""
    numbers = (lane.waiting, lane.running, reason, lane.behind, first[:8], round(oldest, 3))
    return LanePart(lane.name, *numbers, dict(lane.deferred))


def _info(number: int, request: Request) -> RequestInfo:
    return RequestInfo(
        number=number,
        request_id=request.request_id,
        lane=request.lane,
        tenant=request.tenant,
        arrival=round(request.arrival, 4),
        prompt_tokens=len(request.prompt_token_ids),
        ttft_target=request.slo.ttft or 0.0,
        itl_target=request.slo.itl or 0.0,
        tpot_target=request.slo.tpot or 0.0,
    )


def account_of(timings: Timings) -> Account:
    """Convert timings to an account, without reasons of 0 ms."""
    return Account(
        queue=round(timings.queue_ms, 2),
        prefill=round(timings.prefill_ms, 2),
        decode=round(timings.decode_ms, 2),
        preempted=round(timings.preempted_ms, 2),
        other=round(timings.other_ms, 2),
        total=round(timings.total_ms, 2),
        ttft=None if timings.ttft_ms is None else round(timings.ttft_ms, 2),
        cached_tokens=timings.cached_tokens,
        recomputed_tokens=timings.recomputed_tokens,
        queued_by={name: round(ms, 2) for name, ms in timings.queued_by.items() if ms > 0},
        queued_behind={name: round(ms, 2) for name, ms in timings.queued_behind.items() if ms > 0},
    )
