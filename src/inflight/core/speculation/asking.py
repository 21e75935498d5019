"""Ask the drafter: in which steps, about which sequences, and what the questions cost."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct, field

from inflight.core.sequence import SequenceView
from inflight.core.speculation.drafter import NOTHING, Drafter, ExecutorDrafter, Proposal
from inflight.core.speculation.speculation import Candidate

ROUND_SECONDS = 50e-6  # that a step with any question to the drafter takes beside the questions
ASK_SECONDS = 10e-6  # of a question about one sequence
READ_SECONDS = 0.25e-6  # for each token that the drafter has not seen, of the sequence and of answers that ended
ASK_SHARE = 0.0005  # of the time, that asking in vain may take
MAX_ASK_SHARE = 0.1  # of a step; where questions took more, those about new sequences wait for another one

MAX_PAUSE = 256  # steps
SHORT_PAUSE = 8  # steps; a right draft earns a sequence one more pause that is no longer
MAX_SHORT_PAUSES = 8  # that a sequence may have earned: text that repeats goes on repeating after a gap
MAX_FIRST_PAUSE = 16  # steps before the first question about a newcomer
NEW_PAUSE_DIVISOR = 4  # of the pause between first questions, for each right draft: one may be right by chance
NO_SEQUENCES: frozenset[int] = frozenset()


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


class Answers(Struct):
    """Answers of the drafter in one step, by sequence."""

    proposals: dict[int, Proposal] = field(default_factory=dict)
    drafts: dict[int, int] = field(default_factory=dict)  # that a sequence may have, if any
    seconds: dict[int, float] = field(default_factory=dict)  # of the questions


class DraftQuestions(DraftBackoff):
    """Asks about the sequences that are due, has those without drafts pause, and accounts for the time."""

    def __init__(self, drafter: Drafter | ExecutorDrafter):
        """drafter: an executor's makes drafts inside of the step, and is not asked."""
        super().__init__()
        self._drafter = None if isinstance(drafter, ExecutorDrafter) else drafter
        self.round_seconds, self.ask_seconds = (0.0, 0.0) if self._drafter is None else (ROUND_SECONDS, ASK_SECONDS)
        self.asked = 0  # questions since the engine began
        self._read: dict[int, int] = {}  # tokens that the drafter was shown, by sequence
        self._seconds: dict[int, float] = {}  # of questions, by step whose result is not there

    def begin(self, number: int, step: int) -> None:
        super().begin(number, step)
        self._read[number] = 0

    def finish(self, view: SequenceView) -> None:
        """Remove a sequence, from the drafter too."""
        self._read.pop(view.number, None)
        self.end(view.number)
        if self._drafter is not None:
            self._drafter.finished(view)

    @property
    def outstanding(self) -> bool:
        """Whether there were questions for steps whose result is not there."""
        return bool(self._seconds)

    def seconds(self, step: int) -> float:
        """Return what the questions for this step took."""
        return self._seconds.get(step, 0.0)

    def expected_seconds(self, sequences: int) -> float:
        """Return what asking about so many sequences takes, without reading them."""
        return self.round_seconds + self.ask_seconds * sequences

    def ask(self, candidates: Sequence[Candidate], step_seconds: float) -> Answers:
        """Ask for drafts of these sequences. New ones, which the drafter has to read, may wait for another step."""
        answers, spent = Answers(), 0.0
        for view, room in candidates:
            number, proposal = view.number, NOTHING
            if room > 0 and self._drafter is not None:
                if self.is_new(number) and spent > MAX_ASK_SHARE * step_seconds:
                    continue
                known = view.prompt_tokens + view.output_tokens
                answers.seconds[number] = ASK_SECONDS + READ_SECONDS * (known - self._read[number])
                spent, self._read[number] = spent + answers.seconds[number], known
                proposal = self._drafter.propose(view, room)
                room = len(proposal.token_ids)
            answers.proposals[number] = proposal
            if room > 0:
                answers.drafts[number] = room
        self.asked += len(answers.seconds)
        return answers

    def close(self, step: int, answers: Answers, chosen: Collection[int], step_seconds: float) -> float:
        """Have the sequences that were asked about, and were not chosen, pause; return the seconds asked in vain."""
        refused = [number for number in answers.proposals if number not in chosen]
        self.pause(refused, step, self._max_pause(step_seconds))
        vain = {number: answers.seconds[number] for number in refused if number in answers.seconds}
        new = sum([seconds for number, seconds in vain.items() if self.is_new(number)])
        vain_steps = new / (ASK_SHARE * step_seconds) if step_seconds else 0.0
        self.record_asked(answers.proposals, step, vain_steps)
        self._seconds[step] = self.seconds(step) + sum(answers.seconds.values()) + self.round_seconds
        return sum(vain.values())

    def drop_until(self, step: int) -> None:
        """Drop the times of questions up to this step."""
        self._seconds = {later: seconds for later, seconds in self._seconds.items() if later > step}

    def _max_pause(self, seconds: float) -> int:
        """Return the pause with which asking about all sequences takes a small share of steps of this duration."""
        asking = ROUND_SECONDS + ASK_SECONDS * len(self._read)
        steps = asking / (ASK_SHARE * seconds) if seconds > 0 else MAX_PAUSE
        return MAX_PAUSE if steps > MAX_PAUSE / 2 else 1 << math.ceil(math.log2(max(1.0, steps)))
