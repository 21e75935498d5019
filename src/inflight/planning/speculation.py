"""What speculation would bring: the planned load once more, with drafts that are right as often as was said, decided on
by the engine's own controller.

Knows trials and what schedulers counted; how often drafts are right, whoever asks must say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from inflight.config.speculation import DraftSource
from inflight.planning.simulation import Drafted, Trial
from inflight.planning.sizing import Candidate, Progress, TrialRunner
from inflight.simulate.drafting import SimulatedDrafts

SUFFIX, MODEL = DraftSource("suffix"), DraftSource("draft", "MODEL")
WORTH = 0.99  # of the time per output token that it must be below to be called worth it


@dataclass(frozen=True, slots=True)
class SpeculationOutlook:
    """trial: of the planned load with drafts; plain: without, otherwise the same. drafts: how often they are right."""

    drafts: SimulatedDrafts
    plain: Trial
    trial: Trial

    @property
    def drafted(self) -> Drafted:
        assert self.trial.drafted is not None, "a trial with drafts counts them"
        return self.trial.drafted

    @property
    def tpot(self) -> tuple[float, float]:
        """Seconds, p50, without and with drafts."""
        return self.plain.percentiles["tpot"][0], self.trial.percentiles["tpot"][0]

    @property
    def is_worth_it(self) -> bool:
        """Whether the controller drafts, and answers come faster by it."""
        without, with_drafts = self.tpot
        return self.drafted.steps_share > 0 and with_drafts < WORTH * without


def speculation_outlook(
    runner: TrialRunner, best: Candidate, replicas: int, drafts: SimulatedDrafts, progress: Progress
) -> SpeculationOutlook:
    """Two trials with the same requests."""
    progress("Speculation at the planned load")
    share = runner.question.demand.rate / replicas
    source = MODEL if drafts.pass_seconds else SUFFIX
    config = replace(best.config, scheduling=best.config.scheduling.drafting_from(source))
    plain = runner.run(best, share, replicas=1, seed=4)
    trial = runner.run(best, share, replicas=1, seed=4, config=config, drafts=drafts)
    return SpeculationOutlook(drafts, plain, trial)


def describe(outlook: SpeculationOutlook) -> Sequence[str]:
    """Sentences: what it would bring, and whether the engine would use it."""
    without, with_drafts = outlook.tpot
    rates = outlook.plain.busy_tokens_per_s, outlook.trial.busy_tokens_per_s
    drafted, acceptance, pass_seconds = outlook.drafted, outlook.drafts.acceptance, outlook.drafts.pass_seconds
    chances = ", ".join(f"{chance:.2g}" for chance in acceptance.chances)
    made = f"each pass of a drafting model {pass_seconds * 1e3:,.2g} ms" if pass_seconds else "looked up, not computed"
    lines = [
        f"drafts right with chance {chances} ({acceptance.source}), {made}",
        f"TPOT p50 {without * 1e3:,.1f} ms without, {with_drafts * 1e3:,.1f} ms with drafts; output tokens per second "
        f"of step time {rates[0]:,.0f} and {rates[1]:,.0f}",
        f"the engine would draft in {drafted.steps_share:.0%} of its steps; a sequence with drafts has "
        f"{drafted.tokens:.2f} tokens of a step",
    ]
    if outlook.is_worth_it:
        return [*lines, f"worth it: give --speculation {'draft:MODEL' if pass_seconds else 'suffix'}"]
    return [*lines, "not worth it at this load: a step's tokens are worth more than what drafts bring"]
