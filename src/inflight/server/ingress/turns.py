"""Turns at the event loop: next is the address that has had least of it.

What a request costs before it first waits for something is paid in one piece, a millisecond or two, as is each piece
of a large body. Hundreds that come together would be worked on together, and whoever comes then would wait for all of
them. Here no more is begun in a round of the loop than takes some milliseconds, other work has its turn between rounds,
and addresses share the loop as tenants share the engine: by what they have used of it, newcomers lifted to those at
work, so that idle time is not banked (start-time fair queueing, Goyal et al., SIGCOMM 1996, with costs that are known
afterwards). What an address asks of the server's state is counted apart from its work, and counts less, so that a probe
does not wait behind its neighbours' work. Who went away before its turn costs nothing.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections import deque
from dataclasses import dataclass

from starlette.types import ASGIApp, Receive, Scope, Send

from inflight.server.ingress.answering import is_gone
from inflight.server.ingress.authentication import is_open
from inflight.server.ingress.request_share import client_key

ROUND_SECONDS = 0.004  # for what is begun in one round of the loop
PIECE_SECONDS = 0.0005  # for a piece of a body, at most 256 KiB: most of it passes before anybody is called
STATE_WEIGHT = 8.0  # of questions for the server's state: a probe asks often, and an address's share may be small
_NEWS = 0.2  # share of the last round in what a request is expected to take
_MOST_KNOWN = 4096  # flows whose use is remembered while they ask for nothing

Flow = tuple[str, bool]  # an address, and whether it asks for the server's state


@dataclass(slots=True)
class _Turn:
    granted: asyncio.Future[None]
    seconds: float | None  # None: to be measured


class Turns:
    def __init__(self) -> None:
        self._waiting: dict[Flow, deque[_Turn]] = {}
        self._order: list[tuple[float, int, Flow]] = []  # what a flow has used, a ticket, the flow
        self._tickets = itertools.count()
        self._used: dict[Flow, float] = {}  # seconds of the loop's thread over the flow's weight
        self._least = 0.0  # to which newcomers are lifted: the most that a flow had used when it had a turn
        self._measured: list[Flow] = []  # whose turns in this round are
        self._began = 0.0  # the round
        self._expected = ROUND_SECONDS  # seconds of a turn that is to be measured
        self._goes_on = False

    async def wait(self, flow: Flow, seconds: float | None = None) -> None:
        """Returns when it is the flow's turn. seconds: that the turn will take; by itself it is measured, up to where
        the caller waits for something."""
        loop = asyncio.get_running_loop()
        turn = _Turn(loop.create_future(), seconds)
        queue = self._waiting.get(flow)
        if queue is None:
            queue = self._waiting[flow] = deque()
            self._used[flow] = max(self._used.get(flow, 0.0), self._least)
            self._line_up(flow)
        queue.append(turn)
        if not self._goes_on:
            self._goes_on = True
            loop.call_soon(self._next_round, loop)
        await turn.granted

    def _line_up(self, flow: Flow) -> None:
        heapq.heappush(self._order, (self._used[flow], next(self._tickets), flow))

    def _next_round(self, loop: asyncio.AbstractEventLoop) -> None:
        """Called when those of the last round wait for something, and everything else that was ready has run."""
        self._settle()
        left, begun = ROUND_SECONDS, False
        while self._order:
            used, _, flow = self._order[0]
            if used < self._used[flow]:  # its last turn took longer than was expected
                heapq.heappop(self._order)
                self._line_up(flow)
                continue
            turn = self._waiting[flow][0]
            is_over = turn.granted.done()  # who waited was cancelled
            seconds = self._expected if turn.seconds is None else turn.seconds
            if begun and seconds > left and not is_over:
                break
            heapq.heappop(self._order)
            self._waiting[flow].popleft()
            if not is_over:
                self._least, begun, left = max(self._least, used), True, left - seconds
                self._used[flow] += seconds / _weight(flow)
                turn.granted.set_result(None)
                if turn.seconds is None:
                    self._measured.append(flow)
            self._go_on_with(flow)
        # The loop runs what is ready in order: those whose turn it is, and then this again.
        self._goes_on = begun
        if begun:
            loop.call_soon(self._next_round, loop)

    def _settle(self) -> None:
        """What the measured turns of the last round took, instead of what was expected."""
        now = time.thread_time()  # without what others had the core, or the interpreter's lock
        if self._measured:
            each = (now - self._began) / len(self._measured)
            for flow in self._measured:
                if flow in self._used:
                    self._used[flow] += (each - self._expected) / _weight(flow)
            self._expected += _NEWS * (each - self._expected)
            self._measured.clear()
        self._began = now

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


def _weight(flow: Flow) -> float:
    return STATE_WEIGHT if flow[1] else 1.0


class RequestTurns:
    """Begins each request when it is its address's turn."""

    def __init__(self, app: ASGIApp, turns: Turns):
        self._app = app
        self._turns = turns

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._turns.wait((client_key(scope), is_open(scope["path"])))
            if is_gone(scope):
                return
        await self._app(scope, receive, send)
