"""Acceptance: the chance that a draft is right, if those before it are.

Of the engine as a whole it is counted: for a drafter that says how sure it is, by what it said, in buckets, so that a
chance of 0.7 comes to mean that seven of ten are right; for one that does not, by the draft's place. A sequence differs
from the others by a factor, which is what came of its own drafts against what was expected of them. Its evidence counts
beside a prior of a step that went as expected, and fades; where so many steps in a row had no right draft that its text
must have changed its kind, what was before is forgotten. Knows chances and outcomes; no tokens, and no time.
"""

from __future__ import annotations

from collections.abc import Sequence

PRIOR = 8.0  # drafts that count for what the drafter says, or for `HOPE`, before there is evidence
HOPE = 0.6  # what a drafter that says nothing of its chances is believed to have
BUCKETS = 16  # of believed chances
FORGETTING = 0.995  # of the engine's evidence, for each draft that was judged: half of it goes with 140
OWN_PRIOR = 1.0  # drafts that a sequence is believed to be like the others for
CHANGES = 0.02  # chance that the text changes its kind from one step to the next
OWN_FORGETTING = 0.95  # of a sequence's evidence, for each step that verified drafts of it
FADING = 0.9  # of a sequence's evidence, for each time that it is refused drafts
HIGHEST = 0.99  # nothing is certain, and what is certain could not be found wrong


class _Share:
    """How many of so many were right, decaying."""

    __slots__ = ("judged", "right")

    def __init__(self, prior: float):
        self.judged = PRIOR
        self.right = PRIOR * prior

    def add(self, right: bool) -> None:
        self.judged = FORGETTING * self.judged + 1.0
        self.right = FORGETTING * self.right + right

    @property
    def value(self) -> float:
        return self.right / self.judged


class SequenceAcceptance:
    """Of one sequence: the share of its drafts that were right, and what it was expected to be, summed over steps."""

    __slots__ = ("_expected", "_right", "_run", "_run_expected")

    def __init__(self) -> None:
        self._expected = self._right = 0.0
        self._run = 1.0  # how likely it was that so many steps in a row had no right draft
        self._run_expected = 0.0  # right drafts in these steps

    @property
    def factor(self) -> float:
        """Of the engine's chances."""
        return (self._right + OWN_PRIOR) / (self._expected + OWN_PRIOR)

    def add(self, expected: Sequence[float], right: int) -> None:
        """The first `right` of a step's drafts were, and these were the chances of those that were judged."""
        whole = sum(expected)  # not a share of them: judging ends with the first that is wrong, which would weigh more
        self._expected = OWN_FORGETTING * self._expected + whole
        self._right = OWN_FORGETTING * self._right + right
        if right:
            self._run, self._run_expected = 1.0, 0.0
            return
        self._run *= 1.0 - min(HIGHEST, self.factor * expected[0])
        self._run_expected += whole
        if self._run < CHANGES:  # it is likelier that another text has begun, which what was before tells nothing of
            self._expected, self._right = self._run_expected, 0.0

    def fade(self) -> None:
        """It was refused drafts, and may have come to write something else before its next turn."""
        self._expected *= FADING
        self._right *= FADING
        self._run, self._run_expected = 1.0, 0.0


class Acceptance:
    def __init__(self) -> None:
        self._by_belief = [_Share((bucket + 0.5) / BUCKETS) for bucket in range(BUCKETS)]
        self._by_belief.append(self._by_belief[-1])  # of what is believed to be certain
        self._by_place: list[_Share] = []

    def chances(self, of: SequenceAcceptance, believed: Sequence[float]) -> tuple[float, ...]:
        """Of a sequence's drafts, each if those before it are right, where their drafter believes this of them."""
        factor, shares = of.factor, self._by_belief
        return tuple([min(HIGHEST, factor * shares[int(belief * BUCKETS)].value) for belief in believed])

    def chances_by_place(self, of: SequenceAcceptance, most: int) -> tuple[float, ...]:
        """Of a sequence's first, second, … draft, each if those before it are right, where nobody says more of them."""
        factor = of.factor
        return tuple([min(HIGHEST, factor * self._place(place).value) for place in range(most)])

    def learn(self, of: SequenceAcceptance, believed: Sequence[float], drafts: int, right: int) -> None:
        """The first `right` of a sequence's `drafts` were right, and the next one, if there was one, was not; of those
        behind it nobody knows. believed: what their drafter said of them; nothing where it says nothing."""
        judged = min(drafts, right + 1)
        shares = [self._by_belief[int(one * BUCKETS)] for one in believed[:judged]]
        shares = shares or [self._place(place) for place in range(judged)]
        of.add([share.value for share in shares], right)
        for place, share in enumerate(shares):
            share.add(place < right)

    def _place(self, place: int) -> _Share:
        while len(self._by_place) <= place:
            # Nobody has seen so far a place: it begins as good as the one before it.
            self._by_place.append(_Share(self._by_place[-1].value if self._by_place else HOPE))
        return self._by_place[place]
