"""Run several simulated engines behind a router, in the order of their times; one engine is a cluster of one.

The earliest event comes next, at equal times in this order: a pool scales, replicas exchange tenant usage, events of a
step are delivered, a request arrives, a replica steps. So the end of an answer can bring the next request before the
next step is planned. With a decode pool, an engine of the first pool computes the prompt, and one of the second pool
loads its blocks and generates (`disagg`).
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from msgspec import structs

from inflight.core.tenants import SYNC_PERIOD_S, TenantUsage, usage_of_others
from inflight.core.types.events import Event, FinishedEvent, TokensEvent
from inflight.core.types.request import Request, RequestRefused
from inflight.metrics.observation import Observation
from inflight.routing.routed_request import RoutedRequest
from inflight.simulate.disagg import AFTER, DisaggMode, Exchange, ExchangeSide, for_decode, for_prefill
from inflight.simulate.front_end import FrontEnd
from inflight.simulate.replicas import Replica, RoutedPool, ScaledPool
from inflight.workload.driving import EngineFault, ObservationCollector
from inflight.workload.workload import Pacer, Workload


class EventQueue:
    """Replicas by the times of their next steps: a heap whose entries are replaced, so that the last of each counts."""

    def __init__(self) -> None:
        self._index: dict[int, int] = {}  # id of a replica → its index, in the order of joining
        self._heap: list[tuple[float, int, int, Replica]] = []
        self._last: list[int] = []  # sequence number of each replica's valid entry

    def join(self, replica: Replica) -> None:
        """Add a replica without work."""
        self._index[id(replica)] = len(self._last)
        self._last.append(0)

    def update(self, replica: Replica, until: float = math.inf) -> None:
        """Replace a replica's entry with its present time. until: when the next request comes, if that is known."""
        index, ready = self._index[id(replica)], replica.foresee(until)
        self._last[index] += 1
        if ready is not None:
            heapq.heappush(self._heap, (ready, index, self._last[index], replica))

    def next_time(self) -> float:
        """Return when the first replica is ready; infinite where none has work."""
        heap, last = self._heap, self._last
        while heap and heap[0][2] != last[heap[0][1]]:
            heapq.heappop(heap)
        return heap[0][0] if heap else math.inf

    def pop(self) -> Replica:
        """Remove the replica that `next_time` is of, until its `update`."""
        return heapq.heappop(self._heap)[3]


@dataclass(slots=True)
class _Sent:
    index: int
    request: Request
    replica: Replica
    pool: RoutedPool
    whole: Request | None = None  # of which this is the prefill part
    tokens: int = 0  # generated so far


@dataclass(frozen=True, slots=True)
class DecodePool:
    """The pool of decode engines. exchange: between these and the first pool's."""

    pool: RoutedPool
    exchange: Exchange
    disagg_mode: DisaggMode = AFTER


class Cluster:
    """Runs a workload over pools of replicas, one event after the other."""

    def __init__(
        self,
        workload: Workload,
        request: Callable[[int, float], Request],
        first: RoutedPool,
        decode: DecodePool | None = None,
        *,
        shares_service: bool = False,
        front_end: FrontEnd | None = None,
        on_end: Callable[[int, Observation], None] | None = None,
    ):
        """Put a cluster together.

        Args:
            workload: the requests.
            request: makes the engine's request for (index of an entry, intended send time).
            first: the pool of engines; of prefill engines where there is a decode pool.
            decode: the pool of decode engines.
            shares_service: whether replicas get each other's tenant usage.
            front_end: what requests pass before they are routed; None: that takes no time.
            on_end: called with the index and the observation of each entry as it ends.
        """
        self._request = request
        self._entries = workload.entries
        self._first, self._decode = first, decode
        pools = [first] if decode is None else [first, decode.pool]
        self._scaled = [one for one in pools if isinstance(one, ScaledPool)]
        self._replicas: tuple[Replica, ...] = ()
        self._queue = EventQueue()
        self._by_side: dict[ExchangeSide, Replica] = {}
        for pool in pools:
            for replica in pool.replicas:
                self._join(replica)
        self._pacer = Pacer(workload)
        self._front_end = FrontEnd(0.0, 0.0) if front_end is None else front_end
        self._collector = ObservationCollector(workload, on_end)
        self._pending: list[tuple[float, int, Replica, list[Event]]] = []  # heap of events that are not delivered yet
        self._seq = itertools.count()
        self._next_exchange = 0.0 if shares_service else math.inf
        self._usage: dict[str, TenantUsage] = {}  # of the last period, by replica
        self._sent: dict[str, _Sent] = {}
        self._followed = {entry.after for entry in workload.entries if entry.after is not None}
        self._routed_before: dict[int, RoutedRequest] = {}  # of entries that another one is to follow
        self._cached: dict[str, int] = {}  # prompt tokens that the first pool found cached
        self._has_first: set[str] = set()  # requests in flight whose first token was delivered, with a decode pool

    def run(self) -> list[Observation]:
        """Run the workload and return its observations in the order of the entries. Raises EngineFault."""
        now = 0.0
        while not self._pacer.done:
            events_due = self._pending[0][0] if self._pending else math.inf
            prepared, coming = self._front_end.next_time(), self._pacer.next_due()
            coming = math.inf if coming is None else coming
            due = max(coming, now)  # an entry that waited for a slot is due when it is free
            first = min(events_due, due, prepared, self._queue.next_time())
            now = first
            if math.isinf(first):
                raise RuntimeError("requests are left, and nothing will ever happen")
            if self._scaled and self._scale(first):
                continue
            if first >= self._next_exchange:
                self._exchange_service(first)
            if events_due == first:
                time, _, replica, events = heapq.heappop(self._pending)
                self._take(replica, events, time)
            elif due == first:
                self._offer(due)
            elif prepared == first:
                self._send(*self._front_end.pop(), now)
            else:
                now = self._step(self._queue.pop(), now, min(coming, prepared))
        self._collector.cut_off(0.0, max(one.now for one in self._replicas))  # entries that were not sent
        return self._collector.observations()

    def _step(self, replica: Replica, now: float, until: float) -> float:
        """Have a replica take its next step; return the time up to which all has happened. until: when the next request
        comes."""
        events = replica.step(until)
        self._queue.update(replica, until)
        if self._by_side:
            self._update_peers()
        for request_id, times in replica.drain_tokens():
            self._sent[request_id].tokens += len(times)
            self._collector.tokens(request_id, times)  # tokens that end no answer have no other effect
        if not events:
            return now
        ended = replica.now
        alone = not (self._pending or self._scaled) and ended < self._next_exchange
        if alone and ended <= until and ended <= self._queue.next_time():
            self._take(replica, events, ended)  # nothing comes before that
            return ended
        heapq.heappush(self._pending, (ended, next(self._seq), replica, events))
        return now

    def _next_request(self) -> float:
        """Return when the next request comes, as far as that is known; infinite where it is not."""
        due = self._pacer.next_due()
        return min(math.inf if due is None else due, self._front_end.next_time())

    def _exchange_service(self, now: float) -> None:
        """Give each replica the others' last tenant usage, and collect its own."""
        self._next_exchange = now + SYNC_PERIOD_S
        every = enumerate(self._replicas)
        self._usage = {str(at): one.sync_tenant_usage(usage_of_others(self._usage, str(at))) for at, one in every}

    def _scale(self, until: float) -> bool:
        """Scale the first pool that is due by then; return whether one was."""
        pool = min(self._scaled, key=lambda one: one.next_time)
        if pool.next_time > until:
            return False
        for replica in pool.pass_time(pool.next_time):
            self._join(replica)
        return True

    def _join(self, replica: Replica) -> None:
        self._queue.join(replica)
        self._replicas += (replica,)
        if replica.peers is not None:
            self._by_side[replica.peers] = replica

    def _update_peers(self) -> None:
        """Update the queue for replicas whose transfers may end at another time than was known."""
        assert self._decode is not None
        for side in self._decode.exchange.drain_changed():
            self._queue.update(self._by_side[side])

    def _offer(self, now: float) -> None:
        """Send the entries that are due; a refusal may make room for the next one at once."""
        while due := self._pacer.take_due(now):
            if self._front_end.free:
                for index, intended in due:
                    self._send(index, intended, now)
            else:
                self._front_end.take(due, now, self._front_ends)

    @property
    def _front_ends(self) -> int:
        """The number of engines that get requests first."""
        decode = self._decode
        with_prompts = 0 if decode is None or not decode.disagg_mode.max_local_tokens else decode.pool.serving
        return self._first.serving + with_prompts

    def _send(self, index: int, intended: float, now: float) -> None:
        request, decode = self._request(index, intended), self._decode
        routed = self._routed(index, request)
        if decode is None:
            sent = self._route(index, request, self._first, now, routed, intended)
        elif decode.disagg_mode.stays(request):
            sent, decode = self._route(index, request, decode.pool, now, routed, intended), None
        else:
            sent = self._route(index, for_prefill(request), self._first, now, routed, intended, request)
        if sent is None:
            return
        self._collector.sent(index, request, intended, sent.replica.now)
        if (
            decode is not None
            and decode.disagg_mode.decode_asks == "first"
            and not decode.disagg_mode.ends_with_prompt(request)
        ):
            self._send_decode(index, request, decode, now)

    def _route(
        self,
        index: int,
        request: Request,
        pool: RoutedPool,
        now: float,
        routed: RoutedRequest,
        intended: float,
        whole: Request | None = None,
    ) -> _Sent | None:
        """Add a request to the replica that the pool's router chooses; None where that refuses it, which ends it."""
        routed.request_id = request.request_id
        replica = pool.send(request, routed)
        try:
            replica.add(request, now)
        except RequestRefused as refusal:
            pool.ended(request.request_id, now)
            self._pacer.ended(index, replica.now)
            self._collector.refused(index, refusal, intended, replica.now)
            return None
        finally:
            self._queue.update(replica, self._next_request())
        sent = self._sent[request.request_id] = _Sent(index, request, replica, pool, whole)
        return sent

    def _routed(self, index: int, request: Request) -> RoutedRequest:
        """Return the router's view; each turn of a conversation begins with the one before it."""
        entry = self._entries[index]
        before = None if entry.after is None else self._routed_before.pop(entry.after, None)
        routed = RoutedRequest.of(request, before)
        if index in self._followed:
            self._routed_before[index] = routed
        return routed

    def _take(self, replica: Replica, events: list[Event], now: float) -> None:
        """Deliver the events of a replica."""
        seen = events if self._decode is None else []
        for event in events:
            sent = self._sent[event.request_id]
            if isinstance(event, TokensEvent):
                if not sent.tokens:
                    sent.pool.first_token(event.request_id)
                sent.tokens += len(event.token_ids)
            elif isinstance(event, FinishedEvent):
                sent.pool.ended(event.request_id, now, sent.tokens)
                del self._sent[event.request_id]
            if self._decode is not None:
                delivered = self._delivered(sent, event, self._decode, now)
                if delivered is not None:
                    seen.append(delivered)
        for index in self._collector.take(seen, now):
            self._pacer.ended(index, now)

    # -- disaggregated ------------------------------------------------------------------------------------------

    def _delivered(self, sent: _Sent, event: Event, decode: DecodePool, now: float) -> Event | None:
        """Handle an event of either pool and return the client's event; None: the client gets none."""
        from_prefill = decode.disagg_mode.first_token == "prefill"
        if sent.whole is None:
            if isinstance(event, FinishedEvent):
                self._has_first.discard(event.request_id)
                return self._with_first_cached(event)
            is_first = isinstance(event, TokensEvent) and sent.tokens == len(event.token_ids)
            return event if not (from_prefill and is_first) or self._deliver_first(event.request_id) else None
        request_id = sent.whole.request_id
        if isinstance(event, TokensEvent):
            return (
                structs.replace(event, request_id=request_id)
                if from_prefill and self._deliver_first(request_id)
                else None
            )
        if not isinstance(event, FinishedEvent):
            return None
        if fault := next((one.detail for one in event.finishes if one.reason == "error"), None):
            raise EngineFault(f"A step of the engine failed: {fault}")
        if decode.disagg_mode.ends_with_prompt(sent.whole):
            self._has_first.discard(request_id)
            return structs.replace(event, request_id=request_id)
        self._cached[request_id] = event.timings.cached_tokens
        if decode.disagg_mode.decode_asks == "after":
            self._send_decode(sent.index, sent.whole, decode, now)
        return None

    def _deliver_first(self, request_id: str) -> bool:
        """Return whether a first token is to be delivered, and note it. A decode engine that is asked first, and
        computes the prompt itself, may have its first token, or all of them, before the prefill engine has one."""
        if request_id in self._has_first or request_id not in self._collector.pending:
            return False
        self._has_first.add(request_id)
        return True

    def _send_decode(self, index: int, request: Request, decode: DecodePool, now: float) -> None:
        """Send a request to the decode pool, which loads its prompt's blocks from the first."""
        routed = RoutedRequest.of(request)
        routed.num_external_tokens = len(request.prompt_token_ids) - 1
        intended = self._collector.pending[request.request_id].intended
        if self._route(index, for_decode(request), decode.pool, now, routed, intended) is None:
            self._has_first.discard(request.request_id)
            del self._collector.pending[request.request_id]

    def _with_first_cached(self, event: FinishedEvent) -> FinishedEvent:
        """Return the event with the tokens that neither pool computed as cached ones."""
        cached = self._cached.pop(event.request_id, None)
        if cached is None:
            return event
        return structs.replace(event, timings=replace(event.timings, cached_tokens=cached))
