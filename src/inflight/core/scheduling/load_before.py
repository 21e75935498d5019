"""The work before a newcomer, by which admission predicts the time to its first token."""

from __future__ import annotations

from inflight.core.queueing.admission import Load
from inflight.core.scheduling.config import SchedulerConfig
from inflight.core.scheduling.state import SchedulerState
from inflight.core.types.request import Request


def load_before(request: Request, state: SchedulerState, config: SchedulerConfig) -> Load:
    """Return the work before a newcomer: of its own lane, and of those that come before it."""
    before, capacity = state.lanes.before(request.lane), config.capacity
    waiting = [one for lane in before for one in lane.queue.everyone()]
    served = [one for one in state.running.sequences if one.finish is None and state.lanes.of(one) in before]
    queued_tokens = sum(lane.queue.backlog.total.tokens for lane in before)
    return Load(
        ahead=len(waiting),
        prompt_tokens=queued_tokens + sum(one.num_uncomputed for one in served if one.num_uncomputed > 1),
        remaining=[max(1.0, one.predicted - len(one.output)) for one in served],
        remaining_ahead=[max(1.0, one.predicted - len(one.output)) for one in waiting],
        free_rows=capacity.max_rows - len(served),
        rows=capacity.max_rows,
        budget=min(config.token_budget, capacity.max_model_len),
        context=sum(one.num_computed for one in served) / max(1, len(served)),
    )
