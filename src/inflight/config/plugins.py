"""From a name to a strategy, a policy or a predictor: one of ours by its entry, or somebody else's class by its place.

A class at `package.module:Class` is not ours: it runs under a guard, and is replaced when it fails.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from inflight.config.scheduling import SchedulingSettings
from inflight.config.setting import SettingsError, one_of, option
from inflight.core.estimation.guarded import Guarded as GuardedPredictor
from inflight.core.estimation.latency import LatencyModel
from inflight.core.estimation.output_length import PREDICTORS, QUANTILES, Predictor
from inflight.core.options import BadOption
from inflight.core.policies import Policy, PolicyContext
from inflight.core.policies.guarded import Guarded as GuardedPolicy
from inflight.core.policies.registry import POLICIES
from inflight.core.strategies import Strategy, StrategyContext
from inflight.core.strategies.chunked import EARLY_END, Chunked
from inflight.core.strategies.guarded import Guarded as GuardedStrategy
from inflight.core.strategies.registry import STRATEGIES


def make_strategy(settings: SchedulingSettings, context: StrategyContext) -> Strategy:
    """Raises SettingsError."""
    name = settings.strategy
    if ":" in name:
        fallback = Chunked(context.token_budget, EARLY_END)
        return GuardedStrategy(_plugin("strategy", name, context.token_budget), fallback, _report)
    one_of("strategy", name, STRATEGIES, more="package.module:Class")
    try:
        return STRATEGIES[name].make(context, settings.options)
    except BadOption as error:
        raise SettingsError(f"{option(error.name)} {error.why}") from None


def make_policy(name: str, settings: SchedulingSettings, latency: LatencyModel) -> Policy:
    """Raises SettingsError."""
    if ":" in name:
        return GuardedPolicy(_plugin("policy", name), _report)
    one_of("policy", name, POLICIES, more="package.module:Class")
    return POLICIES[name].make(PolicyContext(settings.tenant_weights, latency))


def make_predictor(settings: SchedulingSettings) -> Predictor:
    """Raises SettingsError."""
    name = settings.predictor or QUANTILES.name
    if ":" in name:
        return GuardedPredictor(_plugin("predictor", name), _report)
    one_of("predictor", name, PREDICTORS, more="package.module:Class")
    return PREDICTORS[name].make()


def _plugin(kind: str, place: str, *arguments: Any) -> Any:
    """One of the class at `package.module:Class`."""
    module_name, _, class_name = place.partition(":")
    try:
        return getattr(importlib.import_module(module_name), class_name)(*arguments)
    except Exception as error:  # whatever a plugin's code raises
        raise SettingsError(
            f"--{kind} {place} cannot be loaded ({type(error).__name__}: {error}); write "
            "package.module:Class, with the package on PYTHONPATH."
        ) from None


def _report(sentence: str) -> None:
    print(f"inflight: {sentence}", file=sys.stderr)
