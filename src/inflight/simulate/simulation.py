"""Simulate: build pools of engines from settings, run a workload over them, and return its observations.

Simulated answers are all TOKEN (`executor`), so that a later turn of a conversation finds the one before it in the
prefix cache. Only the lengths and common beginnings of texts count: no tokenizer is needed.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from inflight.config.assembly import budget, scheduler_for
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.core.options import OptionValues
from inflight.core.scheduling.config import SchedulerConfig
from inflight.core.scheduling.scheduler import Scheduler
from inflight.core.types.plan import Capacity
from inflight.core.types.request import Request
from inflight.engine.clock import VirtualClock
from inflight.engine.loop import EngineLoop
from inflight.engine.recorder import Recorder, open_record
from inflight.metrics.observation import Observation
from inflight.models.spec import ModelSpec
from inflight.routing.registry import BLOCK, ROUTERS, make_router
from inflight.routing.replica_view import ServingCosts
from inflight.routing.router import Router
from inflight.simulate.cluster import Cluster, DecodePool
from inflight.simulate.disagg import AFTER, DisaggMode, Exchange, ExchangeSide, Link
from inflight.simulate.drafting import SimulatedDrafts, simulated_drafter
from inflight.simulate.engine_costs import EngineCosts
from inflight.simulate.executor import SimulatedExecutor
from inflight.simulate.fast_forward import FastForward
from inflight.simulate.front_end import FrontEnd
from inflight.simulate.omitted import TOKEN
from inflight.simulate.replicas import (
    Replica,
    ReplicaFigures,
    RoutedPool,
    ScaledPool,
    Scaling,
    ScalingResult,
    SingleReplica,
)
from inflight.simulate.steps import StepModel, in_steps_of
from inflight.simulate.transfers import (
    FINGERPRINT,
    Folder,
    FolderContents,
    HostCopies,
    SimulatedFolder,
    SimulatedTier,
    TimedTransfers,
    TransferRate,
)
from inflight.simulate.unlearned import UnlearnedScheduler
from inflight.workload.contents import Contents
from inflight.workload.driving import core_request
from inflight.workload.workload import Workload


class Requests:
    """Makes the request for (index of an entry, intended send time). alike: whether prompts' tokens have no effect, but
    for their number: those that are drawn, and begin a conversation, are TOKEN alone."""

    def __init__(self, workload: Workload, vocab_size: int, seed: int, *, alike: bool = False):
        self._entries, self._alike = workload.entries, alike
        self._contents = Contents(workload.entries, vocab_size, seed=seed, min_id=TOKEN + 1, stand_in=True, width=1)
        self._followers = Counter(entry.after for entry in workload.entries if entry.after is not None)  # not yet made
        self._so_far: dict[int, tuple[int, ...]] = {}  # entry that another follows → its prompt and answer

    def __call__(self, index: int, arrival: float) -> Request:
        entry = self._entries[index]
        if self._alike and entry.after is None and entry.prompt is None:
            prompt = (TOKEN,) * entry.prompt_tokens
        elif entry.after is None:
            prompt = self._contents.prompt(index)
        else:
            prompt = self._take_so_far(entry.after) + self._contents.added(index)
        request = core_request(entry, str(index), prompt, arrival)
        if index in self._followers:
            self._so_far[index] = prompt + (TOKEN,) * (request.forced_output_tokens or 0)
        return request

    def _take_so_far(self, index: int) -> tuple[int, ...]:
        """Return the conversation up to the end of an entry, and drop it with the last entry that follows."""
        self._followers[index] -= 1
        return self._so_far[index] if self._followers[index] else self._so_far.pop(index)


MIN_DISTINCT_TOKENS = 8  # of a random text: another begins like that once in 10^19 pairs
COLLECTED = 50_000  # new objects between two collections
CREATED = "1970-01-01T00:00:00+00:00"  # of simulated records, so that the same run has the same bytes


@dataclass(frozen=True, slots=True)
class Pool:
    """Equal replicas behind a router.

    Attributes:
        model: returns the step model of the k-th replica; models with a state must not be shared.
        drafts: acceptance of the drafts that the settings ask for; None: there are no drafts.
        depth: steps in flight, as of the engine on that device.
        scaling: limits of a pool whose size follows its queues; None: it is fixed.
        host: seconds of copies to and from the host's memory; None: the step model's, within the step.
        folder: in which all replicas store blocks.
    """

    capacity: Capacity
    settings: EngineSettings
    scheduling: SchedulingSettings
    model: Callable[[int], StepModel]
    replicas: int = 1
    router: str = "round-robin"
    router_options: OptionValues = field(default_factory=OptionValues)
    drafts: SimulatedDrafts | None = None
    depth: int = 1
    scaling: Scaling | None = None
    host: TransferRate | None = None
    folder: Folder | None = None


@dataclass(frozen=True, slots=True)
class SimulationSetup:
    """The engines of a simulation.

    Attributes:
        decode: a pool of decode engines, beside the first one's prefill engines.
        link: between the two pools.
        disagg_mode: how requests are divided between them.
        front_end: costs of what requests pass before they are routed; None: that takes no time.
        seed: of routers.
        content_seed: of prompts.
        fast_forward: whether decodes whose outcome is known are omitted from plans, where the result is the same.
    """

    pool: Pool
    decode: Pool | None = None
    link: Link | None = None
    seed: int = 0
    content_seed: int = 0
    fast_forward: bool = True
    disagg_mode: DisaggMode = AFTER
    front_end: EngineCosts | None = None


@dataclass(frozen=True, slots=True)
class Simulation:
    """The result of a simulation.

    Attributes:
        scaled: of each pool, its replicas over time, where it scales.
        first: replicas of the first pool.
    """

    observations: list[Observation]
    replicas: list[ReplicaFigures]
    scaled: tuple[ScalingResult | None, ...] = (None,)
    first: int = 1

    @property
    def extrapolated(self) -> dict[str, int]:
        """Sentence of steps outside of the step models' ranges → number of steps."""
        found = Counter[str]()
        for one in self.replicas:
            found.update(one.extrapolated)
        return found

    @property
    def preemptions(self) -> int:
        return sum(one.last.preemptions for one in self.replicas)

    @property
    def steps(self) -> int:
        return sum(one.steps for one in self.replicas)


def simulate(
    workload: Workload,
    setup: SimulationSetup,
    record: Path | None = None,
    on_end: Callable[[int, Observation], None] | None = None,
) -> Simulation:
    """Run a simulation.

    Args:
        record: file for the step record of a single replica; of several, or of pools that scale, one each, with their
            numbers before the suffix.
        on_end: called with the index and the observation of each entry of the workload as it ends.
    """
    pools = [setup.pool] if setup.decode is None else [setup.pool, setup.decode]
    several = any(pool.scaling is not None for pool in pools) or sum(pool.replicas for pool in pools) > 1
    scheduler: Callable[[SchedulerConfig], Scheduler] = Scheduler
    can_fast_forward = record is None and all(_can_fast_forward(pool, workload) for pool in pools)
    distinct = has_distinct_prompts(workload, setup)
    if can_fast_forward:
        scheduler = partial(UnlearnedScheduler, distinct_prompts=distinct)
    exchange = None
    if setup.decode is not None:
        assert setup.link is not None, "a second pool needs a link to it"
        exchange = Exchange(setup.link)
    made = []
    first = 0  # number of the pool's first replica in names of records
    for index, pool in enumerate(pools):
        if can_fast_forward and setup.fast_forward:
            scheduler = partial(FastForward, depth=pool.depth, distinct_prompts=distinct)
        path = None if record is None else partial(_record_path, record, first if several else None)
        made.append(PoolBuilder(pool, setup.seed + index, scheduler, exchange, path).build())
        first += pool.replicas if pool.scaling is None else pool.scaling.max_replicas
    decode = None if exchange is None else DecodePool(made[1], exchange, setup.disagg_mode)
    shares_none = distinct and can_fast_forward
    alike = record is None and exchange is None and not any(_reads_prompts(pool, shares_none) for pool in pools)
    requests = Requests(workload, setup.pool.capacity.vocab_size, setup.content_seed, alike=alike)
    shares = several and any(pool.scheduling.weighs_tenants for pool in pools)
    costs = setup.front_end
    front_end = None if costs is None else FrontEnd(costs.request, costs.request_latency)
    cluster = Cluster(workload, requests, made[0], decode, shares_service=shares, front_end=front_end, on_end=on_end)
    with _rare_collections():
        observations = cluster.run()
    replicas = [one for pool in made for one in pool.replicas]
    for one in replicas:
        one.close()
    end = max((one.ended for one in observations), default=0.0)
    scaled = tuple(ScalingResult(pool.lifetimes, end) if isinstance(pool, ScaledPool) else None for pool in made)
    return Simulation(observations, [one.figures() for one in replicas], scaled, first=len(made[0].replicas))


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Have the garbage collector look at a run's objects seldom: they live for long and have few cycles, and looking at
    them again and again takes a fifth of a run."""
    before = gc.get_threshold()
    gc.set_threshold(COLLECTED, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def best_split(
    workload: Workload, setup: SimulationSetup, total: int, score: Callable[[Simulation], float]
) -> list[tuple[int, int, Simulation, float]]:
    """Simulate every split of `total` replicas into prefill and decode ones, the rest as of `setup`.

    Returns:
        (prefill replicas, decode replicas, simulation, score) of each split, best first.
    """
    assert setup.decode is not None
    found = []
    for prefill in range(1, total):
        pool, decode = replace(setup.pool, replicas=prefill), replace(setup.decode, replicas=total - prefill)
        run = simulate(workload, replace(setup, pool=pool, decode=decode))
        found.append((prefill, total - prefill, run, score(run)))
    return sorted(found, key=lambda one: -one[3])


def _can_fast_forward(pool: Pool, workload: Workload) -> bool:
    """Return whether the outcome of decodes is known (first come, first served, without drafts and batch work), and the
    scheduler uses neither times of steps nor output lengths, which it does not learn from omitted decodes."""
    scheduling = pool.scheduling
    return (
        scheduling.strategy in ("chunked", "continuous")
        and scheduling.policy == "fcfs"
        and scheduling.admission == "off"
        and scheduling.kv_allocation != "expected-peak"  # reads the output of running sequences
        and scheduling.preemption == "recompute"
        and not scheduling.lanes
        and pool.settings.kv_cache_host is None
        and pool.folder is None  # loads are compared with step costs
        and pool.settings.kv_eviction == "lru"  # the value of sessions changes with time, step by step
        and pool.drafts is None
        and (pool.depth == 1 or not pool.capacity.state_snapshots)
        and not scheduling.prefill_suspension
        and pool.capacity.windows == (0,)
        and pool.capacity.max_rows <= budget(pool.settings, scheduling)  # otherwise decodes take turns
        and all(entry.lane in ("", "interactive") for entry in workload.entries)
    )


def _reads_prompts(pool: Pool, shares_none: bool) -> bool:
    """Return whether the tokens of a request's prompt have an effect, on what another finds cached, on drafts, or on
    where it is routed. shares_none: the schedulers have no two requests find each other's blocks."""
    finds_others = pool.settings.enable_prefix_caching and not shares_none
    return finds_others or pool.drafts is not None or BLOCK in ROUTERS[pool.router].options


def has_distinct_prompts(workload: Workload, setup: SimulationSetup) -> bool:
    """Return whether requests share a prefix cache, and no two of them a block of tokens: each prompt is the entry's
    own, and a block begins with so many random tokens that these come once."""
    capacity = setup.pool.capacity
    return (
        setup.decode is None
        and setup.pool.settings.enable_prefix_caching
        and capacity.block_size >= MIN_DISTINCT_TOKENS
        and capacity.vocab_size >= 256  # as many as prompts are made of
        and not (capacity.state_snapshots or capacity.host_blocks)
        and all(
            entry.prompt_tokens >= MIN_DISTINCT_TOKENS
            and not entry.prefix
            and entry.after is None
            and entry.prompt is None
            for entry in workload.entries
        )
    )


def in_engine_steps(model: StepModel, settings: EngineSettings, scheduling: SchedulingSettings) -> StepModel:
    """Return a step model as an engine with these settings has steps and forward passes."""
    tokens = budget(settings, scheduling)
    spec: ModelSpec | None = getattr(model, "spec", None)
    pass_tokens = tokens if spec is None or not spec.pools_all_tokens else max(tokens, settings.max_model_len or 0)
    return in_steps_of(model, tokens if scheduling.divides_prompts else None, pass_tokens)


class PoolBuilder:
    """Builds the replicas and the router of a pool."""

    def __init__(
        self,
        pool: Pool,
        seed: int = 0,
        scheduler: Callable[[SchedulerConfig], Scheduler] = Scheduler,
        exchange: Exchange | None = None,
        record: Callable[[int], Path] | None = None,
    ):
        """Prepare a pool.

        Args:
            seed: of the router.
            scheduler: of the replicas.
            exchange: of KV transfers with another pool.
            record: returns the file for the step record of the k-th replica.
        """
        self.pool, self.seed, self.scheduler, self.exchange, self.record = pool, seed, scheduler, exchange, record
        self._contents = None if pool.folder is None else FolderContents(pool.folder.blocks)

    def build(self) -> RoutedPool:
        pool, router = self.pool, make_router(self.pool.router, self.seed, self.pool.router_options)
        join = partial(self._join, router)
        if pool.scaling is not None:
            return ScaledPool(pool.replicas, pool.scaling, router, self.replica, join, pool.scheduling)
        replicas = [self.replica(number) for number in range(pool.replicas)]
        for number in range(pool.replicas):
            join(number)
        return SingleReplica(replicas, router) if len(replicas) == 1 else RoutedPool(replicas, router)

    def _join(self, router: Router, number: int) -> ServingCosts:
        """Add a replica to the router by its number, and return its costs."""
        pool, capacity = self.pool, self.pool.capacity
        costs = ServingCosts.probed(pool.model(number).seconds, capacity.max_rows)
        kv_tokens = capacity.num_blocks * capacity.block_size if pool.settings.enable_prefix_caching else 0
        router.join(str(number), costs, kv_tokens=kv_tokens, fair=pool.scheduling.policy == "fair")
        return costs

    def replica(self, number: int) -> Replica:
        """Build the replica of this number."""
        pool, capacity, clock = self.pool, self.pool.capacity, VirtualClock()
        drafts = None if pool.drafts is None else replace(pool.drafts, seed=pool.drafts.seed + 7919 * number)
        folder, peers = None, None
        if pool.folder is not None and self._contents is not None:
            folder = SimulatedFolder(pool.folder, self._contents, number, capacity, clock)
        if self.exchange is not None:
            peers = ExchangeSide(self.exchange, capacity)
        tiers: list[SimulatedTier] = [one for one in (folder, peers) if one is not None]
        if pool.host is not None and capacity.asynchronous_transfers:
            tiers.append(HostCopies(pool.host, capacity))
        timed = TimedTransfers(tiers, clock) if tiers else None
        copy_seconds = None if pool.host is None else pool.host.block_s
        model = in_engine_steps(pool.model(number), pool.settings, pool.scheduling)
        executor = SimulatedExecutor(capacity, model, drafts, timed, copy_seconds)
        scheduler = scheduler_for(
            capacity,
            pool.settings,
            pool.scheduling,
            self.scheduler,
            None if drafts is None else simulated_drafter(pool.scheduling, drafts),
            sources=() if folder is None else (folder,),
            identity=None if peers is None else lambda adapter: FINGERPRINT,
            sink=folder,
        )
        observers = []
        if self.record is not None:
            settings = resolved_settings(pool, self.exchange is not None)
            observers.append(Recorder(open_record(self.record(number)), settings, capacity, created=CREATED))
        suspends = pool.scheduling.prefill_suspension > 0 and pool.depth == 1 and timed is None
        suspender = executor if suspends else None
        loop = EngineLoop(scheduler, executor, clock, depth=pool.depth, observers=observers, suspender=suspender)
        return Replica(loop, executor, scheduler if isinstance(scheduler, FastForward) else None, peers)


def resolved_settings(pool: Pool, has_peers: bool = False) -> dict[str, Any]:
    """Return the settings of a record's header with their reasons: those that decide plans, and those that say that
    the record lacks something (a folder, peers)."""
    settings = pool.settings
    numbers = {
        "max_num_seqs": pool.capacity.max_rows,
        "max_num_batched_tokens": budget(settings, pool.scheduling),
        "max_model_len": pool.capacity.max_model_len,
        "block_size": pool.capacity.block_size,
        "num_blocks": pool.capacity.num_blocks,
        "prefix_caching": settings.enable_prefix_caching,
        "watermark": settings.watermark,
        "depth": pool.depth,
        "device": settings.device,
        "kv_eviction": settings.kv_eviction,
    }
    if settings.kv_cache_host is not None:
        numbers["kv_cache_host"] = settings.kv_cache_host
    if pool.folder is not None:
        numbers["kv_cache_dir"] = "(simulated)"
    if has_peers:
        numbers["role"] = "both"
    simulated = {name: {"value": value, "reason": "as simulated"} for name, value in numbers.items()}
    return {**simulated, **{name: asdict(entry) for name, entry in pool.scheduling.resolved().items()}}


def record_paths(record: Path, replicas: int) -> list[Path]:
    """Return the record files of so many replicas; of several with their numbers before the suffix."""
    return [_record_path(record, None if replicas == 1 else 0, number) for number in range(replicas)]


def _record_path(record: Path, first: int | None, number: int) -> Path:
    """Return the file of a replica. first: number of the first replica's file; None: there is one file."""
    return record if first is None else record.with_name(f"{record.stem}.{first + number}{record.suffix}")
