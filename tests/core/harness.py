"""Drives a scheduler on the null executor and watches every verb.

Keeps a mirror of its own: what the plans said about rows, tables and positions, and what the events said about
requests; each verb is compared with it. Up to `depth` plans may be in flight. Everything that was done is logged, so
that the same run can be repeated on a fresh scheduler.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Literal, NamedTuple

import pytest
from msgspec import structs

from inflight.config.plugin_guards import guard_drafter, guard_policy
from inflight.core.estimation.latency import LatencyModel
from inflight.core.estimation.output_length import Oracle, Quantiles
from inflight.core.kv.block_tables import Allocation
from inflight.core.kv.checkpoint_spacing import CheckpointSpacing
from inflight.core.kv.kv_export import ExportLayout, PeerSource
from inflight.core.kv.prefix_cache import KVEventQueue
from inflight.core.policies import Ordered, Policy, Rank
from inflight.core.policies.deadline import Deadline
from inflight.core.policies.fair import Fair
from inflight.core.policies.fcfs import Fcfs
from inflight.core.policies.hrrn import Hrrn
from inflight.core.policies.prefix import Prefix
from inflight.core.policies.priority import Priority
from inflight.core.policies.program import Program
from inflight.core.policies.sjf import Sjf
from inflight.core.queueing.lanes import LaneSettings, MinShare
from inflight.core.scheduling.config import SchedulerConfig
from inflight.core.scheduling.running import PreemptionMode
from inflight.core.scheduling.scheduler import Scheduler
from inflight.core.sequence import Sequence, SequenceView
from inflight.core.speculation.controller import SpeculationController
from inflight.core.speculation.speculation import Drafter, ExecutorDrafter, Proposal, Speculation
from inflight.core.stopping import StopText, StopTextFactory
from inflight.core.strategies import Strategy
from inflight.core.strategies.adaptive import Adaptive
from inflight.core.strategies.chunked import Chunked
from inflight.core.strategies.continuous import Continuous
from inflight.core.strategies.dynamic import Dynamic
from inflight.core.strategies.slack import Slack
from inflight.core.strategies.static import Static
from inflight.core.types import kv_blocks
from inflight.core.types.events import Event, Finish, FinishedEvent, PooledEvent, PromptScoredEvent, TokensEvent
from inflight.core.types.executor import Done, Pending
from inflight.core.types.kv_blocks import KVSource
from inflight.core.types.kv_transfer import export_tier, is_of_peers
from inflight.core.types.plan import (
    HOST,
    AdapterLoad,
    BatchPlan,
    Capacity,
    Chunk,
    NewRequest,
    StepResult,
    Transfer,
    Transferred,
    WaitForTransfers,
    WaitUntil,
)
from inflight.core.types.request import SLO, Request, RequestRefused
from inflight.core.types.sampling import Adapter, TokenLogprob
from inflight.core.types.timings import Timings
from inflight.counted import UNBOUNDED
from inflight.engine.clock import VirtualClock
from inflight.engine.loop import EngineLoop
from inflight.testing.eager_speculation import EagerSpeculation
from inflight.testing.null import NullExecutor

from . import inspect_scheduler as inside
from .tiers import Elsewhere, RememberingTier, identity

VOCABULARY = 8
END_TOKENS = frozenset({VOCABULARY - 1})
STRATEGIES = ("static", "dynamic", "continuous", "chunked", "adaptive", "slack")
WEIGHTS = {"b": 2.0}  # of tenants, under fair
POLICIES = ("fcfs", "sjf", "hrrn", "priority", "fair", "deadline", "prefix", "program", "plugin")


@dataclass(frozen=True)
class LaneSetup:
    """A lane, with its policy by name."""

    name: str = "interactive"
    policy: str = "fcfs"
    settings: tuple[tuple[str, Any], ...] = ()

    def get(self, name: str) -> Any:
        return getattr(LaneSettings(name=self.name, policy=Fcfs(), **dict(self.settings)), name)


INTERACTIVE = LaneSetup()
SPACING = CheckpointSpacing(interval=4, min_gap=1, tail=1)
BATCH = LaneSetup("batch", settings=(("background", True),))


class PluginPolicy(Ordered):
    """A plugin's policy, with a mind of its own, that fails sooner or later."""

    name = "plugin"

    def __init__(self) -> None:
        self._asked = 0

    def rank(self, view: SequenceView, now: float) -> Rank:
        self._asked += 1
        return (view.prompt_tokens if self._asked < 20 else float("nan"),)

    def may_preempt(self, waiting: SequenceView, running: SequenceView) -> bool:
        return waiting.prompt_tokens < running.prompt_tokens


Drafting = Literal["planned", "executor", "fickle", "measured", "measured executor"]


# Of a setup, as a scheduler's configuration has them.
CONFIGURED = (
    *("token_budget", "prefix_caching", "watermark", "allocation", "preemption", "lane_floor", "longest_chunk"),
    *("spacing", "host_is_tier", "session_eviction", "prefill_suspension", "distinct_prompts"),
)


@dataclass(frozen=True)
class Setup:
    """An engine in miniature. Few blocks and rows, so that everything runs out all the time."""

    num_blocks: int = 8
    block_size: int = 2
    max_rows: int = 3
    token_budget: int = 4
    prefix_caching: bool = True
    watermark: float = 0.0
    max_model_len: int = 24
    depth: int = 1
    strategy: Literal["static", "dynamic", "continuous", "chunked", "adaptive", "slack"] = "chunked"
    batch_size: int = 2
    patience: float = 1.0  # seconds: max_wait, window
    itl_target: float = 0.1
    early_end: int = 0
    lanes: tuple[LaneSetup, ...] = (INTERACTIVE, BATCH)
    allocation: Allocation = "paged"
    preemption: PreemptionMode = "recompute"
    host_blocks: int = 0
    copy_seconds: float = 0.01
    host_is_tier: bool = False
    session_eviction: bool = False
    distinct_prompts: bool = False
    prefill_suspension: float = 0.0  # steps are suspended at depth 1
    oracle: bool = False
    lane_floor: float = 0.0
    right_drafts: float | None = None  # share; None: nothing is drafted
    drafting: Drafting = "planned"
    transfer_polls: tuple[int, ...] = ()  # by transfer id, in turn: polls of asynchronous transfers before their ends
    lost_transfers: int = 0  # of so many one fails; 0: none
    windows: tuple[int, ...] = (0,)
    snapshots: int = 0  # slots for recurrent state; 0: the model has none
    spacing: CheckpointSpacing = SPACING
    adapter_slots: int = 0
    tier: RememberingTier | None = field(default=None, compare=False)  # shared by engines that follow each other
    peers: bool = False  # prompts are given to other engines, and taken from them
    journal: KVEventQueue | None = field(default=None, compare=False)  # of one scheduler

    @property
    def longest_chunk(self) -> int:
        return self.token_budget if self.strategy in ("chunked", "adaptive", "slack") else UNBOUNDED

    def max_blocks(self, tokens: int) -> int:
        return kv_blocks.max_blocks(tokens, self.block_size, self.windows, self.longest_chunk)

    @property
    def max_sequence_tokens(self) -> int:
        """Tokens of a sequence that has all blocks."""
        return max(n for n in range(1000) if self.max_blocks(n) <= self.num_blocks)

    @property
    def capacity(self) -> Capacity:
        names = ("num_blocks", "block_size", "max_rows", "max_model_len", "host_blocks", "copy_seconds", "windows")
        return Capacity(
            **{name: getattr(self, name) for name in names},
            vocab_size=VOCABULARY,
            adapter_slots=self.adapter_slots,
            asynchronous_transfers=bool(self.transfer_polls),
            embedding_size=4,
            state_snapshots=self.snapshots,
        )

    def fate(self, transfer: Transfer | AdapterLoad) -> tuple[int, bool]:
        """Return the polls before the end of an asynchronous transfer or an adapter's load, and whether it fails."""
        polls = self.transfer_polls[transfer.transfer_id % len(self.transfer_polls)] if self.transfer_polls else 0
        return polls, bool(self.lost_transfers) and not transfer.transfer_id % self.lost_transfers

    @property
    def together(self) -> bool:
        return self.strategy in ("static", "dynamic")

    def lane(self, name: str) -> LaneSetup:
        return next(lane for lane in self.lanes if lane.name == name)

    def scheduler(self, stop_text: StopTextFactory | None = None, speculation: Speculation | None = None) -> Scheduler:
        """speculation: None: as the setup says."""
        latency = LatencyModel()
        if speculation is None and self.right_drafts is not None:
            speculation = self._speculation(latency)
        lanes = [
            LaneSettings(name=lane.name, policy=policy_of(lane.policy, latency), **dict(lane.settings))
            for lane in self.lanes
        ]
        return Scheduler(
            SchedulerConfig(
                self.capacity,
                self._strategy(latency),
                lanes,
                **{name: getattr(self, name) for name in CONFIGURED},
                end_token_ids=END_TOKENS,
                stop_text=stop_text or Letters,
                predictor=Oracle() if self.oracle else Quantiles(),
                latency=latency,
                speculation=speculation,
                kv_event_queue=self.journal,
                sources=self._sources(),
                sink=self.tier,
                identity=identity if self.peers else None,
                min_suspended=2,
            )
        )

    def _sources(self) -> list[KVSource]:
        tiers: list[KVSource] = [] if self.tier is None else [self.tier]
        return [*tiers, PeerSource(ExportLayout.of(self.capacity, self.spacing), identity)] if self.peers else tiers

    def drafts(self) -> Drafts:
        return Drafts(self.right_drafts or 0.0)

    def _speculation(self, latency: LatencyModel) -> Speculation:
        drafter: Drafter | ExecutorDrafter = guard_drafter(self.drafts(), VOCABULARY, pytest.fail)
        if "executor" in self.drafting:
            drafter = ExecutorDrafter("executor", 6)
        if "measured" in self.drafting:
            return SpeculationController(drafter, latency)
        return Fickle(drafter) if self.drafting == "fickle" else EagerSpeculation(drafter)

    def draft(self) -> Callable[[NewRequest, int], tuple[int, ...]]:
        """Return the executor's drafter, which drafts as plans do."""
        drafts = self.drafts()
        return lambda new, count: drafts.behind(structs.replace(new, row=0), count)

    def executor(self) -> FaultyExecutor:
        elsewhere = Elsewhere({} if self.tier is None else self.tier.elsewhere)
        executor = FaultyExecutor(self.capacity, seconds, self.fate, self.draft(), elsewhere)
        if self.prefill_suspension:
            executor.suspend_when(lambda seconds: True)
        return executor

    def _strategy(self, latency: LatencyModel) -> Strategy:
        match self.strategy:
            case "static":
                return Static(self.batch_size, self.patience)
            case "dynamic":
                return Dynamic(self.batch_size, self.patience, 2)
            case "continuous":
                return Continuous(self.token_budget)
            case "adaptive":
                return Adaptive(self.token_budget, self.itl_target, latency, self.early_end)
            case "slack":  # of some setups requests without a target have no deadlines
                target = None if self.itl_target < 0.1 else self.itl_target
                return Slack(self.token_budget, target, latency, self.early_end)
        return Chunked(self.token_budget, self.early_end)

    def loop(self, depth: int | None = None) -> EngineLoop:
        elsewhere = None if self.tier is None else self.tier.elsewhere
        executor = NullExecutor(self.capacity, lambda plan: 0.01 * plan.tokens, self.fate, self.draft(), elsewhere)
        return EngineLoop(self.scheduler(), executor, VirtualClock(), depth=depth or self.depth)


def policy_of(name: str, latency: LatencyModel) -> Policy:
    simple = {"fcfs": Fcfs, "hrrn": Hrrn, "priority": Priority, "prefix": Prefix}
    with_more = {
        "sjf": lambda: Sjf(patience=2),
        "deadline": lambda: Deadline(latency),
        "fair": lambda: Fair(WEIGHTS),
        "program": lambda: Program(WEIGHTS),
    }
    return {**simple, **with_more, "plugin": lambda: guard_policy(PluginPolicy(), report=lambda sentence: None)}[name]()


def seconds(plan: BatchPlan) -> float:
    """How long a step is said to take: binary fractions, so that sums and records are exact."""
    return (plan.tokens + 2) / 64


class Letters(StopText):
    """Text for tests: token 0 is "a", 1 is "b", and so on."""

    def __init__(self, request: Request):
        self._stops = request.params.stop
        self._text = ""

    def push(self, token_id: int) -> str | None:
        self._text += chr(ord("a") + token_id)
        return next((stop for stop in self._stops if self._text.endswith(stop)), None)


class Drafts:
    """Drafts of all lengths. Each is right as often as said, or anything."""

    name = "drafts"

    def __init__(self, share: float):
        self._share = share
        self._random = random.Random(0)

    def propose(self, view: SequenceView, max_drafts: int) -> Proposal:
        token_ids = self.behind(inside.row_of(view), max_drafts)
        return Proposal(token_ids, (self._share,) * len(token_ids))

    def behind(self, new: NewRequest, most: int) -> tuple[int, ...]:
        count = self._random.randint(0, min(most, 6))
        return tuple(
            token if self._random.random() < self._share else self._random.randrange(VOCABULARY)
            for token in self.right(new, count)
        )

    def right(self, new: NewRequest, count: int) -> list[int]:
        return next_tokens(new, count)

    def finished(self, view: SequenceView) -> None:
        """Keep nothing."""


class Fickle(EagerSpeculation):
    """Switched on and off, and of two minds about whom to plan ahead; the same in each run."""

    def waits(self, step: int) -> bool:
        return step % 5 == 0

    def due(self, step: int) -> set[int] | None:
        return None if step % 7 > 4 else {number for number in range(1000) if (number + step // 3) % 2}

    def hold_back(self, step: int, views: Iterable[SequenceView], running: int) -> set[int]:
        return {view.number for view in views if (view.number * 7 + step) % 3}


def next_tokens(new: NewRequest, count: int, kind: type[NullExecutor] = NullExecutor) -> list[int]:
    """Return the tokens that the null executor draws behind these."""
    tokens: list[int] = []
    new = structs.replace(new, adapter_slot=-1)
    executor = kind(Capacity(1, 1000, 1, 1000, VOCABULARY))
    plan, length = BatchPlan(0, (Chunk(0, 0, 0, len(new.token_ids), (0,), 1),), (new,)), len(new.token_ids)
    while len(tokens) < count:
        tokens += executor.submit(plan).result().sampled[0].token_ids
        plan = BatchPlan(0, (Chunk(0, 0, length + len(tokens) - 1, 1, (), 1),))
    return tokens


class FaultyExecutor(NullExecutor):
    """A null executor whose steps can break half-way: what they should have written is garbage, nothing is sampled.
    fail_next: "memory" if that was short."""

    fail_next: bool | str = False

    def submit(self, plan: BatchPlan):  # type: ignore[no-untyped-def]
        done = super().submit(plan)
        if not self.fail_next:
            return done
        short, self.fail_next = self.fail_next == "memory", False
        done.result()  # a step that could be suspended is computed to its end
        size = self.capacity.block_size
        for chunk in plan.chunks:
            for table in self._rows[chunk.row].tables:
                for position in range(chunk.start, chunk.start + chunk.length):
                    slot = table[position // size] * size + position % size
                    self._slots[slot] = self._slots.get(slot, 0) ^ 0xDEAD  # the executor may have drafted less
            for _, slot in chunk.snapshots:
                self._snapshots[slot] ^= 0xDEAD
            self._rows[chunk.row].state ^= 0xDEAD
        result = StepResult(plan.step, (), done.result().seconds, error=f"Step {plan.step} broke.", out_of_memory=short)
        return Done(result)


def _is_load(transfer: Transfer) -> bool:
    return transfer.kind in ("load", "receive")


@dataclass
class Row:
    """A row in use, as plans describe it."""

    sequence: int
    tables: list[list[int]]  # by KV group
    num_computed: int
    adapter_slot: int = -1


@dataclass
class StateCopy:
    """A snapshot of a sequence's recurrent state as of `position` tokens, written by a step."""

    sequence: Sequence
    position: int
    step: int


@dataclass
class Client:
    """A request, as events describe it."""

    request: Request
    number: int  # of its first sequence
    tokens: list[list[int]]
    finishes: list[Finish | None]
    scores: list[TokenLogprob] = field(default_factory=list)
    vector: tuple[float, ...] | None = None
    ended: FinishedEvent | None = None


class Answer(NamedTuple):
    tokens: list[list[int]]  # of each sample
    finishes: tuple[Finish, ...]
    scores: list[TokenLogprob]
    vector: tuple[float, ...] | None


_ALONE: dict[str, Answer] = {}


@dataclass
class Compute:
    """How much of a sequence was computed: to check its timings."""

    high_water: int = 0
    recomputed: int = 0
    first_start: int | None = None
    scored: int = 0  # leading prompt positions that plans scored


MADE: list[Harness] = []  # that have not been drained


class Harness:
    """A scheduler with its executor, and the mirror. What a test made is drained at its end, see `conftest`."""

    def __init__(self, setup: Setup, *requests: Request, speculation: Speculation | None = None) -> None:
        self.setup, self.now = setup, 0.0
        self.log: list[tuple] = []
        self.plans: list[BatchPlan] = []
        self.clients: list[Client] = []
        self.scheduler = self.setup.scheduler(speculation=speculation)
        self.executor = self.setup.executor()
        self.loading: dict[int, tuple[int, ...]] = {}  # device blocks of the loads that are out, by transfer_id
        self.adapter_loads: dict[int, AdapterLoad] = {}  # that are out, by transfer_id
        self.adapters: dict[int, Adapter] = {}  # that are there, by slot
        self.doomed: set[int] = set()  # identities of clients whose step broke, in a batch that has not ended
        self.flights: deque[tuple[BatchPlan, Pending]] = deque()
        self.interim_tokens = 0  # within the step in flight
        self.alive: dict[str, Client] = {}
        self.compute: dict[int, Compute] = {}
        self.owners: list[tuple[Client, int]] = []  # by sequence number: whose it is, and which sample
        self._rows: dict[int, Row] = {}
        self.freed_again: set[int] = set()  # rows that a step gave up which failed, and so perhaps gave up nothing
        self.states: dict[int, StateCopy] = {}  # what the plans said about snapshots of recurrent state, by slot
        # By transfer_id: where what comes is, and its number there, by slot.
        self.loading_states: dict[int, dict[int, tuple[dict[int, StateCopy], int]]] = {}
        self.begun = 0  # rows that began from one
        self.drafted = [0, 0]  # drafts that were right, and all
        MADE.append(self)
        self.add(*requests)

    # -- verbs --------------------------------------------------------------------------------------------------

    def add(self, *requests: Request) -> None:
        for request in requests:
            self.log.append(("add", request, self.now))
            self.scheduler.add(request, self.now)
            n = request.params.n
            client = Client(request, len(self.owners), [[] for _ in range(n)], [None] * n)
            self.clients.append(client)
            self.owners += [(client, index) for index in range(n)]
            self.alive[request.request_id] = client
            self.check()

    def has_place(self, request: Request) -> bool:
        """Whether the request's lane has room in its queue."""
        limit = self.setup.lane(request.lane).get("queue_limit")
        waiting = inside.waiting(self.scheduler) | inside.held_back(self.scheduler)
        mine = [self.owners[number][0].request for number in waiting]
        mine = [one for one in mine if one.lane == request.lane]
        if limit is None or len(mine) + request.params.n <= limit:
            return True
        if self.setup.lane(request.lane).policy not in ("fair", "program") or request.params.n > limit:
            return False
        tenants = {request.tenant, *(one.tenant for one in mine)}
        share = limit * WEIGHTS.get(request.tenant, 1.0) / sum(WEIGHTS.get(one, 1.0) for one in tenants)
        return sum(one.tenant == request.tenant for one in mine) + request.params.n <= share

    def refuse(self, request: Request) -> str:
        """The sentence of the refusal; nothing else may have changed."""
        before = self.scheduler.stats()
        with pytest.raises(RequestRefused) as refusal:
            self.scheduler.add(request, self.now)
        assert self.scheduler.stats() == before
        self.check()
        return str(refusal.value)

    def abort(self, request_id: str) -> list[Event]:
        self.log.append(("abort", request_id, self.now))
        alive = inside.alive(self.scheduler)
        is_open = any(one.request.request_id == request_id and one.finish is None for one in alive)
        together = inside.batches_together(self.scheduler)
        events = self.scheduler.abort(request_id, self.now)
        own = [event for event in events if event.request_id == request_id]
        assert [isinstance(event, FinishedEvent) for event in own][-1:] == [True] * is_open
        if not together:
            assert events == own[-1:], "only a batch keeps anything back"
        elif inside.running(self.scheduler):
            assert events == own, "others wait for the batch's end"
        self._take(events)
        return events

    def plan(self, fail: bool | str = False) -> BatchPlan | WaitUntil | WaitForTransfers | None:
        assert len(self.flights) < self.setup.depth
        self.log.append(("plan", fail, self.now))
        held, alive = inside.held, inside.alive(self.scheduler)
        shared = [(s, b) for s in alive for b in held(self.scheduler, s) if inside.ref_count(self.scheduler, b) > 1]
        protected = inside.protected(self.scheduler)
        before, wanting = list(inside.running(self.scheduler)), inside.wanting(self.scheduler)
        plan = self.scheduler.plan(self.now)
        self.interim_tokens = 0
        joined = {one.number for one in inside.running(self.scheduler) if one not in before}
        self._check_preempted(plan, [one for one in before if one.row is None and one.finish is None], wanting, joined)
        if isinstance(plan, BatchPlan):
            assert plan.step == len(self.plans)
            # A preempted sequence has released its blocks, and so has a window that slid: others may write them.
            new = {b for chunk in plan.chunks for blocks in (chunk.new_blocks, *chunk.window_blocks) for b in blocks}
            still = {b for s, b in shared if b in held(self.scheduler, s)}
            self._check_plan(plan, {b for b in still if b not in new or inside.ref_count(self.scheduler, b) > 1})
            self._check_protected(protected)
            beside = [one for one in plan.transfers if self.setup.transfer_polls or one.tier != HOST]
            self.loading |= {one.transfer_id: self._kv_blocks(one) for one in beside if _is_load(one)}
            self._move_states(plan)
            self.plans.append(plan)
            self.executor.fail_next = fail
            self.flights.append((plan, self.executor.submit(plan)))
        elif isinstance(plan, WaitForTransfers):
            assert self.executor.in_flight, "it waits for nothing"
        else:
            assert plan is None or plan.time > self.now, "it waits for the past"
            is_late = isinstance(plan, WaitUntil) or self.scheduler.idle or self.flights
            assert is_late, "work is left, and nothing is planned or in flight"
        self.check()
        return plan

    @property
    def is_suspended(self) -> bool:
        return len(self.flights) == 1 and self.executor.suspension is not None

    def interim(self, fail: bool | str = False) -> BatchPlan | None:
        """Plans an interim step."""
        self.log.append(("interim", fail, self.now))
        ((within, _),) = self.flights
        before, dump = list(inside.running(self.scheduler)), self.scheduler.dump(whole=True)
        plan = self.scheduler.plan_interim(within, self.now)
        assert plan is not None or self.scheduler.dump(whole=True) == dump, "it changes something, and computes nothing"
        assert all(one.row is not None or one.finish is not None for one in before), "it preempts no sequence"
        if plan is not None:
            assert plan.step == len(self.plans) and plan.within == within.step and not plan.may_suspend
            assert not {one.sequence_id for one in plan.chunks} & {one.sequence_id for one in within.chunks}
            self.interim_tokens += plan.tokens
            assert self.interim_tokens <= self.setup.prefill_suspension * within.tokens, "the suspended step starves"
            self._check_plan(plan, set())
            self.plans.append(plan)
            self.executor.fail_next = fail
            self.flights.append((plan, self.executor.submit(plan)))
        self.check()
        return plan

    def commit(self) -> list[Event]:
        """Takes in the oldest plan in flight, or the interim step within it."""
        self.log.append(("commit", self.now))
        if self.flights[-1][0].within is not None:
            self.flights.reverse()
        hit = self._unfinished_in(self.flights[0][0])
        at_risk = set().union(*(self._unfinished_in(plan) for plan, _ in self.flights))
        together = inside.batches_together(self.scheduler)
        clients = dict(self.alive)
        is_lost = self._is_lost(self.flights[0][0])
        plan, pending = self.flights.popleft()
        result = pending.result()
        result = structs.replace(result, transferred=self._poll())
        if result.error is not None:
            self.freed_again |= set(plan.freed_rows)
            self.states = {slot: one for slot, one in self.states.items() if one.step < plan.step}
        if result.out_of_memory and not together:
            for chunk in chain.from_iterable(one.chunks for one in (plan, *(later for later, _ in self.flights))):
                compute = self.compute[chunk.sequence_id]
                compute.scored = min(compute.scored, chunk.score.start) if chunk.score else compute.scored
        self._verify(plan, result)
        events = self.scheduler.commit(plan, result, self.now)
        broken = {
            id(clients[event.request_id])
            for event in events
            if isinstance(event, FinishedEvent) and any(finish.reason == "error" for finish in event.finishes)
        }
        broken -= {id(clients[event.request_id]) for event in events if _lost_its_adapter(event)}
        # What was planned after a broken step may build on it, and may end with it; no other request may.
        if together:
            assert not events or not inside.running(self.scheduler), "delivered before the batch has ended"
            self.doomed |= hit if result.error is not None else set()
        elif result.out_of_memory:
            assert broken <= at_risk, "who was not in flight goes on"
            assert not broken if is_lost else broken, "a request ends, for the others to have room, and only once"
        else:
            assert not broken if result.error is None else hit <= broken <= at_risk
        self._take(events)
        return events

    def poll(self) -> list[Event]:
        """Takes in the transfers that have ended."""
        self.log.append(("poll", self.now))
        is_batch = inside.batches_together(self.scheduler)
        events = self.scheduler.transferred(self._poll(), self.now)
        # What a lost transfer sends back may be the last of a batch that went on: then the batch is over.
        assert is_batch or all(map(_lost_its_adapter, events)), "a transfer ends no request"
        self._take(events)
        return events

    def vanish(self, most: int) -> None:
        """Remove so many blocks from the tier."""
        self.log.append(("vanish", most, self.now))
        assert self.setup.tier is not None
        self.setup.tier.vanish(most)

    def lose_peers(self) -> None:
        """Other engines are gone, with what was given to them."""
        self.log.append(("lose_peers", self.now))
        self.executor._elsewhere.lose_peers()  # type: ignore[attr-defined]

    def step(self, fail: bool | str = False) -> list[Event]:
        """One round of the engine's loop."""
        while len(self.flights) < self.setup.depth and isinstance(self.plan(fail), BatchPlan):
            fail = False
        events: list[Event] = []
        while self.is_suspended and self.scheduler.interim.due:
            events += self.commit() if self.interim(fail) is not None else []
        events += self.commit() if self.flights else self.poll()
        self.now += 0.25
        return events

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def serve(self, *requests: Request) -> list[int]:
        """Serve these to their ends; return the cached tokens of each."""
        self.add(*requests)
        self.drain()
        return [client.ended.timings.cached_tokens for client in self.clients[len(self.clients) - len(requests) :]]

    @property
    def reasons(self) -> list[str]:
        """Why the requests ended that have, in the order in which they came."""
        return [client.ended.finishes[0].reason for client in self.clients if client.ended]

    def timings(self, index: int) -> Timings:
        """Return those of a request that has ended."""
        return self.clients[index].ended.timings

    def until_preempted(self) -> None:
        """Steps until a sequence has been preempted."""
        for _ in range(50):
            self.step()
            if self.scheduler.stats().preemptions:
                return
        raise AssertionError("no sequence was preempted")

    def drain(self) -> list[Event]:
        """Steps until nothing is left (invariants 1, 2 and 9 at the end of a run)."""
        events = []
        if self in MADE:
            MADE.remove(self)
        for _ in range(8000):
            if self.scheduler.idle and not self.flights and not self.scheduler.transfers_out:
                break
            events += self.step()
        assert self.scheduler.idle, "it does not end"
        snapshot = self.scheduler.stats()
        assert (snapshot.kv.held_blocks, snapshot.running, snapshot.waiting) == (0, 0, 0)
        assert not self.alive, "a request got no terminal event"
        assert snapshot.kv.used_host_blocks == inside.evictable_host_blocks(self.scheduler)
        assert self.setup.host_is_tier or not inside.evictable_host_blocks(self.scheduler)
        assert self.setup.prefix_caching or not snapshot.kv.used_checkpoints, (
            "a checkpoint is kept that no request finds"
        )
        if not self.setup.prefix_caching:
            assert snapshot.kv.evictable_blocks == 0, "what only its own request could find is kept"
        return events

    def check(self) -> None:
        inside.check(self.scheduler, self.setup.capacity, [plan for plan, _ in self.flights])

    def _unfinished_in(self, plan: BatchPlan) -> set[int]:
        """Identities of the clients with a sequence in this plan that has not ended."""
        unfinished = {sequence.number for sequence in inside.alive(self.scheduler) if sequence.finish is None}
        return {id(self.owners[chunk.sequence_id][0]) for chunk in plan.chunks if chunk.sequence_id in unfinished}

    def _is_lost(self, plan: BatchPlan) -> bool:
        """Whether nothing of the plan counts any more: all of it has ended, or is computed again."""
        counts = {one.number for one in inside.alive(self.scheduler) if one.finish is None and not one.recomputes}
        return not any(chunk.sequence_id in counts for chunk in plan.chunks)

    # -- the mirror ---------------------------------------------------------------------------------------------

    def _verify(self, plan: BatchPlan, result: StepResult) -> None:
        """Check that drafts are computed up to the first that is not what was sampled."""
        sampled = {one.sequence_id: one.token_ids for one in result.sampled}
        for chunk in plan.chunks:
            if not chunk.num_drafts or result.error is not None:
                continue
            tokens = sampled[chunk.sequence_id]
            assert 1 <= len(tokens) <= 1 + chunk.num_drafts
            if chunk.draft_token_ids:  # those of the executor are in no plan
                assert tokens[:-1] == chunk.draft_token_ids[: len(tokens) - 1]
                assert chunk.draft_token_ids[len(tokens) - 1 : len(tokens)] != tokens[-1:]
            assert self._rows[chunk.row].sequence == chunk.sequence_id
            self._rows[chunk.row].num_computed = chunk.start + len(tokens)
            self.compute[chunk.sequence_id].high_water = chunk.start + len(tokens)
            self.drafted[0] += len(tokens) - 1
            self.drafted[1] += chunk.num_drafts

    def _poll(self) -> tuple[Transferred, ...]:
        ended = self.executor.poll() or ()
        for one in ended:
            self.loading.pop(one.transfer_id, None)
            loaded = self.loading_states.pop(one.transfer_id, {})
            if one.error is None:
                self.states |= {slot: replace(states[number], step=-1) for slot, (states, number) in loaded.items()}
            load = self.adapter_loads.pop(one.transfer_id, None)
            if load is not None and one.error is None:
                self.adapters[load.slot] = load.adapter
        return ended

    def _check_plan(self, plan: BatchPlan, shared: set[int]) -> None:
        """Invariants 3 to 5 of one plan. shared: blocks in two tables before it, and in one of these yet."""
        size = self.setup.block_size
        beside = self.setup.transfer_polls or self.setup.tier is not None or self.setup.peers
        # A window slides past a block behind the last token that is planned: what it frees goes to the host, if that
        # is a tier, in a plan of its own.
        beside = beside or (self.setup.host_is_tier and any(self.setup.windows))
        assert plan.chunks or (plan.transfers and beside) or plan.adapter_loads
        self._check_adapter_loads(plan)
        if plan.chunks and plan.within is None:
            self._check_limits(plan)
        assert len({chunk.sequence_id for chunk in plan.chunks}) == len(plan.chunks) <= self.setup.max_rows
        for row in plan.freed_rows:
            assert row in self._rows or row in self.freed_again, "a row is given up twice"
            self._rows.pop(row, None)
        self.freed_again -= set(plan.freed_rows)
        by_number = {sequence.number: sequence for sequence in inside.running(self.scheduler)}
        of_row = {chunk.row: chunk for chunk in plan.chunks}
        for new in plan.new_requests:
            assert new.row not in self._rows and new.row < self.setup.max_rows
            sequence = by_number[of_row[new.row].sequence_id]
            assert new.token_ids == (*sequence.prompt, *sequence.output)
            assert new.prompt_length == len(sequence.prompt)
            assert self.adapters.get(new.adapter_slot) == sequence.request.adapter, "the row's slot holds another"
            chunk = of_row[new.row]
            assert chunk.start % size == 0, "only whole blocks are found in the cache"
            tables = [[] for _ in self.setup.windows]
            self._rows[new.row] = Row(chunk.sequence_id, tables, chunk.start, new.adapter_slot)
            if self.setup.snapshots:
                self._check_state(new.snapshot, chunk.start, sequence)
        self._write_states(plan, by_number)
        written: set[int] = set()
        loading = {block for blocks in self.loading.values() for block in blocks}
        for chunk in plan.chunks:
            row, sequence = self._rows[chunk.row], by_number[chunk.sequence_id]
            assert row.sequence == chunk.sequence_id and sequence.row == chunk.row
            assert chunk.length >= 1 and chunk.start == row.num_computed, "positions are contiguous"
            self._count(chunk)
            row.num_computed += chunk.length
            touched: set[int] = set()
            sent = (chunk.new_blocks, *(chunk.window_blocks or [()] * (len(row.tables) - 1)))
            for group, (table, new_blocks) in enumerate(zip(row.tables, sent, strict=True)):
                table += new_blocks
                seen = kv_blocks.first_seen(chunk.start, self.setup.windows[group]) // size
                now = sequence.block_tables[group]
                assert len(table) == len(now) and table[seen:] == now[seen:], "the plans do not have the whole table"
                assert self.setup.num_blocks not in table[seen:], "a block is missing that is seen"
                assert not loading & set(table[seen:]), "it is computed on a block that is being loaded"
                assert row.num_computed == sequence.num_computed <= len(table) * size
                touched |= set(table[chunk.start // size : -(-row.num_computed // size)])
            drafts = chunk.num_drafts
            assert chunk.sample == (sequence.max_output_tokens > 0 and self._is_whole(chunk)) + drafts
            is_prompt = self._is_prompt(chunk, {new.row for new in plan.new_requests})
            assert not drafts or not (is_prompt or self.setup.together), "drafts behind a prompt, or in a padded batch"
            assert not sequence.num_drafts or drafts == sequence.num_drafts
            assert not touched & (written | shared), "a shared block is written"
            written |= touched
        self._check_early_sends(plan, by_number)

    def _check_early_sends(self, plan: BatchPlan, by_number: dict[int, Sequence]) -> None:
        """Check that a step sends early the blocks that it completes of exported prompts, and no others."""
        whole: list[tuple[str, set[int]]] = []
        for chunk in plan.chunks:
            transfer = by_number[chunk.sequence_id].request.kv_transfer
            table = self._rows[chunk.row].tables[0][: (chunk.start + chunk.length) // self.setup.block_size]
            whole.append(("" if transfer is None else transfer.give, set(table)))
        for one in plan.early_sends:
            assert one.blocks and len(one.blocks) == len(one.remote_blocks)
            assert any(export_tier(give) == one.tier and {*one.blocks} <= blocks for give, blocks in whole if give)

    def _check_adapter_loads(self, plan: BatchPlan) -> None:
        """A slot takes another adapter when no row computes with it, nor is about to."""
        new = {one.row for one in plan.new_requests}
        computing = {self._rows[chunk.row].adapter_slot for chunk in plan.chunks if chunk.row not in new}
        loading = {load.slot for load in self.adapter_loads.values()}
        for load in plan.adapter_loads:
            assert 0 <= load.slot < self.setup.adapter_slots
            assert load.slot not in loading, "a slot is loaded twice at a time"
            assert load.slot not in computing - {-1}, "a slot is loaded that rows compute with"
            assert load.adapter not in self.adapters.values(), "it is there"
            self.adapters.pop(load.slot, None)
            self.adapter_loads[load.transfer_id] = load

    def _check_state(self, slot: int, start: int, sequence: Sequence) -> None:
        """A row begins from the state as of the position that it goes on from, of the same tokens."""
        if slot < 0:
            assert start == 0, "it begins without the state of what was computed before"
            return
        written, self.begun = self.states[slot], self.begun + 1
        assert written.position == start > 0, "the snapshot is of another position"
        mine, theirs = sequence.token_slice(0, start), written.sequence.token_slice(0, start)
        assert mine == theirs and len(theirs) == start, "the snapshot is of other tokens"
        if self.setup.prefix_caching:
            assert written.sequence.request.cache_salt == sequence.request.cache_salt
            assert written.sequence.request.adapter == sequence.request.adapter
        else:
            assert written.sequence.request is sequence.request, "another request's state is found"

    def _kv_blocks(self, transfer: Transfer) -> tuple[int, ...]:
        states = self.setup.capacity.state_group
        return tuple(block for group, block in transfer.units() if group != states)

    def _move_states(self, plan: BatchPlan) -> None:
        """States are stored in tiers and with peers and loaded from there, into slots that nothing reads or writes
        meanwhile."""
        begun = {new.snapshot for new in plan.new_requests}
        written = {slot for chunk in plan.chunks for _, slot in chunk.snapshots}
        for transfer in plan.transfers:
            for (group, slot), number in zip(transfer.units(), transfer.remote_blocks, strict=True):
                if group != self.setup.capacity.state_group:
                    continue
                assert slot not in written
                if is_of_peers(transfer.tier):
                    states = self.executor._elsewhere.states  # type: ignore[attr-defined]
                else:
                    assert self.setup.tier is not None
                    states = self.setup.tier.states
                if _is_load(transfer):
                    assert slot not in begun
                    self.states.pop(slot, None)
                    self.loading_states.setdefault(transfer.transfer_id, {})[slot] = states, number
                else:
                    states[number] = self.states[slot]

    def _write_states(self, plan: BatchPlan, by_number: dict[int, Sequence]) -> None:
        """Rows began before the step writes; and it writes no slot twice."""
        slots = [slot for chunk in plan.chunks for _, slot in chunk.snapshots]
        assert len(set(slots)) == len(slots) and set(slots) <= set(range(self.setup.snapshots))
        assert not set(slots) & {new.snapshot for new in plan.new_requests}, "it is read and written in one step"
        for chunk in plan.chunks:
            positions = [position for position, _ in chunk.snapshots]
            assert positions == sorted(set(positions))
            assert all(chunk.start < at <= chunk.start + chunk.length for at in positions)
            assert not any(at % self.setup.block_size for at in positions)
            for position, slot in chunk.snapshots:
                self.states[slot] = StateCopy(by_number[chunk.sequence_id], position, plan.step)

    def _check_preempted(self, plan: object, victims: list[Any], wanting: set[int], joined: set[int]) -> None:
        """Invariant 9: none is preempted in vain, but another sequence gets blocks (one that joined has, also where its
        first chunk waits for what is loaded into them); or a victim itself needed one."""
        numbers = {one.number for one in victims}
        if inside.is_storing(self.scheduler):
            return  # the blocks are there when that has ended
        if not numbers or numbers & wanting:
            return
        chunks = plan.chunks if isinstance(plan, BatchPlan) else ()
        gained = {chunk.sequence_id for chunk in chunks if chunk.new_blocks or chunk.window_blocks}
        gained |= inside.with_unsent_blocks(self.scheduler)
        assert (gained | joined) - numbers, "preempted in vain"

    def _check_protected(self, before: set[int]) -> None:
        """A protected sequence is not preempted, unless nothing else is left."""
        running = inside.running(self.scheduler)
        if not before <= {one.number for one in running}:
            assert all(one.protected for one in running), "a protected sequence was preempted"

    def _check_early_end(self, plan: BatchPlan) -> None:
        """Behind a foreground prompt that is complete, prompts have what the step may be filled up to, and floors."""
        new, tokens, left = {new.row for new in plan.new_requests}, 0, None
        for chunk in plan.chunks:
            client, index = self.owners[chunk.sequence_id]
            is_prompt = self._is_prompt(chunk, new)
            if left is not None and is_prompt:
                left -= chunk.length
                assert left >= 0, "a first token waits for other prompts"
            tokens += chunk.length - chunk.num_drafts
            if left is None and is_prompt and chunk.sample and index == 0:
                lane = self.setup.lane(client.request.lane)
                if not lane.get("background"):
                    kept = sum(one.get("min_tokens") or 0 for one in self.setup.lanes)
                    if self.setup.lane_floor:
                        kept += MinShare(self.setup.lane_floor).max_tokens(self.setup.token_budget)
                    left = max(0, self.setup.early_end - tokens) + kept
        drafts = any(chunk.num_drafts for chunk in plan.chunks)
        assert left is None or not drafts or plan.tokens <= self.setup.early_end, "a first token waits for drafts"

    def _check_limits(self, plan: BatchPlan) -> None:
        """Invariant 4: tokens of the step, padding, and what lanes may have."""
        setup, lengths = self.setup, [chunk.length for chunk in plan.chunks]
        if setup.together:
            running = inside.running(self.scheduler)
            assert len(running) <= setup.batch_size, "a batch counts sequences"
            assert len(plan.padding) <= len(running) and plan.tokens == len(running) * max(lengths), "ragged padding"
            ended = len(running) - len(lengths)
            assert sorted(plan.padding)[::-1][:ended] == [max(lengths)] * ended, "an ended row goes on as padding"
            return
        assert plan.padding == () and plan.tokens == sum(lengths)
        if setup.early_end and setup.strategy in ("chunked", "adaptive", "slack"):
            self._check_early_end(plan)
        new = {new.row for new in plan.new_requests}
        if setup.strategy == "continuous":
            joined = [chunk.length for chunk in plan.chunks if chunk.row in new]
            assert all(map(self._is_whole, plan.chunks)), "prompts are computed whole"
            if plan.tokens > setup.token_budget:
                assert len(joined) == 1 and plan.tokens - joined[0] < setup.token_budget, "more than one whole prompt"
            return
        assert plan.tokens <= setup.token_budget
        for lane in setup.lanes:
            prompts = [
                chunk.length
                for chunk in plan.chunks
                if self.owners[chunk.sequence_id][0].request.lane == lane.name and self._is_prompt(chunk, new)
            ]
            assert all(length <= (lane.get("chunk") or length) for length in prompts)
            assert sum(prompts) <= (lane.get("max_tokens") or sum(prompts))

    def _is_whole(self, chunk: Chunk) -> bool:
        """Return whether a chunk of the last plan computes all that its sequence has, pending tokens included."""
        sequence = next(one for one in inside.running(self.scheduler) if one.number == chunk.sequence_id)
        drafts = chunk.num_drafts
        before = sequence.num_tokens + sequence.num_pending - (drafts or chunk.sample)
        return chunk.start + chunk.length - drafts == before

    def _is_prompt(self, chunk: Chunk, new: set[int]) -> bool:
        return chunk.length - chunk.num_drafts > 1 or chunk.row in new or not self._is_whole(chunk)

    def _count(self, chunk: Chunk) -> None:
        compute = self.compute.setdefault(chunk.sequence_id, Compute())
        start, end = chunk.start, chunk.start + chunk.length - chunk.num_drafts
        if compute.first_start is None:
            compute.first_start = start
        compute.recomputed += max(0, min(end, compute.high_water) - start)
        compute.high_water = max(compute.high_water, end)
        client, sample = self.owners[chunk.sequence_id]
        whole = end == len(client.request.prompt_token_ids)
        assert chunk.pool == (whole and client.request.pooling is not None)
        if sample or client.request.params.prompt_logprobs is None:
            assert not chunk.score, "scored unasked"
        else:
            last = len(client.request.prompt_token_ids) - 1
            assert chunk.score == range(compute.scored, min(end, last)), "a position is scored twice, or never"
            assert not chunk.score or chunk.score.start >= start, "it scores what it does not compute"
            compute.scored = max(compute.scored, chunk.score.stop)

    def _take(self, events: Iterable[Event]) -> None:
        """Invariant 1."""
        for event in events:
            client = self.alive.get(event.request_id)
            assert client is not None, f"{event} of a request that is not alive"
            if isinstance(event, TokensEvent):
                assert event.token_ids, "an event without tokens"
                assert client.finishes[event.sample_index] is None, "tokens after the end"
                client.tokens[event.sample_index] += event.token_ids
                client.finishes[event.sample_index] = event.finish
                self._check_scores(client)
            elif isinstance(event, PromptScoredEvent):
                assert event.logprobs, "an event without scores"
                assert not any(client.tokens), "scores after the first token"
                client.scores += event.logprobs
            elif isinstance(event, PooledEvent):
                assert client.request.pooling is not None and client.vector is None, "pooled unasked, or twice"
                client.vector = event.vector
            else:
                self._finish(client, event)
        self.check()

    def _finish(self, client: Client, event: FinishedEvent) -> None:
        del self.alive[event.request_id]
        client.ended = event
        if id(client) in self.doomed:
            assert any(finish.reason == "error" for finish in event.finishes)
        assert len(event.finishes) == client.request.params.n
        if all(finish.reason in ("stop", "length") for finish in event.finishes):
            self._check_scores(client)
            assert (client.vector is None) == (client.request.pooling is None), "it ends without its vector"
        silent = ("abort", "error", "length" if client.request.params.max_tokens == 0 else "")
        for before, finish in zip(client.finishes, event.finishes, strict=True):
            assert before == finish or (before is None and finish.reason in silent)
        timings = event.timings
        parts = (timings.queue_ms, timings.prefill_ms, timings.decode_ms, timings.preempted_ms, timings.other_ms)
        assert all(part >= 0 for part in parts)
        assert sum(parts) == pytest.approx(timings.total_ms, abs=1e-6)
        assert timings.total_ms == pytest.approx((self.now - client.request.arrival) * 1e3, abs=1e-6)
        assert sum(timings.queued_by.values()) == pytest.approx(timings.queue_ms, abs=1e-6)
        assert all(part >= -1e-9 for part in timings.queued_by.values())
        assert sum(timings.queued_behind.values()) == pytest.approx(timings.queue_ms, abs=1e-6)
        assert all(part > 0 for part in timings.queued_behind.values())
        assert set(timings.queued_behind) <= {lane.name for lane in self.setup.lanes}
        assert 0 <= timings.cached_tokens < len(client.request.prompt_token_ids)
        assert timings.ttft_ms is None or timings.ttft_ms <= timings.total_ms + 1e-6
        assert timings.lane == client.request.lane
        if len(event.finishes) == 1 and event.finishes[0].reason not in ("abort", "error"):
            compute = self.compute[client.number]
            assert timings.cached_tokens == compute.first_start
            assert timings.recomputed_tokens == compute.recomputed
        self.check_answer(client)

    def check_answer(self, client: Client) -> None:
        """Invariants 7, 8 and 10: the same tokens as alone, or their beginning where something ended them early."""
        alone = self.alone(client.request)
        assert client.scores == alone.scores[: len(client.scores)]
        assert client.vector is None or client.vector == alone.vector
        for tokens, finish, expected, end in zip(client.tokens, client.ended.finishes, *alone[:2], strict=True):
            if finish.reason in ("abort", "error"):
                assert tokens == expected[: len(tokens)]
            elif finish.detail is not None:
                known = len(client.request.prompt_token_ids) + len(tokens)
                assert finish.reason == "length" and known == self.setup.max_sequence_tokens + 1
                assert tokens == expected[: len(tokens)]
            else:
                assert (tokens, finish) == (expected, end)

    def alone(self, request: Request) -> Answer:
        """Return the answer to a request that has a large engine to itself."""
        asked = structs.replace(request, request_id="", arrival=0.0, lane="interactive", priority=0, tenant="")
        asked = structs.replace(asked, session="", slo=SLO(), cache_salt="", kv_transfer=None)
        key = f"{type(self)} {self.setup.max_model_len} {asked}"
        if key not in _ALONE:
            loop, tokens, scores, vector = self.loop_alone(), [[] for _ in range(request.params.n)], [], None
            loop.add(asked)
            for event in loop.run():
                if isinstance(event, TokensEvent):
                    tokens[event.sample_index] += event.token_ids
                elif isinstance(event, PromptScoredEvent):
                    scores += event.logprobs
                elif isinstance(event, PooledEvent):
                    vector = event.vector
                else:
                    _ALONE[key] = Answer(tokens, event.finishes, scores, vector)
        return _ALONE[key]

    def loop_alone(self) -> EngineLoop:
        return Setup(500, 4, 8, 500, False, 0.0, self.setup.max_model_len, adapter_slots=1).loop()

    def _check_scores(self, client: Client) -> None:
        """All prompt tokens but the first are scored, once and in order, or none."""
        wanted = client.request.params.prompt_logprobs is not None
        scored = tuple(entry.token_id for entry in client.scores)
        assert scored == (client.request.prompt_token_ids[1:] if wanted else ())


def _lost_its_adapter(event: Event) -> bool:
    return isinstance(event, FinishedEvent) and any(finish.detail == "The copy failed." for finish in event.finishes)
