"""Several simulated engines behind a router, in order of their times; one engine is a cluster of one.

Three things happen: a step's events are told, a request comes, a replica steps. Whichever is earliest happens next, at
equal times in this order, so that an answer's end can bring the next request before the next step is planned. Before
them, now and then, replicas that share tenants are told what the others gave, and replicas are added and taken away
where they scale.

With `decode`, requests move on to a second pool after their first token: the first engine computes the prompt and
samples one token (`max_tokens` 1); the second gets prompt and first token, with the keys and values of the prompt's
whole blocks handed to it (`Request.handed_tokens`), and computes the rest of the last block again. Between the two lies
the transfer: setup + prompt tokens · bytes per token / bandwidth, one after the other on each sender's link. The
sender's blocks are taken as free when the first token is there. Splitwise (arXiv 2311.18677) and DistServe (arXiv
2401.09670) describe the scheme.

Knows workloads, replicas, routers and links; not what steps cost, and not what figures mean.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from inflight.core.tenants.service import PERIOD_SECONDS, Service, elsewhere
from inflight.core.types.events import Event, FinishedEvent, TokensEvent
from inflight.core.types.request import Request, RequestRefused
from inflight.metrics.observation import Observation
from inflight.routing.routed_request import RoutedRequest
from inflight.simulate.ready_line import ReadyLine
from inflight.simulate.replica import Replica
from inflight.simulate.routed_pool import RoutedPool
from inflight.simulate.scaled_pool import ScaledPool
from inflight.workload.observation_collector import ObservationCollector
from inflight.workload.pacing import Pacer
from inflight.workload.workload import Workload


@dataclass(frozen=True, slots=True)
class Link:
    """bytes_per_token: of keys and values, all layers. gbps: gigabits per second that really pass. setup_s: seconds
    that every transfer takes anyway."""

    bytes_per_token: float
    gbps: float
    setup_s: float = 0.001

    def seconds(self, tokens: int) -> float:
        return self.setup_s + tokens * self.bytes_per_token * 8 / (self.gbps * 1e9)


def for_prefill(request: Request) -> Request:
    """The prompt and the first token."""
    return replace(request, params=replace(request.params, max_tokens=1, min_tokens=0), forced_output_tokens=1)


def for_decode(request: Request, first_token: int) -> Request | None:
    """The rest of the answer, or None where the first token was all of it."""
    length, most = request.forced_output_tokens, request.params.max_tokens
    if length == 1 or most == 1:
        return None
    return replace(
        request,
        prompt_token_ids=(*request.prompt_token_ids, first_token),
        params=replace(request.params, max_tokens=None if most is None else most - 1),
        forced_output_tokens=None if length is None else length - 1,
        handed_tokens=len(request.prompt_token_ids),
    )


@dataclass(slots=True)
class _Sent:
    index: int
    request: Request
    replica: Replica
    pool: RoutedPool
    tokens: int = 0  # that came so far


@dataclass(frozen=True, slots=True)
class DecodePool:
    pool: RoutedPool
    link: Link


class Cluster:
    """request: the engine's request for (index of an entry, intended send time)."""

    def __init__(
        self,
        workload: Workload,
        request: Callable[[int, float], Request],
        first: RoutedPool,
        decode: DecodePool | None = None,
        *,
        shares_service: bool = False,
    ):
        """shares_service: the replicas are told what the others gave to tenants."""
        self._request = request
        self._entries = workload.entries
        self._first, self._decode = first, decode
        self._scaled = first if isinstance(first, ScaledPool) else None
        self._replicas = (*first.replicas, *(decode.pool.replicas if decode is not None else ()))
        self._line = ReadyLine(self._replicas)
        self._pacer = Pacer(workload)
        self._collector = ObservationCollector(workload)
        self._pending: list[tuple[float, int, Replica, list[Event]]] = []  # heap of events whose time has not come
        self._moving: list[tuple[float, int, Request]] = []  # heap of requests on their way to the second pool
        self._tickets = itertools.count()
        self._next_exchange = 0.0 if shares_service else math.inf
        self._given: dict[str, Service] = {}  # in the last period, by replica
        self._sent: dict[str, _Sent] = {}
        self._followed = {entry.after for entry in workload.entries if entry.after is not None}
        self._routed_before: dict[int, RoutedRequest] = {}  # entries that another one is to follow
        self._link_free: dict[int, float] = {}  # of the sender
        self._cached: dict[str, int] = {}  # prompt tokens that the first pool found cached

    def run(self) -> list[Observation]:
        """What became of the entries, in their order. Raises EngineFault when a step fails."""
        now = 0.0
        while not self._pacer.done:
            events_due = self._pending[0][0] if self._pending else math.inf
            moved = self._moving[0][0] if self._moving else math.inf
            due = self._pacer.next_due()
            due = math.inf if due is None else max(due, now)  # who waited for a place comes when it is free
            first = min(events_due, moved, due, self._line.next_time())
            now = first
            if math.isinf(first):
                raise RuntimeError("requests are left, and nothing will ever happen")
            if self._scaled is not None and (time := self._scaled.next_time) <= first:
                self._scale(self._scaled, time)
                continue
            if first >= self._next_exchange:
                self._exchange_service(first)
            if events_due == first:
                time, _, replica, events = heapq.heappop(self._pending)
                self._take(replica, events, time)
            elif moved == first:
                time, _, request = heapq.heappop(self._moving)
                self._go_on(request, time)
            elif due == first:
                self._offer(due)
            else:
                self._step(self._line.take())
        self._collector.cut_off(0.0, max(one.now for one in self._replicas))  # what was never to be sent
        return self._collector.observations()

    def _step(self, replica: Replica) -> None:
        events = replica.step()
        self._line.changed(replica)
        for request_id, times in replica.tokens():
            self._sent[request_id].tokens += len(times)
            self._collector.tokens(request_id, times)  # nothing else hangs on tokens that end no answer
        if events:
            heapq.heappush(self._pending, (replica.now, next(self._tickets), replica, events))

    def _exchange_service(self, now: float) -> None:
        """As whoever stands before replicas does: with the question what each gave goes what the others had given."""
        self._next_exchange = now + PERIOD_SECONDS
        every = enumerate(self._replicas)
        self._given = {str(at): one.exchange_service(elsewhere(self._given, str(at))) for at, one in every}

    def _scale(self, pool: ScaledPool, now: float) -> None:
        for replica in pool.pass_time(now):
            self._line.join(replica)
            self._replicas += (replica,)

    def _offer(self, now: float) -> None:
        """A place that a refusal gives back may be the next one's at once."""
        while due := self._pacer.due(now):
            for index, intended in due:
                self._send(index, intended, now)

    def _send(self, index: int, intended: float, now: float) -> None:
        request = self._request(index, intended)
        try:
            sent = self._hand(index, request, self._first, now)
        except _Refused as error:
            self._pacer.ended(index, error.at)
            self._collector.refused(index, error.refusal, intended, error.at)
            return
        self._collector.sent(index, request, intended, sent.replica.now)

    def _hand(self, index: int, request: Request, pool: RoutedPool, now: float) -> _Sent:
        """To the replica of this pool that its router chooses. Raises _Refused."""
        is_prefill = self._decode is not None and pool is self._first
        routed = self._routed(index, request)
        replica = pool.send(request, routed)
        try:
            replica.add(for_prefill(request) if is_prefill else request, now)
        except RequestRefused as refusal:
            pool.ended(request.request_id, now)
            raise _Refused(refusal, replica.now) from None
        finally:
            self._line.changed(replica)
        sent = self._sent[request.request_id] = _Sent(index, request, replica, pool)
        return sent

    def _routed(self, index: int, request: Request) -> RoutedRequest:
        """Each turn of a conversation begins with the one before it."""
        entry = self._entries[index]
        before = None if entry.after is None else self._routed_before.pop(entry.after, None)
        routed = RoutedRequest.of(request, entry.session, before)
        if index in self._followed:
            self._routed_before[index] = routed
        return routed

    def _take(self, replica: Replica, events: list[Event], now: float) -> None:
        """The replica's events are known from now on."""
        seen: list[Event] = []
        for event in events:
            sent = self._sent[event.request_id]
            if isinstance(event, TokensEvent):
                sent.tokens += len(event.token_ids)
                sent.pool.first_token(event.request_id)
            elif isinstance(event, FinishedEvent):
                sent.pool.ended(event.request_id, now, sent.tokens)
                if self._moves_on(sent, event, now):
                    continue
                del self._sent[event.request_id]
                event = self._with_first_cached(event)
            seen.append(event)
        for index in self._collector.take(seen, now):
            self._pacer.ended(index, now)

    # -- to the second pool -------------------------------------------------------------------------------------

    def _moves_on(self, sent: _Sent, event: FinishedEvent, now: float) -> bool:
        """Whether the first pool is done with it, and the second one is to go on."""
        if self._decode is None or sent.pool is not self._first:
            return False
        token = 0  # the simulated executor's
        rest = for_decode(sent.request, token)
        if rest is None or any(finish.reason == "error" for finish in event.finishes):
            return False
        self._cached[event.request_id] = event.timings.cached_tokens
        sender = id(sent.replica)
        begin = max(now, self._link_free.get(sender, 0.0))
        end = begin + self._decode.link.seconds(rest.handed_tokens)
        self._link_free[sender] = end
        heapq.heappush(self._moving, (end, next(self._tickets), rest))
        return True

    def _go_on(self, request: Request, now: float) -> None:
        assert self._decode is not None
        index = self._sent.pop(request.request_id).index
        try:
            self._hand(index, request, self._decode.pool, now)
        except _Refused as error:
            pending = self._collector.pending.pop(request.request_id)
            self._pacer.ended(index, error.at)
            self._collector.refused(index, error.refusal, pending.intended, error.at)

    def _with_first_cached(self, event: FinishedEvent) -> FinishedEvent:
        cached = self._cached.pop(event.request_id, None)
        if cached is None:
            return event
        return replace(event, timings=replace(event.timings, cached_tokens=cached))


class _Refused(Exception):
    def __init__(self, refusal: RequestRefused, at: float):
        super().__init__(str(refusal))
        self.refusal, self.at = refusal, at
