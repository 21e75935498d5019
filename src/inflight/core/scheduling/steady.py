"""The steady case: every running sequence decodes and none can join, so that the last plan is advanced by a token each.

What the plan builder would do is the same to the bit; what it would look at for each sequence is looked at once.
"""

from __future__ import annotations

from inflight.core.kv.manager import KVCacheManager
from inflight.core.request_timings import OTHER
from inflight.core.scheduling.running import SteadyDecodes
from inflight.core.scheduling.state import SchedulerState
from inflight.core.scheduling.step import Step, decode_chunk
from inflight.core.sequence import Sequence
from inflight.core.strategies import StepShape
from inflight.core.types.plan import BatchPlan, Chunk
from inflight.counted import UNBOUNDED


def find_steady(state: SchedulerState, step: Step) -> SteadyDecodes | None:
    """Return the decodes of a step that the next one can repeat; None where it does more, or might have to."""
    sequences, memory = state.running.sequences, state.memory
    if step.new_requests or not sequences or len(step.chunks) != len(sequences) or step.budget < 0:
        return None
    lane = state.lanes.of(sequences[0])
    if lane.settings.background or not lane.queue.policy.steady or memory.has_windows or memory.has_state:
        return None
    if lane.running != len(sequences) or step.shape.admit is not None or step.shape.run_to_completion:
        return None
    steps = UNBOUNDED
    for sequence, chunk in zip(sequences, step.chunks, strict=True):
        if chunk.sequence_id != sequence.number or chunk.length != 1 or chunk.sample != 1 or chunk.pool:
            return None
        if sequence.finish is not None or sequence.preempt_pending or sequence.num_computed < sequence.recompute_until:
            return None
        if sequence.num_computed < len(sequence.prompt):
            return None
        steps = min(steps, sequence.max_output_tokens - len(sequence.output) - sequence.num_pending)
    return SteadyDecodes(list(sequences), lane, steps) if steps > 0 else None


def advance(state: SchedulerState, number: int, shape: StepShape, ahead: bool) -> BatchPlan | None:
    """Return the plan of a steady step; None where the plan builder has to look.

    Args:
        state: As the last plan left it, and commits since.
        number: Of the step.
        shape: As the strategy proposes it.
        ahead: Whether a step before it is still being computed.
    """
    running, memory, lanes = state.running, state.memory, state.lanes
    steady = running.steady
    if steady is None or not steady.steps_left:
        return None
    sequences, lane = steady.sequences, steady.lane
    rows = len(sequences)
    if shape.admit is not None or shape.run_to_completion or shape.token_budget < rows or shape.yields:
        return None
    if len(lanes) and (running.num_free_rows or lane.queue.preempts or memory.stores_before_reuse):
        return None  # a waiting sequence might join, or a block hold what one waits for
    for other in lanes.all():
        if other is not lane and other.busy:
            return None
    if state.prefix_loads.has_newcomers:
        return None
    speculation = state.speculation
    if speculation is not None:
        due = speculation.due(number)
        if due is None or due or (ahead and speculation.waits(number)):
            return None
    memory.begin_step(number)  # stores that begin now take evictable blocks; called twice, it begins them once
    if memory.num_available_blocks < rows or memory.is_storing:
        return None
    chunks = _decode(sequences, memory)
    steady.steps_left -= 1
    lane.served(1, rows)
    reason = "rows" if lane.queue.ready else OTHER
    lanes.charge_waiting({lane.settings.name: reason}, {}, running.blocks_by_lane)
    return BatchPlan(
        number,
        tuple(chunks),
        freed_rows=running.drain_freed_rows(),
        transfers=memory.finish_plan(),
        adapter_loads=state.adapters.take_loads(),
        early_sends=memory.early_sends(chunks, sequences),
    )


def _decode(sequences: list[Sequence], memory: KVCacheManager) -> list[Chunk]:
    """Advance each sequence by a token; return its chunks."""
    size, chunks = memory.block_size, []
    for one in sequences:
        new_blocks: tuple[int, ...] = ()
        if one.num_computed == len(one.blocks) * size:
            taken = memory.allocate(one, one.num_computed + 1)
            assert taken is not None, "blocks were available for all"
            new_blocks = taken
        chunks.append(decode_chunk(one, new_blocks, memory))
    return chunks
