"""Rounds: what goes by between two steps, and how much more that is where drafts were looked for.

A round is a step and what comes before it: planning, and telling what the last step brought. Behind a result that time
is nobody's but the planner's; planned ahead it runs beside a step. Looking for drafts is not timed by itself, since no
clock is read here: rounds with questions are compared with those without. Those that compute prompts tell nothing of
it, since who comes and goes takes time of its own. Knows seconds, nothing of drafts.
"""

from __future__ import annotations

SMOOTHING = 0.05  # of the time between steps
FALLING = 0.3  # the same, of rounds without questions that take less than was believed
ASKED_SMOOTHING = 0.1  # of what questions add to it, which fewer rounds tell of
OUTLIER = 4.0  # times what questions take, or were believed to: more in one round is something else


class Rounds:
    def __init__(self, asking: float):
        """asking: seconds that a round with questions is believed to take beside what they are, before one was seen."""
        self.asking = self._believed = asking
        # Seconds beside a step, by whether it was planned ahead, of all rounds and of those without questions.
        self._between: dict[bool, float | None] = {True: None, False: None}
        self._unasked: dict[bool, float | None] = {True: None, False: None}

    @property
    def unasked(self) -> float:
        """Seconds between steps in which nobody was asked, planned ahead where they can be."""
        ahead, behind = self._unasked[True], self._unasked[False]
        return (behind or 0.0) if ahead is None else ahead

    @property
    def unhidden(self) -> float:
        """Seconds of planning that run beside no step, since it cannot be planned ahead."""
        behind, ahead = self._between[False], self._between[True]
        return 0.0 if behind is None or ahead is None else max(0.0, behind - ahead)

    def observe(self, between: float, ahead: bool, asked: float | None) -> float:
        """So many seconds went by beside a step of decodes alone. asked: those that questions are believed to have
        taken; None: there were none. Returns those that looking for drafts took beside these."""
        self._between[ahead] = _smoothed(self._between[ahead], between)
        plain = self._unasked[ahead]
        if asked is None:
            # A first round, and one that something else held up, are not to make questions look free for long.
            self._unasked[ahead] = _smoothed(plain, between, FALLING if between < (plain or 0.0) else SMOOTHING)
            return 0.0
        if plain is None:
            return 0.0
        more = min(max(0.0, between - plain - asked), OUTLIER * max(self.asking, self._believed))
        self.asking += ASKED_SMOOTHING * (more - self.asking)
        return more


def _smoothed(before: float | None, value: float, weight: float = SMOOTHING) -> float:
    return value if before is None else before + weight * (value - before)
