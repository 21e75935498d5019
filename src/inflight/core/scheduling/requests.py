"""Requests: the sequences that each becomes, and how they end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from inflight.core.estimation.output_length import PredictionTally, Predictor
from inflight.core.queueing.admission import Admission
from inflight.core.queueing.validation import RequestValidator
from inflight.core.request_timings import RequestTimings
from inflight.core.scheduling.state import SchedulerState
from inflight.core.sequence import Sequence, SequenceView
from inflight.core.stopping import StopChecker, StopText, StopTextFactory
from inflight.core.types.events import Event, Finish, FinishedEvent
from inflight.core.types.length_distribution import EndedOutput
from inflight.core.types.request import Request, RequestRefused


class Numbers(NamedTuple):
    """Numbers of the next step and sequence."""

    step: int
    sequence: int


class SampleFactory:
    """Makes a request's sequences. No other part knows of them yet, since a tokenizer's stop text may fail."""

    def __init__(
        self,
        validator: RequestValidator,
        predictor: Predictor,
        end_token_ids: frozenset[int],
        stop_text: StopTextFactory | None,
        timings: type[RequestTimings],
    ):
        self.next_number = 0  # of the next sequence
        self._validator, self._predictor = validator, predictor
        self._end_token_ids, self._stop_text, self._timings = end_token_ids, stop_text, timings

    def make(self, request: Request) -> list[Sequence]:
        """Make a sequence for each sample.

        Raises:
            RequestRefused: Stop strings cannot be looked for.
        """
        max_output, banned = self._validator.max_output_tokens(request), self._validator.banned(request)
        lengths = self._predictor.lengths(request, max_output, 0)
        samples = []
        for index in range(request.params.n):
            checker = StopChecker(request, self._end_token_ids, max_output, self._stop_text_for(request))
            number, timings = self.next_number + index, self._timings()
            sequence = Sequence(number, request, index, checker, max_output, banned, timings)
            sequence.lengths, sequence.predicted_first = lengths, lengths.mean()
            sequence.predicted = sequence.predicted_first
            samples.append(sequence)
        self.next_number += len(samples)
        return samples

    def _stop_text_for(self, request: Request) -> StopText | None:
        if self._stop_text is None or not request.params.stop:
            return None
        try:
            return self._stop_text(request)
        except Exception as fault:  # a tokenizer's
            raise RequestRefused(
                f"The {len(request.params.stop)} stop strings cannot be looked for ({fault}); leave them out.",
                field="stop",
            ) from fault


class Requests:
    """Requests that have not ended, with their samples, by id."""

    def __init__(self, state: SchedulerState, admission: Admission, predictor: Predictor, predictions: PredictionTally):
        # Ends of the verb in progress, which are lost with their tokens if it is broken off.
        self._ended_sequences: list[Sequence] = []
        self._ended: list[list[Sequence]] = []
        self._samples: dict[str, list[Sequence]] = {}
        self._state, self._admission = state, admission
        self._predictor, self._predictions = predictor, predictions

    def __len__(self) -> int:
        return len(self._samples)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._samples

    def __iter__(self) -> Iterator[str]:
        return iter(self._samples)

    def samples(self, request_id: str) -> list[Sequence]:
        """Return the samples of a request. Raises KeyError for one that has ended."""
        return self._samples[request_id]

    def add(self, samples: list[Sequence]) -> None:
        self._samples[samples[0].request.request_id] = samples

    def end(self, request_id: str, finish: Finish) -> list[Event]:
        """End all samples of a request that have not ended; return the terminal event."""
        samples = self._samples[request_id]
        for sequence in samples:
            if sequence.finish is None:
                self.end_sequence(sequence, finish)
        return self.finished(samples[0].request)

    def end_sequence(self, sequence: Sequence, finish: Finish) -> None:
        """End a sequence. What it holds is freed now, or when nothing of it is in flight any more."""
        state, lane, now = self._state, self._state.lanes.of(sequence), self._state.time.now
        self._ended_sequences.append(sequence)
        sequence.finish, state.running.steady = finish, None
        if (reason := lane.queue.deferred_for(sequence)) is not None:
            sequence.timings.unblock(reason, now, lane.clock, lane.settings.name)
        sequence.timings.end(now, lane.clock)
        lane.queue.policy.left(SequenceView(sequence))
        # A request that samples nothing says nothing of how long answers are.
        if sequence.generates and finish.reason in ("stop", "length"):
            self._predictor.observe(sequence.request, len(sequence.output))
            self._predictions.observe(sequence.predicted_first, len(sequence.output))
        if sequence.generates and state.reports_ends:
            complete = {"stop": True, "length": False}.get(finish.reason)
            state.ended.append(EndedOutput(sequence.number, len(sequence.output), complete))
        if state.speculation is not None:
            state.speculation.finished(SequenceView(sequence))
        lane.queue.remove(sequence)
        if sequence.row is None:
            state.memory.free(sequence)  # a preempted one may have content on the host
        elif not sequence.in_flight:
            state.running.leave(sequence)

    def finished(self, request: Request) -> list[Event]:
        """Return the terminal event once every sample has ended."""
        samples = self._samples[request.request_id]
        if any(sequence.finish is None for sequence in samples):
            return []
        event = _terminal_event(samples)
        self._ended.append(samples)  # first: from now on `end_all` finds the request nowhere else
        del self._samples[request.request_id]
        self._admission.on_finished(request)
        self._state.memory.free_request(samples[0])
        if request.adapter is not None:
            self._state.adapters.release(request.request_id, request.adapter)
        return [event]

    def end_verb(self) -> None:
        """Note that a verb was not broken off: its ends hold."""
        self._ended_sequences.clear()
        self._ended.clear()

    def end_all(self, error: str) -> list[Event]:
        """End all requests with an error, where rows, blocks and queues cannot be trusted, and are reset afterwards;
        also those that the broken verb has ended, whose last tokens are lost. Return the events in the order in which
        the requests were added."""
        finish = Finish("error", detail=error)
        for sequence in self._ended_sequences:
            sequence.finish = finish
        ended = [samples for samples in self._ended if samples[0].request.request_id not in self._samples]
        for samples in self._samples.values():
            for sequence in samples:
                if sequence.finish is None:
                    sequence.finish = finish
                if sequence.timings.ended is None:
                    lane = self._state.lanes.of(sequence)
                    sequence.timings.end(self._state.time.now, lane.clock)
                    lane.queue.policy.left(SequenceView(sequence))
                    if self._state.speculation is not None:
                        self._state.speculation.finished(SequenceView(sequence))
            self._admission.on_finished(samples[0].request)
            ended.append(samples)
        self._samples.clear()
        self.end_verb()
        return [_terminal_event(samples) for samples in sorted(ended, key=lambda samples: samples[0].number)]


def _terminal_event(samples: list[Sequence]) -> FinishedEvent:
    """Return the event of a request whose samples have ended, with the timings of the first that ended last."""
    request, last = samples[0].request, max(samples, key=lambda sequence: sequence.timings.ended or 0.0)
    last.timings.cached_tokens = samples[0].timings.cached_tokens  # later samples also find what the first computed
    timings = last.timings.summary(request.arrival, len(last.prompt), len(last.output), request.lane)
    finishes = tuple(sequence.finish for sequence in samples if sequence.finish is not None)
    return FinishedEvent(request.request_id, finishes, timings)
