"""How likely drafts are right, and in which steps a sequence may be drafted for."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct

from inflight.core.estimation.decaying import DecayingRatio

PRIOR_DRAFTS = 8.0  # drafts that count for the belief, before there is evidence
PRIOR_ACCEPT_RATE = 0.6  # of a draft whose drafter states no belief
BUCKETS = 16  # of beliefs
ENGINE_DECAY = 0.995  # of a bucket's evidence, for each draft judged
SEQUENCE_PRIOR_DRAFTS = 1.0  # right drafts, of as many expected, that a sequence begins with
SEQUENCE_DECAY = 0.9  # of a sequence's evidence, for each step that verified drafts of it
REFUSAL_DECAY = 0.97  # of a sequence's evidence, for each time that it is refused drafts
MAX_ACCEPT_RATE = 0.99

MAX_PAUSE = 256  # steps
SHORT_PAUSE = 8  # steps; a right draft earns a sequence one more pause that is no longer
MAX_SHORT_PAUSES = 8  # that a sequence may have earned: text that repeats goes on repeating after a gap
MAX_FIRST_PAUSE = 16  # steps before the first question about a newcomer
NEW_PAUSE_DIVISOR = 4  # of the pause between first questions, for each right draft: one may be right by chance
NO_SEQUENCES: frozenset[int] = frozenset()


class SequenceAcceptance(DecayingRatio):
    """Right drafts of one sequence, over those expected."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(SEQUENCE_DECAY)

    @property
    def factor(self) -> float:
        """Ratio of this sequence's accept rate to the engine's."""
        return self.value(1.0, SEQUENCE_PRIOR_DRAFTS)


class Acceptance:
    """Accept rates of an engine, given that the drafts before are right.

    Beliefs of a drafter are calibrated in buckets: 0.7 comes to mean that seven of ten are right. Without beliefs the
    position of the draft counts. A sequence differs by a factor of its own.
    """

    def __init__(self) -> None:
        self._by_belief = [_accept_rate((bucket + 0.5) / BUCKETS) for bucket in range(BUCKETS)]
        self._by_belief.append(self._by_belief[-1])  # a belief of 1.0
        self._by_position: list[DecayingRatio] = []

    def chances(self, sequence: SequenceAcceptance, beliefs: Sequence[float], drafts: int) -> tuple[float, ...]:
        """Return the chance of each draft, given that those before it are right.

        Args:
            sequence: The sequence that is drafted for.
            beliefs: The drafter's own chances; empty for a drafter that states none.
            drafts: Number of drafts.
        """
        factor = sequence.factor
        return tuple([min(MAX_ACCEPT_RATE, factor * rate.value()) for rate in self._rates(beliefs, drafts)])

    def learn(self, sequence: SequenceAcceptance, beliefs: Sequence[float], drafts: int, right: int) -> None:
        """Learn how many of so many drafts were right; those behind the first wrong one are not judged."""
        rates = self._rates(beliefs, min(drafts, right + 1))
        sequence.add(right, sum([rate.value() for rate in rates]))
        for position, rate in enumerate(rates):
            rate.add(position < right, 1.0)

    def _rates(self, beliefs: Sequence[float], drafts: int) -> list[DecayingRatio]:
        if beliefs:
            return [self._by_belief[int(belief * BUCKETS)] for belief in beliefs[:drafts]]
        while len(self._by_position) < drafts:
            prior = self._by_position[-1].value() if self._by_position else PRIOR_ACCEPT_RATE
            self._by_position.append(_accept_rate(prior))
        return self._by_position[:drafts]


def _accept_rate(prior: float) -> DecayingRatio:
    return DecayingRatio(ENGINE_DECAY, PRIOR_DRAFTS * prior, PRIOR_DRAFTS)


class _Pause(Struct):
    """Pauses of one sequence."""

    until: int  # first step in which it may be drafted for
    steps: int  # length of its last pause; 0: its drafts pay, or none was tried
    earned: int = 0  # short pauses that it may have before longer ones
    is_new: bool = True  # whether the drafter was never asked about it


class DraftBackoff:
    """Chooses the steps in which each sequence may be drafted for.

    A sequence whose drafts are right may be drafted for in every step. One for which drafting brought nothing pauses
    for 1, 2, 4, … steps, until asking about it takes a small share of the time. A newcomer begins with half the pause
    that was given last, so that a load for which drafting does not pay costs nearly nothing; since a drafter reads a
    sequence when it is first asked about it, first questions pause in the same way. Pauses end at multiples of their
    length, so that few steps have any work with drafts.
    """

    def __init__(self) -> None:
        self._pauses: dict[int, _Pause] = {}  # by sequence
        self._last_pause = 0  # steps that any sequence was given last
        self._new_pause = self._new_until = 0  # steps; first step in which new sequences may be due
        self._first_due: float = math.inf  # no sequence is due before

    def begin(self, number: int, step: int) -> None:
        """Add a sequence. step: the last that was computed."""
        steps = self._last_pause // 2
        self._pauses[number] = _Pause(step + 1 + min(steps, MAX_FIRST_PAUSE), steps)
        self._update()

    def end(self, number: int) -> None:
        """Remove a sequence."""
        if self._pauses.pop(number, None) is not None:
            self._update()

    def due(self, step: int) -> Collection[int]:
        """Return the sequences that may be drafted for in this step."""
        if step < self._first_due:
            return NO_SEQUENCES
        rests = step < self._new_until
        return {number for number, one in self._pauses.items() if one.until <= step and not (rests and one.is_new)}

    def is_new(self, number: int) -> bool:
        """Return whether the drafter was never asked about a sequence."""
        return self._pauses[number].is_new

    def record_asked(self, numbers: Iterable[int], step: int, vain_steps: float) -> None:
        """Record that the drafter was asked about these sequences in this step.

        Args:
            numbers: The sequences.
            step: The step that is planned.
            vain_steps: Steps of which asking in vain about new ones is a small share.
        """
        for number in numbers:
            self._pauses[number].is_new = False
        if vain_steps:
            self._new_pause = min(2 * self._new_pause or 1, math.ceil(vain_steps))
            self._new_until = step + self._new_pause
        self._update()

    def record_right(self, drafts: Mapping[int, int]) -> None:
        """Record how many right drafts these sequences had, at least 1 each."""
        for number, count in drafts.items():
            one = self._pauses[number]
            one.steps, one.earned = 0, min(MAX_SHORT_PAUSES, one.earned + count)
            self._last_pause = self._new_until = 0
            self._new_pause //= NEW_PAUSE_DIVISOR
        self._update()

    def pause(self, numbers: Iterable[int], step: int, max_pause: int = MAX_PAUSE) -> None:
        """Have each of these sequences, for which drafting brought nothing in this step, pause twice as long."""
        for number in numbers:
            one = self._pauses[number]
            steps = 2 * one.steps or 1
            if steps > SHORT_PAUSE and one.earned:
                one.earned -= 1
                steps = SHORT_PAUSE
            self._last_pause = one.steps = min(steps, max_pause)
            one.until = (step // one.steps + 1) * one.steps
        self._update()

    def _update(self) -> None:
        new = self._new_until
        steps = [max(one.until, new) if one.is_new else one.until for one in self._pauses.values()]
        self._first_due = min(steps, default=math.inf)
