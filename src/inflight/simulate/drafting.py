"""Simulated drafts: right as often as it was said (`acceptance`), whoever makes them.

Knows core's protocol of drafters, and that every token of a simulated answer is TOKEN. Whether anybody is drafted for,
core decides, as in a real engine.
"""

from __future__ import annotations

from dataclasses import dataclass

from inflight.config.scheduling import SchedulingSettings
from inflight.core.sequence import SequenceView
from inflight.core.speculation.drafter import ExecutorDrafter, Proposal
from inflight.simulate.acceptance import Acceptance
from inflight.simulate.fast_forward import TOKEN

WRONG = TOKEN + 1


@dataclass(frozen=True, slots=True)
class SimulatedDrafts:
    """seed: of the draws. pass_seconds: that an executor takes to make one more draft for every row that has any; 0 for
    drafts that are looked up."""

    acceptance: Acceptance
    seed: int = 0
    pass_seconds: float = 0.0

    def accepted(self, sequence: int, position: int, drafts: int) -> int:
        """How many of so many drafts are right, of which the first is of the token at `position`."""
        return self.acceptance.accepted(self.seed, sequence, position, drafts)


def simulated_drafter(scheduling: SchedulingSettings, drafts: SimulatedDrafts) -> SimulatedDrafter | ExecutorDrafter:
    """As the settings have it: drafts are made when the step is planned, or by the executor."""
    source = scheduling.draft_source
    if source.kind in ("draft", "heads"):
        return ExecutorDrafter(source.kind, scheduling.most_drafts)
    return SimulatedDrafter(source.kind, drafts)


class SimulatedDrafter:
    """Drafts when the step is planned. What it believes of a draft is true on average."""

    def __init__(self, name: str, drafts: SimulatedDrafts):
        self.name = name
        self._drafts = drafts

    def propose(self, view: SequenceView, most: int) -> Proposal:
        first = view.prompt_tokens + view.output_tokens
        right = self._drafts.accepted(view.number, first, most)
        token_ids = (TOKEN,) * right + (WRONG,) * (most - right)
        return Proposal(token_ids, tuple(self._drafts.acceptance.chance(place) for place in range(most)))

    def finished(self, view: SequenceView) -> None:
        """Nothing is remembered of it."""
