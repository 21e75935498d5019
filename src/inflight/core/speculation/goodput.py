"""Goodput: how likely drafts are right, what they cost, and how many maximize the engine's tokens per second.

A step of N decodes takes T seconds and yields N tokens. The j-th draft of a sequence yields one more if it and all
before it are right: p₁·…·pⱼ, which falls with j. Drafts are taken in the order of their yields, over all sequences, and
of all the steps that this makes the one with the highest (N + Σ yields) / (T + cost of the drafts) is chosen, also
where a threshold of the cost, such as another kernel's, lies before it. Compare SmartSpec (arXiv 2406.14066).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

from inflight.core.estimation.decaying import DecayingMean, DecayingRatio
from inflight.core.estimation.latency import LatencyModel
from inflight.core.types.features import Features

PRIOR_DRAFTS = 8.0  # drafts that count for the belief, before there is evidence
PRIOR_ACCEPT_RATE = 0.6  # of a draft whose drafter states no belief
BUCKETS = 16  # of beliefs
ENGINE_DECAY = 0.995  # of a bucket's evidence, for each draft judged
SEQUENCE_PRIOR_DRAFTS = 1.0  # right drafts, of as many expected, that a sequence begins with
SEQUENCE_DECAY = 0.9  # of a sequence's evidence, for each step that verified drafts of it
REFUSAL_DECAY = 0.97  # of a sequence's evidence, for each time that it is refused drafts
MAX_ACCEPT_RATE = 0.99

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


class SequenceAcceptance(DecayingRatio):
    """Right drafts of one sequence, over those expected."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(SEQUENCE_DECAY)

    @property
    def factor(self) -> float:
        """Ratio of this sequence's accept rate to the engine's."""
        return self.value(1.0, SEQUENCE_PRIOR_DRAFTS)


class Acceptance:
    """Accept rates of an engine, given that the drafts before are right.

    Beliefs of a drafter are calibrated in buckets: 0.7 comes to mean that seven of ten are right. Without beliefs the
    position of the draft counts. A sequence differs by a factor of its own.
    """

    def __init__(self) -> None:
        self._by_belief = [_accept_rate((bucket + 0.5) / BUCKETS) for bucket in range(BUCKETS)]
        self._by_belief.append(self._by_belief[-1])  # a belief of 1.0
        self._by_position: list[DecayingRatio] = []

    def chances(self, sequence: SequenceAcceptance, beliefs: Sequence[float], drafts: int) -> tuple[float, ...]:
        """Return the chance of each draft, given that those before it are right.

        Args:
            sequence: The sequence that is drafted for.
            beliefs: The drafter's own chances; empty for a drafter that states none.
            drafts: Number of drafts.
        """
        factor = sequence.factor
        return tuple([min(MAX_ACCEPT_RATE, factor * rate.value()) for rate in self._rates(beliefs, drafts)])

    def learn(self, sequence: SequenceAcceptance, beliefs: Sequence[float], drafts: int, right: int) -> None:
        """Learn how many of so many drafts were right; those behind the first wrong one are not judged."""
        rates = self._rates(beliefs, min(drafts, right + 1))
        sequence.add(right, sum([rate.value() for rate in rates]))
        for position, rate in enumerate(rates):
            rate.add(position < right, 1.0)

    def _rates(self, beliefs: Sequence[float], drafts: int) -> list[DecayingRatio]:
        if beliefs:
            return [self._by_belief[int(belief * BUCKETS)] for belief in beliefs[:drafts]]
        while len(self._by_position) < drafts:
            prior = self._by_position[-1].value() if self._by_position else PRIOR_ACCEPT_RATE
            self._by_position.append(_accept_rate(prior))
        return self._by_position[:drafts]


def _accept_rate(prior: float) -> DecayingRatio:
    return DecayingRatio(ENGINE_DECAY, PRIOR_DRAFTS * prior, PRIOR_DRAFTS)


class ExtendedStep:
    """Durations of a step, by number of drafts.

    Attributes:
        seconds: Without drafts.
        gap: From this step to the next one, without drafts.
        exposed: What drafts add to the gap.
        pass_seconds: Of an executor's pass.
    """

    __slots__ = ("_alone", "_corrections", "_each", "_tokens", "exposed", "gap", "pass_seconds", "seconds")

    def __init__(
        self,
        alone: float,
        each: float,
        tokens: int,
        corrections: Sequence[float],
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


class StepCost:
    """Learns what drafts add to a step's time.

    The model of step time is linear in tokens, and steps are not: beside weights that are read anyway the first tokens
    are cheap, another kernel takes over at the second, a GPU replays graphs of certain sizes. So steps of decodes alone
    are compared with the model, and the decaying ratio is kept by number of tokens, completed by that of the next
    smaller number. Drafts of the executor take a pass for each position. A step with drafts is followed by one that is
    planned behind its result, which exposes the time of scheduling.
    """

    def __init__(self, latency: LatencyModel):
        """latency: learns from every step by itself."""
        self._latency = latency
        self._ratios: list[DecayingRatio] = []  # measured over modelled seconds, by size
        self._corrections: list[float] = []  # by size
        self._gap, self._drafted_gap = DecayingMean(GAP_WEIGHT), DecayingMean(GAP_WEIGHT)
        self._pass, self._first_passes, self._min_pass = DecayingMean(PASS_WEIGHT), FIRST_PASSES, math.inf

    @property
    def ready(self) -> bool:
        """Whether the model of step time is."""
        return self._latency.ready

    @property
    def pass_seconds(self) -> float:
        """Seconds in which the executor drafts one position of all sequences; 0 until it is known."""
        return self._pass.value or 0.0

    @property
    def gap(self) -> float:
        """Seconds between two steps without drafts."""
        return self._gap.value or 0.0

    @property
    def exposed(self) -> float:
        """Seconds of scheduling that a step with drafts exposes."""
        return 0.0 if self._gap.value is None else max(0.0, (self._drafted_gap.value or 0.0) - self._gap.value)

    def observe_gap(self, seconds: float, behind_drafts: bool) -> None:
        """Learn the time between a step and the one before it, which may have had drafts."""
        (self._drafted_gap if behind_drafts else self._gap).add(seconds)

    def observe(self, work: Features, seconds: float) -> None:
        """Learn what a step of decodes took, without making drafts."""
        modelled = self._latency.seconds(work)
        if work.tokens != work.samples or work.moved_blocks or modelled <= 0 or seconds <= 0 or not self.ready:
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

    def observe_passes(self, passes: int, seconds: float) -> float:
        """Learn what the executor took to draft so many positions; return the seconds that count as drafting's."""
        each = seconds / passes
        if self._first_passes:
            self._first_passes -= 1
            self._min_pass = min(self._min_pass, each)
            self._pass.value = None if self._first_passes else self._min_pass
            return 0.0
        each = min(each, OUTLIER * self.pass_seconds)
        self._pass.add(each)
        return passes * each

    def extended(self, work: Features) -> ExtendedStep:
        """Return the durations of a step with these features and any number of drafts."""
        context = work.prefill_context + work.decode_context / max(1, work.rows)
        longer = Features(work.tokens + 1, work.rows, work.samples + 1, work.decode_context, context, work.moved_blocks)
        alone = self._latency.seconds(work)
        each = max(0.0, self._latency.seconds(longer) - alone)
        corrections = self._corrections if work.tokens == work.samples else []
        return ExtendedStep(alone, each, work.tokens, corrections, self.pass_seconds, self.gap, self.exposed)


class Offer(NamedTuple):
    """Drafts that a sequence could have. chances: of each, that it is right if those before it are."""

    number: int
    chances: tuple[float, ...]


def choose(
    offers: Sequence[Offer],
    tokens: int,
    step: ExtendedStep,
    max_drafts: int,
    max_seconds: float = math.inf,
    makes_passes: bool = False,
    asking: tuple[float, float] = (0.0, 0.0),
) -> dict[int, int]:
    """Return the number of drafts for each sequence that has any.

    Args:
        offers: Drafts that sequences could have.
        tokens: Tokens that the step yields without drafts.
        step: Durations of the step.
        max_drafts: Limit of drafts in all.
        max_seconds: Limit of the step's duration.
        makes_passes: Whether the executor makes the drafts, in a pass for each position.
        asking: Seconds of asking for drafts, and for each sequence with drafts.
    """
    ranked = _ranked(offers)
    pass_seconds = step.pass_seconds if makes_passes else 0.0
    best, best_rate = 0, (1.0 + MIN_GAIN) * tokens / (step.seconds + step.gap)
    gain, passes, asked = 0.0, 0, asking[0]
    for count, ((negative, position, _), extra) in enumerate(zip(ranked[:max_drafts], step.extras(), strict=False), 1):
        gain -= negative
        passes = max(passes, position)
        asked += asking[1] * (position == 1)
        seconds = extra + passes * pass_seconds
        if step.seconds + seconds > max_seconds or -negative * count < MIN_PAY_SHARE * best_rate * extra:
            break
        rate = (tokens + gain) / (step.seconds + step.gap + step.exposed + seconds + asked)
        if rate > best_rate:
            best, best_rate = count, rate
    counts: dict[int, int] = {}
    for _, position, number in ranked[:best]:
        counts[number] = max(counts.get(number, 0), position)
    return counts


def _ranked(offers: Sequence[Offer]) -> list[tuple[float, int, int]]:
    """Return (-yield, position from 1, sequence) of each draft, the highest yield first."""
    ranked: list[tuple[float, int, int]] = []
    for number, chances in offers:
        draft_yield = 1.0
        for position, chance in enumerate(chances, 1):
            draft_yield *= chance
            if draft_yield < MIN_YIELD:
                break
            ranked.append((-draft_yield, position, number))
    ranked.sort()
    return ranked


@cache
def _size(tokens: int) -> int:
    return tokens if tokens <= EXACT_TOKENS else EXACT_TOKENS + round(8 * math.log2(tokens / EXACT_TOKENS))
