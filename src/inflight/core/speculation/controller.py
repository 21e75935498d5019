"""The controller: how many drafts each sequence has in a step.

A step of N decodes takes T seconds and yields N tokens. The j-th draft of a sequence yields another one if it and all
before it are right: p₁·…·pⱼ, which falls with j. Drafts are taken in the order of what they yield, whosesoever they
are, and of all the steps that this makes, the one with the most tokens a second, (N + Σ yields) / (T + what they cost),
is the one that is run. (For costs that rise evenly that is the greedy rule: a draft is taken while its yield is more
than the step's tokens per second times what it costs. The best of all the steps also passes a threshold, such as
another kernel's.) Knows chances, tokens and seconds; compare: SmartSpec's goodput (arXiv 2406.14066).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from inflight.core.speculation.step_cost import ExtendedStep

FAINT = 0.02  # a draft that yields less is not looked at
WORTHLESS = 0.25  # of what a draft must yield, at what those before it cost: no threshold makes up for less


class Offer(NamedTuple):
    """Drafts that a sequence could have: of each the chance that it is right if those before it are."""

    number: int
    chances: tuple[float, ...]


class Choice(NamedTuple):
    """counts: drafts by sequence, of those that have any. gain: tokens that they are expected to yield; seconds: that
    they cost."""

    counts: dict[int, int]
    gain: float
    seconds: float


NO_DRAFTS = Choice({}, 0.0, 0.0)


def choose(
    offers: Sequence[Offer],
    tokens: int,
    step: ExtendedStep,
    most: int,
    longest: float = math.inf,
    margin: float = 0.0,
    makes_passes: bool = False,
    between: float = 0.0,
    between_ahead: float = 0.0,
) -> Choice:
    """tokens: that the step yields without drafts. most: drafts in all. longest: seconds that the step may take with
    them. margin: share by which it must yield more tokens a second than without. makes_passes: the executor makes the
    drafts, in a pass for each place. between: seconds between a step and the one that is planned behind its result, and
    between steps that can be planned ahead."""
    ranked = _ranked(offers)
    each_pass = step.pass_seconds if makes_passes else 0.0
    best, best_gain, best_seconds = 0, 0.0, 0.0
    best_rate = (1.0 + margin) * tokens / (step.seconds + between_ahead)
    gain, depth = 0.0, 0
    for count, ((negative, place, _), extra) in enumerate(zip(ranked[:most], step.extras(), strict=False), 1):
        gain -= negative
        if place > depth:
            depth = place
        seconds = extra + depth * each_pass
        if step.seconds + seconds > longest or -negative * count < WORTHLESS * best_rate * extra:
            break
        rate = (tokens + gain) / (step.seconds + between + seconds)
        if rate > best_rate:
            best, best_rate, best_gain, best_seconds = count, rate, gain, seconds
    if not best:
        return NO_DRAFTS
    counts: dict[int, int] = {}
    for _, place, number in ranked[:best]:
        counts[number] = max(counts.get(number, 0), place)
    return Choice(counts, best_gain, best_seconds)


def _ranked(offers: Sequence[Offer]) -> list[tuple[float, int, int]]:
    """(-yield, place from 1, sequence), most first."""
    ranked: list[tuple[float, int, int]] = []
    for number, chances in offers:
        gain = 1.0
        for place, chance in enumerate(chances, 1):
            gain *= chance
            if gain < FAINT:
                break
            ranked.append((-gain, place, number))
    ranked.sort()
    return ranked
