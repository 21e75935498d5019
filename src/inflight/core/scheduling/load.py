"""What stands before a newcomer, as admission asks it: of its own lane, and of those that come before it."""

from __future__ import annotations

from inflight.core.queueing.admission import Load
from inflight.core.queueing.lanes import Lanes
from inflight.core.scheduling.running import Running
from inflight.core.types.plan import Capacity
from inflight.core.types.request import Request


def load_before(request: Request, lanes: Lanes, running: Running, capacity: Capacity, token_budget: int) -> Load:
    """token_budget: tokens of a step."""
    before = lanes.before(request.lane)
    waiting = [one for other in before for one in other.queue.everyone()]
    served = [one for one in running.sequences if one.finish is None and lanes.of(one) in before]
    queued_tokens = sum(lane.queue.backlog.total.tokens for lane in before)
    return Load(
        ahead=len(waiting),
        prompt_tokens=queued_tokens + sum(one.num_uncomputed for one in served if one.num_uncomputed > 1),
        remaining=[max(1.0, one.predicted - len(one.output)) for one in served],
        remaining_ahead=[max(1.0, one.predicted - len(one.output)) for one in waiting],
        free_rows=capacity.max_rows - len(served),
        rows=capacity.max_rows,
        budget=min(token_budget, capacity.max_model_len),
        context=sum(one.num_computed for one in served) / max(1, len(served)),
    )
