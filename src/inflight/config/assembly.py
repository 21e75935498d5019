"""Make a scheduler from settings, for real, measured and simulated engines.

`make_rules` needs no loaded model, so that errors in settings are raised at once; `make_scheduler` needs its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from inflight.config.engine import EngineSettings, resolve_budget, resolve_rows
from inflight.config.plugin_guards import guard_drafter
from inflight.config.plugins import make_lanes, make_predictor, make_strategy, report_failure
from inflight.config.scheduling import SchedulingSettings
from inflight.core.estimation.latency import LatencyModel
from inflight.core.estimation.output_length import Predictor
from inflight.core.kv.connector import Fingerprint
from inflight.core.kv.kv_export import ExportLayout, PeerSource
from inflight.core.kv.prefix_cache import KVEventQueue
from inflight.core.queueing.admission import Admission
from inflight.core.queueing.lanes import LaneSettings
from inflight.core.scheduling.config import SchedulerConfig
from inflight.core.scheduling.scheduler import Scheduler
from inflight.core.speculation.controller import SpeculationController
from inflight.core.speculation.speculation import Drafter, ExecutorDrafter, Speculation
from inflight.core.stopping import StopTextFactory
from inflight.core.strategies import Strategy, StrategyContext
from inflight.core.strategies.registry import STRATEGIES
from inflight.core.tenants import TenantWeights
from inflight.core.types.kv_blocks import KVSource, KVStore
from inflight.core.types.plan import Capacity
from inflight.counted import UNBOUNDED


class Rules(Struct, frozen=True):
    """The rules of a scheduler; its parts share one model of step time. token_budget: maximum tokens of a step."""

    token_budget: int
    strategy: Strategy
    lanes: tuple[LaneSettings, ...]
    admission: Admission
    predictor: Predictor
    latency: LatencyModel


def make_rules(scheduling: SchedulingSettings, token_budget: int, max_model_len: int, max_rows: int) -> Rules:
    """Make the rules. Raises SettingsError where the settings do not go together."""
    latency = LatencyModel()
    return Rules(
        token_budget=token_budget,
        strategy=make_strategy(scheduling, StrategyContext(token_budget, max_model_len, max_rows, latency)),
        lanes=make_lanes(scheduling, latency),
        admission=make_admission(scheduling, latency),
        predictor=make_predictor(scheduling),
        latency=latency,
    )


def make_admission(settings: SchedulingSettings, latency: LatencyModel) -> Admission:
    return Admission(
        settings.admission,
        latency,
        settings.max_queued,
        settings.max_queued_tokens,
        settings.ttft_target,
        TenantWeights(settings.tenant_weights) if settings.weighs_tenants else None,
    )


def make_scheduler(
    capacity: Capacity,
    rules: Rules,
    settings: EngineSettings,
    scheduling: SchedulingSettings,
    end_token_ids: frozenset[int] = frozenset(),
    stop_text: StopTextFactory | None = None,
    make: Callable[[SchedulerConfig], Scheduler] = Scheduler,
    speculation: Speculation | None = None,
    kv_event_queue: KVEventQueue | None = None,
    sources: Sequence[KVSource] = (),
    identity: Fingerprint | None = None,
    sink: KVStore | None = None,
    suspends: bool = True,
) -> Scheduler:
    """Make a scheduler for this capacity.

    Args:
        make: makes the scheduler.
        kv_event_queue, sources, identity, sink: as of the scheduler.
        suspends: whether the executor can suspend steps.
    """
    config = SchedulerConfig(
        capacity,
        rules.strategy,
        rules.lanes,
        token_budget=rules.token_budget,
        end_token_ids=end_token_ids,
        stop_text=stop_text,
        prefix_caching=settings.enable_prefix_caching,
        watermark=settings.watermark,
        allocation=scheduling.kv_allocation,
        preemption=scheduling.preemption,
        predictor=rules.predictor,
        reports_ends=scheduling.probes_lengths,
        latency=rules.latency,
        admission=rules.admission,
        lane_floor=scheduling.lane_floor,
        speculation=speculation,
        longest_chunk=UNBOUNDED if capacity.encoder_only else longest_chunk(scheduling, rules.token_budget),
        kv_event_queue=kv_event_queue,
        sources=sources,
        identity=identity,
        sink=sink,
        host_is_tier=settings.kv_cache_host is not None,
        session_eviction=settings.kv_eviction == "sessions",
        prefill_suspension=scheduling.prefill_suspension if suspends else 0.0,
    )
    return make(config)


def make_speculation(
    drafter: Drafter | ExecutorDrafter, scheduling: SchedulingSettings, rules: Rules, vocab_size: int
) -> Speculation:
    """Make the speculation that uses this drafter where drafts measurably pay. A failing drafter is not used again."""
    if not isinstance(drafter, ExecutorDrafter):
        drafter = guard_drafter(drafter, vocab_size, report_failure)
    return SpeculationController(drafter, rules.latency, scheduling.max_drafts)


def longest_chunk(scheduling: SchedulingSettings, token_budget: int) -> int:
    """Return the maximum tokens of one sequence in a step; unbounded for plugins."""
    entry = STRATEGIES.get(scheduling.strategy)
    return token_budget if entry is not None and entry.bounded_by == "tokens" else UNBOUNDED


def scheduler_for(
    capacity: Capacity,
    settings: EngineSettings,
    scheduling: SchedulingSettings,
    make: Callable[[SchedulerConfig], Scheduler] = Scheduler,
    drafter: Drafter | ExecutorDrafter | None = None,
    sources: Sequence[KVSource] = (),
    identity: Fingerprint | None = None,
    sink: KVStore | None = None,
) -> Scheduler:
    """Make a scheduler where the capacity is known beforehand. sources, identity, sink: as of the scheduler; blocks
    that are exported by an identity are also loaded by it."""
    if identity is not None:
        sources = (*sources, PeerSource(ExportLayout.of(capacity), identity))
    rules = make_rules(scheduling, budget(settings, scheduling), capacity.max_model_len, capacity.max_rows)
    speculation = None if drafter is None else make_speculation(drafter, scheduling, rules, capacity.vocab_size)
    return make_scheduler(
        capacity,
        rules,
        settings,
        scheduling,
        make=make,
        speculation=speculation,
        sources=sources,
        identity=identity,
        sink=sink,
    )


def budget(settings: EngineSettings, scheduling: SchedulingSettings) -> int:
    """Return the maximum tokens of a step (of a forward pass, where the strategy has no budget), as `build` resolves
    it for the device that the settings name."""
    on_gpu = settings.device.startswith("cuda")
    rows = int(resolve_rows(settings, on_gpu).value)
    return int(resolve_budget(settings, rows, scheduling.strategy, on_gpu).value)
