"""Questions to a drafter: what each takes, and whether the account of time can pay for it.

A drafter reads what it has not seen of a sequence, and of answers that have ended, before it answers; so the first
question about a long sequence is dear, and looking in vain for whom to ask must not take what that one is waiting for.
Knows how many tokens there are to read, nothing of drafts. A drafter inside of the executor reads nothing for a
question.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from inflight.core.sequence import SequenceView
from inflight.core.speculation.drafter import LEARNED_PER_QUESTION, LONGEST_ANSWER, MOST_UNLEARNED
from inflight.core.speculation.time_budget import TimeBudget

ASKING = 15e-6  # seconds that a drafter and the planner take for one sequence at least
READING = 0.5e-6  # seconds that a drafter takes for each token that it has not seen yet
DEARER = 1.1  # times the least price, for which all wait who are too dear: texts grow meanwhile


class Questions:
    def __init__(self, budget: TimeBudget, reads: bool):
        """reads: whether the drafter reads sequences."""
        self._budget, self._reads = budget, reads
        self._views: dict[int, SequenceView] = {}  # of those that run, by number
        self._seen: dict[int, int] = {}  # tokens of each of them that the drafter was shown
        self._unseen = 0  # tokens of answers that have ended and a drafter has not learned, which it does first
        self._least = ASKING  # seconds that the account has to hold before it is worth finding out who could be asked

    def began(self, view: SequenceView) -> None:
        self._views[view.number] = view
        self._least = min(self._least, self.price(view))

    def ended(self, view: SequenceView) -> None:
        self._views.pop(view.number, None)
        self._seen.pop(view.number, None)
        if self._reads:
            self._unseen = min(MOST_UNLEARNED, self._unseen + min(view.output_tokens, LONGEST_ANSWER))

    def price(self, view: SequenceView) -> float:
        """Seconds."""
        if not self._reads:
            return ASKING
        unseen = view.prompt_tokens + view.output_tokens - self._seen.get(view.number, 0)
        return ASKING + READING * (unseen + min(self._unseen, LEARNED_PER_QUESTION))

    def may_be_any(self, beside: float) -> bool:
        """Whether it is worth finding out whose turn it is. beside: seconds that a round with questions takes more."""
        return self._holds(self._least + beside)

    def affords_any(self, due: Iterable[int], beside: float) -> bool:
        """Of those whose turn it is. Where not, all wait until the account has grown."""
        least = math.inf
        for number in due:
            price = self.price(self._views[number])
            if self._holds(price + beside):
                return True
            least = min(least, price)
        self._least = DEARER * least
        return False

    def begin(self) -> None:
        """Somebody is asked in this step."""
        self._least = ASKING

    def pay(self, view: SequenceView, beside: float = 0.0) -> float | None:
        """It is asked about: the account is charged. Seconds; None where it does not hold them, with so many beside,
        and nobody is asked."""
        price = self.price(view)
        if not self._holds(price + beside):
            return None
        self._budget.settle(0.0, price)
        self._seen[view.number] = view.prompt_tokens + view.output_tokens
        self._unseen = max(0, self._unseen - LEARNED_PER_QUESTION)
        return price

    def _holds(self, seconds: float) -> bool:
        """The account; it holds never more than its reserve, which is enough for whatever is dearer."""
        return self._budget.allows(min(seconds, self._budget.reserve))
