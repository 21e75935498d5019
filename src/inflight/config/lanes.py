"""From scheduling settings to lanes, each with its policy.

Knows which settings of a lane mean something under which strategy; what lanes do, `core.queueing.lanes` knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from inflight.config.plugins import make_policy
from inflight.config.scheduling import SchedulingSettings
from inflight.config.setting import SettingsError
from inflight.core.estimation.latency import LatencyModel
from inflight.core.policies.fcfs import Fcfs
from inflight.core.queueing.lanes import LaneSettings

_LANE_FIELDS = tuple(item.name for item in fields(LaneSettings) if item.name not in ("name", "policy"))


def make_lanes(settings: SchedulingSettings, latency: LatencyModel) -> tuple[LaneSettings, ...]:
    """`interactive` and `batch`, and those that the settings name. A lane without a policy of its own has the engine's
    (the batch lane: fcfs)."""
    lanes = {
        "interactive": LaneSettings(name="interactive", policy=make_policy(settings.policy, settings, latency)),
        "batch": LaneSettings(name="batch", policy=Fcfs(), background=True),
    }
    for name, given in settings.lanes.items():
        _check_lane(name, given, settings)
        chosen = dict(given)
        policy = chosen.pop("policy", None)
        base = lanes.get(name)
        if policy is not None or base is None:
            made = make_policy(policy or settings.policy, settings, latency)
            base = LaneSettings(name=name, policy=made) if base is None else replace(base, policy=made)
        lanes[name] = replace(base, **chosen)
    for name, given in settings.lanes.items():
        kind = lanes[name].background
        if "weight" in given and sum(lane.background == kind for lane in lanes.values()) == 1:
            raise SettingsError(
                f"Lane {name!r} has a weight, but no other {'background' if kind else 'foreground'} lane to share "
                "steps with, so that it has no effect; leave it out."
            )
    return tuple(lanes.values())


def _check_lane(name: str, given: Mapping[str, Any], settings: SchedulingSettings) -> None:
    entry = settings.entry
    for key in given:
        if key != "policy" and key not in _LANE_FIELDS:
            raise SettingsError(f"Lane {name!r} has the setting {key!r}; known are policy, {', '.join(_LANE_FIELDS)}.")
        if entry is not None and key in entry.unused_lane_settings:
            raise SettingsError(
                f"Lane {name!r} has {key}, which has no effect with --strategy {entry.name}: {entry.unused_because}; "
                "leave it out."
            )
