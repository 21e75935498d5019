"""Make a strategy, a predictor, and lanes with their policies from settings: ours by name, plugins by their path.

A plugin is a class at `package.module:Class`. It runs under a guard, which replaces it when it fails.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from inflight.config.plugin_guards import guard_policy, guard_predictor, guard_strategy
from inflight.config.scheduling import SchedulingSettings
from inflight.config.setting import SettingsError, one_of, option
from inflight.core.estimation.latency import LatencyModel
from inflight.core.estimation.output_length import Predictor
from inflight.core.estimation.registry import PREDICTORS, QUANTILES
from inflight.core.options import BadOption
from inflight.core.policies import Policy, PolicyContext
from inflight.core.policies.fcfs import Fcfs
from inflight.core.policies.registry import POLICIES
from inflight.core.queueing.lanes import LaneSettings
from inflight.core.strategies import Strategy, StrategyContext
from inflight.core.strategies.chunked import EARLY_END, Chunked
from inflight.core.strategies.registry import STRATEGIES


def make_strategy(settings: SchedulingSettings, context: StrategyContext) -> Strategy:
    """Make the strategy. Raises SettingsError."""
    name = settings.strategy
    if ":" in name:
        fallback = Chunked(context.token_budget, EARLY_END)
        return guard_strategy(_plugin("strategy", name, context.token_budget), fallback, report_failure)
    one_of("strategy", name, STRATEGIES, more="package.module:Class")
    try:
        return STRATEGIES[name].make(context, settings.options)
    except BadOption as error:
        raise SettingsError(f"{option(error.name)} {error.why}") from None


def make_policy(name: str, settings: SchedulingSettings, latency: LatencyModel) -> Policy:
    """Make the policy of this name. Raises SettingsError."""
    if ":" in name:
        return guard_policy(_plugin("policy", name), report_failure)
    one_of("policy", name, POLICIES, more="package.module:Class")
    return POLICIES[name].make(PolicyContext(settings.tenant_weights, latency))


def make_predictor(settings: SchedulingSettings) -> Predictor:
    """Make the predictor of output lengths. Raises SettingsError."""
    name = settings.predictor or QUANTILES.name
    if ":" in name:
        return guard_predictor(_plugin("predictor", name), report_failure)
    one_of("predictor", name, PREDICTORS, more="package.module:Class")
    return PREDICTORS[name].make()


def _plugin(kind: str, path: str, *arguments: Any) -> Any:
    """Make an object of the class at `package.module:Class`. Raises SettingsError."""
    module_name, _, class_name = path.partition(":")
    try:
        return getattr(importlib.import_module(module_name), class_name)(*arguments)
    except Exception as error:  # whatever a plugin's code raises
        raise SettingsError(
            f"--{kind} {path} cannot be loaded ({type(error).__name__}: {error}); write "
            "package.module:Class, with the package on PYTHONPATH."
        ) from None


def report_failure(sentence: str) -> None:
    print(f"inflight: {sentence}", file=sys.stderr)


_LANE_FIELDS = tuple(item.name for item in fields(LaneSettings) if item.name not in ("name", "policy"))


def make_lanes(settings: SchedulingSettings, latency: LatencyModel) -> tuple[LaneSettings, ...]:
    """Make `interactive`, `batch`, and the lanes that the settings name.

    A lane without a policy of its own has the engine's (the batch lane: fcfs). An ITL target that is set is the step
    target of background lanes that set none.
    """
    lanes = {
        "interactive": LaneSettings(name="interactive", policy=make_policy(settings.policy, settings, latency)),
        "batch": LaneSettings(name="batch", policy=Fcfs(), background=True),
    }
    itl_target = settings.options.given.get("itl_target")
    for name, given in settings.lanes.items():
        _check_lane(name, given, settings)
        chosen = dict(given)
        policy = chosen.pop("policy", None)
        base = lanes.get(name)
        if policy is not None or base is None:
            made = make_policy(policy or settings.policy, settings, latency)
            base = LaneSettings(name=name, policy=made) if base is None else replace(base, policy=made)
        lanes[name] = replace(base, **chosen)
    for name, lane in lanes.items():
        if itl_target is not None and lane.background and lane.step_target == "auto":
            lanes[name] = replace(lane, step_target=float(itl_target))
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
