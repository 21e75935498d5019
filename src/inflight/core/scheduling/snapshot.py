"""Counts of the engine at one moment, for those who watch it. Knows whom to ask; changes nothing."""

from __future__ import annotations

from dataclasses import dataclass

from inflight.core.adapters import AdapterSlots
from inflight.core.estimation.output_length import PredictionError
from inflight.core.scheduling.state import SchedulerState
from inflight.core.speculation.speculation import SpeculationStats
from inflight.core.types.kv_transfer import FolderStats, KVExportStats, TierStats
from inflight.core.types.sampling import GrammarStats
from inflight.core.types.timings import ADAPTER, KV


@dataclass(frozen=True, slots=True)
class LaneCounts:
    """One lane at one moment, in sequences: a request with n samples counts n times.

    stands_for: what its queue stands still for: one of QUEUE_REASONS, or "other" (the step under way).
    running: rows that it holds. compiling: whose grammar is being compiled, before the scheduler hears of them; the
    bridge adds them, and they are none of the waiting. loading: of the waiting those whose adapter is not there.
    fetching: of the waiting those of whose prefix more is on its way from a tier or a peer.
    """

    name: str
    waiting: int
    stands_for: str
    running: int
    compiling: int = 0
    loading: int = 0
    fetching: int = 0


@dataclass(frozen=True, slots=True)
class AdapterCounts:
    """held: the adapters that are there, and the requests that hold each. wanted: names of those that requests wait
    for. loads: since the engine began."""

    slots: int
    held: tuple[tuple[str, int], ...]
    wanted: tuple[str, ...]
    loads: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Counts at one moment. Blocks: held + free + idle (cached, unheld) = all.

    held_slots: token slots of the held blocks; used_slots: those of them whose keys and values are computed. Shared
    blocks count once. held_host_blocks: in use on the host, for swapped_sequences that are to come back.
    Since the engine began: preemptions, of these swap_preemptions (blocks kept on the host while there is room), tokens
    recomputed after preemptions, and tokens of newcomers that were looked up and found in the prefix cache.
    predictions: of output lengths, at arrival, against how the ended sequences turned out.

    Of a model with recurrent state: used_state_snapshots slots that are not free; since the engine began, state_hits
    rows that began from a snapshot, and state_missed_tokens that were computed again for want of one, though their
    blocks were found.

    speculation: what it did since the engine began; None where there is none, or none that counts. grammars: what they
    took, which the engine's loop adds; None where nothing is bound to any. adapters: None where there are no slots.
    tiers: None where there are neither tiers nor peers. folder: what lies there, and handed_over: to peers, which the
    engine's loop adds; None where there is none.
    """

    step: int
    waiting: int
    running: int
    held_blocks: int
    free_blocks: int
    idle_blocks: int
    preemptions: int
    held_slots: int
    used_slots: int
    lanes: tuple[LaneCounts, ...]
    held_host_blocks: int
    swapped_sequences: int
    swap_preemptions: int
    recomputed_tokens: int
    prefix_queries: int
    prefix_hits: int
    predictions: PredictionError
    used_state_snapshots: int
    state_hits: int
    state_missed_tokens: int
    speculation: SpeculationStats | None = None
    grammars: GrammarStats | None = None
    adapters: AdapterCounts | None = None
    tiers: TierStats | None = None
    folder: FolderStats | None = None
    handed_over: KVExportStats | None = None

    @property
    def compiling(self) -> int:
        """Sequences that wait for a grammar."""
        return sum(lane.compiling for lane in self.lanes)


def take_snapshot(
    step: int, state: SchedulerState, predictions: PredictionError, speculation: SpeculationStats | None
) -> Snapshot:
    """step: the next plan's number."""
    lanes, counts, sequences = state.lanes, state.counts, state.running.sequences
    kv = state.memory.stats(sequences)
    return Snapshot(
        step=step,
        waiting=len(lanes),
        running=len(sequences),
        held_blocks=kv.held_blocks,
        free_blocks=kv.free_blocks,
        idle_blocks=kv.evictable_blocks,
        preemptions=counts.preemptions,
        held_slots=kv.held_slots,
        used_slots=kv.used_slots,
        lanes=tuple(
            LaneCounts(
                lane.settings.name,
                len(lane.queue),
                lane.clock.reason,
                lane.running,
                loading=lane.queue.deferred(ADAPTER),
                fetching=lane.queue.deferred(KV),
            )
            for lane in lanes.all()
        ),
        held_host_blocks=kv.used_host_blocks,
        swapped_sequences=kv.swapped_sequences,
        swap_preemptions=counts.swap_preemptions,
        recomputed_tokens=counts.recomputed_tokens,
        prefix_queries=counts.prefix_queries,
        prefix_hits=counts.prefix_hits,
        predictions=predictions,
        used_state_snapshots=kv.used_checkpoints,
        state_hits=kv.checkpoint_hits,
        state_missed_tokens=kv.checkpoint_missed_tokens,
        speculation=speculation,
        adapters=_adapters(state.adapters),
        tiers=kv.tiers,
    )


def _adapters(slots: AdapterSlots) -> AdapterCounts | None:
    if not len(slots):
        return None
    held = tuple((adapter.name, requests) for adapter, requests in slots.loaded)
    return AdapterCounts(len(slots), held, tuple(one.name for one in slots.wanted), slots.loads)
