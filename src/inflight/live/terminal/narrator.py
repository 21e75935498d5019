"""Say in plain sentences what the frames of a live feed show: chunked prefill, waiting batch work, preemptions."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from inflight.live.frames import WORKS, Account, Ended, Frame, RequestInfo, Run
from inflight.records.computed import Work

Kind = Literal["chunked prefill", "batch lane", "preemption"]
KINDS: tuple[Kind, ...] = ("chunked prefill", "batch lane", "preemption")
MIN_STEPS = 3  # of a prompt that is worth a sentence
MIN_WAIT_MS, MIN_SHARE = 2.0, 0.05  # of waiting and preemption in a batch request's time, likewise
QUIET_S = 9.0  # between two sentences of a kind
BATCH, INTERACTIVE = "batch", "interactive"
_THINGS = {"rows": "the rows", "blocks": "the KV blocks", "budget": "the steps' tokens", "share": "the steps' tokens"}


@dataclass(slots=True)
class _Prefill:
    """A prompt that is being computed. others: maximum of requests that decoded beside it."""

    steps: int = 0
    others: int = 0


class Narrator:
    """Takes frames, and says at most one sentence of a kind in `quiet_s` seconds.

    Attributes:
        seen: How often each kind was seen.
    """

    def __init__(
        self, say: Callable[[Kind, str], None], quiet_s: float = QUIET_S, now: Callable[[], float] = time.monotonic
    ):
        self._say, self._quiet_s, self._now = say, quiet_s, now
        self._requests: dict[int, RequestInfo] = {}
        self._prefills: dict[int, _Prefill] = {}
        self._said: dict[Kind, float] = {}
        self.seen: Counter[Kind] = Counter()

    def take(self, frame: Frame) -> None:
        self._requests.update((one.number, one) for one in frame.requests)
        for number in frame.preempted:
            self._prefills.pop(number, None)
            if (victim := self._requests.get(number)) is not None:
                self._preempted(victim, frame)
        decoding = {run.sequence for run in frame.runs if WORKS[run.work] is Work.DECODE}
        for run in frame.runs:
            if WORKS[run.work] is Work.PREFILL:
                prefill = self._prefills.setdefault(run.sequence, _Prefill())
                prefill.steps += _steps(run, frame)
                prefill.others = max(prefill.others, len(decoding - {run.sequence}))
        for number in decoding & self._prefills.keys():
            self._prefilled(number, self._prefills.pop(number))
        for ended in frame.ended:
            self._requests.pop(ended.info.number, None)
            self._prefills.pop(ended.info.number, None)
            if ended.account is not None:
                self._ended(ended, ended.account)

    def _prefilled(self, number: int, prefill: _Prefill) -> None:
        info = self._requests.get(number)
        if info is None or info.lane == BATCH or prefill.steps < MIN_STEPS or not prefill.others:
            return
        others = "another request" if prefill.others == 1 else f"up to {prefill.others} other requests"
        self._note(
            "chunked prefill",
            f"A prompt of {info.prompt_tokens:,} tokens in the {info.lane} lane was computed in {prefill.steps} steps, "
            f"a chunk in each; meanwhile {others} got a token in every step.",
        )

    def _preempted(self, victim: RequestInfo, frame: Frame) -> None:
        prefilled = (self._requests.get(run.sequence) for run in frame.runs if WORKS[run.work] is Work.PREFILL)
        taker = next((one for one in prefilled if one is not None and one.lane != victim.lane), None)
        whose = "to requests that rank before it and grow: the KV pool is full"
        if taker is not None:
            whose = f"to the {taker.lane} lane, where a prompt of {taker.prompt_tokens:,} tokens needs room"
        after = (
            "" if self.seen["preemption"] else " It waits again, is recomputed when there is room, and loses no token."
        )
        self._note("preemption", f"A request of the {victim.lane} lane loses its row and its KV blocks {whose}.{after}")

    def _ended(self, ended: Ended, account: Account) -> None:
        behind = account.queued_behind.get(INTERACTIVE, 0.0)
        if ended.info.lane != BATCH or behind + account.preempted < max(MIN_WAIT_MS, MIN_SHARE * account.total):
            return
        queued_by = {reason: ms for reason, ms in account.queued_by.items() if reason in _THINGS}
        reason = max(queued_by, key=lambda name: queued_by[name], default="rows")
        parts = []
        if behind >= 1:
            parts.append(
                f"waited {_time(account.queue)}, {_time(behind)} of it because the interactive lane had "
                f"{_THINGS[reason]}"
            )
        if account.preempted >= 1:
            parts.append(f"was out of the batch for {_time(account.preempted)} after a preemption")
        self._note("batch lane", f"A batch request is done. It {', and '.join(parts)}.")

    def _note(self, kind: Kind, text: str) -> None:
        self.seen[kind] += 1
        now = self._now()
        if kind not in self._said or now - self._said[kind] >= self._quiet_s:
            self._said[kind] = now
            self._say(kind, text)


def _steps(run: Run, frame: Frame) -> int:
    return sum(point.steps for point in frame.steps if run.start <= (point.start + point.end) / 2 <= run.end)


def _time(milliseconds: float) -> str:
    return f"{milliseconds / 1e3:.1f} s" if milliseconds >= 1e3 else f"{milliseconds:.0f} ms"
