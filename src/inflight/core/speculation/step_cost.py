"""Step cost: what drafts add to a step's time.

The model of step time is linear in tokens, and steps are not: beside weights that are read anyway the first tokens are
cheap, or another kernel takes over at the second. So steps of decodes alone are compared with the model, and what they
took against what it said is kept by their number of tokens, decaying. Where no step had so many, the correction is that
of the next smaller number that is known, and beside a prompt there is none. Drafts of the executor's own take a pass
for each place, whoever is drafted for; a pass is timed as it comes. Knows features and seconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache

from inflight.core.estimation.latency import LatencyModel
from inflight.core.types.features import Features

EXACT = 16  # numbers of tokens that have a correction of their own; above, eight share an octave
FORGETTING = 0.95  # for each step of so many tokens
DOUBT = 2.0  # steps that count for the smaller number's correction
FIRST_PASSES = 4  # times that an executor has drafted, until the least that a pass took is what one takes
OUTLIER = 3.0  # a step that took so many times what was expected tells of the machine, not of its tokens


class StepCost:
    def __init__(self, latency: LatencyModel):
        """latency: learns from every step by itself."""
        self._latency = latency
        self._ratios: list[float] = []  # Σ of measured against modelled seconds, decaying, by place
        self._weights: list[float] = []
        self._corrections: list[float] = []  # by place
        self.pass_seconds = 0.0  # of the executor's drafting, for one place of all rows; until it is known, 0
        self._first_passes, self._least_pass = FIRST_PASSES, math.inf

    @property
    def ready(self) -> bool:
        return self._latency.ready

    def observe(self, held: Features, seconds: float) -> None:
        """A step of these features took so long, without what making drafts took."""
        modelled = self._latency.seconds(held)
        if held.tokens != held.samples or held.moved_blocks or modelled <= 0 or seconds <= 0 or not self.ready:
            return
        place = _place(held.tokens)
        while len(self._ratios) <= place:
            self._ratios.append(0.0)
            self._weights.append(0.0)
        self._ratios[place] = FORGETTING * self._ratios[place] + min(OUTLIER, seconds / modelled)
        self._weights[place] = FORGETTING * self._weights[place] + 1.0
        self._correct(place)

    def observe_passes(self, passes: int, seconds: float) -> float:
        """The executor drafted for so many places of a step, in so many seconds; returns those that drafts are
        answerable for. The first ones tell of what a device compiles, and so do outliers."""
        each = seconds / passes
        if self._first_passes:
            self._first_passes -= 1
            self._least_pass = min(self._least_pass, each)
            self.pass_seconds = 0.0 if self._first_passes else self._least_pass
            return 0.0
        each = min(each, OUTLIER * self.pass_seconds)
        self.pass_seconds += 0.1 * (each - self.pass_seconds)
        return passes * each

    def extended(self, held: Features) -> ExtendedStep:
        """A step of these features, as drafts extend it."""
        context = held.prefill_context + held.decode_context / max(1, held.rows)
        grown = Features(held.tokens + 1, held.rows, held.samples + 1, held.decode_context, context, held.moved_blocks)
        alone = self._latency.seconds(held)
        each = max(0.0, self._latency.seconds(grown) - alone)
        decodes_alone = held.tokens == held.samples
        return ExtendedStep(alone, each, held.tokens, self._corrections if decodes_alone else [], self.pass_seconds)

    def _correct(self, place: int) -> None:
        """This place's correction has changed, and those of the places above it."""
        corrections = self._corrections[:place]  # another list: extended steps that are there keep theirs
        before = corrections[-1] if corrections else 1.0
        for ratio, weight in zip(self._ratios[place:], self._weights[place:], strict=True):
            before = (ratio + DOUBT * before) / (weight + DOUBT)
            corrections.append(before)
        self._corrections = corrections


class ExtendedStep:
    """Seconds of a step with so many drafts. seconds: without any. pass_seconds: of an executor's pass."""

    __slots__ = ("_alone", "_corrections", "_each", "_tokens", "pass_seconds", "seconds")

    def __init__(self, alone: float, each: float, tokens: int, corrections: list[float], pass_seconds: float):
        self._alone, self._each, self._tokens, self._corrections = alone, each, tokens, corrections
        self.pass_seconds = pass_seconds
        self.seconds = alone * self._correction(tokens)

    def extra(self, drafts: int) -> float:
        """Seconds that so many drafts add, without making them; at least 0."""
        longer = (self._alone + drafts * self._each) * self._correction(self._tokens + drafts)
        return max(0.0, longer - self.seconds)

    def extras(self) -> Iterator[float]:
        """`extra` of 1 draft, 2, …; no further one makes the step shorter."""
        alone, each, tokens, corrections = self._alone, self._each, self._tokens, self._corrections
        last, longest, drafts = len(corrections) - 1, 0.0, 0
        while True:
            drafts += 1
            seconds = alone + drafts * each
            if last >= 0:
                place = _place(tokens + drafts)
                seconds *= corrections[place if place < last else last]
            if seconds - self.seconds > longest:
                longest = seconds - self.seconds
            yield longest

    def _correction(self, tokens: int) -> float:
        corrections = self._corrections
        if not corrections:
            return 1.0
        place = _place(tokens)
        return corrections[place] if place < len(corrections) else corrections[-1]


@cache
def _place(tokens: int) -> int:
    return tokens if tokens <= EXACT else EXACT + round(8 * math.log2(tokens / EXACT))
