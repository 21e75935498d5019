"""Requests are begun a few at a time: next is the address that has had least of the event loop's time.

What a request costs before it first waits for something is paid in one piece, a millisecond or two. Hundreds that come
together would be begun together, and whoever comes then would wait for all of them. Here no more are begun in a round
of the loop than take some milliseconds, other work has its turn between rounds, and addresses share the loop as tenants
share the engine: by what they have used of it, newcomers lifted to those at work, so that idle time is not banked
(start-time fair queueing, Goyal et al., SIGCOMM 1996, with costs that are known afterwards). What an address asks of
the server's state is counted apart from its work, so that a probe does not wait behind its neighbours. Who went away
before its turn costs nothing.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections import deque

from starlette.types import ASGIApp, Receive, Scope, Send

from inflight.server.ingress.answering import is_gone
from inflight.server.ingress.authentication import is_open
from inflight.server.ingress.request_share import client_key

ROUND_SECONDS = 0.004  # for the requests that are begun in one round of the loop
_NEWS = 0.2  # share of the last round in what a request is expected to cost
_MOST_KNOWN = 4096  # flows whose use is remembered while they ask for nothing

Flow = tuple[str, bool]  # an address, and whether it asks for the server's state


class RequestTurns:
    def __init__(self, app: ASGIApp):
        self._app = app
        self._waiting: dict[Flow, deque[asyncio.Future[None]]] = {}
        self._order: list[tuple[float, int, Flow]] = []  # what a flow has used, a ticket, the flow
        self._tickets = itertools.count()
        self._used: dict[Flow, float] = {}  # seconds
        self._least = 0.0  # what the flow that had the last turn had used before
        self._round: list[Flow] = []  # whose requests were begun in this round
        self._began = 0.0  # the round
        self._cost = ROUND_SECONDS  # seconds that a request is expected to take
        self._goes_on = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._wait((client_key(scope), is_open(scope["path"])))
            if is_gone(scope):
                return
        await self._app(scope, receive, send)

    async def _wait(self, flow: Flow) -> None:
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        queue = self._waiting.get(flow)
        if queue is None:
            queue = self._waiting[flow] = deque()
            self._used[flow] = max(self._used.get(flow, 0.0), self._least)
            self._line_up(flow)
        queue.append(turn)
        if not self._goes_on:
            self._goes_on = True
            loop.call_soon(self._next_round, loop)
        await turn

    def _line_up(self, flow: Flow) -> None:
        heapq.heappush(self._order, (self._used[flow], next(self._tickets), flow))

    def _next_round(self, loop: asyncio.AbstractEventLoop) -> None:
        """Called when those of the last round wait for something, and everything else that was ready has run."""
        now = time.perf_counter()
        self._settle(now)
        self._began = now
        while self._order and (len(self._round) + 1) * self._cost <= max(ROUND_SECONDS, self._cost):
            used, _, flow = heapq.heappop(self._order)
            if used < self._used[flow]:  # its last request took longer than was expected
                self._line_up(flow)
                continue
            self._least, queue = used, self._waiting[flow]
            while queue and (turn := queue.popleft()):
                if not turn.done():  # else who waited was cancelled
                    turn.set_result(None)
                    self._round.append(flow)
                    self._used[flow] += self._cost  # until it is known
                    break
            self._go_on_with(flow)
        # The loop runs what is ready in order: those whose turn it is, and then this again.
        self._goes_on = bool(self._round)
        if self._goes_on:
            loop.call_soon(self._next_round, loop)

    def _settle(self, now: float) -> None:
        """What the last round has cost, instead of what was expected."""
        if not self._round:
            return
        each = (now - self._began) / len(self._round)
        for flow in self._round:
            if flow in self._used:
                self._used[flow] += each - self._cost
        self._cost += _NEWS * (each - self._cost)
        self._round.clear()

    def _go_on_with(self, flow: Flow) -> None:
        if self._waiting[flow]:
            self._line_up(flow)
            return
        del self._waiting[flow]
        if len(self._used) > _MOST_KNOWN + len(self._waiting):
            self._forget()

    def _forget(self) -> None:
        """What flows have used that would be lifted anyway; else of half of them."""
        idle = [flow for flow in self._used if flow not in self._waiting]
        lifted = [flow for flow in idle if self._used[flow] <= self._least]
        for flow in lifted or idle[: len(idle) // 2]:
            del self._used[flow]
