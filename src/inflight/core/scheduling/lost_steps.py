"""Steps that failed: who ends with the error, and who comes again.

Knows what a lost step was to compute, and that no cached content is trusted behind one. Where it failed for want of
memory, those end that it was too large for, and the others are computed anew. Of a prompt whose scores are lost the
first sample computes them again, before the other samples have their tokens.
"""

from __future__ import annotations

from collections.abc import Iterable

from inflight.core.kv.manager import KVCacheManager
from inflight.core.queueing.lanes import Lanes
from inflight.core.scheduling.living_requests import LivingRequests
from inflight.core.scheduling.running import Running
from inflight.core.sequence import Sequence
from inflight.core.types.events import Event, Finish
from inflight.core.types.plan import BatchPlan
from inflight.core.types.request import Request


class LostSteps:
    def __init__(self, requests: LivingRequests, memory: KVCacheManager, lanes: Lanes, running: Running):
        self._requests = requests
        self._memory = memory
        self._lanes = lanes
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
        for sequence in everybody:
            if sequence.recomputes and sequence.finish is None:
                self._order_samples(sequence.request, now)
        return events

    def come_again(self, sequence: Sequence, now: float) -> None:
        """Send a sequence back to its queue: what was computed of it is lost, and none of it is in flight."""
        self._running.send_lost_back(sequence, now)
        self._order_samples(sequence.request, now)

    def _order_samples(self, request: Request, now: float) -> None:
        """Hold waiting samples back while the first one is to score their prompt again; else release them."""
        if request.params.prompt_logprobs is None:
            return
        leader, *others = self._requests.samples(request.request_id)
        lane = self._lanes.of(leader)
        if not (leader.recomputes or leader.lacks_scores):
            lane.queue.release_siblings(leader, now)
            return
        waiting = [one for one in others if lane.queue.waits(one)]
        for one in waiting:
            if (lacked := lane.queue.lacks(one)) is not None:
                one.timings.unblock(lacked, now, lane.clock, lane.settings.name)
        if waiting:
            lane.queue.defer_siblings(leader, waiting)

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
    new_requests = {one.row for one in plan.new_requests}
    alive = [(one, planned[one.sequence_id]) for one in plan.chunks]
    alive = [(chunk, sequence) for chunk, sequence in alive if sequence.finish is None and not sequence.recomputes]
    prompts = [
        (chunk, sequence)
        for chunk, sequence in alive
        if chunk.row in new_requests or chunk.length > 1 + chunk.num_drafts
    ]
    first = [sequence for chunk, sequence in prompts if chunk.row in new_requests and not sequence.recompute_until]
    return first or [sequence for _, sequence in prompts] or (None if alive else [])
