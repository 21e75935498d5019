"""Simulated drafts: how often they are accepted, and the drafter that makes them.

The draws depend on the position in the answer alone: whether a token can be predicted does not depend on the plan, so
that runs with other settings have the same draws. Core decides which sequences have drafts, as in a real engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from inflight.config.scheduling import SchedulingSettings
from inflight.config.setting import SettingsError
from inflight.core.sequence import SequenceView
from inflight.core.speculation.speculation import ExecutorDrafter, Proposal
from inflight.counted import counted
from inflight.records.drafts import DraftCounts, verified
from inflight.records.schema import RecordError, StepRecord
from inflight.simulate.omitted import TOKEN

_MASK = (1 << 64) - 1
MIN_DRAFTS = 20  # of a position, for its chance


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Chances that drafts are accepted.

    chances: of the first draft of a step, of the second if the first is accepted, …; the last one is that of all after
    it. source: where they come from, for reports."""

    chances: tuple[float, ...]
    source: str

    def chance(self, index: int) -> float:
        """Return the chance of a step's draft of this index (from 0), if those before it are accepted."""
        return self.chances[min(index, len(self.chances) - 1)]

    def accepted(self, seed: int, sequence: int, position: int, drafts: int) -> int:
        """Return how many of a sequence's drafts are accepted, of which the first is of the token at `position`."""
        index = 0
        while index < drafts and _uniform(seed, sequence, position + index) < self.chance(index):
            index += 1
        return index


def parse_acceptance(text: str) -> Acceptance:
    """Read a chance from 0 to 1, or several with commas, by position. Raises SettingsError."""
    try:
        chances = tuple(float(part) for part in text.split(","))
    except ValueError:
        chances = ()
    if not chances or not all(0 <= chance <= 1 for chance in chances):
        raise SettingsError(
            f"--speculation-acceptance is {text!r}; give the chance that a draft is accepted if those before it are, "
            "from 0 to 1, or one for each position with commas, such as 0.8,0.7,0.6."
        )
    return Acceptance(chances, f"as set: {text}")


def acceptance_of(steps: Sequence[StepRecord], source: str) -> Acceptance:
    """Return the acceptance in the steps of a record. source: its name. Raises RecordError for too few drafts."""
    counts = DraftCounts.of(steps)
    enough = takewhile(lambda one: one.reached >= MIN_DRAFTS, counts.positions())
    chances = tuple(one.accepted / one.reached for one in enough)
    if not chances:
        raise RecordError(
            f"{source} has drafts at {counted(counts.chunks, 'decode')}, too few to say how often they are accepted; "
            f"give a record of a run with speculation, with drafts at {MIN_DRAFTS} decodes or more."
        )
    return Acceptance(chances, f"{counts.tokens:,} drafts of {source}")


def pass_seconds_of(steps: Sequence[StepRecord]) -> float:
    """Return the executor's seconds for one more draft of every row that has any; 0 where it made none."""
    drafted = (step for step in steps if step.draft_seconds)
    passes = sum(max((one.drafts for one in verified(step)), default=0) for step in drafted)
    seconds = sum(step.draft_seconds for step in steps)
    return seconds / passes if passes else 0.0


def _uniform(seed: int, sequence: int, position: int) -> float:
    """Return a number in [0, 1) by the finalizer of splitmix64 over the three."""
    value = seed & _MASK
    for part in (sequence, position):
        value = (value ^ (part + 0x9E3779B97F4A7C15 + (value << 6 & _MASK) + (value >> 2))) & _MASK
        value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
        value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK
        value ^= value >> 31
    return (value >> 11) / (1 << 53)


WRONG = TOKEN + 1


@dataclass(frozen=True, slots=True)
class SimulatedDrafts:
    """Drafts of an engine. seed: of the draws. pass_seconds: of an executor for one more draft of every row that has
    any; 0 for drafts that are looked up."""

    acceptance: Acceptance
    seed: int = 0
    pass_seconds: float = 0.0


def simulated_drafter(scheduling: SchedulingSettings, drafts: SimulatedDrafts) -> SimulatedDrafter | ExecutorDrafter:
    """Make the drafter of the settings: drafts are made when the step is planned, or by the executor."""
    source = scheduling.draft_source
    if source.kind in ("draft", "heads"):
        return ExecutorDrafter(source.kind, scheduling.max_drafts)
    return SimulatedDrafter(source.kind, drafts)


class SimulatedDrafter:
    """Drafts when the step is planned, with exact confidences."""

    def __init__(self, name: str, drafts: SimulatedDrafts):
        self.name = name
        self._drafts = drafts

    def propose(self, view: SequenceView, max_drafts: int) -> Proposal:
        acceptance, first = self._drafts.acceptance, view.prompt_tokens + view.output_tokens
        accepted = acceptance.accepted(self._drafts.seed, view.number, first, max_drafts)
        token_ids = (TOKEN,) * accepted + (WRONG,) * (max_drafts - accepted)
        return Proposal(token_ids, tuple(acceptance.chance(index) for index in range(max_drafts)))

    def finished(self, view: SequenceView) -> None:
        """Ignore it."""
