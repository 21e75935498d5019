"""Slack batching: who has tokens in a step, and how long the step is, by the deadlines of tokens.

A stream that ran ahead of its target has time in hand. When prompts come in a burst, decodes with time in hand give
them their place in the step, so that first tokens are in time and no stream falls behind its target; in every other
step all have their tokens, which is how streams get ahead.

The k-th token behind the first is due k × ITL target after the first token. FairBatching (arXiv 2510.14392) has such
an envelope, counted from the target of the first token: a stream that began early could then fall behind its own mean.
Decodes that are ahead yield to prompts, as in FairBatching, but only as far as first tokens need it, so that their lead
is kept for the next burst; and where first tokens cannot all be in time, the fewest are late (`first_tokens`). A step
is as long as the nearest deadline allows. Targets that the batch cannot sustain bound no step: a stream at ITL target
P needs a token in each step of P seconds, one at Q > P in P/Q of them, and together with the least share of prompts
these are to fit into P seconds (the virtual batch size of SCORPIO, arXiv 2505.23022). Others may not lose what an
impossible target asks for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from inflight.core.estimation.latency import LatencyModel
from inflight.core.options import OptionValues
from inflight.core.sequence import SequenceView
from inflight.core.strategies import Foreground, StepShape, StepView, Strategy, StrategyContext, StrategyEntry
from inflight.core.strategies.adaptive import ITL_TARGET, MIN_CHUNK, Adaptive, largest_fitting
from inflight.core.strategies.chunked import EARLY_END_TOKENS, Chunked
from inflight.core.strategies.first_tokens import FirstTokens, arrival_order
from inflight.core.types.features import Features

LOOKAHEAD = 256  # waiting sequences that are looked at
PACE = 0.95  # of an ITL or TPOT target that a stream is held to: predictions err, and the last token decides
HASTE = 0.5  # of the time to a first token's deadline in which the prompts up to it are to be computed
MIN_PROMPT_SHARE = 0.25  # of what decodes leave of the largest step: no target takes it from prompts
MIN_PACE_S = 1e-5  # no step is as short: shorter targets are like it, lest sums of rates lose those of others
MAX_SIT_OUT = 8  # steps in turn that a stream may sit out, whatever its deadline says: a clock may have jumped


class Stream:
    """A decode.

    Attributes:
        view: The sequence.
        slack: Seconds from the step's begin to the deadline of its next token; infinite without a target.
        pace: Seconds that each of its tokens may take; infinite without a target.
    """

    __slots__ = ("pace", "slack", "view")

    def __init__(self, view: SequenceView, begin: float, default_itl: float | None):
        pace = view.slo.pace
        target = default_itl if pace is None else pace
        self.view = view
        self.pace = self.slack = math.inf
        if target is not None:
            first = begin if view.first_token is None else view.first_token  # it may still be in flight
            self.pace = max(MIN_PACE_S, PACE * target)
            self.slack = first + view.planned_output_tokens * self.pace - begin

    @property
    def may_sit_out(self) -> bool:
        """Whether it has a deadline, and has not sat out for too long."""
        return self.slack < math.inf and self.view.sat_out < MAX_SIT_OUT


@dataclass(frozen=True, slots=True)
class Work:
    """Foreground work of a step.

    Attributes:
        begin: When the step begins.
        streams: Decodes.
        prompts: Running sequences inside their prompts, then waiting ones by arrival.
        joining: So many of these run, or may join.
        late: The first of the waiting ones that are late already.
        context: Tokens that a decode looks back over, on average.
    """

    begin: float
    streams: list[Stream]
    prompts: list[SequenceView]
    joining: int
    late: SequenceView | None
    context: float

    @classmethod
    def of(cls, foreground: Foreground, free_rows: int, default_itl: float | None) -> Work:
        begin, running = foreground.begin(), foreground.running()
        decodes = [one for one in running if one.uncomputed_tokens == 1]
        prompts = [one for one in running if one.uncomputed_tokens > 1]
        joining = len(prompts) + free_rows
        prompts += sorted(foreground.waiting(LOOKAHEAD), key=arrival_order)
        context = sum(one.computed_tokens + 1 for one in decodes) / max(1, len(decodes))
        streams = [Stream(one, begin, default_itl) for one in decodes]
        return cls(begin, streams, prompts, joining, foreground.late(), context)

    @property
    def has_targets(self) -> bool:
        """Whether a request has a target of its own, or waits behind such requests."""
        views = (*(one.view for one in self.streams), *self.prompts)
        return self.late is not None or any(one.slo.pace is not None or one.ttft_target is not None for one in views)

    @property
    def has_prompts(self) -> bool:
        """Whether there are prompt tokens to compute, if only of those that are late."""
        return bool(self.prompts) or self.late is not None


class Slack:
    name = "slack"

    def __init__(self, token_budget: int, itl_target: float | None, latency: LatencyModel, early_end: int = 0):
        """token_budget: the most that is ever proposed. early_end: as in chunked.

        itl_target: seconds between two tokens, of requests without a target; None: they have no deadlines. Where no
        request has a target of its own, steps are those of adaptive batching with this target, or of chunked prefill.
        """
        self._token_budget, self._itl, self._model, self._early_end = token_budget, itl_target, latency, early_end
        self._first_tokens = FirstTokens()
        self._without_targets: Strategy = (
            Chunked(token_budget, early_end)
            if itl_target is None
            else Adaptive(token_budget, itl_target, latency, early_end)
        )

    def observe(self, features: Features, seconds: float) -> None:
        self._without_targets.observe(features, seconds)
        self._first_tokens.observe(features.tokens)

    def shape(self, view: StepView) -> StepShape:
        work = None
        if view.foreground is not None and self._model.ready:
            work = Work.of(view.foreground, view.max_rows - view.running, self._itl)
        if work is None or not work.has_targets:
            shape = self._without_targets.shape(view)
            assert isinstance(shape, StepShape)
            return shape
        least = self._min_prompt_tokens(work)
        seconds = self._step_seconds(work, least)
        late, on_time = self._choose_late(work, seconds, least)
        if late:
            work = replace(work, prompts=[one for one in work.prompts if one.number not in late])
        yields, tokens = self._give_place(work, seconds, least)
        return StepShape(
            tokens,
            row_limit=view.max_rows,
            early_end=self._early_end,
            yields=tuple(one.view.number for one in yields),
            late=late,
            on_time=on_time,
            behind=frozenset(one.view.number for one in work.streams if one.slack < min(seconds, one.pace)),
        )

    def _choose_late(self, work: Work, seconds: float, least: int) -> tuple[frozenset[int], frozenset[int]]:
        """Return the prompts that are late, and the waiting one that is so no more."""
        rows = sum(not one.may_sit_out or one.slack < 2 * seconds for one in work.streams)
        rate = self._prompt_tokens(work, rows, seconds, least) / seconds
        return self._first_tokens.choose_late(work.prompts, work.late, work.begin, rate)

    def _min_prompt_tokens(self, work: Work) -> int:
        """Return the prompt tokens that no target takes from prompts."""
        if not work.has_prompts:
            return 0
        return max(MIN_CHUNK, math.ceil(MIN_PROMPT_SHARE * (self._token_budget - len(work.streams))))

    def _step_seconds(self, work: Work, least: int) -> float:
        """Return the time that the step may take: until the nearest deadline of those that can be kept. A stream that
        is too late for its next one is to catch up: the step takes no longer than its pace."""
        pace, shortest = self._sustainable_pace(work, least)
        allowed = math.inf
        for one in work.streams:
            if one.pace >= pace:
                allowed = min(allowed, one.slack if one.slack >= shortest else max(shortest, one.pace))
        most = max(len(work.streams), self._token_budget) - len(work.streams)
        return min(allowed, self._seconds(work, len(work.streams), most if work.has_prompts else 0))

    def _sustainable_pace(self, work: Work, least: int) -> tuple[float, float]:
        """Return the shortest pace that the batch can keep, and the time of its virtual batch; infinite if none."""
        streams = sorted(one.pace for one in work.streams if one.pace < math.inf)
        rates = sum(1 / pace for pace in streams)
        without_target = len(work.streams) - len(streams)
        for index, pace in enumerate(streams):
            rows = without_target + index + pace * rates  # those of a shorter pace have a token in every step
            seconds = self._seconds(work, rows, least)
            if seconds <= pace:
                return pace, seconds
            rates -= 1 / pace
        return math.inf, math.inf

    def _give_place(self, work: Work, seconds: float, least: int) -> tuple[list[Stream], int]:
        """Return the streams that yield to prompts, the nearest deadline first, and the tokens of the step.

        A stream may yield if its deadline lies beyond the next step, too, so that this can be of full length.
        """
        rows = len(work.streams)
        ahead = sorted((one for one in work.streams if one.may_sit_out and one.slack >= 2 * seconds), key=_lead)
        wanted = max(least, min(self._wanted_prompt_tokens(work, seconds), self._token_budget))
        first = len(ahead)
        prompt_tokens = self._prompt_tokens(work, rows, seconds, least)
        while first and (prompt_tokens < wanted or self._seconds(work, rows, least) > seconds):
            first, rows = first - 1, rows - 1
            prompt_tokens = self._prompt_tokens(work, rows, seconds, least)
        return ahead[first:], min(self._token_budget, max(1, rows + prompt_tokens))

    def _wanted_prompt_tokens(self, work: Work, seconds: float) -> int:
        """Return the prompt tokens of a step of this length, with which all first tokens are in time that can be."""
        wanted, tokens = 0.0, 0
        for one in work.prompts[: work.joining]:
            tokens += one.uncomputed_tokens
            if one.ttft_target is not None and not one.output_tokens:
                left = one.arrival + one.ttft_target - work.begin
                if left > 0:
                    wanted = max(wanted, tokens * seconds / (HASTE * left))
        return min(tokens, math.ceil(wanted))

    def _prompt_tokens(self, work: Work, rows: int, seconds: float, least: int) -> int:
        """Return the most prompt tokens beside so many decodes that fit into the time; at least `least`."""
        high = max(least, self._token_budget - rows)
        if self._seconds(work, rows, high) <= seconds:
            return high
        return largest_fitting(lambda tokens: self._seconds(work, rows, tokens) <= seconds, least, high)

    def _seconds(self, work: Work, rows: float, prompt_tokens: int) -> float:
        """Predict the step with so many decodes and prompt tokens."""
        newcomer = int(prompt_tokens > 0)
        context = prompt_tokens * (prompt_tokens / 2)
        return self._model.seconds(
            Features(rows + prompt_tokens, rows + newcomer, rows + newcomer, work.context * rows, context)  # type: ignore[arg-type]  # rows may be virtual
        )


def _lead(stream: Stream) -> tuple[float, int]:
    """Order by time in hand, in tokens."""
    return stream.slack / stream.pace, stream.view.number


def _make(context: StrategyContext, options: OptionValues) -> Slack:
    target = options[ITL_TARGET] if options.given.get(ITL_TARGET.name) is not None else None
    return Slack(context.token_budget, target, context.latency, options[EARLY_END_TOKENS])


ENTRY = StrategyEntry(
    name="slack",
    reason="decodes ahead of their deadlines give prompts their place, and steps end with the nearest deadline",
    options=(ITL_TARGET, EARLY_END_TOKENS),
    make=_make,
)
