"""How long a step may be that holds foreground and background work, by the model of step time.

Every step has a setup time; the more tokens follow, the more of them a second has. Background work beside foreground
work takes what it gains from that and no more: longer steps make streams and newcomers wait for few more tokens. HyGen
(arXiv 2501.14808) bounds the predicted step by the targets of online requests; here a target need not be known.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import Literal

from msgspec import structs

from inflight.core.estimation.latency import LatencyModel
from inflight.core.types.features import Features, features
from inflight.core.types.plan import BatchPlan, Chunk

Target = float | Literal["auto", "off"]  # seconds
EFFICIENCY = 0.75  # tokens per second of a step beside foreground work, of those of a full step
MIN_TARGET = 0.2  # of a full step's time, where steps have no setup time to speak of
EVEN_PART = 0.6  # of the tokens left of a step, from which a prompt is divided
MAX_SETUP = 1 / 8  # of a full step's time that a step without prompts takes, for one more of these to cost little


class StepTarget:
    def __init__(self, latency: LatencyModel):
        self._latency = latency

    def background_tokens(self, targets: Collection[Target], foreground: Iterable[Chunk], budget: int) -> int:
        """Return how many tokens background work may add to a step.

        Args:
            targets: Step targets of the lanes that add them; the shortest counts.
            foreground: The step so far.
            budget: Tokens of it that are left.
        """
        if all(one == "off" for one in targets) or not self._latency.ready:
            return budget
        step = features(BatchPlan(0, tuple(foreground)))
        if not step.tokens:
            return budget
        if step.has_prompts:
            return 0  # a step with a foreground prompt is full enough, and its length is part of a TTFT
        automatic = self._efficient_step(step, budget)
        target = min(automatic if one == "auto" else math.inf if one == "off" else one for one in targets)
        return min(budget, self._latency.max_extra_decodes(step, target))

    def _efficient_step(self, step: Features, budget: int) -> float:
        """Return the seconds t of the shortest step with `EFFICIENCY` of the tokens per second of one that has so many
        tokens more: (t - setup) / t = EFFICIENCY * (full - setup) / full. Reading contexts and sampling are setup, too:
        they are due whatever is added, and a fit takes the one for the other where as many rows run all the time."""
        sizes = (0, step.tokens + budget)
        setup, full = (self._latency.seconds(structs.replace(step, tokens=size)) for size in sizes)
        if not setup:
            return MIN_TARGET * full
        return max(MIN_TARGET * full, setup * full / (full - EFFICIENCY * (full - setup)))

    def even_part(self, prompt: int, begun: bool, others: int, decodes: Iterable[Chunk], budget: int) -> int:
        """Return how many tokens foreground prompts may have in a step beside foreground decodes and background work.

        With background work streams last longer, so that more of their tokens wait for a prompt. Therefore a prompt
        that nearly fills a step is computed in two even parts, while no others wait and a second step costs little.

        Args:
            prompt: Uncomputed tokens of the prompt that is served first.
            begun: Whether a part of it has been computed: the rest is divided only where it takes two steps anyway.
            others: Uncomputed tokens of all other foreground prompts.
            decodes: The step so far.
            budget: Tokens of it that are left.
        """
        if prompt <= (1.0 if begun else EVEN_PART) * budget or prompt + others > 2 * budget or not self._latency.ready:
            return budget
        step = features(BatchPlan(0, tuple(decodes)))
        full = structs.replace(step, tokens=step.tokens + budget)
        is_cheap = self._latency.seconds(step) <= MAX_SETUP * self._latency.seconds(full)
        return math.ceil(prompt / 2) if step.tokens and is_cheap else budget
