"""Make frames of steps, tokens and ends of requests, from a live engine or a record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from inflight.live.batch_rows import BatchRows
from inflight.live.frames import Account, Ended, Frame, Member, RequestInfo
from inflight.live.recent import Recent
from inflight.live.step_facts import Moment, StepFacts


class _Alive:
    """A request in flight, shared by its samples."""

    __slots__ = ("has_token", "numbers", "output_tokens")

    def __init__(self, numbers: Sequence[int], has_token: bool):
        self.numbers = numbers
        self.has_token = has_token
        self.output_tokens = 0


class _Known:
    __slots__ = ("info", "is_shown", "last_token", "request")

    def __init__(self, info: RequestInfo, request: _Alive):
        self.info, self.request = info, request
        self.last_token: float | None = None
        self.is_shown = False


class FrameMaker:
    """The requests in flight, and the contents of the current frame."""

    def __init__(self, recent_seconds: float = 10.0, first_number: int = 0):
        """Start without requests.

        Args:
            recent_seconds: Window of rates and percentiles.
            first_number: Of the next frame.
        """
        self.rows = BatchRows()
        self._number = first_number
        self._known: dict[int, _Known] = {}
        self._recent = Recent(recent_seconds)
        self._preempted: list[int] = []
        self._ended: list[Ended] = []
        self._begun: set[int] = set()  # sequences that took a row
        self._output = self._drafted = 0
        self._accepted: Counter[int] = Counter()
        self._gaps: Counter[tuple[float, float]] = Counter()  # seconds, target; many gaps of a step are equal

    @property
    def shown_requests(self) -> list[RequestInfo]:
        """Requests in flight that frames so far have shown; a viewer that joins now needs them."""
        return [one.info for one in self._known.values() if one.is_shown]

    # -- events -------------------------------------------------------------------------------------------------------

    def seed(self, row: int, number: int, prompt_tokens: int, computed: int) -> None:
        """Add a sequence that ran before the first frame. computed: tokens computed before a preemption."""
        self.rows.seed(row, number, prompt_tokens, computed)
        self._begun.add(number)

    def add(self, infos: Sequence[RequestInfo], has_token: bool = False) -> None:
        """Add a request with its samples. has_token: whether it ran before the first frame."""
        request = _Alive([one.number for one in infos], has_token)
        for one in infos:
            self._known[one.number] = _Known(one, request)

    def step(self, facts: StepFacts) -> None:
        self._preempted += (one for one in self.rows.step(facts) if one in self._known)
        if facts.new_requests:
            self._begun.update(chunk.sequence_id for chunk in facts.chunks if chunk.row in facts.new_requests)
        for drafts, accepted in facts.verified:
            self._drafted += drafts
            self._accepted[accepted] += 1

    def tokens(self, number: int, count: int, at: float) -> None:
        """Count tokens of a sample that came at once."""
        known = self._known.get(number)
        if known is None or not count:
            return
        self._output += count
        known.request.output_tokens += count
        info = known.info
        if known.last_token is not None:
            self._gaps[at - known.last_token, info.itl_target] += 1
        elif not known.request.has_token:
            self._recent.ttft.add(at - info.arrival, info.ttft_target)
        if count > 1:
            self._gaps[0.0, info.itl_target] += count - 1
        known.request.has_token = True
        known.last_token = at

    def ended(self, number: int, reason: str, at: float, account: Account | None) -> None:
        """End a request, given by its first sample's number."""
        known = self._known.get(number)
        if known is None:
            return
        for one in known.request.numbers:
            self._known.pop(one, None)
            self.rows.forget(one)
        self._ended.append(Ended(known.info, reason, round(at, 4), known.request.output_tokens, account))

    # -- frames -------------------------------------------------------------------------------------------------------

    def end_frame(
        self, start: float, end: float, moment: Moment | None, members: Sequence[Member] = (), lost: int = 0
    ) -> Frame:
        """Return the frame, and begin the next one. moment: the state at its end; None: unknown."""
        points, runs = self.rows.end_frame()
        prompt = sum(one.prompt + one.recomputed for one in points)
        for (seconds, target), times in self._gaps.items():
            self._recent.itl.add(seconds, target, times)
        self._gaps.clear()
        waiting = () if moment is None else (number for lane in moment.lanes for number in lane.first)
        rates = self._recent.end_frame(start, end, prompt, self._output, len(self._ended))
        max_accepted = max(self._accepted, default=-1)
        frame = Frame(
            number=self._number,
            start=round(start, 4),
            end=round(end, 4),
            steps=points,
            runs=runs,
            lanes=[] if moment is None else list(moment.lanes),
            blocks=None if moment is None else moment.blocks,
            holders=[] if moment is None else list(moment.holders),
            requests=self._show_new((*self._begun, *waiting)),
            preempted=self._preempted,
            ended=self._ended,
            rates=rates,
            drafted=self._drafted,
            accepted=[self._accepted[count] for count in range(max_accepted + 1)],
            members=list(members),
            lost=lost,
        )
        self._number += 1
        self._preempted, self._ended, self._begun = [], [], set()
        self._output = self._drafted = 0
        self._accepted.clear()
        return frame

    def _show_new(self, numbers: Iterable[int]) -> list[RequestInfo]:
        """Return the samples among these that no frame has shown, and mark them as shown."""
        found = []
        for number in numbers:
            known = self._known.get(number)
            if known is not None and not known.is_shown:
                known.is_shown = True
                found.append(known.info)
        return found
