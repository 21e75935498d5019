"""The model runner: runs a plan on a backend and gives back its tokens.

One step is: transfers of blocks (`block_transfers`), then forward passes over all its tokens, each followed by the
logits of the positions that score, then of those that sample (in slabs, to save memory), then vectors. State between
steps is the input batch's, which the plan changes first. Where the backend computes beside the caller, `submit` returns
before the step is done; drafts that the plan leaves to the executor are made first. A step on a lost device raises.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain
from typing import TYPE_CHECKING, TypeVar

from inflight.core.types.length_distribution import PredictedLength
from inflight.core.types.plan import BatchPlan, Capacity, Chunk, Pooled, Sampled, Scored, StepResult, Transferred
from inflight.execution.adapters import AdapterLoader, AdapterMatrices
from inflight.execution.backends.protocol import (
    Backend,
    Device,
    KVCache,
    Pass,
    PassResult,
    PendingCopy,
    PendingPass,
    StateCache,
)
from inflight.execution.batch.input_batch import InputBatch
from inflight.execution.device_faults import DeviceLost, device_lost_message, is_out_of_memory
from inflight.execution.grammars.grammar_rows import GrammarRows, PassMasks
from inflight.execution.kv.block_transfers import BlockTransfers, TierTransfers
from inflight.execution.passes import PassDecoder, joined, passes, sample, slabs
from inflight.execution.step_progress import LayerProgress, StepActivity
from inflight.execution.suspending import SpannedDecoder, Suspending

if TYPE_CHECKING:
    from inflight.execution.drafters.step_drafting import StepDrafter, StepDrafting
    from inflight.execution.length_probe.step_probe import AskedOutput, StepProbe

log = logging.getLogger(__name__)

Y = TypeVar("Y", Sampled, Scored, Pooled)

_TICK = 0.002  # seconds between two looks at what goes on beside the steps


class ModelRunner:
    def __init__(
        self,
        decoder: PassDecoder,
        backend: Device,
        kv_cache: KVCache,
        capacity: Capacity,
        states: StateCache | None = None,
        drafter: StepDrafter | None = None,
        grammars: GrammarRows | None = None,
        adapters: AdapterMatrices | None = None,
        tiers: Sequence[TierTransfers] = (),
        layers: LayerProgress | None = None,
        steps: StepActivity | None = None,
        probe: StepProbe | None = None,
    ):
        """Run plans over a cache of the capacity's blocks, one block for padding, then the host blocks. states: where
        the model has recurrent layers, of the capacity's rows and one of padding, and of its snapshots. drafter: of the
        drafts that plans leave to the executor. grammars: of rows that have one; None: no plan has any. adapters: which
        of the model's matrices those may change; None: no plan loads any. tiers: to which blocks go beside the steps,
        and from which they come. layers: gets a step's progress, for readers of its blocks meanwhile. steps: notes when
        a step is computed, for work beside it. probe: predicts output lengths of hidden states."""
        self._decoder = decoder
        self._backend = backend
        self._kv_cache = kv_cache
        self._capacity = capacity
        self._batch: InputBatch = backend.input_batch(capacity, padding_block=capacity.num_blocks, states=states)
        self._drafting: StepDrafting | None = None
        if drafter is not None:
            from inflight.execution.drafters.step_drafting import StepDrafting

            self._drafting = StepDrafting(drafter, self._batch)
        self._transfers = BlockTransfers(capacity, self._copy_blocks, tiers)
        self._layers = layers
        self._steps = steps or StepActivity()
        self._grammars = grammars
        self._probe = probe
        self._adapters = None
        if adapters is not None:
            assert isinstance(backend, Backend)
            self._adapters = AdapterLoader(adapters, backend, self._batch, self._steps)
        self._suspending = Suspending(self, decoder)
        self._flights: deque[InFlight] = deque()  # whose results were not taken yet, where rows may have grammars
        self.lost: str | None = None  # a sentence, once the device computes nothing any more
        self._loss_is_raised = False
        self.finished = 0.0  # when the last step was: the next one cannot have begun before

    @property
    def capacity(self) -> Capacity:
        return self._capacity

    @property
    def backend(self) -> Device:
        return self._backend

    def submit(self, plan: BatchPlan) -> InFlight:
        """Begin a step. Raises DeviceLost, as a step's `result` does, once the device has ended."""
        if self.lost is not None:
            raise DeviceLost(self.lost)
        flight = InFlight(self, plan)
        flight.rest = self._compute(plan, flight)
        self.advance(flight)
        if self._grammars is not None:
            self._flights.append(flight)
        return flight

    def advance(self, flight: InFlight) -> None:
        """Begin a step or go on with it, to its end or until it is suspended."""
        try:
            self._run(flight)
        except Exception as fault:  # whatever breaks a step must end its requests, not the engine
            flight.rest, flight.fault = None, fault
            if self._layers is not None:
                self._layers.fail_step()
            if not self.check_loss(fault):
                self.discard(flight.plan)
        except BaseException as interruption:
            # The generator has ended, and computes nothing more: its blocks are not all written.
            flight.rest, flight.fault = None, RuntimeError(f"it was interrupted ({type(interruption).__name__})")
            self.discard(flight.plan)
            raise

    @property
    def suspending(self) -> Suspending | None:
        """Return what suspends steps; None where they are not suspended."""
        is_plain = self._drafting is None and self._layers is None
        return self._suspending if is_plain and isinstance(self._decoder, SpannedDecoder) else None

    def capture_drafts_ahead(self, seconds: float) -> None:
        """Compile and capture a drafter's own passes; those of the model's decoder are captured by steps."""
        if self._drafting is not None:
            self._drafting.capture_ahead(seconds)

    def pauses(self, between: Callable[[], None]) -> None:
        """Call `between` from now on between two layers of each pass of the model, on a decoder that can; on others,
        such as one whose passes are captured, steps are not interrupted."""
        if (pause := getattr(self._decoder, "pauses", None)) is not None:
            pause(between)

    def check_loss(self, fault: Exception) -> bool:
        """Look whether a step's fault has lost the device; return whether it is lost, by this fault or before: slots
        and blocks are out of reach then."""
        if self.lost is None and not is_out_of_memory(fault) and (why := self._backend.failure()) is not None:
            self.lost = device_lost_message(why)
        return self.lost is not None

    def raise_loss(self, fault: Exception) -> None:
        """Raise DeviceLost for the first step that failed by it; steps in flight beside it end then."""
        if self.lost is not None and not self._loss_is_raised:
            self._loss_is_raised = True
            raise DeviceLost(self.lost) from fault

    def discard(self, plan: BatchPlan) -> None:
        """Clear a failed step's rows, so that the next step, which may be in flight, reads nothing it left undone."""
        self._batch.discard([chunk.row for chunk in plan.chunks])

    def poll(self, seconds: float = 0.0) -> tuple[Transferred, ...] | None:
        filled = None if self._grammars is None else self._grammars.poll()
        if self._adapters is None and filled is None:
            return self._transfers.poll(seconds)
        last = time.monotonic() + seconds
        while True:
            copied, loaded = self._transfers.poll(), None if self._adapters is None else self._adapters.poll()
            if copied is None and loaded is None and filled is None:
                return None
            ended = (*(copied or ()), *(loaded or ()), *map(Transferred, filled or ()))
            if ended or time.monotonic() >= last:
                return ended
            time.sleep(_TICK)
            filled = None if self._grammars is None else self._grammars.poll()

    def close(self) -> None:
        """End the runner's threads; its memory goes with its references."""
        self._transfers.close()
        if self._capacity.asynchronous_transfers and self.lost is None:
            self._backend.wait()  # or blocks would be copied whose memory is used for something else
        if self._adapters is not None:
            self._adapters.close()
        if self._grammars is not None:
            self._grammars.close()
        if self._probe is not None:
            self._probe.close()

    def predicted(self, flight: InFlight, done: Sequence[PassResult]) -> tuple[PredictedLength, ...]:
        """Return the lengths that are predicted of the hidden states that a step's passes have read."""
        if self._probe is None or not any(flight.asked):
            return ()
        found: list[PredictedLength] = []
        results = [one for one in done if one.states is not None]
        for result, asked in zip(results, filter(None, flight.asked), strict=True):
            found += self._probe.predict(result.states, asked)
        return tuple(found)

    def drawn(self, flight: InFlight, sampled: tuple[Sampled, ...]) -> tuple[Sampled, ...]:
        """Take a step's draws in; results are taken in the order in which steps were submitted."""
        if flight in self._flights:
            self._flights.remove(flight)
        if self._grammars is None or not self._grammars.rows:
            return sampled
        return self._grammars.sampled(flight.plan, sampled)

    def _run(self, flight: InFlight) -> None:
        self._steps.began(bool(flight.plan.chunks))
        try:
            if flight.plan.may_suspend:
                self._suspending.run(flight)
            elif flight.rest is not None:
                deque(flight.rest, maxlen=0)
                flight.rest = None
        finally:
            self._steps.ended()

    def _compute(self, plan: BatchPlan, flight: InFlight) -> Iterator[int]:
        """Compute a step; yield between layers of its passes, where it may be suspended, how many were computed."""
        if self._layers is not None:
            self._layers.begin(plan)  # before anything by which this step, and not the one before, is broken off
        if plan.transfers:
            self._transfers.begin(plan)
        if self._adapters is not None:
            self._adapters.begin(plan)
        planned: tuple[Chunk, ...] = plan.chunks
        if self._drafting is not None:
            self._drafting.leave(plan)
        self._batch.update(plan.chunks, plan.new_requests, plan.freed_rows)
        if self._probe is not None:
            self._probe.begin(plan)
        if self._drafting is not None:
            planned = self._drafting.drafted(plan)
            flight.draft_seconds, flight.undrafted = self._drafting.seconds, self._drafting.undrafted
        if self._grammars is not None and (plan.freed_rows or plan.new_requests):
            self._grammars.start(plan.freed_rows, plan.new_requests)
        if self._adapters is not None:
            in_order, planned = planned, tuple(self._adapters.side_by_side(planned))
            flight.reordered = planned != in_order
        padding = [Chunk(-1, self._capacity.max_rows, 0, length, (), 0) for length in plan.padding]
        cut = not self._capacity.encoder_only
        decoder = self._decoder if plan.within is None else self._suspending.interim_decoder
        parts = list(passes((*planned, *padding), decoder.max_tokens, cut)) or [[]]
        for number, chunks in enumerate(parts, 1):
            if self._layers is not None:
                self._layers.begin_pass(is_last=number == len(parts))
            forward = self._backend.prepare(self._batch, self._kv_cache, chunks)
            follows = self._awaits(chunks)
            masks = None if follows else self._masks(chunks)
            if chunks and plan.may_suspend and isinstance(decoder, SpannedDecoder):
                yield from decoder.spans(forward)
            elif chunks:
                decoder.forward(forward)
            if follows:
                self._await_tokens()
                masks = self._masks(chunks)
            if self._drafting is not None:
                self._drafting.computed(forward, chunks)
            self._take(decoder, forward, chunks, masks)
            if self._probe is not None and decoder is self._decoder:  # another's states lie elsewhere
                flight.asked.append(self._probe.read(forward, chunks))
            flight.passes.append(forward.finish())
            if self._drafting is not None:
                flight.passes += self._drafting.follow(chunks)

    def _awaits(self, chunks: Sequence[Chunk]) -> bool:
        """Return whether a pass's masks depend on tokens of a step that is still in flight."""
        return self._grammars is not None and bool(self._grammars.rows) and self._grammars.awaits(chunks)

    def _masks(self, chunks: Sequence[Chunk]) -> PassMasks | None:
        """Begin to fill the masks of a pass's draws; they are filled while it computes."""
        return self._grammars.fill(chunks) if self._grammars is not None and self._grammars.rows else None

    def _await_tokens(self) -> None:
        """Wait for the tokens of the steps before this one, while the device computes this one."""
        while self._flights:
            self._flights[0].result()

    def _take(self, decoder: PassDecoder, forward: Pass, chunks: Sequence[Chunk], masks: PassMasks | None) -> None:
        """Score, draw and pool at the positions of a computed pass that its chunks ask for."""
        if any(chunk.score for chunk in chunks):
            self._score(forward, chunks)
        sample(decoder, forward, chunks, masks)
        if any(chunk.pool for chunk in chunks):
            ends = accumulate(chunk.length for chunk in chunks)
            texts = [range(end - one.length, end) for one, end in zip(chunks, ends, strict=True) if one.pool]
            for pooled in slabs(texts, decoder.max_logit_rows):
                forward.pool(decoder.pooled(forward, pooled), [text[-1] for text in pooled])

    def _score(self, forward: Pass, chunks: Sequence[Chunk]) -> None:
        starts = accumulate((chunk.length for chunk in chunks), initial=0)
        scored = (
            range(chunk.score.start - chunk.start + at, chunk.score.stop - chunk.start + at)
            for chunk, at in zip(chunks, starts, strict=False)
            if chunk.score
        )
        for places in slabs(chain.from_iterable(scored), self._decoder.max_logit_rows):
            forward.score(self._decoder.logits(forward, places), places)

    def _copy_blocks(self, sources: Sequence[int], destinations: Sequence[int]) -> list[PendingCopy]:
        """Begin to copy the model's blocks and a drafter's, and return the copies in flight."""
        begun = [self._backend.copy_blocks(self._kv_cache, sources, destinations)]
        if self._drafting is not None:
            begun.append(self._drafting.copy(sources, destinations))
        return [one for one in begun if one is not None]


class InFlight:
    """A step that was submitted. fault: what broke it off before all of it was, if anything did."""

    def __init__(self, runner: ModelRunner, plan: BatchPlan):
        self._runner, self.plan, self._started = runner, plan, time.perf_counter()
        self.passes: list[PendingPass] = []
        self.draft_seconds = 0.0
        self.undrafted: tuple[int, ...] = ()
        self.reordered = False  # its chunks are computed in another order than the plan's
        self.fault: Exception | None = None
        self.rest: Iterator[int] | None = None  # what is still to be computed; yields where it may be suspended
        self.computed_layers = 0
        self.suspended_at: tuple[int, ...] = ()
        self.suspended_seconds = 0.0
        self.asked: list[list[AskedOutput]] = []  # of each pass, the outputs whose states are read
        self._result_once: StepResult | None = None

    def result(self) -> StepResult:
        """Wait for the result. Raises DeviceLost once; a second call, and steps that were in flight beside it, return
        a failed step."""
        if self._result_once is None:
            while self.rest is not None:
                self._runner.advance(self)
            self._result_once = self._result()
            if self.fault is not None:
                self._runner.raise_loss(self.fault)
        return self._result_once

    def _result(self) -> StepResult:
        done: list[PassResult] = []
        try:
            done += [one.result() for one in self.passes]
        except Exception as fault:
            self.fault = self.fault or fault
        finished = done[-1].finished if done and self.fault is None else time.perf_counter()
        if self.suspended_at:  # others were computed meanwhile, and none before is in flight
            seconds = finished - self._started - self.suspended_seconds
        else:
            seconds = finished - max(self._started, self._runner.finished)
        self._runner.finished = finished
        step = self.plan.step
        if self.fault is not None and self._runner.check_loss(self.fault):
            self._runner.drawn(self, ())
            return StepResult(step, (), seconds, error=self._runner.lost)
        if self.fault is not None:
            is_short = is_out_of_memory(self.fault)
            self._runner.drawn(self, ())
            return StepResult(step, (), seconds, step_failure(self.plan, self.fault), out_of_memory=is_short)
        sampled = self._runner.drawn(self, self._in_order(chain.from_iterable(one.sampled for one in done)))
        scored = self._in_order(joined(chain.from_iterable(one.scored for one in done)))
        pooled = self._in_order(chain.from_iterable(one.pooled for one in done))
        drafting, undrafted = min(self.draft_seconds, seconds), self.undrafted
        return StepResult(
            step,
            sampled,
            seconds,
            scored=scored,
            pooled=pooled,
            draft_seconds=drafting,
            undrafted=undrafted,
            suspended_at=self.suspended_at,
            lengths=self._runner.predicted(self, done),
        )

    def _in_order(self, yielded: Iterable[Y]) -> tuple[Y, ...]:
        """Return results in the order of the plan's chunks."""
        if not self.reordered:
            return tuple(yielded)
        place = {chunk.sequence_id: place for place, chunk in enumerate(self.plan.chunks)}
        return tuple(sorted(yielded, key=lambda one: place[one.sequence_id]))


def step_failure(plan: BatchPlan, fault: Exception) -> str:
    """Log a step's fault with its traceback, and return the error message."""
    log.error("step %d with %d tokens failed", plan.step, plan.tokens, exc_info=fault)
    if is_out_of_memory(fault):
        whose = "machine's" if isinstance(fault, MemoryError) else "device's"
        return (
            f"Step {plan.step} with {plan.tokens} tokens failed: the {whose} memory is used up; lower "
            "--max-num-batched-tokens, --max-num-seqs or --kv-memory."
        )
    return f"Step {plan.step} with {plan.tokens} tokens failed: {type(fault).__name__}: {fault}"


def copy_seconds(backend: Device, kv_cache: KVCache, host_blocks: int) -> float:
    """Measured time to copy one block to the last ones of the cache, which are the host's."""
    blocks = min(8, host_blocks, kv_cache.num_blocks - host_blocks)
    last, best = kv_cache.num_blocks, float("inf")
    for _ in range(3):  # the first touches the pages
        started = time.perf_counter()
        backend.copy_blocks(kv_cache, list(range(blocks)), list(range(last - blocks, last)))
        backend.wait()
        best = min(best, time.perf_counter() - started)
    return best / blocks
