"""The scheduler: the one owner of sequences and blocks. Sans-IO: time is an argument, results go in, events come out.

A request is added, waits in its lane, takes a row, is computed by plans, and ends with a commit or an abort. Plans may
be made while earlier ones are being computed; they are committed in their order.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from inflight.core.estimation.latency import LatencyModel, RestoreCost, prefill_seconds
from inflight.core.estimation.output_length import PredictionTally
from inflight.core.kv.connector import KVTiers
from inflight.core.kv.manager import KVCacheManager
from inflight.core.kv.sessions import SessionTable
from inflight.core.queueing.admission import Admission
from inflight.core.queueing.lanes import Lanes
from inflight.core.queueing.validation import RequestValidator
from inflight.core.request_timings import RequestTimings, StepTime, Untimed
from inflight.core.scheduling.config import SchedulerConfig
from inflight.core.scheduling.foreground import ForegroundWork
from inflight.core.scheduling.interim import InterimSteps
from inflight.core.scheduling.outputs import BatchOutputs, Outputs
from inflight.core.scheduling.plan_builder import PlanBuilder
from inflight.core.scheduling.requests import Numbers, Requests, SampleFactory
from inflight.core.scheduling.running import SchedulerCounts
from inflight.core.scheduling.state import new_state
from inflight.core.scheduling.stats import SchedulerDump, SchedulerStats, dump_state, scheduler_stats, timings_so_far
from inflight.core.scheduling.steady import advance
from inflight.core.sequence import SequenceView
from inflight.core.strategies import StepShape, StepView
from inflight.core.tenants import TenantUsage
from inflight.core.types.events import Event, Finish
from inflight.core.types.features import features
from inflight.core.types.plan import (
    BatchPlan,
    StepResult,
    Transferred,
    WaitForTransfers,
    WaitUntil,
)
from inflight.core.types.request import Request, RequestRefused
from inflight.core.types.timings import ADAPTER, Timings


class Scheduler:
    checks_prompts = True  # whether prompts may have token ids that the vocabulary lacks
    times_requests = True  # whether there are accounts of where each request's time goes

    def __init__(self, config: SchedulerConfig):
        capacity, latency = config.capacity, config.latency
        self._config, self._capacity, self._latency = config, capacity, latency
        self._strategy, self._speculation = config.strategy, config.speculation
        self._time = StepTime()
        self._admission = config.admission or Admission("off", latency)
        self._sessions = SessionTable(partial(_block_seconds, latency, capacity.block_size))
        self._memory = KVCacheManager(
            capacity,
            config.prefix_caching,
            config.allocation,
            config.longest_chunk,
            config.spacing,
            config.kv_event_queue,
            KVTiers(tuple(config.sources), RestoreCost(latency), config.sink, config.identity),
            config.host_is_tier,
            self._sessions if config.session_eviction else None,
            distinct_prompts=config.distinct_prompts,
        )
        self._lanes = Lanes(
            config.lane_settings(),
            capacity.max_rows,
            config.token_budget,
            self._memory.num_cached_tokens,
            self._time,
            latency,
            config.lane_floor,
            is_timed=self.times_requests,
        )
        ends = config.end_token_ids

        def seconds_until_served(request: Request) -> float:
            """Return when to try again with a request that finds its lane full."""
            return self._admission.seconds_to_first_token(0, self._state.load_before(request, config))

        shortage = self._memory.shortage
        self._validator = RequestValidator(
            capacity, self._lanes, ends, seconds_until_served, shortage, checks_prompts=self.checks_prompts
        )
        self._sample_factory = SampleFactory(
            self._validator,
            config.predictor,
            ends,
            config.stop_text,
            RequestTimings if self.times_requests else Untimed,
        )
        self._predictions = PredictionTally()
        self._batch_outputs = BatchOutputs()
        self._counts = SchedulerCounts()
        self._next_step = 0
        self._interim_began = 0.0  # when the last interim step was planned
        self._reset()

    def _reset(self) -> None:
        """Create empty scheduling state. The memory and the lanes are empty."""
        state = new_state(self._config, self._memory, self._lanes, self._time, self._counts)
        self._state, self._running, self._adapters = state, state.running, state.adapters
        self._requests = Requests(state, self._admission, self._config.predictor, self._predictions)
        self._outputs = Outputs(state, self._requests, self._admission, self._config.predictor)
        self._foreground = ForegroundWork(state, self._latency)
        no_state = not (self._memory.has_state or self._memory.encoder_only)
        share = self._config.prefill_suspension if no_state else 0.0
        self.interim = InterimSteps(state, share, self._config.min_suspended)
        self._round_began: float | None = None  # when the last step was committed, if work has gone on since

    # -- requests -----------------------------------------------------------------------------------------------

    def add(self, request: Request, now: float, compiling: float = 0.0) -> None:
        """Accept a request.

        Args:
            request: A new one.
            now: Seconds on the engine's clock, as in all that follows.
            compiling: Seconds that its grammar took to compile, before.

        Raises:
            RequestRefused: The sentence has the limit that it does not fit.
        """
        self._time.now = now
        if request.request_id in self._requests or self._batch_outputs.has(request.request_id):
            raise RequestRefused(f"A request named {request.request_id!r} is running already; use another id.")
        self._validator.check(request)
        predicted = None
        if self._admission.is_on:
            backlogs = [lane.queue.backlog for lane in self._lanes.before(request.lane)]
            load = partial(self._state.load_before, request, self._config)
            predicted = self._admission.check(request, backlogs, load)
        lane = self._lanes.named(request.lane)
        assert lane is not None  # the validator saw to it
        samples = self._sample_factory.make(request)
        self._admission.on_admitted(request, predicted)
        self._lanes.arrives(lane)
        for sequence in samples:
            sequence.timings.arrive(request.arrival, now, lane.clock)
            sequence.timings.add_compile_time(compiling, request.lane)
            lane.queue.policy.arrived(SequenceView(sequence))
        self._requests.add(samples)
        if len(samples) > 1:
            lane.queue.defer_siblings(samples[0], samples[1:])
        if request.adapter is None or self._adapters.acquire(request.request_id, request.adapter):
            lane.queue.push(samples[0])
            self._state.prefix_loads.arrived(samples[0])
            self.interim.arrived(samples[0])
        else:
            lane.queue.defer(samples[0], ADAPTER)

    def abort(self, request_id: str, now: float) -> list[Event]:
        """End a request in whatever state it is; ids that are unknown or have ended are ignored."""
        self._time.now = now
        if request_id not in self._requests:
            return []
        events = self._batch_outputs.take(now, request_id)
        events += self._requests.end(request_id, Finish("abort"))
        self._requests.end_verb()
        if not self._running:
            events += self._batch_outputs.take(now)  # it was the last of a batch that runs to completion
        return events

    # -- steps --------------------------------------------------------------------------------------------------

    def plan(self, now: float) -> BatchPlan | WaitUntil | WaitForTransfers | None:
        """Make the next step.

        Returns:
            A plan; the time before which none may start; that nothing can be done before a transfer has ended; or None
            where there is nothing to do, or nothing before the steps in flight have ended.
        """
        self._time.now = self._sessions.now = now
        self._state.prefix_loads.rejoin()
        self._state.paused.retry()
        if len(self._adapters) and self._adapters.wanted:  # first, as a strategy names the waiting that may join
            self._join_queues(self._adapters.start_loads())
        running = self._running
        rows = self._capacity.max_rows
        view = StepView(now, self._lanes, len(running.sequences), running.count_decodes, rows, self._foreground)
        shape = self._strategy.shape(view)
        if isinstance(shape, WaitUntil):
            self._lanes.charge_all_waiting("window", self._running.blocks_by_lane)
            self._round_began = None
            return shape
        plan = self._make_plan(shape)
        if plan is None:
            return WaitForTransfers() if self.transfers_out and not self.idle else None
        self._round_began = now if self._round_began is None else self._round_began
        self._next_step += 1
        self._foreground.planned(plan)
        planned = self._outputs.planned
        if plan.chunks:
            for sequence in self._running.sequences:
                if sequence.in_flight:
                    planned[sequence.number] = sequence
        return self.interim.begin(plan, shape, planned)

    def plan_interim(self, within: BatchPlan, now: float) -> BatchPlan | None:
        """Make an interim step: of short prompts, to be computed and committed while the step in flight is suspended.

        Args:
            within: The suspended step, the only one in flight.
            now: Seconds on the engine's clock.

        Returns:
            None where nothing can be computed now; the suspended step goes on then.
        """
        self._time.now = self._sessions.now = now
        plan = self.interim.build(self._next_step, within)
        if plan is not None:
            self._next_step += 1
            members = {chunk.sequence_id for chunk in plan.chunks}
            self._outputs.planned |= {one.number: one for one in self._running.sequences if one.number in members}
            self._interim_began = now
        return plan

    def commit(self, plan: BatchPlan, result: StepResult, now: float) -> list[Event]:
        """Take in what a plan yielded. Plans are committed in the order in which they were made, but an interim step
        before the one within which it was computed."""
        self._time.now = self._sessions.now = now
        if result.step != plan.step:
            raise RuntimeError(f"the result of step {result.step} was committed for step {plan.step}")
        if plan.within is None:
            self._foreground.committed()
        outputs = self._outputs
        for chunk in plan.chunks:
            outputs.planned[chunk.sequence_id].in_flight -= 1
        run_to_completion = self._running.run_to_completion
        events: list[Event] = []
        if result.transferred:
            events += self._end_transfers(one for one in result.transferred if not one.is_mask)
        if result.error is None:
            if plan.chunks:
                self._learn(plan, result)
            outputs.export_blocks(plan)
        else:
            events += outputs.fail_step(plan, result.error, result.out_of_memory and not run_to_completion)
            if self._speculation is not None:
                self._speculation.observe(plan, features(plan), result, 0.0)
        for scored in result.scored:
            events += outputs.take_prompt(scored)
        for pooled in result.pooled:
            events += outputs.take_prompt(pooled)
        for sampled in result.sampled:
            events += outputs.take_tokens(sampled)
        if result.lengths:
            outputs.take_lengths(result.lengths)
        if result.transferred:
            self._end_transfers(one for one in result.transferred if one.is_mask)  # draws of this step may wait for it
        for chunk in plan.chunks:
            events += outputs.end_chunk(chunk)
        if plan.within is not None:
            if self._round_began is not None:
                self._round_began += now - self._interim_began
            self._requests.end_verb()
            return events
        self.interim.end()
        if result.error is None:
            self._memory.commit_step(plan.step if outputs.planned else self._next_step)
        self._round_began = None if self.idle else now
        self._requests.end_verb()
        if not run_to_completion:
            return events
        self._running.end_batch()  # as in `transferred`
        self._batch_outputs.add(events, now)
        return [] if self._running else self._batch_outputs.take(now)

    def transferred(self, ended: Iterable[Transferred], now: float) -> list[Event]:
        """Take in transfers, and loads of adapters, that have ended.

        What one that failed should have loaded is computed again, what it should have stored is forgotten, and requests
        that wait for its adapter end with its error.
        """
        self._time.now = now
        run_to_completion = self._running.run_to_completion
        events = self._end_transfers(ended)
        self._requests.end_verb()
        if run_to_completion:
            self._running.end_batch()  # a lost transfer may have sent the last one back that went on
            if not self._running:
                events += self._batch_outputs.take(now)
        return events

    def recover(self, error: str, now: float, numbers: Numbers | None = None) -> list[Event]:
        """End all requests with an error, and reset rows, blocks and queues, after a verb was broken off half-way.

        What was learnt stays. No transfer may be in flight any more. numbers: That a replayed run had then.
        """
        self._time.now = now
        events = self._batch_outputs.take(now)
        events += self._requests.end_all(error)
        self._memory.reset()
        self._lanes.clear()
        self._reset()
        self._running.free_rows_again(range(self._capacity.max_rows))
        if numbers is not None:
            self._next_step, self._sample_factory.next_number = numbers.step, numbers.sequence
        return events

    def reset_prefix_cache(self) -> int:
        """Drop all cached content, where nothing runs or is in flight; return the number of blocks that had some."""
        cached = self._memory.num_blocks - self._memory.num_free_blocks
        self._memory.forget_all()
        return cached

    # -- queries ------------------------------------------------------------------------------------------------

    @property
    def numbers(self) -> Numbers:
        """Numbers of the next step and sequence."""
        return Numbers(self._next_step, self._sample_factory.next_number)

    @property
    def transfers_out(self) -> tuple[int, ...]:
        """Ids of transfers in flight, of adapters' loads, and of masks that draws wait for."""
        return (*self._memory.transfer_ids_out, *self._adapters.in_flight, *self._running.masks_out)

    @property
    def latency(self) -> LatencyModel:
        """The model of step time, as learnt so far."""
        return self._latency

    @property
    def idle(self) -> bool:
        """Whether nothing waits, runs or is in flight, but blocks that are held for other engines."""
        if self._requests or self._outputs.planned:
            return False
        return not self._memory.is_busy and not self._adapters.in_flight

    @property
    def has_requests(self) -> bool:
        """Whether a request waits or runs."""
        return bool(self._requests)

    def stats(self) -> SchedulerStats:
        """Return counts of this moment."""
        speculation = None if self._speculation is None else self._speculation.stats()
        return scheduler_stats(self._next_step, self._state, self._predictions.error(), speculation)

    def dump(self, whole: bool = False, blocks: bool = True) -> SchedulerDump:
        """Return what runs, waits and holds blocks. whole: name all that wait. blocks: list them all."""
        return dump_state(self._sample_factory.next_number, self._state, whole, blocks)

    def account(self, request_id: str, now: float) -> tuple[Request, Timings] | None:
        """Return a living request, and where its time went until now; None where no request of that id lives."""
        if request_id not in self._requests:
            return None
        samples = self._requests.samples(request_id)
        return samples[0].request, timings_so_far(samples, self._lanes, now)

    def sync_tenant_usage(self, elsewhere: TenantUsage) -> TenantUsage:
        """Charge tenants for what other engines gave them; return what was given here since the last call."""
        return self._lanes.sync_tenant_usage(elsewhere)

    # -- inside -------------------------------------------------------------------------------------------------

    # `simulate.fast_forward` overrides these two: its plans lack decodes whose outcome is known.

    def _make_plan(self, shape: StepShape) -> BatchPlan | None:
        """Return the next plan: the last one advanced where that is all, else one that the builder fills."""
        ahead = bool(self._outputs.planned)
        return (
            advance(self._state, self._next_step, shape, ahead)
            or PlanBuilder(self._state, self._next_step, shape, ahead).build()
        )

    def _learn(self, plan: BatchPlan, result: StepResult) -> None:
        """Learn from a step how long steps take."""
        work, now = features(plan), self._time.now
        self._latency.observe(work, result.seconds - result.draft_seconds)
        self._strategy.observe(work, result.seconds)
        round_seconds = 0.0
        began = self._round_began if plan.within is None else self._interim_began
        if began is not None:
            round_seconds = now - began
            self._admission.observe(work, round_seconds)
        if self._speculation is not None:
            self._speculation.observe(plan, work, result, round_seconds)

    def _end_transfers(self, ended: Iterable[Transferred]) -> list[Event]:
        events: list[Event] = []
        for one in ended:
            if one.transfer_id in self._adapters.in_flight:
                events += self._adapter_loaded(one)
                continue
            if not one.is_mask:
                self._memory.end_transfer(one.transfer_id, one.error is None)
            # A draw that waited for a mask is tried again, whatever became of that.
            self._running.end_transfer(one.transfer_id, one.error is None or one.is_mask)
        return events

    def _adapter_loaded(self, load: Transferred) -> list[Event]:
        request_ids = self._adapters.finish_load(load.transfer_id, load.error is None)
        if load.error is None:
            self._join_queues(request_ids)
            return []
        finish = Finish("error", detail=load.error)
        return [event for one in request_ids for event in self._requests.end(one, finish)]

    def _join_queues(self, request_ids: Iterable[str]) -> None:
        """Put requests whose adapter is loaded into their queues."""
        for request_id in request_ids:
            first = self._requests.samples(request_id)[0]
            lane = self._lanes.of(first)
            first.timings.unblock(ADAPTER, self._time.now, lane.clock, lane.settings.name)
            lane.queue.push(first)
            self._state.prefix_loads.arrived(first)


def _block_seconds(latency: LatencyModel, block_size: int, tokens: int) -> float:
    """Return the mean time to compute a block again of a text with so many tokens."""
    return prefill_seconds(latency, tokens) / max(1, tokens // block_size) or 1.0
