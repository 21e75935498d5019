"""What those that wait are waiting for, charged to each lane's account: the lack, and the lane that has most of it.

Knows who holds rows, blocks and a step's tokens; decides nothing. The accounts are `request_timings`.
"""

from __future__ import annotations

from collections.abc import Mapping

from inflight.core.queueing.lanes import Lane, Lanes
from inflight.core.request_timings import OTHER
from inflight.core.scheduling.running import Running


class WaitReasons:
    def __init__(self, lanes: Lanes, running: Running):
        self._lanes, self._running = lanes, running

    def charge(self, now: float, lacks: Mapping[str, str], prompt_tokens: Mapping[str, int]) -> None:
        """Whoever waits from now on waits for what the first in his lane lacks.

        lacks: by lane. prompt_tokens: of this step, by lane; where decodes fill it, who has most rows has most of it.
        """
        for lane in self._lanes.all():
            reason = lacks.get(lane.settings.name, OTHER) if len(lane.queue) else OTHER
            lane.clock.charge(now, reason, self._behind(lane, reason, prompt_tokens))

    def charge_all(self, now: float, reason: str) -> None:
        """Whoever waits from now on waits for this."""
        for lane in self._lanes.all():
            lane.clock.charge(now, reason, self._behind(lane, reason, {}))

    def _behind(self, lane: Lane, reason: str, prompt_tokens: Mapping[str, int]) -> str:
        """The lane that has most of what this one lacks: itself, where that is what it may have or none has more."""
        own, settings = lane.settings.name, lane.settings
        if reason == OTHER:
            return own  # it waits for nobody
        amounts: Mapping[str, int]
        if reason == "blocks":
            amounts = self._running.blocks_by_lane()
        elif reason in ("budget", "share") and any(prompt_tokens.values()):
            amounts = prompt_tokens
        else:
            amounts = {one.settings.name: one.running for one in self._lanes.all()}
        most = {"rows": settings.max_rows, "share": settings.max_tokens}.get(reason)
        if most is not None and amounts.get(own, 0) >= most:
            return own
        return max(self._lanes.names, key=lambda name: (amounts.get(name, 0), name == own))
