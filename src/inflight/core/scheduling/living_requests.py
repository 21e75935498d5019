"""Requests that are alive, and how they end.

Knows the samples of each, and everybody who must hear of an end: lane, policy, memory, predictor, admission, adapters
and drafts. Why one ends, others know; it hands out the terminal event once every sample has ended.
"""

from __future__ import annotations

from collections.abc import Iterator

from inflight.core.adapters import AdapterSlots
from inflight.core.estimation.output_length import PredictionTally, Predictor
from inflight.core.kv.manager import KVCacheManager
from inflight.core.queueing.admission import Admission
from inflight.core.queueing.lanes import Lanes
from inflight.core.scheduling.step_builder import StepBuilder
from inflight.core.sequence import Sequence, SequenceView
from inflight.core.speculation.speculation import ForcedDrafts
from inflight.core.types.events import Event, Finish, FinishedEvent
from inflight.core.types.request import Request


class LivingRequests:
    def __init__(
        self,
        memory: KVCacheManager,
        lanes: Lanes,
        step_builder: StepBuilder,
        adapters: AdapterSlots,
        drafts: ForcedDrafts | None,
        admission: Admission,
        predictor: Predictor,
        predictions: PredictionTally,
    ):
        """predictions: told how the ended ones turned out."""
        self._samples: dict[str, list[Sequence]] = {}
        self._memory = memory
        self._lanes = lanes
        self._step_builder = step_builder
        self._adapters = adapters
        self._drafts = drafts
        self._admission = admission
        self._predictor = predictor
        self._predictions = predictions

    def __len__(self) -> int:
        return len(self._samples)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._samples

    def __iter__(self) -> Iterator[str]:
        return iter(self._samples)

    def samples(self, request_id: str) -> list[Sequence]:
        """Raises KeyError for one that is not alive."""
        return self._samples[request_id]

    def begin(self, samples: list[Sequence]) -> None:
        """These are the samples of one request, none of which has ended."""
        self._samples[samples[0].request.request_id] = samples

    def end(self, request_id: str, finish: Finish, now: float) -> list[Event]:
        """All its samples end that have not."""
        samples = self._samples[request_id]
        for sequence in samples:
            if sequence.finish is None:
                sequence.finish = finish
                self.end_sequence(sequence, now)
        return self.finished(samples[0].request)

    def end_sequence(self, sequence: Sequence, now: float) -> None:
        """It waits no longer; what it holds is released now, or when nothing of it is in flight any more."""
        lane = self._lanes.of(sequence)
        if (lacked := lane.queue.lacks(sequence)) is not None:
            sequence.timings.unblock(lacked, now, lane.clock, lane.settings.name)
        sequence.timings.end(now, lane.clock)
        lane.queue.policy.left(SequenceView(sequence))
        # A request that samples nothing says nothing of how long answers are.
        if sequence.generates and sequence.finish is not None and sequence.finish.reason in ("stop", "length"):
            self._predictor.observe(sequence.request, len(sequence.output))
            self._predictions.observe(sequence.predicted_first, len(sequence.output))
        if self._drafts is not None:
            self._drafts.finished(SequenceView(sequence))
        lane.queue.remove(sequence)
        if sequence.row is None:
            self._memory.free(sequence)  # a preempted one may have content on the host
        elif not sequence.in_flight:
            self._step_builder.ended(sequence)

    def finished(self, request: Request) -> list[Event]:
        """The terminal event, once every sample has ended."""
        samples = self._samples[request.request_id]
        if any(sequence.finish is None for sequence in samples):
            return []
        del self._samples[request.request_id]
        self._admission.on_finished(request)
        self._memory.free_request(samples[0])
        if request.adapter is not None:
            self._adapters.release(request.request_id, request.adapter)
        return [_terminal_event(samples)]

    def break_off(self, error: str, now: float) -> list[Event]:
        """Everybody ends with this error, where rows, blocks and queues cannot be asked any more, and begin anew."""
        events: list[Event] = []
        for samples in self._samples.values():
            for sequence in samples:
                if sequence.finish is None:
                    sequence.finish = Finish("error", detail=error)
                if sequence.timings.ended is None:
                    lane = self._lanes.of(sequence)
                    sequence.timings.end(now, lane.clock)
                    lane.queue.policy.left(SequenceView(sequence))
                    if self._drafts is not None:
                        self._drafts.finished(SequenceView(sequence))
            self._admission.on_finished(samples[0].request)
            events.append(_terminal_event(samples))
        self._samples.clear()
        return events


def _terminal_event(samples: list[Sequence]) -> FinishedEvent:
    """Of a request whose samples have ended; its account is that of the first of those that ended last."""
    request, last = samples[0].request, max(samples, key=lambda sequence: sequence.timings.ended or 0.0)
    last.timings.cached_tokens = samples[0].timings.cached_tokens  # later samples also find what the first computed
    timings = last.timings.summary(request.arrival, len(last.prompt), len(last.output), request.lane)
    finishes = tuple(sequence.finish for sequence in samples if sequence.finish is not None)
    return FinishedEvent(request.request_id, finishes, timings)
