"""Goodput: what drafts cost, and how many of them maximize the engine's tokens per second.

A step of N decodes takes T seconds and yields N tokens. The j-th draft of a sequence yields one more if it and all
before it are right: p₁·…·pⱼ, which falls with j. Drafts are taken in the order of their yields, over all sequences, and
of all the steps that this makes the one with the highest (N + Σ yields) / (T + cost of the drafts) is chosen, also
where a threshold of the cost, such as another kernel's, lies before it. Compare SmartSpec (arXiv 2406.14066).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import accumulate, takewhile
from operator import mul
from typing import NamedTuple

from inflight.core.estimation.decaying import DecayingMean, DecayingRatio
from inflight.core.estimation.latency import LatencyModel
from inflight.core.types.features import Features

MIN_YIELD = 0.02  # tokens; drafts that yield less are ignored
MIN_GAIN = 0.02  # by which a step's goodput must be higher with drafts than without
MIN_PAY_SHARE = 0.25  # of the yield that pays for the drafts so far; below it no threshold is worth passing

EXACT_TOKENS = 16  # numbers of tokens that have a ratio of their own; above, eight share an octave
RATIO_DECAY = 0.95  # of a ratio's evidence, for each step
SMALLER_STEPS = 2.0  # steps that the next smaller number's ratio counts for
GAP_WEIGHT = 0.05  # of the newest time between two steps
FIRST_PASSES = 4  # times that an executor drafts before its passes count: a device may compile meanwhile
PASS_WEIGHT = 0.1  # of the newest pass
OUTLIER = 3.0  # times what was expected: a step counts for no more


class ExtendedStep(NamedTuple):
    """Durations of a step with any number of drafts."""

    modelled: float  # without drafts, as the model of step time has it
    each: float  # of a draft, by that model
    tokens: int  # without drafts
    corrections: Sequence[float] = ()  # measured over modelled seconds, by size of the step; none: as modelled
    pass_seconds: float = 0.0  # of an executor's pass, which drafts one position of all sequences
    gap: float = 0.0  # from this step to the next one, without drafts
    exposed: float = 0.0  # that drafts add to the gap: scheduling, and asking the drafter at all
    ask_seconds: float = 0.0  # of asking about one sequence

    def seconds(self, drafts: int = 0) -> float:
        """Return the duration with so many drafts."""
        seconds = self.modelled + drafts * self.each
        if not self.corrections:
            return seconds
        return seconds * self.corrections[min(_size(self.tokens + drafts), len(self.corrections) - 1)]


class StepCost:
    """Learns what drafts add to a step's time.

    The model of step time is linear in tokens, and steps are not: beside weights that are read anyway the first tokens
    are cheap, another kernel takes over at the second, a GPU replays graphs of certain sizes. So steps of decodes alone
    are compared with the model, and the decaying ratio is kept by number of tokens, completed by that of the next
    smaller number. Drafts of the executor take a pass for each position. A step with drafts is followed by one that is
    planned behind its result, which exposes the time of scheduling.
    """

    def __init__(self, latency: LatencyModel, round_seconds: float = 0.0, ask_seconds: float = 0.0):
        """latency: learns from every step by itself. round_seconds: of asking the drafter about any sequence in a step.
        ask_seconds: of asking about one."""
        self._latency, self._round_seconds, self._ask_seconds = latency, round_seconds, ask_seconds
        self._ratios: list[DecayingRatio] = []  # measured over modelled seconds, by size
        self._corrections: list[float] = []  # by size
        # Times between a step and the one before it, that had no drafts or some; others add to these.
        self.gap, self.drafted_gap = DecayingMean(GAP_WEIGHT), DecayingMean(GAP_WEIGHT)
        self._pass, self._first_passes, self._min_pass = DecayingMean(PASS_WEIGHT), FIRST_PASSES, math.inf

    def observe(self, work: Features, seconds: float) -> None:
        """Learn what a step of decodes took, without making drafts."""
        modelled = self._latency.seconds(work)
        if work.tokens != work.samples or work.moved_blocks or modelled <= 0 or seconds <= 0 or not self._latency.ready:
            return
        size = _size(work.tokens)
        self._ratios += [DecayingRatio(RATIO_DECAY) for _ in range(size + 1 - len(self._ratios))]
        self._ratios[size].add(min(OUTLIER, seconds / modelled), 1.0)
        corrections = self._corrections[:size]  # another list: extended steps keep theirs
        correction = corrections[-1] if corrections else 1.0
        for ratio in self._ratios[size:]:
            correction = ratio.value(correction, SMALLER_STEPS)
            corrections.append(correction)
        self._corrections = corrections

    def observe_passes(self, passes: int, seconds: float) -> None:
        """Learn what the executor took to draft so many positions."""
        if self._first_passes:
            self._first_passes -= 1
            self._min_pass = min(self._min_pass, seconds / passes)
            self._pass.value = None if self._first_passes else self._min_pass
        else:
            self._pass.add(min(seconds / passes, OUTLIER * (self._pass.value or 0.0)))

    def extended(self, work: Features) -> ExtendedStep:
        """Return the durations of a step with these features and any number of drafts."""
        context = work.prefill_context + work.decode_context / max(1, work.rows)
        longer = Features(work.tokens + 1, work.rows, work.samples + 1, work.decode_context, context, work.moved_blocks)
        modelled = self._latency.seconds(work)
        each = max(0.0, self._latency.seconds(longer) - modelled)
        corrections = self._corrections if work.tokens == work.samples else []
        gap, drafted_gap, passes = self.gap.value or 0.0, self.drafted_gap.value or 0.0, self._pass.value or 0.0
        exposed = self._round_seconds + (0.0 if self.gap.value is None else max(0.0, drafted_gap - gap))
        return ExtendedStep(modelled, each, work.tokens, corrections, passes, gap, exposed, self._ask_seconds)


def choose(
    offers: Mapping[int, tuple[float, ...]], step: ExtendedStep, max_drafts: int, max_seconds: float = math.inf
) -> dict[int, int]:
    """Return the number of drafts for each sequence that has any. offers: for each draft that a sequence could have,
    the chance that it is right if those before it are. max_drafts: limit in all. max_seconds: limit of the duration."""
    ranked: list[tuple[float, int, int]] = []  # (-yield, position from 1, sequence) of each draft
    for number, chances in offers.items():
        yields = takewhile(lambda one: one >= MIN_YIELD, accumulate(chances, mul))
        ranked += [(-one, position, number) for position, one in enumerate(yields, 1)]
    ranked.sort()
    del ranked[max_drafts:]
    alone = step.seconds()
    best, best_rate = 0, (1.0 + MIN_GAIN) * step.tokens / (alone + step.gap)
    gain, passes, extra, exposed = 0.0, 0, 0.0, step.gap + step.exposed
    for count, (negative, position, _) in enumerate(ranked, 1):
        gain -= negative
        passes = max(passes, position)
        extra = max(extra, step.seconds(count) - alone)  # no further draft makes the step shorter
        exposed += step.ask_seconds * (position == 1)
        seconds = extra + passes * step.pass_seconds
        if alone + seconds > max_seconds or -negative * count < MIN_PAY_SHARE * best_rate * extra:
            break
        rate = (step.tokens + gain) / (alone + exposed + seconds)
        if rate > best_rate:
            best, best_rate = count, rate
    counts: dict[int, int] = {}
    for _, position, number in ranked[:best]:
        counts[number] = max(counts.get(number, 0), position)
    return counts


@cache
def _size(tokens: int) -> int:
    return tokens if tokens <= EXACT_TOKENS else EXACT_TOKENS + round(8 * math.log2(tokens / EXACT_TOKENS))
