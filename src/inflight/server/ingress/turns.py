"""Turns at the event loop: next is the address that has had least of it.

What a request costs before it first waits for something is paid in one piece, a millisecond or two, as is each piece
of a large body. Hundreds that come together would be worked on together, and whoever comes then would wait for all of
them. Here no more is begun in a round of the loop than takes some milliseconds, other work has its turn between rounds,
and addresses share the loop as tenants share the engine, by what they have used of it (`FairLine`). Questions for the
server's state share half of the turns among themselves, so that a probe does not wait for a turn of everybody else's
work. Who went away before its turn costs nothing.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from inflight.server.fair_line import FairLine
from inflight.server.ingress.answering import is_gone
from inflight.server.ingress.authentication import is_open
from inflight.server.ingress.request_share import client_key

ROUND_SECONDS = 0.004  # for what is begun in one round of the loop
PIECE_SECONDS = 0.0005  # for a piece of a body, at most 256 KiB: most of it passes before anybody is called; or an end
_NEWS = 0.2  # share of the last round in what a request is expected to take


@dataclass(slots=True, eq=False)
class _Turn:
    line: FairLine[_Turn]
    owner: str
    granted: asyncio.Future[None]
    seconds: float | None  # None: to be measured

    @property
    def is_over(self) -> bool:
        """Who waited was cancelled."""
        return self.granted.done()


class Turns:
    def __init__(self) -> None:
        self._state, self._work = FairLine[_Turn](), FairLine[_Turn]()
        self._measured: list[_Turn] = []  # of this round
        self._began = 0.0  # the first of them
        self._expected = ROUND_SECONDS  # seconds of a turn that is to be measured
        self._goes_on = False

    async def wait(self, address: str, *, for_state: bool = False, seconds: float | None = None) -> None:
        """Returns when it is the address's turn. seconds: that the turn will take; by itself it is measured, up to
        where the caller waits for something."""
        loop = asyncio.get_running_loop()
        line, other = (self._state, self._work) if for_state else (self._work, self._state)
        if not line:
            line.used = max(line.used, other.used)
        turn = _Turn(line, address, loop.create_future(), seconds)
        line.put(turn)
        if not self._goes_on:
            self._goes_on = True
            loop.call_soon(self._round, loop)
        await turn.granted

    def _round(self, loop: asyncio.AbstractEventLoop) -> None:
        """Called when those of the last round wait for something."""
        self._settle()
        turns = self._next_turns()
        # The loop runs what is ready in order: the clock, those whose turn it is, and then this again.
        self._goes_on = bool(turns)
        if self._goes_on:
            loop.call_soon(self._begin)
            for turn in turns:
                turn.granted.set_result(None)
            loop.call_soon(self._round, loop)

    def _next_turns(self) -> list[_Turn]:
        turns: list[_Turn] = []
        left = ROUND_SECONDS
        while (turn := self._next()) is not None:
            seconds = self._expected if turn.seconds is None else turn.seconds
            if turns and seconds > left:
                break
            turn.line.take(seconds)
            left -= seconds
            turns.append(turn)
            if turn.seconds is None:
                self._measured.append(turn)
        return turns

    def _next(self) -> _Turn | None:
        state, work = self._state.next(), self._work.next()
        if state is None or work is None:
            return state or work
        return state if self._state.used <= self._work.used else work

    def _begin(self) -> None:
        self._began = time.thread_time()  # without what others had the core, or the interpreter's lock

    def _settle(self) -> None:
        """What the measured turns of the last round took, instead of what was expected."""
        if self._measured:
            each = (time.thread_time() - self._began) / len(self._measured)
            for turn in self._measured:
                turn.line.charge(turn.owner, each - self._expected)
            self._expected += _NEWS * (each - self._expected)
            self._measured.clear()


class RequestTurns:
    """Begins each request when it is its address's turn, and ends it so when its client has left: they leave by the
    hundred, too."""

    def __init__(self, app: ASGIApp, turns: Turns):
        self._app = app
        self._turns = turns

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        address = client_key(scope)
        await self._turns.wait(address, for_state=is_open(scope["path"]))
        if is_gone(scope):
            return

        async def received() -> Message:
            message = await receive()
            if message["type"] == "http.disconnect":
                await self._turns.wait(address, seconds=PIECE_SECONDS)
            return message

        await self._app(scope, received, send)
