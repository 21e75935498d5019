"""The time budget of speculation: what may be lost to it.

Explicit, so that it is a promise. Time that passes fills it with a small share, up to a small reserve; time that drafts
won fills it further, so that a run of bad luck does not end what pays; time that they lost, and that was spent on
asking in vain, drains it. Nothing is risked that it does not hold: whatever drafters do, what wrong drafts and
questions take in all is at most the reserve, that share of the time, and what was won. Knows seconds as they were
estimated, nothing of drafts.
"""

from __future__ import annotations

SHARE = 0.002  # of the time
RESERVE = 2.0  # seconds whose share may be spent at once
LEAST_STEPS = 1.0  # steps' time that the reserve holds at least: or none could be risked where steps are long
SMOOTHING = 0.02  # of a step's time, for each step
KEPT_STEPS = 64.0  # steps' time that is kept of what was won


class TimeBudget:
    def __init__(self) -> None:
        self.seconds = SHARE * RESERVE  # that may be lost now
        self.won = self.lost = 0.0  # since the engine began
        self.step_seconds = 0.0  # of a step, on average

    def passed(self, seconds: float, steps: int = 1) -> None:
        """So many steps took so long together."""
        weight = min(1.0, SMOOTHING * steps) if self.step_seconds else 1.0
        self.step_seconds += (seconds / steps - self.step_seconds) * weight
        if self.seconds < self.reserve:
            self.seconds = min(self.reserve, self.seconds + SHARE * seconds)

    @property
    def reserve(self) -> float:
        """Seconds that may be lost at once, when nothing was for long."""
        return max(SHARE * RESERVE, LEAST_STEPS * self.step_seconds)

    def allows(self, seconds: float) -> bool:
        """Whether so much may be lost."""
        return seconds <= self.seconds

    def settle(self, gained: float, spent: float) -> None:
        """Drafts saved so many seconds of later steps, and cost so many."""
        net = gained - spent
        if net >= 0:
            self.won += net
            self.seconds = max(self.seconds, min(self.seconds + net, KEPT_STEPS * self.step_seconds))
        else:
            self.lost -= net
            self.seconds += net
