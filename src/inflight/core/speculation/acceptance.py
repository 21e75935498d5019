"""Acceptance of drafts, of an engine and of each sequence, and the back-off of sequences without right drafts."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from itertools import islice

from msgspec import Struct, field

from inflight.core.estimation.decaying import DecayingRatio
from inflight.core.sequence import SequenceView
from inflight.core.speculation.speculation import MAX_DRAFTS

PRIOR_DRAFTS = 8.0  # drafts that count for the belief, before there is evidence
PRIOR_ACCEPT_RATE = 0.6  # of a draft whose drafter states no belief
BUCKETS = 16  # of beliefs
ENGINE_DECAY = 0.995  # of a bucket's evidence, for each draft judged
SEQUENCE_PRIOR_DRAFTS = 1.0  # right drafts, of as many expected, that a sequence begins with
SEQUENCE_DECAY = 0.9  # of a sequence's evidence, for each step that verified drafts of it
REFUSAL_DECAY = 0.97  # of a sequence's evidence, for each time that it is refused drafts
MAX_ACCEPT_RATE = 0.99

ROUND_SECONDS = 50e-6  # that a step with any question to the drafter takes beside the questions
ASK_SECONDS = 10e-6  # of a question about one sequence
READ_SECONDS = 0.5e-6  # of the first one, for each token: the drafter reads the sequence, and answers that ended
ASK_SHARE = 0.0005  # of the time, that asking in vain may take
MIN_STEP_SECONDS = 1e-6  # that a step takes at least
MAX_PAUSE, MAX_NEW_PAUSE = 256, 2048  # steps; of a sequence, and of all new ones
SHORT_PAUSE = 8  # steps; a right draft earns a sequence one more pause that is no longer
MAX_SHORT_PAUSES = 8  # that a sequence may have earned: text that repeats goes on repeating after a gap
MAX_NEW = 8  # new sequences that are asked about in one step; behind questions in vain, one
NEW_DIVISOR = 4  # of the pause of new sequences, for each answer that was right: one may be by chance
NO_SEQUENCES: frozenset[int] = frozenset()


class _Pause(Struct):
    """Pauses of a sequence, or of all new ones."""

    until: int = 0  # first step in which it may be drafted for
    steps: int = 0  # length of the last pause; 0: its drafts pay, or none was tried
    short_left: int = 0  # pauses of SHORT_PAUSE steps that it has earned

    def extend(self, step: int, max_steps: int) -> None:
        """Pause behind this step, twice as long as before."""
        self.steps = min(2 * self.steps or 1, max_steps)
        if self.steps > SHORT_PAUSE and self.short_left:
            self.steps, self.short_left = SHORT_PAUSE, self.short_left - 1
        self.until = (step // self.steps + 1) * self.steps


class _Sequence(_Pause):
    """A sequence that was asked about."""

    accepted: DecayingRatio = field(default_factory=lambda: DecayingRatio(SEQUENCE_DECAY))  # over those expected


class Acceptance:
    """Learns how often drafts are right, given that those before them are, and in which steps to ask for them.

    Beliefs of a drafter are calibrated in buckets: 0.7 comes to mean that seven of ten are right. Without beliefs the
    position of the draft counts. A sequence differs by a factor of its own.

    A sequence whose drafts are right may be drafted for in every step. One for which drafting brought nothing pauses
    for 1, 2, 4, … steps, until asking about it takes a small share of the time. New sequences, which a drafter has to
    read, share one such pause: where no text can be guessed, few of them are asked about. Pauses end at multiples of
    their length, so that few steps have any work with drafts.
    """

    def __init__(self) -> None:
        self._by_belief = [_accept_rate(min(1.0, (bucket + 0.5) / BUCKETS)) for bucket in range(BUCKETS + 1)]
        self._by_position = [_accept_rate(PRIOR_ACCEPT_RATE) for _ in range(MAX_DRAFTS)]
        self._new: dict[int, None] = {}  # sequences that were never asked about, the oldest first
        self._sequences: dict[int, _Sequence] = {}  # the others
        self._pause_of_new = _Pause()
        self._last_steps = 0  # of the last pause of a sequence
        self._first_due = 0  # no sequence is due before

    def begin(self, number: int) -> None:
        """Add a sequence."""
        self._new[number] = None
        self._first_due = min(self._first_due, self._pause_of_new.until)

    def end(self, number: int) -> None:
        """Remove a sequence."""
        self._new.pop(number, None)
        self._sequences.pop(number, None)

    def due(self, step: int) -> Collection[int]:
        """Return the sequences that may be drafted for in this step."""
        if step < self._first_due:
            return NO_SEQUENCES
        due = {number for number, one in self._sequences.items() if one.until <= step}
        if self._pause_of_new.until <= step:
            due.update(islice(self._new, 1 if self._pause_of_new.steps else MAX_NEW))
        if not due:
            pauses = [*self._sequences.values(), self._pause_of_new] if self._new else self._sequences.values()
            self._first_due = min([one.until for one in pauses], default=step + MAX_PAUSE)
        return due

    def refuse(self, asked: Sequence[SequenceView], chosen: Collection[int], step: int, step_seconds: float) -> float:
        """Have sequences that were asked about and not chosen pause; return the seconds of the questions about them.
        step_seconds: of the step without drafts."""
        refused, vain = [view for view in asked if view.number not in chosen], 0.0
        budget = ASK_SHARE * max(step_seconds, MIN_STEP_SECONDS)
        for view in asked:
            if view.number in self._new:
                del self._new[view.number]
                self._sequences[view.number] = _Sequence(steps=self._last_steps // 2)
                if view.number not in chosen:
                    vain += READ_SECONDS * (view.prompt_tokens + view.output_tokens)
        if vain:
            self._pause_of_new.extend(step, min(MAX_NEW_PAUSE, math.ceil((ROUND_SECONDS + vain) / budget)))
        steps = max(1.0, (ROUND_SECONDS + ASK_SECONDS * len(self._sequences)) / budget)
        for view in refused:
            one = self._sequences[view.number]
            one.accepted.fade(REFUSAL_DECAY)
            one.extend(step, min(MAX_PAUSE, 1 << math.ceil(math.log2(steps))))
            self._last_steps = one.steps
        return vain + ASK_SECONDS * len(refused)

    def chances(self, number: int, beliefs: Sequence[float], drafts: int) -> tuple[float, ...]:
        """Return the chance of each of so many drafts. beliefs: the drafter's own; empty if it states none."""
        one = self._sequences.get(number)
        factor = 1.0 if one is None else one.accepted.value(1.0, SEQUENCE_PRIOR_DRAFTS)
        return tuple([min(MAX_ACCEPT_RATE, factor * rate.value()) for rate in self._rates(beliefs, drafts)])

    def learn(self, number: int, beliefs: Sequence[float], drafts: int, right: int) -> None:
        """Learn how many of so many drafts were right; those behind the first wrong one are not judged."""
        one, rates = self._sequences.get(number), self._rates(beliefs, min(drafts, right + 1))
        if one is not None:  # it may have ended
            one.accepted.add(right, sum([rate.value() for rate in rates]))
        for position, rate in enumerate(rates):
            rate.add(position < right, 1.0)
        if right and one is not None:
            one.steps, one.short_left = 0, min(MAX_SHORT_PAUSES, one.short_left + right)
            self._pause_of_new.steps //= NEW_DIVISOR
            self._pause_of_new.until = self._last_steps = self._first_due = 0

    def _rates(self, beliefs: Sequence[float], drafts: int) -> list[DecayingRatio]:
        if not beliefs:
            return self._by_position[:drafts]
        return [self._by_belief[int(belief * BUCKETS)] for belief in beliefs[:drafts]]


def _accept_rate(prior: float) -> DecayingRatio:
    return DecayingRatio(ENGINE_DECAY, PRIOR_DRAFTS * prior, PRIOR_DRAFTS)
