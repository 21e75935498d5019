"""A scheduler that learns nothing from its steps, for simulations under settings that ask for nothing learnt."""

from __future__ import annotations

from msgspec import structs

from inflight.core.scheduling.config import SchedulerConfig
from inflight.core.scheduling.scheduler import Scheduler
from inflight.core.types.length_distribution import LengthDistribution, point
from inflight.core.types.plan import BatchPlan, StepResult
from inflight.core.types.request import Request


class Unpredicted:
    """Expects each output to be as long as it may be."""

    def lengths(self, request: Request, max_output_tokens: int, so_far: int) -> LengthDistribution:
        return point(max_output_tokens)

    def observe(self, request: Request, output_tokens: int) -> None:
        """Ignore the length."""


class UnlearnedScheduler(Scheduler):
    """A scheduler for settings under which nothing asks how long steps and answers are expected to be: it learns
    neither, nor where requests' time went. Its prompts are made of the vocabulary's tokens, and no request has a
    grammar."""

    checks_prompts = False
    times_requests = False

    def __init__(self, config: SchedulerConfig, *, distinct_prompts: bool = False):
        """distinct_prompts: as of the configuration."""
        predictor = Unpredicted()
        super().__init__(
            structs.replace(config, predictor=predictor, distinct_prompts=distinct_prompts, forces_tokens=False)
        )

    def _learn(self, plan: BatchPlan, result: StepResult) -> None:
        """Do nothing. Learning is a third of the work of a step with few rows."""
