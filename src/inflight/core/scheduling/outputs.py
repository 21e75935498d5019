"""Outputs: what a step yielded, and what becomes of the sequences of one that failed.

Tokens sampled behind an end, or behind a step that was lost, are dropped unseen.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from msgspec import structs

from inflight.core.estimation.output_length import Predictor
from inflight.core.queueing.admission import Admission
from inflight.core.scheduling.requests import Requests
from inflight.core.scheduling.state import SchedulerState
from inflight.core.sequence import NO_POSITIONS, Sequence, SequenceView
from inflight.core.types.events import Event, Finish, FinishedEvent, PooledEvent, PromptScoredEvent, TokensEvent
from inflight.core.types.length_distribution import PredictedLength, of_remaining
from inflight.core.types.plan import BatchPlan, Chunk, Pooled, Sampled, Scored
from inflight.core.types.request import Request
from inflight.counted import counted


class Outputs:
    """Takes in results.

    Attributes:
        planned: Sequences with a chunk in flight, by number.
    """

    def __init__(self, state: SchedulerState, requests: Requests, admission: Admission, predictor: Predictor):
        self.planned: dict[int, Sequence] = {}
        self._memory, self._lanes, self._running, self._time = state.memory, state.lanes, state.running, state.time
        self._speculation, self._requests = state.speculation, requests
        self._admission, self._predictor = admission, predictor
        self._charges = any(lane.queue.counts for lane in self._lanes.all())

    # -- a step's results ---------------------------------------------------------------------------------------

    def export_blocks(self, plan: BatchPlan) -> None:
        """Offer the blocks of prompts that a plan has computed to other engines, before they are freed."""
        if not self._memory.has_exporter:
            return
        for chunk in plan.chunks:
            sequence = self.planned[chunk.sequence_id]
            if sequence.finish is None and not sequence.recomputes:
                self._memory.chunk_computed(sequence, chunk.start + chunk.length)

    def take_prompt(self, output: Scored | Pooled) -> list[Event]:
        """Take in prompt log-probabilities or an embedding."""
        sequence = self.planned[output.sequence_id]
        request_id = sequence.request.request_id
        if sequence.finish is not None or sequence.recomputes:  # it may have been aborted meanwhile
            return []
        if output.error is not None:
            return self._requests.end(request_id, Finish("error", detail=output.error))
        if isinstance(output, Pooled):
            return [PooledEvent(request_id, output.vector)]
        return [PromptScoredEvent(request_id, output.logprobs)]

    def take_tokens(self, sampled: Sampled) -> list[Event]:
        """Take in the new tokens of a sequence."""
        sequence = self.planned[sampled.sequence_id]
        if sequence.finish is not None or sequence.recomputes or sequence.sits_out:
            return []
        if sampled.waits_for:
            self._running.sit_out(sequence, sampled.waits_for)
            if self._charges:
                self._charge(sequence, 1)  # it was computed, and will be again
            return []
        request = sequence.request
        if sampled.error is not None:
            self._requests.end_sequence(sequence, Finish("error", detail=sampled.error, by_request=sampled.by_request))
            return self._requests.finished(request)
        if sequence.num_drafts:
            sequence.verified(len(sampled.token_ids))
        taken, finish = self._append(sequence, sampled.token_ids)
        self._notify(sequence, taken)
        tokens = TokensEvent(
            request.request_id,
            sequence.sample_index,
            sampled.token_ids[:taken],
            None if sampled.logprobs is None else sampled.logprobs[:taken],
            finish,
            0 if sequence.sample_index else sequence.timings.cached_tokens,
        )
        if finish is None:
            if self._speculation is not None:
                self._speculation.force(sequence.number, sampled.forced_token_ids)
            return [tokens]
        self._requests.end_sequence(sequence, finish)
        return [tokens, *self._requests.finished(request)]

    def take_lengths(self, predicted: Iterable[PredictedLength]) -> None:
        """Take in what a probe predicts of the sequences' outputs."""
        for one in predicted:
            sequence = self.planned.get(one.sequence_id)
            if sequence is None or sequence.finish is not None or sequence.recomputes:
                continue
            so_far, most = len(sequence.output), sequence.max_output_tokens
            if one.so_far < most and so_far < most and sum(one.probabilities) > 0:
                lengths = of_remaining(one.probabilities, most, one.so_far)
                if lengths.end > so_far:
                    sequence.lengths, sequence.predicted = lengths, lengths.given(so_far).mean()

    def end_chunk(self, chunk: Chunk) -> list[Event]:
        """Note that a chunk is not in flight any more: free ended sequences, and send lost ones back."""
        sequence, running = self.planned[chunk.sequence_id], self._running
        events: list[Event] = []
        if sequence.recomputes:
            sequence.lose(chunk.sample, NO_POSITIONS if sequence.sits_out else chunk.score)
        elif sequence.sits_out:
            sequence.lose(chunk.sample, NO_POSITIONS)
            if not sequence.in_flight:
                sequence.draw_again()
        elif not sequence.generates and sequence.finish is None and chunk.start + chunk.length >= sequence.num_tokens:
            self._requests.end_sequence(sequence, Finish("length"))
            events = self._requests.finished(sequence.request)
        if not sequence.in_flight:
            del self.planned[chunk.sequence_id]
            if sequence.finish is not None:
                if sequence.row is not None:
                    running.leave(sequence)
            elif sequence.recomputes:
                running.send_lost_back(sequence)
                self._order_samples(sequence.request)
                if running.run_to_completion:
                    running.end_batch()  # it may have been the last that went on
        return events

    def _append(self, sequence: Sequence, token_ids: tuple[int, ...]) -> tuple[int, Finish | None]:
        """Append tokens up to the sequence's end; return how many, and the end."""
        taken, finish = 0, None
        for token_id in token_ids:
            sequence.append(token_id)
            taken += 1
            try:
                finish = sequence.checker.check(token_id)
            except Exception as fault:  # a tokenizer's, which is asked for the text that stop strings are looked for in
                detail = f"Output token {len(sequence.output)} cannot be read: {fault}"
                finish = Finish("error", detail=detail)
            if finish is None and sequence.num_tokens > self._memory.max_tokens:
                finish = self._outgrown(sequence)
            if finish is not None:
                break
        return taken, finish

    def _outgrown(self, sequence: Sequence) -> Finish:
        """Return the end of a sequence that needs more blocks than there are: it ends alone, with what it has."""
        return Finish(
            "length",
            detail=f"After {counted(len(sequence.output), 'output token')} the sequence "
            f"{self._memory.shortage(sequence.num_tokens)}; raise --kv-memory (or --num-blocks).",
        )

    def _charge(self, sequence: Sequence, tokens: int) -> None:
        """Count output tokens for the sequence's tenant."""
        queue = self._lanes.of(sequence).queue
        if queue.counts:
            queue.policy.served(SequenceView(sequence), 0, tokens, self._time.now)

    def _notify(self, sequence: Sequence, taken: int) -> None:
        """Notify those that learn from how many tokens a sequence has."""
        total = len(sequence.output)
        if self._charges:
            self._charge(sequence, taken)
        if total >= sequence.predicted and total < sequence.max_output_tokens:
            if total >= sequence.lengths.end:
                sequence.lengths = self._predictor.lengths(sequence.request, sequence.max_output_tokens, total)
            sequence.predicted = sequence.lengths.given(total).mean()
        if total == taken:
            self._admission.on_first_token(sequence.request, self._time.now)
            if self._speculation is not None:
                self._speculation.began(SequenceView(sequence))
        sequence.timings.token(self._time.now)
        self._memory.publish(sequence)

    # -- a step that failed -------------------------------------------------------------------------------------

    def fail_step(self, plan: BatchPlan, error: str, out_of_memory: bool) -> list[Event]:
        """End the sequences of a failed step, and of the steps in flight behind it, which may share its blocks.

        out_of_memory: Memory was short: those end that the step was too large for, and the others start again.
        """
        causes = self._short_of_memory(plan) if out_of_memory else None
        planned = tuple(self.planned.values())
        self._memory.forget_all()
        self._running.steady = None
        events: list[Event] = []
        for sequence in planned if causes is None else causes:
            if sequence.finish is None:  # not by another sample's end
                events += self._requests.end(sequence.request.request_id, Finish("error", detail=error))
        if causes is not None:
            for sequence in planned:
                sequence.recomputes = sequence.finish is None
        self._running.send_unstarted_back()
        self._running.free_rows_again(plan.freed_rows)
        for sequence in planned:
            if sequence.recomputes and sequence.finish is None:
                self._order_samples(sequence.request)
        return events

    def _short_of_memory(self, plan: BatchPlan) -> list[Sequence] | None:
        """Return the sequences that a step had no memory for: those that it was the first of; else those whose prompts
        it computed. None of them where a step before it lost all anyway; None where all only decode: then no end of one
        would make the others fit."""
        new_requests = {one.row for one in plan.new_requests}
        alive = [(one, self.planned[one.sequence_id]) for one in plan.chunks]
        alive = [(chunk, sequence) for chunk, sequence in alive if sequence.finish is None and not sequence.recomputes]
        prompts = [
            (chunk, sequence)
            for chunk, sequence in alive
            if chunk.row in new_requests or chunk.length > 1 + chunk.num_drafts
        ]
        first = [sequence for chunk, sequence in prompts if chunk.row in new_requests and not sequence.recompute_until]
        return first or [sequence for _, sequence in prompts] or (None if alive else [])

    def _order_samples(self, request: Request) -> None:
        """Hold waiting samples back while the first one is to score their prompt again; else release them."""
        if request.params.prompt_logprobs is None:
            return
        leader, *others = self._requests.samples(request.request_id)
        lane = self._lanes.of(leader)
        if not (leader.recomputes or leader.lacks_scores):
            lane.queue.release_siblings(leader)
            return
        waiting = [one for one in others if lane.queue.waits(one)]
        for one in waiting:
            if (reason := lane.queue.deferred_for(one)) is not None:
                one.timings.unblock(reason, self._time.now, lane.clock, lane.settings.name)
        if waiting:
            lane.queue.defer_siblings(leader, waiting)


class BatchOutputs:
    """Events of a batch that runs to completion, buffered until its last sequence has ended.

    The time that an answer lay ready is part of its request's timings (`other`), and its first token comes with its
    last.
    """

    def __init__(self) -> None:
        self._buffered: list[tuple[Event, float]] = []

    def add(self, events: Iterable[Event], now: float) -> None:
        self._buffered += [(event, now) for event in events]

    def has(self, request_id: str) -> bool:
        """Return whether an event of this request is buffered."""
        return any(event.request_id == request_id for event, _ in self._buffered)

    def take(self, now: float, request_id: str | None = None) -> list[Event]:
        """Return all buffered events (or those of one request), in order, with their timings brought up to now."""
        taken = [one for one in self._buffered if request_id in (None, one[0].request_id)]
        self._buffered = (
            [] if request_id is None else [one for one in self._buffered if one[0].request_id != request_id]
        )
        return [_late(event, (now - ready) * 1e3) for event, ready in taken]


def _late(event: Event, late_ms: float) -> Event:
    if not isinstance(event, FinishedEvent):
        return event
    timings = event.timings
    total_ms = timings.total_ms + late_ms
    ttft_ms = None if timings.ttft_ms is None else total_ms
    return structs.replace(
        event, timings=replace(timings, other_ms=timings.other_ms + late_ms, total_ms=total_ms, ttft_ms=ttft_ms)
    )
