"""The narrator: sees what the engine does, and says in plain sentences what a newcomer should have seen.

Knows core's types and words for them: prompts computed in pieces, answers that were preempted, batch work that waited
for others. Says no more than one sentence of a kind in some seconds, but counts all. Who shows the sentences, others
know.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from inflight.core.types.events import Event, FinishedEvent
from inflight.core.types.plan import BatchPlan, Chunk, StepResult
from inflight.core.types.request import Request
from inflight.core.types.timings import Timings
from inflight.counted import counted
from inflight.engine.observers import EngineObserver

Kind = Literal["chunked prefill", "batch lane", "preemption"]
KINDS: tuple[Kind, ...] = ("chunked prefill", "batch lane", "preemption")
PIECES = 3  # of a prompt, from which on it is worth a word
GIVEN = 0.05  # of its time, that a batch request must have waited for others or been preempted
QUIET_S = 9.0  # between two sentences of a kind
BATCH, INTERACTIVE = "batch", "interactive"
_THINGS = {"rows": "the rows", "blocks": "the KV blocks", "budget": "the steps' tokens", "share": "the steps' tokens"}
_AFTER = " It goes back to its queue, is computed anew when there is room, and loses no token."


class Sentence(NamedTuple):
    kind: Kind
    at: float  # seconds on the engine's clock
    text: str


@dataclass(slots=True)
class _Alive:
    """A sequence that has not ended. beside: answers that got a token in each step with a piece of its prompt."""

    request: Request
    row: int = -1
    blocks: int = 0
    tokens: int = 0  # computed
    pieces: int = 0
    largest: int = 0
    beside: list[int] = field(default_factory=list)
    preempted_at: float | None = None
    restored: bool = False


class Narrator(EngineObserver):
    """An `inflight.engine.loop.EngineObserver`."""

    def __init__(self, say: Callable[[Sentence | None], None], quiet_s: float = QUIET_S):
        """say: told each time that something was seen, without a sentence where it is only counted."""
        self._say = say
        self._quiet_s = quiet_s
        self._next_sequence = 0
        self._alive: dict[int, _Alive] = {}
        self._sequences: dict[str, range] = {}  # of each request
        self._rows: dict[int, int] = {}  # row → sequence
        self._said: dict[Kind, float] = {}
        self.seen: Counter[Kind] = Counter()

    def added(self, request: Request, now: float) -> None:
        numbers = range(self._next_sequence, self._next_sequence + request.params.n)
        self._next_sequence = numbers.stop
        self._sequences[request.request_id] = numbers
        self._alive.update((number, _Alive(request)) for number in numbers)

    def step(self, plan: BatchPlan, result: StepResult, planned: float, committed: float) -> None:
        newcomers = {new.row for new in plan.new_requests}
        for row in plan.freed_rows:
            self._freed(row, plan, newcomers, committed)
        decodes = sum(chunk.length == (chunk.sample or 1) for chunk in plan.chunks)
        for chunk in plan.chunks:
            self._chunk(chunk, decodes, committed)

    def events(self, events: list[Event], now: float) -> None:
        for event in events:
            if isinstance(event, FinishedEvent):
                self._ended(event, now)

    # -- what is seen ---------------------------------------------------------------------------------------------

    def _freed(self, row: int, plan: BatchPlan, newcomers: set[int], now: float) -> None:
        """A row that somebody gives up who has not ended: preempted."""
        victim = self._alive.get(self._rows.pop(row, -1))
        if victim is None:
            return
        whose = self._whose(plan, newcomers, victim.request.lane)
        lane, answer = victim.request.lane, victim.tokens - len(victim.request.prompt_token_ids)
        had = f"An answer of {counted(answer, 'token')}" if answer > 0 else "A prompt that was being computed"
        after = "" if self.seen["preemption"] else _AFTER
        blocks = counted(victim.blocks, "KV block")
        self._tell("preemption", now, f"{had} in the {lane} lane gives up its row and its {blocks} {whose}.{after}")
        victim.row, victim.blocks, victim.preempted_at, victim.restored = -1, 0, now, True

    def _whose(self, plan: BatchPlan, newcomers: set[int], lane: str) -> str:
        """For whom a row of that lane was taken, as far as the step tells."""
        for chunk in plan.chunks:
            taker = self._alive.get(chunk.sequence_id)
            if taker is not None and taker.request.lane != lane and (chunk.row in newcomers or chunk.length > 1):
                prompt = len(taker.request.prompt_token_ids)
                return f"to the {taker.request.lane} lane, where a prompt of {counted(prompt, 'token')} needs room"
        return "to the answers that are ranked before it and grow: the KV pool is full"

    def _chunk(self, chunk: Chunk, decodes: int, now: float) -> None:
        one = self._alive.get(chunk.sequence_id)
        if one is None:
            return
        self._rows[chunk.row] = chunk.sequence_id
        one.row = chunk.row
        one.blocks += len(chunk.new_blocks)
        one.tokens = chunk.start + chunk.length
        prompt = len(one.request.prompt_token_ids)
        if chunk.start >= prompt or one.restored:
            one.restored = one.restored and one.tokens < prompt
            return
        one.pieces += 1
        one.largest = max(one.largest, chunk.length)
        one.beside.append(decodes)
        if one.tokens >= prompt and one.pieces >= PIECES and one.request.lane != BATCH and max(one.beside):
            self._tell("chunked prefill", now, _in_pieces(one, prompt))

    def _ended(self, event: FinishedEvent, now: float) -> None:
        for number in self._sequences.pop(event.request_id, ()):
            one = self._alive.pop(number)
            if self._rows.get(one.row) == number:
                del self._rows[one.row]
        timings = event.timings
        behind = timings.queued_behind.get(INTERACTIVE, 0.0)
        given = behind + timings.preempted_ms
        if timings.lane == BATCH and given >= max(2.0, GIVEN * timings.total_ms):
            self._tell("batch lane", now, _gave_way(timings, behind))

    def _tell(self, kind: Kind, now: float, text: str) -> None:
        self.seen[kind] += 1
        is_said = kind not in self._said or now - self._said[kind] >= self._quiet_s
        if is_said:
            self._said[kind] = now
        self._say(Sentence(kind, now, text) if is_said else None)


def _in_pieces(one: _Alive, prompt: int) -> str:
    least, most = min(one.beside), max(one.beside)
    answers = counted(most, "answer") if least == most else f"{least or 'up'} to {most} answers"
    return (
        f"A prompt of {counted(prompt, 'token')} in the {one.request.lane} lane was computed in {one.pieces} pieces of "
        f"at most {one.largest}, a piece a step; beside it {answers} got a token in every step."
    )


def _gave_way(timings: Timings, behind: float) -> str:
    queued_by = {reason: ms for reason, ms in timings.queued_by.items() if reason in _THINGS}
    reason = max(queued_by, key=lambda name: queued_by[name], default="rows")
    parts = []
    if behind >= 1:
        parts.append(
            f"waited {_time(timings.queue_ms)} in its queue, {_time(behind)} of it because the interactive lane had "
            f"{_THINGS[reason]}"
        )
    if timings.preempted_ms >= 1:
        parts.append(f"stood {_time(timings.preempted_ms)} outside of the batch after it was preempted")
    return f"A batch request is done. It {', and '.join(parts)}: it has what others leave."


def _time(milliseconds: float) -> str:
    return f"{milliseconds / 1e3:.1f} s" if milliseconds >= 1e3 else f"{milliseconds:.0f} ms"
