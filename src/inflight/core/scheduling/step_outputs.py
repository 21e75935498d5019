"""Take in what a step yielded: new tokens, prompts' scores, vectors.

Knows when a sequence ends with what it got, and who else learns from it: policy, predictor, admission, drafts and the
prefix cache. What was sampled ahead, behind an end or a step that was lost, is dropped unseen.
"""

from __future__ import annotations

from inflight.core.estimation.output_length import Predictor
from inflight.core.kv.manager import KVCacheManager
from inflight.core.queueing.admission import Admission
from inflight.core.queueing.lanes import Lanes
from inflight.core.scheduling.living_requests import LivingRequests
from inflight.core.scheduling.running import Running
from inflight.core.sequence import Sequence, SequenceView
from inflight.core.speculation.speculation import ForcedDrafts
from inflight.core.types.events import Event, Finish, PooledEvent, PromptScoredEvent, TokensEvent
from inflight.core.types.plan import BatchPlan, Chunk, Pooled, Sampled, Scored
from inflight.counted import counted


class StepOutputs:
    def __init__(
        self,
        requests: LivingRequests,
        running: Running,
        memory: KVCacheManager,
        lanes: Lanes,
        drafts: ForcedDrafts | None,
        admission: Admission,
        predictor: Predictor,
    ):
        self._requests = requests
        self._running = running
        self._memory = memory
        self._max_sequence_tokens = memory.max_tokens
        self._lanes = lanes
        self._drafts = drafts
        self._admission = admission
        self._predictor = predictor

    def hand_over(self, plan: BatchPlan, planned: dict[int, Sequence]) -> None:
        """Prompts' blocks that a plan has computed, to other engines, before anybody gives them up. planned: sequences
        with a chunk in flight, by number."""
        if not self._memory.has_exporter:
            return
        for chunk in plan.chunks:
            sequence = planned[chunk.sequence_id]
            if sequence.finish is None and not sequence.recomputes:
                self._memory.chunk_computed(sequence, chunk.start + chunk.length)

    def take_prompt(self, sequence: Sequence, yielded: Scored | Pooled, now: float) -> list[Event]:
        """Handle prompt log-probabilities or an embedding."""
        request_id = sequence.request.request_id
        if sequence.finish is not None or sequence.recomputes:  # it may have been aborted meanwhile
            return []
        if yielded.error is not None:
            return self._requests.end(request_id, Finish("error", detail=yielded.error), now)
        if isinstance(yielded, Pooled):
            return [PooledEvent(request_id, yielded.vector)]
        return [PromptScoredEvent(request_id, yielded.logprobs)]

    def take_prompt_end(self, sequence: Sequence, chunk: Chunk, now: float) -> list[Event]:
        """End a sequence that samples nothing once its prompt is computed."""
        if chunk.start + chunk.length < sequence.num_tokens:
            return []
        sequence.finish = Finish("length")
        self._requests.end_sequence(sequence, now)
        return self._requests.finished(sequence.request)

    def take_tokens(self, sequence: Sequence, sampled: Sampled, now: float) -> list[Event]:
        """New tokens of one sequence."""
        if sequence.finish is not None or sequence.recomputes or sequence.sits_out:
            return []
        if sampled.waits_for:
            self._running.sit_out(sequence, sampled.waits_for)
            self._charge(sequence, 1, now)  # it was computed, and will be again
            return []
        request = sequence.request
        if sampled.error is not None:
            sequence.finish = Finish("error", detail=sampled.error, by_request=sampled.by_request)
            self._requests.end_sequence(sequence, now)
            return self._requests.finished(request)
        if sequence.num_drafts:
            sequence.verified(len(sampled.token_ids))
        taken = self._append(sequence, sampled.token_ids)
        self._tell(sequence, taken, now)
        logprobs = None if sampled.logprobs is None else sampled.logprobs[:taken]
        tokens = TokensEvent(
            request.request_id,
            sequence.sample_index,
            sampled.token_ids[:taken],
            logprobs,
            sequence.finish,
            0 if sequence.sample_index else sequence.timings.cached_tokens,
        )
        if sequence.finish is None:
            if self._drafts is not None:
                self._drafts.force(sequence.number, sampled.forced_token_ids)
            return [tokens]
        self._requests.end_sequence(sequence, now)
        return [tokens, *self._requests.finished(request)]

    def _append(self, sequence: Sequence, token_ids: tuple[int, ...]) -> int:
        """As far as it goes on; how many that were."""
        taken = 0
        for token_id in token_ids:
            sequence.append(token_id)
            taken += 1
            try:
                sequence.finish = sequence.checker.check(token_id) or self._outgrown(sequence)
            except Exception as fault:  # a tokenizer's, which is asked for the text that stop strings are looked for in
                detail = f"Output token {len(sequence.output)} cannot be read: {fault}"
                sequence.finish = Finish("error", detail=detail)
            if sequence.finish is not None:
                break
        return taken

    def _charge(self, sequence: Sequence, tokens: int, now: float) -> None:
        """Count output tokens for the sequence's tenant."""
        queue = self._lanes.of(sequence).queue
        if queue.counts:
            queue.policy.served(SequenceView(sequence), 0, tokens, now)

    def _tell(self, sequence: Sequence, taken: int, now: float) -> None:
        """Notify those that learn from how many tokens a sequence has."""
        total = len(sequence.output)
        self._charge(sequence, taken, now)
        if total >= sequence.predicted:
            sequence.predicted = self._predictor.predict(sequence.request, sequence.max_output_tokens, total)
        if total == taken:
            self._admission.on_first_token(sequence.request, now)
            if self._drafts is not None:
                self._drafts.began(SequenceView(sequence))
        sequence.timings.token(now)
        self._memory.publish(sequence)

    def _outgrown(self, sequence: Sequence) -> Finish | None:
        """A sequence that needs more blocks than there are ends alone, with what it has."""
        if sequence.num_tokens <= self._max_sequence_tokens:
            return None
        shortage = self._memory.shortage(sequence.num_tokens)
        return Finish(
            "length",
            detail=f"After {counted(len(sequence.output), 'output token')} the sequence {shortage}; raise --kv-memory "
            "(or --num-blocks).",
        )
