"""The runner-up of a plan, where the search has measured no other that meets the SLOs: it ends as soon as nothing is
cheaper, which with a single GPU is at once."""

from __future__ import annotations

import math
from collections.abc import Sequence

from inflight.planning.outlook import strategy_need
from inflight.planning.sizing import HEADROOM, Candidate, TrialRunner, measure

MACHINES = 2  # that are tried


def runner_up(runner: TrialRunner, best: Candidate, rivals: Sequence[Candidate]) -> Candidate | None:
    """Find the next plan by short trials: on another machine, else with whole prompts in place of chunks, or the other
    way round; None where none meets the SLOs.

    Args:
        runner: Runs trials.
        best: The chosen machine with its settings.
        rivals: Other machines that hold the longest request, the cheapest first.
    """
    question = runner.question
    for rival in rivals[:MACHINES]:
        # One engine that serves the demand is enough; so many GPUs serve what they can.
        most = question.demand.rate / HEADROOM if question.gpus is None else math.inf
        found = measure(runner, rival, most=most, is_rough=True)
        if found.rate:
            return found
    if best.machine.is_encoder_only:  # no strategy divides its texts
        return None
    name = "continuous" if best.config.strategy == "chunked" else "chunked"
    other = strategy_need(runner, best, name).candidate
    return other if other is not None and other.rate else None
