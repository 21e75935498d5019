"""Shortest predicted work first, until a request has waited for too long beside its own length.

The order is what matters, not the exact length (learning to rank, arXiv 2408.15792): the work of a sequence is what is
not cached of its prompt and its predicted output, the latter counted more because a decode step serves fewer tokens
than a prompt's. Sequences of like work (within a quarter of an octave) are served by arrival.

Shortest first alone lets long requests wait without end, and its tail is worse than that of first come, first served
even where lengths are known (arXiv 2606.18431). Hence *overdue* sequences go before all others, by arrival. The unit is
the mean time that a sequence runs, in which as many are taken from the queue as there are running ones, R. Let A be the
sequences that arrived before one, and S all that wait no longer. S − A is at most the number of later ones that
overtook it, and just that for the oldest. A sequence is overdue once (S − A) / R and its own output in mean outputs
exceed `PATIENCE` together, the output by its `TAIL` quantile: those that are long, or may be, have least of it left to
wait.

**So at most PATIENCE × R + 1 sequences that arrived later are taken before a waiting one**, R as of then, and its wait
is at most their work longer than under first come, first served. The clock is sequences, neither seconds nor predicted
work, so that a replay is exact, and no wrong prediction loosens the bound. (One that waits for its adapter or prefix to
be loaded is passed over meanwhile.)

Running sequences with the most work left are preempted first, overdue ones last.
"""

from __future__ import annotations

import math
from collections.abc import Hashable

from inflight.core.estimation.decaying import DecayingMean
from inflight.core.policies import Policy, PolicyEntry, Rank
from inflight.core.sequence import SequenceView

OUTPUT_WEIGHT = 4.0  # work of an output token, in prompt tokens
PATIENCE = 4.75  # mean times of running, which waiting behind later ones and running may take
TAIL = 0.95  # quantile of its own output that counts
BINS_PER_OCTAVE = 4  # of work
MEAN_SHARE = 0.01  # of the newest output in the mean


class Sjf(Policy):
    name = "sjf"
    reranks_heads = True  # a sequence becomes overdue while it waits

    def __init__(self, patience: float = PATIENCE):
        """patience: as `PATIENCE`."""
        self._patience = patience
        self._mean_output = DecayingMean(MEAN_SHARE)  # of those that ran to their end
        self._arrived = 0  # sequences, since the start
        self._taken = 0  # of these, those that wait no longer: S
        self._running = 0  # of these, those that run: R
        self._arrivals: dict[int, tuple[int, int]] = {}  # by number: A, and the quantile of the output

    def rank(self, view: SequenceView, now: float) -> Rank:
        before, output = self._arrivals.get(view.number, (0, 0))  # it may have ended, with a token in flight
        patience = self._patience - output / (self._mean_output.value or math.inf)
        if self._taken - before > max(0.0, patience * self._running):
            return (0, before)
        return (1, self.group(view), before)

    def group(self, view: SequenceView) -> Hashable:
        """Return a bin of like work that is left."""
        prompt = max(1, view.prompt_tokens - max(view.computed_tokens, view.cached_tokens))
        output = max(1.0, view.predicted_output_tokens - view.output_tokens)
        return round(BINS_PER_OCTAVE * math.log2(prompt + OUTPUT_WEIGHT * output))

    def arrived(self, view: SequenceView) -> None:
        self._arrivals[view.number] = self._arrived, view.output_lengths.quantile(TAIL)
        self._arrived += 1

    def started(self, view: SequenceView) -> None:
        self._taken += 1
        self._running += 1

    def preempted(self, view: SequenceView) -> None:
        self._taken -= 1
        self._running -= 1

    def left(self, view: SequenceView) -> None:
        if self._arrivals.pop(view.number, None) is None:
            return
        if view.is_running:
            self._running -= 1
            self._mean_output.add(max(1, view.output_tokens))
        else:
            self._taken += 1


ENTRY = PolicyEntry(
    name="sjf",
    reason="shortest predicted work first, within a bound on waiting",
    asks_predictor=True,
    make=lambda context: Sjf(),
)
