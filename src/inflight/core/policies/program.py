"""Programs in the order in which they began; between tenants, fair share (`fair`).

A program is the run of an agent: a request, a tool call, the next request with all of the context before it, and so on.
First come, first served by *request* serves all programs in turns, so that the contexts of all of them are wanted in
memory at once: where they do not fit, each turn computes again what another's turn evicted, and throughput collapses.
By the first arrival of their *program* (Continuum, arXiv 2511.02230), a program's next turn goes before those that
began later. As many are at work as fit into memory, and the others wait at their beginning, where they hold nothing.

Attained service with decay (least first, as llm-d's router orders programs) was measured beside it, and lost: it takes
newcomers in, so that more contexts compete for memory (docs/results/scheduling.md).

The bound on waiting: a request never goes before another of its tenant that came more than HEAD_START_S before it. The
bounds on what names can gain: a new name has no head start; a program that rests for more than MAX_REST_S counts as
new, so that old names cannot be kept; and all programs of a tenant have that tenant's share together, by tokens served
as they are produced, whatever it calls them. Times are arrivals, which records keep, so that a replay has the same
order.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from msgspec import Struct

from inflight.core.policies import PolicyEntry, Rank
from inflight.core.policies.fair import Fair
from inflight.core.sequence import SequenceView

HEAD_START_S = 3600.0  # by which a program's next request may go before others, at most
MAX_REST_S = 600.0  # after which a program counts as new: seven times the 99th percentile of tool calls
MAX_PROGRAMS = 20_000  # without requests that are remembered; the one that was served longest ago is forgotten first

Key = tuple[str, str]


class _Run(Struct):
    """A program at work: when it began, when it was last served, and its sequences that have not ended."""

    began: float
    served: float
    alive: int = 0


class Program(Fair):
    name = "program"
    orders_programs = True

    def __init__(self, weights: Mapping[str, float] | None = None):
        """weights: of tenants whose weight is not 1."""
        super().__init__(weights)
        self._runs: OrderedDict[Key, _Run] = OrderedDict()  # the one that was least recently at work first

    def rank(self, view: SequenceView, now: float) -> Rank:
        return (self.running_rank(view), self._start(view), view.arrival)

    def arrived(self, view: SequenceView) -> None:
        super().arrived(view)
        if not view.program:
            return
        key = view.tenant, view.program
        run = self._runs.get(key)
        if run is None or (not run.alive and view.arrival - run.served > MAX_REST_S):
            run = self._runs[key] = _Run(view.arrival, view.arrival)
        run.alive += 1
        self._runs.move_to_end(key)
        self._forget()

    def served(self, view: SequenceView, prompt_tokens: int, output_tokens: int, now: float) -> None:
        super().served(view, prompt_tokens, output_tokens, now)
        run = self._runs.get((view.tenant, view.program))
        if run is not None:
            run.served = now

    def left(self, view: SequenceView) -> None:
        super().left(view)
        run = self._runs.get((view.tenant, view.program))
        if run is not None:
            run.alive -= 1

    def _start(self, view: SequenceView) -> float:
        """Return when its program began, but no more than HEAD_START_S before it came itself."""
        run = self._runs.get((view.tenant, view.program))
        return view.arrival if run is None else max(run.began, view.arrival - HEAD_START_S)

    def _forget(self) -> None:
        """Forget the programs that were at work longest ago, but for those with requests."""
        for _ in range(2 if len(self._runs) > MAX_PROGRAMS else 0):  # in a bounded time; one has just come
            key, run = next(iter(self._runs.items()))
            if run.alive:
                self._runs.move_to_end(key)
            else:
                del self._runs[key]


ENTRY = PolicyEntry(
    name="program",
    reason="the program that began first, within fair shares of tenants",
    weighs_tenants=True,
    make=lambda context: Program(context.tenant_weights),
)
