"""The memory that answers may take: tokens and log-probabilities that are held for clients, of all calls together.

A client that does not read, or asks for hundreds of samples with twenty alternatives each, has the server hold what it
has computed. What a call with log-probabilities may ask for is bounded (`preprocessing`) where it says how many tokens,
the sum of all is here: when it is used up, the call that holds most is ended, which is never one of many small ones.
What was sent does not count. Lines of batch jobs wait for their share instead: no client
waits for them, and to compute one twice would be a waste.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Set
from typing import Protocol

from inflight.server.common.prepared import Call
from inflight.server.errors import ApiError

BYTES_PER_ENTRY = 160  # measured of a token with its log-probability, and of each alternative
LOOK_SHARE = 1 / 32  # of the budget that comes between two looks at all calls
SHARE_OF_LINES = 0.5  # of the entries, that lines of batch jobs may hold


class Holding(Protocol):
    """Something on its way to a client, as far as it counts here. error: why it was ended."""

    error: ApiError | None

    @property
    def held(self) -> int:
        """Tokens and log-probabilities; of JSON, as many as would take the same memory."""

    def end(self, error: ApiError) -> None: ...


class AnswerMemory:
    def __init__(self, max_bytes: int, calls: Set[Holding] = frozenset()):
        """Bound the answers of `calls`, which change meanwhile."""
        self.max_entries = max_bytes // BYTES_PER_ENTRY
        self._calls = calls
        self._came = 0  # entries since the last look
        self._lines_have = 0
        self._lines_wait: deque[tuple[int, asyncio.Future[None]]] = deque()

    def add(self, entries: int) -> None:
        """Note that calls hold more, and end the largest where they hold too much."""
        self._came += entries
        if self._came < self.max_entries * LOOK_SHARE:
            return
        self._came = 0
        held = {call: call.held for call in self._calls if call.error is None}
        total = sum(held.values())
        while total > self.max_entries and held:
            most = max(held, key=held.__getitem__)
            total -= held[most]
            most.end(self._exceeded(held.pop(most)))

    def _exceeded(self, entries: int) -> ApiError:
        return ApiError(
            503,
            f"Memory for answers is full ({self.max_entries:,} tokens and log-probabilities in all), and this call "
            f"uses most of it ({entries:,}); request fewer samples or alternatives, and read streams as they arrive.",
            type="server_error",
            code="answer_memory",
            retry_after=1.0,
        )

    @contextlib.asynccontextmanager
    async def for_line(self, call: Call, max_model_len: int) -> AsyncIterator[None]:
        """Room for the answer to a line of a batch job, at its largest; waits for it, first come, first served."""
        entries = min(_max_entries(call, max_model_len), int(self.max_entries * SHARE_OF_LINES))
        if entries:
            await self._room_for(entries)
        try:
            yield
        finally:
            self._lines_have -= entries
            self._let_in()

    async def _room_for(self, entries: int) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines_wait.append((entries, turn))
        self._let_in()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._lines_have -= entries
            self._let_in()
            raise

    def _let_in(self) -> None:
        while self._lines_wait:
            entries, turn = self._lines_wait[0]
            if turn.cancelled():
                self._lines_wait.popleft()
                continue
            if self._lines_have + entries > self.max_entries * SHARE_OF_LINES:
                return
            self._lines_wait.popleft()
            self._lines_have += entries
            turn.set_result(None)


def _max_entries(call: Call, max_model_len: int) -> int:
    """Return the entries of an answer with log-probabilities; tokens alone are few."""
    entries = 0
    for request in call.requests:
        params, prompt = request.params, len(request.prompt_token_ids)
        if params.logprobs is not None:
            room = max_model_len - prompt
            most = room if params.max_tokens is None else min(room, params.max_tokens)
            entries += params.n * most * (2 + params.logprobs)
        if params.prompt_logprobs is not None:
            entries += prompt * (1 + params.prompt_logprobs)
    return entries
