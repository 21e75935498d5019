"""Configuration of a scheduler: what the executor offers, settings, plugins."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct, field

from inflight.core.estimation.latency import LatencyModel
from inflight.core.estimation.output_length import Predictor, Quantiles
from inflight.core.kv.block_tables import Allocation
from inflight.core.kv.checkpoint_spacing import CheckpointSpacing
from inflight.core.kv.connector import Fingerprint
from inflight.core.kv.prefix_cache import KVEventQueue
from inflight.core.policies import Policy
from inflight.core.policies.fcfs import Fcfs
from inflight.core.queueing.admission import Admission
from inflight.core.queueing.lanes import LaneSettings
from inflight.core.scheduling.running import PreemptionMode
from inflight.core.speculation.speculation import Speculation
from inflight.core.stopping import StopTextFactory
from inflight.core.strategies import Strategy
from inflight.core.types.kv_blocks import KVSource, KVStore
from inflight.core.types.plan import Capacity
from inflight.core.types.suspension import MIN_SUSPENDED
from inflight.counted import UNBOUNDED


class SchedulerConfig(Struct, frozen=True):
    """Settings and plugins of one scheduler.

    Attributes:
        capacity: What the executor offers.
        strategy: The shape of each step.
        lanes: Settings of each lane; or the policy of the interactive lane beside a batch lane.
        token_budget: Tokens of a step.
        end_token_ids: They end a sequence.
        stop_text: Makes the texts in which stop strings are looked for.
        prefix_caching: Whether requests find each other's prefixes.
        distinct_prompts: The caller guarantees that no two prompts have a block in common. Content of ended requests
            is not kept then; blocks are evicted in the same number and order as with content. Where two prompts have
            one in common after all, a hit is lost, never a token.
        watermark: Share of all blocks that stay available when a sequence joins others.
        allocation: How many blocks a sequence has at admission.
        preemption: What becomes of a preempted sequence's blocks.
        predictor: Of output lengths.
        reports_ends: Whether plans say which outputs have ended, for a probe that learns from them.
        latency: Of steps; learns from each.
        admission: Which requests may come in.
        lane_floor: Share of the steps' tokens that background lanes have while they have work.
        speculation: Which sequences have drafts.
        forces_tokens: Whether results may name tokens that alone may follow, by a grammar; these are drafted.
        longest_chunk: Tokens of one sequence that the strategy has computed in a step at most.
        spacing: Of checkpoints of recurrent state.
        kv_event_queue: Records changes of the prefix cache, for those who mirror it.
        sources: Of blocks beyond the device, where prefixes go on.
        sink: Stores blocks beyond the device.
        host_is_tier: Whether unwanted content is kept on the host, too.
        session_eviction: Whether blocks of the session that is worth least are evicted first.
        identity: Names blocks of prompts that are exported to other engines; None: none are.
        prefill_suspension: Share of a step's tokens that short prompts may have while it is suspended (`interim`); 0:
            none is. Suspended steps write no recurrent state, and no step is planned beside them (depth 1).
        min_suspended: Tokens of a prompt in a step from which it may be suspended.
    """

    capacity: Capacity
    strategy: Strategy
    lanes: Policy | Iterable[LaneSettings]
    token_budget: int = UNBOUNDED
    end_token_ids: frozenset[int] = frozenset()
    stop_text: StopTextFactory | None = None
    prefix_caching: bool = True
    distinct_prompts: bool = False
    watermark: float = 0.01
    allocation: Allocation = "paged"
    preemption: PreemptionMode = "recompute"
    predictor: Predictor = field(default_factory=Quantiles)
    reports_ends: bool = False
    latency: LatencyModel = field(default_factory=LatencyModel)
    admission: Admission | None = None
    lane_floor: float = 0.0
    speculation: Speculation | None = None
    forces_tokens: bool = True
    longest_chunk: int = UNBOUNDED
    spacing: CheckpointSpacing | None = None
    kv_event_queue: KVEventQueue | None = None
    sources: Iterable[KVSource] = ()
    sink: KVStore | None = None
    host_is_tier: bool = False
    session_eviction: bool = False
    identity: Fingerprint | None = None
    prefill_suspension: float = 0.0
    min_suspended: int = MIN_SUSPENDED

    def __post_init__(self) -> None:
        """Raise ValueError for end tokens outside of the vocabulary, for drafts of recurrent state, and for distinct
        prompts beside what reads the content of ended requests."""
        capacity = self.capacity
        if outside := sorted(one for one in self.end_token_ids if not 0 <= one < capacity.vocab_size):
            raise ValueError(f"end_token_ids names {outside}, but the vocabulary has {capacity.vocab_size} tokens")
        if self.speculation is not None and capacity.state_snapshots:
            raise ValueError(
                "this model's layers keep a recurrent state, which cannot be taken back behind drafts that were wrong "
                f"(its engine has {capacity.state_snapshots} snapshots of it, none for drafts); leave speculation off"
            )
        if self.distinct_prompts and (readers := self._readers_of_content()):
            raise ValueError(
                f"with distinct_prompts no content of ended requests is kept, but {', '.join(readers)} would read it; "
                "set distinct_prompts to False"
            )

    def lane_settings(self) -> tuple[LaneSettings, ...]:
        """Return the settings of each lane. The batch lane fills what the interactive one leaves, first come, first
        served."""
        if isinstance(self.lanes, Iterable):
            return tuple(self.lanes)
        return (
            LaneSettings(name="interactive", policy=self.lanes),
            LaneSettings(name="batch", policy=Fcfs(), background=True),
        )

    def _readers_of_content(self) -> list[str]:
        """Return the names of the fields that have cached content read, moved or valued."""
        names = ("kv_event_queue", "sources", "sink", "host_is_tier", "session_eviction", "identity")
        host = ["capacity.host_blocks"] if self.capacity.host_blocks else []
        return host + [name for name in names if getattr(self, name)]
