"""Goodput: how many drafts each sequence has in a step, so that the engine's tokens per second are highest.

A step of N decodes takes T seconds and yields N tokens. The j-th draft of a sequence yields one more if it and all
before it are right: p₁·…·pⱼ, which falls with j. Drafts are taken in the order of their yields, over all sequences, and
of all the steps that this makes the one with the highest (N + Σ yields) / (T + cost of the drafts) is chosen, also
where a threshold of the cost, such as another kernel's, lies before it. Compare SmartSpec (arXiv 2406.14066).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from inflight.core.speculation.step_cost import ExtendedStep

MIN_YIELD = 0.02  # tokens; drafts that yield less are not looked at
MIN_GAIN = 0.02  # by which a step's goodput must be higher with drafts than without
HOPELESS = 0.25  # of the yield that pays for the drafts so far; below it no threshold is worth passing


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
    round_seconds: float = 0.0,
    ask_seconds: float = 0.0,
) -> dict[int, int]:
    """Return the number of drafts for each sequence that has any.

    Args:
        offers: Drafts that sequences could have.
        tokens: Tokens that the step yields without drafts.
        step: Durations of the step.
        max_drafts: Limit of drafts in all.
        max_seconds: Limit of the step's duration.
        makes_passes: Whether the executor makes the drafts, in a pass for each position.
        round_seconds: Time that asking for drafts takes.
        ask_seconds: The same, for each sequence with drafts.
    """
    ranked = _ranked(offers)
    pass_seconds = step.pass_seconds if makes_passes else 0.0
    best, best_rate = 0, (1.0 + MIN_GAIN) * tokens / (step.seconds + step.gap)
    gain, passes, asking = 0.0, 0, round_seconds
    for count, ((negative, position, _), extra) in enumerate(zip(ranked[:max_drafts], step.extras(), strict=False), 1):
        gain -= negative
        passes = max(passes, position)
        asking += ask_seconds * (position == 1)
        seconds = extra + passes * pass_seconds
        if step.seconds + seconds > max_seconds or -negative * count < HOPELESS * best_rate * extra:
            break
        rate = (tokens + gain) / (step.seconds + step.gap + step.exposed + seconds + asking)
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
