"""Step cost: what drafts add to a step's time.

The model of step time is linear in tokens, and steps are not: beside weights that are read anyway the first tokens are
cheap, another kernel takes over at the second, a GPU replays graphs of certain sizes. So steps of decodes alone are
compared with the model, and the decaying ratio is kept by number of tokens; where no step had so many, it is that of
the next smaller number. Drafts of the executor take a pass for each position. A step with drafts is followed by one
that is planned behind its result, which exposes the time of scheduling.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache

from inflight.core.estimation.latency import LatencyModel
from inflight.core.types.features import Features

EXACT_TOKENS = 16  # numbers of tokens that have a ratio of their own; above, eight share an octave
DECAY = 0.95  # of a ratio's evidence, for each step
SMALLER_STEPS = 2.0  # steps that the next smaller number's ratio counts for
GAP_WEIGHT = 0.05  # of the newest time between two steps
FIRST_PASSES = 4  # times that an executor drafts before its passes count: a device may compile meanwhile
PASS_WEIGHT = 0.1  # of the newest pass
OUTLIER = 3.0  # times what was expected: a step counts for no more


class StepCost:
    def __init__(self, latency: LatencyModel):
        """latency: learns from every step by itself."""
        self._latency = latency
        self._ratios: list[float] = []  # Σ of measured over modelled seconds, decaying, by size
        self._weights: list[float] = []
        self._corrections: list[float] = []  # by size
        self._gaps: dict[bool, float] = {}  # seconds between steps, by whether the step before had drafts
        self._first_passes, self._min_pass = FIRST_PASSES, math.inf
        self.pass_seconds = 0.0  # of the executor's drafting, for one position of all sequences; 0 until it is known

    @property
    def ready(self) -> bool:
        return self._latency.ready

    @property
    def gap(self) -> float:
        """Seconds between two steps without drafts."""
        return self._gaps.get(False, 0.0)

    @property
    def exposed(self) -> float:
        """Seconds of scheduling that a step with drafts exposes."""
        return max(0.0, self._gaps.get(True, 0.0) - self.gap) if False in self._gaps else 0.0

    def observe_gap(self, seconds: float, behind_drafts: bool) -> None:
        """Learn the time between a step and the one before it, which may have had drafts."""
        before = self._gaps.get(behind_drafts, seconds)
        self._gaps[behind_drafts] = before + GAP_WEIGHT * (seconds - before)

    def observe(self, held: Features, seconds: float) -> None:
        """Learn what a step of decodes took, without making drafts."""
        modelled = self._latency.seconds(held)
        if held.tokens != held.samples or held.moved_blocks or modelled <= 0 or seconds <= 0 or not self.ready:
            return
        size = _size(held.tokens)
        while len(self._ratios) <= size:
            self._ratios.append(0.0)
            self._weights.append(0.0)
        self._ratios[size] = DECAY * self._ratios[size] + min(OUTLIER, seconds / modelled)
        self._weights[size] = DECAY * self._weights[size] + 1.0
        corrections = self._corrections[:size]  # another list: extended steps keep theirs
        correction = corrections[-1] if corrections else 1.0
        for ratio, weight in zip(self._ratios[size:], self._weights[size:], strict=True):
            correction = (ratio + SMALLER_STEPS * correction) / (weight + SMALLER_STEPS)
            corrections.append(correction)
        self._corrections = corrections

    def observe_passes(self, passes: int, seconds: float) -> float:
        """Learn what the executor took to draft so many positions; return the seconds that count as drafting's."""
        each = seconds / passes
        if self._first_passes:
            self._first_passes -= 1
            self._min_pass = min(self._min_pass, each)
            self.pass_seconds = 0.0 if self._first_passes else self._min_pass
            return 0.0
        each = min(each, OUTLIER * self.pass_seconds)
        self.pass_seconds += PASS_WEIGHT * (each - self.pass_seconds)
        return passes * each

    def extended(self, held: Features) -> ExtendedStep:
        """Return the durations of a step with these features and any number of drafts."""
        context = held.prefill_context + held.decode_context / max(1, held.rows)
        longer = Features(held.tokens + 1, held.rows, held.samples + 1, held.decode_context, context, held.moved_blocks)
        alone = self._latency.seconds(held)
        each = max(0.0, self._latency.seconds(longer) - alone)
        corrections = self._corrections if held.tokens == held.samples else []
        return ExtendedStep(alone, each, held.tokens, corrections, self.pass_seconds, self.gap, self.exposed)


class ExtendedStep:
    """Durations of a step, by number of drafts. seconds: without drafts. gap: from this step to the next one, without
    drafts. exposed: what drafts add to the gap. pass_seconds: of an executor's pass."""

    __slots__ = ("_alone", "_corrections", "_each", "_tokens", "exposed", "gap", "pass_seconds", "seconds")

    def __init__(
        self,
        alone: float,
        each: float,
        tokens: int,
        corrections: list[float],
        pass_seconds: float = 0.0,
        gap: float = 0.0,
        exposed: float = 0.0,
    ):
        self._alone, self._each, self._tokens, self._corrections = alone, each, tokens, corrections
        self.pass_seconds, self.gap, self.exposed = pass_seconds, gap, exposed
        self.seconds = self._seconds(0)

    def extra(self, drafts: int) -> float:
        """Return the seconds that verifying so many drafts adds; at least 0."""
        return max(0.0, self._seconds(drafts) - self.seconds)

    def extras(self) -> Iterator[float]:
        """Yield `extra` of 1 draft, 2, …; no further one makes the step shorter."""
        longest, drafts = 0.0, 0
        while True:
            drafts += 1
            longest = max(longest, self._seconds(drafts) - self.seconds)
            yield longest

    def _seconds(self, drafts: int) -> float:
        seconds, corrections = self._alone + drafts * self._each, self._corrections
        if not corrections:
            return seconds
        return seconds * corrections[min(_size(self._tokens + drafts), len(corrections) - 1)]


@cache
def _size(tokens: int) -> int:
    return tokens if tokens <= EXACT_TOKENS else EXACT_TOKENS + round(8 * math.log2(tokens / EXACT_TOKENS))
