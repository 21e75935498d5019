"""The scheduler: the one owner of sequences and blocks. Eleven verbs: add, abort, plan, commit, transferred,
recover, exchange_service, idle, snapshot, census, account.

Sans-IO: time is an argument, results are handed in, events are handed out. It joins a strategy (the shape of a step),
a policy (the order), the step_builder (the mechanism), what steps yield, and how requests begin and end.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from inflight.core.adapters import AdapterSlots
from inflight.core.estimation.latency import LatencyModel, RestoreCost, prefill_seconds
from inflight.core.estimation.output_length import PredictionTally, Predictor, Quantiles
from inflight.core.kv.block_tables import Allocation
from inflight.core.kv.connector import Fingerprint, KVTiers
from inflight.core.kv.manager import KVCacheManager
from inflight.core.kv.prefix_cache import KVEventQueue
from inflight.core.kv.sessions import SessionTable
from inflight.core.kv.state_checkpoints import CheckpointSpacing
from inflight.core.policies import Policy
from inflight.core.policies.fcfs import Fcfs
from inflight.core.queueing.admission import Admission, Load
from inflight.core.queueing.lanes import Lanes, LaneSettings
from inflight.core.queueing.validation import RequestValidator
from inflight.core.scheduling.census import Census, take_account, take_census
from inflight.core.scheduling.living_requests import LivingRequests
from inflight.core.scheduling.load import load_before
from inflight.core.scheduling.lost_steps import LostSteps
from inflight.core.scheduling.output_buffer import OutputBuffer
from inflight.core.scheduling.preemption import Mode, Preemption
from inflight.core.scheduling.running import Running
from inflight.core.scheduling.sample_maker import SampleMaker
from inflight.core.scheduling.snapshot import Snapshot, take_snapshot
from inflight.core.scheduling.step_builder import StepBuilder
from inflight.core.scheduling.step_outputs import StepOutputs
from inflight.core.sequence import NO_POSITIONS, Sequence, SequenceView
from inflight.core.speculation.speculation import ForcedDrafts, Speculation
from inflight.core.stopping import StopTextFactory
from inflight.core.strategies import StepShape, StepView, Strategy
from inflight.core.tenants import TenantUsage
from inflight.core.types.events import Event, Finish
from inflight.core.types.features import features
from inflight.core.types.kv_blocks import KVSource, KVStore
from inflight.core.types.plan import (
    BatchPlan,
    Capacity,
    Chunk,
    Pooled,
    Sampled,
    Scored,
    StepResult,
    Transferred,
    WaitForTransfers,
    WaitUntil,
)
from inflight.core.types.request import Request, RequestRefused
from inflight.core.types.timings import ADAPTER, Timings
from inflight.counted import UNBOUNDED


class Scheduler:
    def __init__(
        self,
        capacity: Capacity,
        strategy: Strategy,
        lanes: Policy | Iterable[LaneSettings],
        *,
        token_budget: int = UNBOUNDED,
        end_token_ids: frozenset[int] = frozenset(),
        stop_text: StopTextFactory | None = None,
        prefix_caching: bool = True,
        watermark: float = 0.01,
        allocation: Allocation = "paged",
        preemption: Mode = "recompute",
        predictor: Predictor | None = None,
        latency: LatencyModel | None = None,
        admission: Admission | None = None,
        lane_floor: float = 0.0,
        speculation: Speculation | None = None,
        longest_chunk: int = UNBOUNDED,
        spacing: CheckpointSpacing | None = None,
        kv_event_queue: KVEventQueue | None = None,
        sources: Iterable[KVSource] = (),
        sink: KVStore | None = None,
        host_is_tier: bool = False,
        session_eviction: bool = False,
        identity: Fingerprint | None = None,
    ):
        """lane_floor: share of the steps' tokens that background lanes have while they have work. longest_chunk: tokens
        of one sequence that the strategy has computed in a step at most. spacing: of snapshots of recurrent state.
        kv_event_queue: has what changes in the prefix cache, where somebody takes it. sources: of blocks beyond the
        device, where prefixes go on. sink: in which blocks are kept as well. host_is_tier: so they are on the host,
        when their own is taken. session_eviction: those go first whose session is worth least. identity: by which those
        of prompts are handed over to other engines; None: they are not.
        Raises ValueError for end token ids that are not in the vocabulary, and for speculation where there is state."""
        if outside := sorted(one for one in end_token_ids if not 0 <= one < capacity.vocab_size):
            raise ValueError(f"end_token_ids names {outside}, but the vocabulary has {capacity.vocab_size} tokens")
        if speculation is not None and capacity.state_snapshots:
            raise ValueError(
                "this model's layers keep a recurrent state, which cannot be taken back behind drafts that were wrong "
                f"(its engine has {capacity.state_snapshots} snapshots of it, none for drafts); leave speculation off"
            )
        self._capacity = capacity
        self._strategy = strategy
        self._predictor = predictor or Quantiles()
        self._latency = latency or LatencyModel()
        self._admission = admission or Admission("off", self._latency)
        self._token_budget = token_budget
        self._preemption = Preemption(preemption, self._latency, capacity.copy_seconds)
        self._watermark = watermark
        self._speculation = speculation
        tiers = KVTiers(tuple(sources), RestoreCost(self._latency), sink, identity)
        self._sessions = SessionTable(partial(_block_seconds, self._latency, capacity.block_size))
        sessions = self._sessions if session_eviction else None
        how = (prefix_caching, allocation, longest_chunk, spacing, kv_event_queue, tiers, host_is_tier, sessions)
        self._memory = KVCacheManager(capacity, *how)
        settings = lanes if isinstance(lanes, Iterable) else default_lanes(lanes)
        self._lanes = Lanes(
            settings, capacity.max_rows, token_budget, self._memory.num_cached_tokens, self._latency, lane_floor
        )
        seconds, shortage = self._seconds_until_served, self._memory.shortage
        self._validator = RequestValidator(capacity, self._lanes, end_token_ids, seconds, shortage)
        self._sample_maker = SampleMaker(self._validator, self._predictor, end_token_ids, stop_text)
        self._predictions = PredictionTally()
        self._output_buffer = OutputBuffer()
        self._next_step = 0
        self._begin()

    def _begin(self) -> None:
        """Nobody is alive, and no memory is held."""
        self._running = Running(self._memory, self._lanes, self._preemption, self._capacity.max_rows, self._watermark)
        # Recurrent state cannot be taken back, where an answer ends among its drafts.
        self._drafts = None if self._capacity.state_snapshots else ForcedDrafts(self._latency, self._speculation)
        self._adapters = AdapterSlots(self._capacity.adapter_slots, self._memory.new_transfer_id)
        self._step_builder = StepBuilder(self._memory, self._lanes, self._running, self._adapters, self._drafts)
        self._requests = LivingRequests(
            self._memory,
            self._lanes,
            self._step_builder,
            self._adapters,
            self._drafts,
            self._admission,
            self._predictor,
            self._predictions,
        )
        how = (self._memory, self._lanes, self._drafts, self._admission, self._predictor)
        self._outputs = StepOutputs(self._requests, self._running, *how)
        self._lost_steps = LostSteps(self._requests, self._memory, self._lanes, self._running)
        self._planned: dict[int, Sequence] = {}  # sequences with a chunk in flight, by number
        self._round_began: float | None = None  # when the last step was committed, if work has gone on since

    # -- the verbs ---------------------------------------------------------------------------------------------

    def add(self, request: Request, now: float, compiling: float = 0.0) -> None:
        """Accept a request; raises RequestRefused with the number that refuses it. compiling: seconds before, in which
        its grammar was compiled."""
        if request.request_id in self._requests or self._output_buffer.holds(request.request_id):
            raise RequestRefused(f"A request named {request.request_id!r} is running already; use another id.")
        self._validator.check(request)
        predicted = None
        if self._admission.is_on:
            backlogs = [lane.queue.backlog for lane in self._lanes.before(request.lane)]
            predicted = self._admission.check(request, backlogs, partial(self._load, request))
        lane = self._lanes.named(request.lane)
        assert lane is not None  # the validator saw to it
        samples = self._sample_maker.make(request)
        self._admission.on_admitted(request, predicted)
        self._lanes.arrives(lane)
        for sequence in samples:
            sequence.timings.arrive(request.arrival, now, lane.clock)
            sequence.timings.add_compile_time(compiling, request.lane)
            lane.queue.policy.arrived(SequenceView(sequence))
        self._requests.begin(samples)
        if len(samples) > 1:
            lane.queue.defer_siblings(samples[0], samples[1:])
        if request.adapter is None or self._adapters.acquire(request.request_id, request.adapter):
            lane.queue.push(samples[0], now)
            self._step_builder.arrived(samples[0])
        else:
            lane.queue.defer(samples[0], ADAPTER)

    def abort(self, request_id: str, now: float) -> list[Event]:
        """End a request in whatever state it is; unknown (or ended) ids are ignored."""
        if request_id not in self._requests:
            return []
        events = self._output_buffer.release(now, request_id)  # what a batch kept back for it comes first
        events += self._requests.end(request_id, Finish("abort"), now)
        if not self._running:
            events += self._output_buffer.release(now)  # its end was the batch's
        return events

    def plan(self, now: float) -> BatchPlan | WaitUntil | WaitForTransfers | None:
        """The next step, the time before which none may start, that nothing can be done before a transfer has ended, or
        None when there is nothing to do, or nothing before the steps in flight have ended."""
        self._step_builder.rejoin(now)
        self._sessions.now = now
        shape = self._strategy.shape(self._view(now))
        if isinstance(shape, WaitUntil):
            self._step_builder.stand_still(now)
            self._round_began = None
            return shape
        if self._adapters.wanted:
            self._join_queue(self._adapters.start_loads(), now)
        plan = self._compose(shape, now)
        if plan is None:
            return WaitForTransfers() if self.transfers_out and not self.idle else None
        self._round_began = now if self._round_began is None else self._round_began
        self._next_step += 1
        for sequence in self._running.sequences:
            if sequence.in_flight:
                self._planned[sequence.number] = sequence
        return plan

    def commit(self, plan: BatchPlan, result: StepResult, now: float) -> list[Event]:
        """Take in what a plan yielded. Plans are committed in the order in which they were made."""
        self._sessions.now = now
        if result.step != plan.step:
            raise RuntimeError(f"the result of step {result.step} was committed for step {plan.step}")
        for chunk in plan.chunks:
            self._planned[chunk.sequence_id].in_flight -= 1
        together = self._step_builder.run_to_completion
        events = self.transferred([one for one in result.transferred if one.transfer_id > 0], now)
        if result.error is None:
            if plan.chunks:
                self._learn(plan, result, now)
            self._outputs.hand_over(plan, self._planned)
        else:
            out_of_memory = result.out_of_memory and not together
            events += self._lost_steps.lose(plan, self._planned, result.error, out_of_memory, now)
            if self._speculation is not None:
                self._speculation.observe(plan, features(plan), result, 0.0)
        others: tuple[Scored | Pooled, ...] = (*result.scored, *result.pooled)
        for yielded in others:
            events += self._outputs.take_prompt(self._planned[yielded.sequence_id], yielded, now)
        for sampled in result.sampled:
            events += self._take_tokens(self._planned[sampled.sequence_id], sampled, now)
        self.transferred([one for one in result.transferred if one.transfer_id < 0], now)  # of this step's draws, too
        for chunk in plan.chunks:
            events += self._settle(chunk, now)
        if result.error is None:
            self._memory.commit_step(plan.step if self._planned else self._next_step)
        self._round_began = None if self.idle else now
        return self._deliver(events, now) if together else events

    def _take_tokens(self, sequence: Sequence, sampled: Sampled, now: float) -> list[Event]:
        return self._outputs.take_tokens(sequence, sampled, now)

    def _settle(self, chunk: Chunk, now: float) -> list[Event]:
        """A chunk is in flight no more: whoever has ended gives up what it holds, and whoever lost it comes again."""
        sequence = self._planned[chunk.sequence_id]
        events: list[Event] = []
        if sequence.recomputes:
            sequence.lose(chunk.sample, NO_POSITIONS if sequence.sits_out else chunk.score)
        elif sequence.sits_out:
            sequence.lose(chunk.sample, NO_POSITIONS)
            if not sequence.in_flight:
                sequence.draw_again()
        elif not sequence.generates and sequence.finish is None:
            events = self._outputs.take_prompt_end(sequence, chunk, now)
        if not sequence.in_flight:
            del self._planned[chunk.sequence_id]
            if sequence.finish is not None:
                if sequence.row is not None:
                    self._step_builder.ended(sequence)
            elif sequence.recomputes:
                self._lost_steps.come_again(sequence, now)
                if self._step_builder.run_to_completion:
                    self._step_builder.end_batch()  # it may have been the last that went on
        return events

    def transferred(self, ended: Iterable[Transferred], now: float) -> list[Event]:
        """Transfers that have ended, whose blocks are held no more. What one that failed should have brought is
        computed again, what it should have kept is forgotten. And loads of adapters: whoever waited for one that failed
        ends with its error."""
        events: list[Event] = []
        for one in ended:
            if one.transfer_id in self._adapters.in_flight:
                events += self._adapter_ended(one, now)
            elif one.transfer_id < 0:
                self._running.transferred(one.transfer_id, True, now)
            else:
                self._memory.end_transfer(one.transfer_id, one.error is None)
                self._running.transferred(one.transfer_id, one.error is None, now)
        return events

    @property
    def transfers_out(self) -> tuple[int, ...]:
        """Their transfer_ids, those of adapters' loads, and those that draws wait for."""
        return (*self._memory.transfer_ids_out, *self._adapters.in_flight, *self._running.masks_out)

    def recover(self, error: str, now: float) -> list[Event]:
        """A verb was broken off half-way, and the accounts may tell anything: everybody ends with this error, and rows,
        blocks and queues begin anew. What was learnt stays. No transfer may be under way any more."""
        events = self._output_buffer.release(now)
        events += self._requests.break_off(error, now)
        self._memory.reset()
        self._lanes.clear()
        self._begin()
        self._running.free_again(range(self._capacity.max_rows))
        return events

    def exchange_service(self, elsewhere: TenantUsage) -> TenantUsage:
        """Other engines gave tenants so much: their share here is what is left of it. Returns what was given here since
        this was last asked."""
        return self._lanes.exchange_service(elsewhere)

    @property
    def latency(self) -> LatencyModel:
        """What steps take, as learnt from them."""
        return self._latency

    @property
    def idle(self) -> bool:
        """Nothing waits, runs or is in flight, and no transfer is out, or is to begin, but what is held for others."""
        return not (self._requests or self._planned or self._memory.is_busy or self._adapters.in_flight)

    @property
    def has_requests(self) -> bool:
        """Whether anybody waits or runs."""
        return bool(self._requests)

    def snapshot(self) -> Snapshot:
        return take_snapshot(
            self._next_step,
            self._memory,
            self._lanes,
            self._running,
            self._step_builder,
            self._predictions.error(),
            None if self._speculation is None else self._speculation.stats(),
        )

    def census(self, whole: bool = False, blocks: bool = True) -> Census:
        """Who runs, waits and holds what. whole: name all that wait. blocks: tell whose each is."""
        return take_census(self._sample_maker.next_number, self._memory, self._lanes, self._running, whole, blocks)

    def account(self, request_id: str, now: float) -> tuple[Request, Timings] | None:
        """A living request, and where its time went until now; None: none of that name lives."""
        if request_id not in self._requests:
            return None
        samples = self._requests.samples(request_id)
        return samples[0].request, take_account(samples, self._lanes, now)

    # -- what strategies and admission see ----------------------------------------------------------------------

    def _load(self, request: Request) -> Load:
        """What stands before a newcomer."""
        return load_before(request, self._lanes, self._running, self._capacity, self._token_budget)

    def _seconds_until_served(self, request: Request) -> float:
        """When it makes sense to try again with a request that finds its lane full."""
        return self._admission.seconds_to_first_token(0, self._load(request))

    def _view(self, now: float) -> StepView:
        return StepView(
            now=now,
            waiting=self._lanes,
            running=len(self._running),
            decodes=self._running.decodes,
            max_rows=self._capacity.max_rows,
        )

    def _compose(self, shape: StepShape, now: float) -> BatchPlan | None:
        """The next step of this shape, as far as there is something to fill it with."""
        return self._step_builder.compose(self._next_step, shape, now, bool(self._planned))

    def _learn(self, plan: BatchPlan, result: StepResult, now: float) -> None:
        """What a step tells of those to come."""
        held, seconds = features(plan), result.seconds
        self._latency.observe(held, seconds - result.draft_seconds)
        self._strategy.observe(held, seconds)
        if self._round_began is not None:
            self._admission.observe(held, now - self._round_began)
        if self._speculation is not None:
            self._speculation.observe(plan, held, result, 0.0 if self._round_began is None else now - self._round_began)

    # -- adapters -----------------------------------------------------------------------------------------------

    def _join_queue(self, request_ids: Iterable[str], now: float) -> None:
        """Their adapter is there."""
        for request_id in request_ids:
            first = self._requests.samples(request_id)[0]
            lane = self._lanes.of(first)
            first.timings.unblock(ADAPTER, now, lane.clock, lane.settings.name)
            lane.queue.push(first, now)
            self._step_builder.arrived(first)

    def _adapter_ended(self, load: Transferred, now: float) -> list[Event]:
        request_ids = self._adapters.finish_load(load.transfer_id, load.error is None)
        if load.error is None:
            self._join_queue(request_ids, now)
            return []
        finish = Finish("error", detail=load.error)
        return [event for one in request_ids for event in self._requests.end(one, finish, now)]

    def _deliver(self, events: list[Event], now: float) -> list[Event]:
        """Of a batch that runs together nothing is told before its last sequence has ended."""
        self._output_buffer.keep(events, now)
        return [] if self._running else self._output_buffer.release(now)


def _block_seconds(latency: LatencyModel, block_size: int, tokens: int) -> float:
    """To compute a block anew of a text with so many tokens: any of its blocks, on average."""
    return prefill_seconds(latency, tokens) / max(1, tokens // block_size) or 1.0


def default_lanes(policy: Policy) -> tuple[LaneSettings, LaneSettings]:
    """Interactive work under the policy; batch work fills what that leaves, first come, first served."""
    return (
        LaneSettings(name="interactive", policy=policy),
        LaneSettings(name="batch", policy=Fcfs(), background=True),
    )
