"""Steps that failed: who ends with the error, and who comes again.

Knows what a lost step was to compute, and that no cached content is trusted behind one. Where it failed for want of
memory, those end that it was too large for, and the others are computed anew.
"""

from __future__ import annotations

from collections.abc import Iterable

from inflight.core.kv.manager import KVCacheManager
from inflight.core.scheduling.living_requests import LivingRequests
from inflight.core.scheduling.running import Running
from inflight.core.sequence import Sequence
from inflight.core.types.events import Event, Finish
from inflight.core.types.plan import BatchPlan


class LostSteps:
    def __init__(self, requests: LivingRequests, memory: KVCacheManager, running: Running):
        self._requests = requests
        self._memory = memory
        self._running = running

    def lose(
        self, plan: BatchPlan, planned: dict[int, Sequence], error: str, out_of_memory: bool, now: float
    ) -> list[Event]:
        """planned: sequences with a chunk in flight, by number, those of later plans too, since they may share blocks
        which this step should have written. out_of_memory: that is why, and what did not cause it may go on."""
        causes = _short_of_memory(plan, planned) if out_of_memory else None
        everybody = tuple(planned.values())
        self._memory.forget_all()
        events = self._end(everybody if causes is None else causes, error, now)
        if causes is not None:
            for sequence in everybody:
                sequence.recomputes = sequence.finish is None
        self._running.send_unstarted_back(now)
        self._running.free_again(plan.freed_rows)
        return events

    def _end(self, sequences: Iterable[Sequence], error: str, now: float) -> list[Event]:
        events: list[Event] = []
        for sequence in sequences:
            if sequence.finish is None:  # not by another sample's end
                events += self._requests.end(sequence.request.request_id, Finish("error", detail=error), now)
        return events


def _short_of_memory(plan: BatchPlan, planned: dict[int, Sequence]) -> list[Sequence] | None:
    """Whom a step had no memory for: those that it was the first of; else those whose prompts it computed, or computed
    again. Nobody where all of it is lost anyway, with a step before it; None where all only decode: then there is
    nobody whose end would make the others fit."""
    new_rows = {one.row for one in plan.new_rows}
    alive = [(one, planned[one.sequence_id]) for one in plan.chunks]
    alive = [(chunk, sequence) for chunk, sequence in alive if sequence.finish is None and not sequence.recomputes]
    prompts = [
        (chunk, sequence) for chunk, sequence in alive if chunk.row in new_rows or chunk.length > 1 + chunk.num_drafts
    ]
    first = [sequence for chunk, sequence in prompts if chunk.row in new_rows and not sequence.recompute_until]
    return first or [sequence for _, sequence in prompts] or (None if alive else [])
