"""Acceptance: how likely a draft is right, given that those before it are.

Beliefs of a drafter are calibrated for the whole engine, in buckets: 0.7 comes to mean that seven of ten are right. For
a drafter without beliefs the position of the draft counts instead. A sequence differs by a factor of its own: right
drafts over expected ones, decaying, beside a small prior.
"""

from __future__ import annotations

from collections.abc import Sequence

PRIOR_DRAFTS = 8.0  # drafts that count for the belief, before there is evidence
PRIOR_ACCEPT_RATE = 0.6  # of a draft whose drafter states no belief
BUCKETS = 16  # of beliefs
ENGINE_DECAY = 0.995  # of a bucket's evidence, for each draft judged
SEQUENCE_PRIOR_DRAFTS = 1.0  # right drafts, of as many expected, that a sequence begins with
SEQUENCE_DECAY = 0.9  # of a sequence's evidence, for each step that verified drafts of it
REFUSAL_DECAY = 0.97  # of a sequence's evidence, for each time that it is refused drafts
MAX_ACCEPT_RATE = 0.99


class AcceptRate:
    """Decaying share of drafts that were right."""

    __slots__ = ("_judged", "_right")

    def __init__(self, prior: float):
        self._judged, self._right = PRIOR_DRAFTS, PRIOR_DRAFTS * prior

    @property
    def value(self) -> float:
        return self._right / self._judged

    def add(self, right: bool) -> None:
        self._judged = ENGINE_DECAY * self._judged + 1.0
        self._right = ENGINE_DECAY * self._right + right


class SequenceAcceptance:
    """Acceptance of one sequence's drafts, relative to the engine's."""

    __slots__ = ("_expected", "_right")

    def __init__(self) -> None:
        self._expected = self._right = 0.0

    @property
    def factor(self) -> float:
        """Ratio of this sequence's accept rate to the engine's."""
        return (self._right + SEQUENCE_PRIOR_DRAFTS) / (self._expected + SEQUENCE_PRIOR_DRAFTS)

    def add(self, expected: float, right: int) -> None:
        """Learn that a step had so many right drafts, where so many were expected of those judged."""
        self._expected = SEQUENCE_DECAY * self._expected + expected
        self._right = SEQUENCE_DECAY * self._right + right

    def fade(self) -> None:
        """Move towards the engine's rate, after a refusal."""
        self._expected *= REFUSAL_DECAY
        self._right *= REFUSAL_DECAY


class Acceptance:
    """Accept rates of an engine, by belief or by position."""

    def __init__(self) -> None:
        self._by_belief = [AcceptRate((bucket + 0.5) / BUCKETS) for bucket in range(BUCKETS)]
        self._by_belief.append(self._by_belief[-1])  # a belief of 1.0
        self._by_position: list[AcceptRate] = []

    def chances(self, sequence: SequenceAcceptance, beliefs: Sequence[float], drafts: int) -> tuple[float, ...]:
        """Return the chance of each draft, given that those before it are right.

        Args:
            sequence: The sequence that is drafted for.
            beliefs: The drafter's own chances; empty for a drafter that states none.
            drafts: Number of drafts.
        """
        factor = sequence.factor
        return tuple([min(MAX_ACCEPT_RATE, factor * rate.value) for rate in self._rates(beliefs, drafts)])

    def learn(self, sequence: SequenceAcceptance, beliefs: Sequence[float], drafts: int, right: int) -> None:
        """Learn how many of so many drafts were right; those behind the first wrong one are not judged."""
        rates = self._rates(beliefs, min(drafts, right + 1))
        sequence.add(sum([rate.value for rate in rates]), right)
        for position, rate in enumerate(rates):
            rate.add(position < right)

    def _rates(self, beliefs: Sequence[float], drafts: int) -> list[AcceptRate]:
        if beliefs:
            return [self._by_belief[int(belief * BUCKETS)] for belief in beliefs[:drafts]]
        while len(self._by_position) < drafts:
            prior = self._by_position[-1].value if self._by_position else PRIOR_ACCEPT_RATE
            self._by_position.append(AcceptRate(prior))
        return self._by_position[:drafts]
