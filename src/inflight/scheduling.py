"""From scheduling settings to the objects of core: strategy, lanes with their policies, predictor, admission.

Knows the names that users may write and which settings mean something together; a setting that would have no effect is
refused, because ignoring it would look like obeying it. A policy or strategy of somebody else's is named by its place,
`package.module:Class`.
"""

from __future__ import annotations

import difflib
import importlib
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from numbers import Integral, Real
from typing import Any

from inflight.config import MOST, Resolved, SettingsError, option
from inflight.core.estimation.guarded import Guarded as GuardedPredictor
from inflight.core.estimation.latency import LatencyModel
from inflight.core.estimation.output_length import Oracle, Predictor, Quantiles
from inflight.core.policies import Policy
from inflight.core.policies.deadline import Deadline
from inflight.core.policies.fair import Fair
from inflight.core.policies.fcfs import Fcfs
from inflight.core.policies.guarded import Guarded as GuardedPolicy
from inflight.core.policies.prefix import Prefix
from inflight.core.policies.priority import Priority
from inflight.core.policies.sjf import Sjf
from inflight.core.queueing.admission import Admission
from inflight.core.queueing.lanes import HEAVIEST, LaneSettings
from inflight.core.strategies import Strategy
from inflight.core.strategies.adaptive import Adaptive
from inflight.core.strategies.chunked import Chunked
from inflight.core.strategies.continuous import Continuous
from inflight.core.strategies.dynamic import SEEN, Dynamic
from inflight.core.strategies.guarded import Guarded as GuardedStrategy
from inflight.core.strategies.static import Static
from inflight.core.tenants.shares import Shares

LANE_FLOOR = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingSettings:
    """What a user may set about scheduling. None: not set. Seconds, tokens, requests, GiB.

    early_end_tokens: a step that completes a prompt ends with it once it holds so many tokens; 0: it is filled.
    lane_floor: share of the steps' tokens that background lanes have while they have work, whatever comes; 0: none.
    lanes: name → settings of that lane, as `[lanes.NAME]` in a configuration file. tenant_weights: shares that are not
    1, under the policy fair.
    """

    strategy: str = "chunked"
    batch_size: int | None = None
    max_wait: float | None = None
    window: float | None = None
    buckets: str | None = None
    itl_target: float | None = None
    early_end_tokens: int | None = None
    policy: str = "fcfs"
    predictor: str | None = None
    tenant_weights: Mapping[str, float] = field(default_factory=dict)
    kv_allocation: str = "paged"
    preemption: str = "recompute"
    swap_space: float | None = None
    admission: str = "off"
    max_queued_requests: int | None = None
    max_queued_tokens: int | None = None
    ttft_target: float | None = None
    lane_floor: float = LANE_FLOOR
    lanes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._check_kinds()
        _one_of("kv_allocation", self.kv_allocation, ("paged", "reserve-request", "reserve-max"))
        _one_of("preemption", self.preemption, ("recompute", "swap", "auto"))
        _one_of("admission", self.admission, ("off", "queue", "slo", "auto"))
        for name, (other, values) in _MEANINGFUL_WITH.items():
            if getattr(self, name) and getattr(self, other) not in values:
                raise SettingsError(
                    f"{option(name)} has no effect with {option(other)} {getattr(self, other)}; it goes with "
                    f"{' or '.join(values)}."
                )
        policies = self.policies
        if self.predictor and "sjf" not in policies and self.admission == "off":
            raise SettingsError(
                f"--predictor has no effect with --policy {self.policy} and --admission off; it goes with sjf or with "
                "admission control."
            )
        if self.strategy in _TOGETHER:
            self._refuse_what_reservation_makes_vain()
        for name, most in _MOST.items():
            value = getattr(self, name)
            if value is not None and not 0 < value <= most:
                raise SettingsError(f"{option(name)} is {value}; give a number above 0, at most {most:,}.")
        for tenant, weight in self.tenant_weights.items():
            if not 0 < weight <= HEAVIEST:
                raise SettingsError(
                    f"The tenant {tenant!r} has the weight {weight}; give a number above 0, at most {HEAVIEST:,}."
                )
        if self.early_end_tokens is not None and not 0 <= self.early_end_tokens <= MOST:
            raise SettingsError(
                f"--early-end-tokens is {self.early_end_tokens}; give a whole number from 0 (never) to {MOST:,}."
            )
        if not 0 <= self.lane_floor < 1:
            raise SettingsError(
                f"--lane-floor is {self.lane_floor}; give a share of the steps' tokens from 0 (none) to below 1, "
                f"such as {LANE_FLOOR}."
            )
        if self.preemption != "recompute" and self.swap_space is None:
            raise SettingsError(f"--preemption {self.preemption} needs room: give --swap-space in GiB.")
        if self.admission == "queue" and self.max_queued_requests is None and self.max_queued_tokens is None:
            raise SettingsError("--admission queue needs a bound: give --max-queued-requests or --max-queued-tokens.")

    def _check_kinds(self) -> None:
        """What comes from Python or from a file may be of any type."""
        for item in fields(self):
            value, (kind, *_) = getattr(self, item.name), str(item.type).replace("[", " ").split()
            if value is not None or "None" not in str(item.type):
                _check_kind(option(item.name), value, kind)
        for tenant, weight in self.tenant_weights.items():
            _check_kind(f"The weight of the tenant {tenant!r}", weight, "float")
        for name, lane in self.lanes.items():
            _check_kind(f"Lane {name!r}", lane, "Mapping")
            if lane.get("policy") is not None:
                _check_kind(f"The policy of lane {name!r}", lane["policy"], "str")

    def _refuse_what_reservation_makes_vain(self) -> None:
        if self.preemption != "recompute":
            raise SettingsError(
                f"--preemption {self.preemption} has no effect with --strategy {self.strategy}: a batch has its memory "
                "reserved to its end, so that nobody is preempted; leave it out, or choose --strategy chunked."
            )
        if self.kv_allocation == "reserve-request":
            raise SettingsError(
                f"--kv-allocation reserve-request has no effect with --strategy {self.strategy}, which reserves for "
                "the longest answer of each request anyway; leave it out."
            )

    def resolved(self) -> dict[str, Resolved]:
        """What is in force, with its reason; what is not set and has no default is left out."""
        shown = {"strategy": Resolved(self.strategy, _WHY.get(self.strategy, "as set"))}
        shown["policy"] = Resolved(self.policy, _WHY.get(self.policy, "as set"))
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name not in shown and value not in (None, {}):
                is_default = value == item.default
                shown[item.name] = Resolved(
                    json.dumps(value, default=dict) if isinstance(value, Mapping) else value, _why(is_default)
                )
        if self.strategy in _PIECEMEAL and self.early_end_tokens is None:
            shown["early_end_tokens"] = Resolved(EARLY_END, _WHY_EARLY_END)
        if self.asks_predictor and self.predictor is None:
            shown["predictor"] = Resolved("quantiles", "of the output lengths seen so far")
        return shown

    def ending_early(self, tokens: int) -> SchedulingSettings:
        """With so many `early_end_tokens`, where the strategy has a use for them and none are set."""
        if self.strategy not in _PIECEMEAL or self.early_end_tokens is not None:
            return self
        return replace(self, early_end_tokens=tokens)

    @property
    def asks_predictor(self) -> bool:
        """Whether sjf, admission control or a stranger's policy wants to know how long answers will be."""
        return self.admission != "off" or any(name == "sjf" or ":" in (name or "") for name in self.policies)

    @property
    def policies(self) -> set[str | None]:
        """Names that are in force anywhere; None is a lane's that has the engine's."""
        return {self.policy, *(lane.get("policy") for lane in self.lanes.values())}


_KINDS: dict[str, tuple[type, str]] = {
    "int": (Integral, "a whole number"),
    "float": (Real, "a number"),
    "str": (str, "a word"),
    "Mapping": (Mapping, "a table of names and values"),
}
_WHY = {
    "static": "a batch starts when nothing runs and ends with its last sequence",
    "dynamic": "static batches of one length bucket each",
    "continuous": "anyone joins at any step, with the whole prompt",
    "chunked": "decodes first, the rest of each step goes to prompts",
    "adaptive": "as chunked, with the budget set each step to hold the ITL target",
    "fcfs": "first come, first served",
    "sjf": "shortest predicted remaining work first, with ageing",
    "priority": "the lower number first, with ageing",
    "fair": "the tenant that was served least first",
    "deadline": "least slack to its target first",
    "prefix": "longest cached prefix first, with ageing",
}
_MEANINGFUL_WITH = {
    "batch_size": ("strategy", ("static", "dynamic")),
    "max_wait": ("strategy", ("static",)),
    "window": ("strategy", ("dynamic",)),
    "buckets": ("strategy", ("dynamic",)),
    "itl_target": ("strategy", ("adaptive",)),
    "early_end_tokens": ("strategy", ("chunked", "adaptive")),
    "tenant_weights": ("policy", ("fair",)),
    "swap_space": ("preemption", ("swap", "auto")),
    "max_queued_requests": ("admission", ("queue", "auto")),
    "max_queued_tokens": ("admission", ("queue", "auto")),
    "ttft_target": ("admission", ("slo",)),
}
DAY = 86_400
_MOST = {  # of settings that are above 0, in their units
    **dict.fromkeys(("batch_size", "max_queued_requests", "max_queued_tokens"), MOST),
    **dict.fromkeys(("max_wait", "window", "itl_target", "ttft_target"), DAY),
    "swap_space": 2**20,
}
MAX_QUEUED = 1024  # requests that may wait under admission auto, when nothing else bounds them
EARLY_END = 32
_WHY_EARLY_END = (
    "tokens from which a step that completes a prompt ends with it: the cores are busy by then, and pieces of other "
    "prompts would keep its first token back"
)
_TOGETHER = ("static", "dynamic")
_PIECEMEAL = ("chunked", "adaptive")
_STRATEGIES = ("static", "dynamic", "continuous", "chunked", "adaptive")
_POLICIES = ("fcfs", "sjf", "priority", "fair", "deadline", "prefix")
_VAIN_IN_LANES = {  # settings of a lane that a strategy has no use for, and why
    **dict.fromkeys(
        _TOGETHER,
        (
            ("min_rows", "max_rows", "min_tokens", "max_tokens", "chunk", "step_target"),
            "a batch takes whoever is first, with the whole prompt, and nobody joins until it ends",
        ),
    ),
    "continuous": (("chunk",), "prompts are computed whole"),
}
_LANE_FIELDS = tuple(item.name for item in fields(LaneSettings) if item.name not in ("name", "policy"))


def make_strategy(
    settings: SchedulingSettings, token_budget: int, max_model_len: int, max_rows: int, latency: LatencyModel
) -> Strategy:
    """token_budget: most tokens of a step, where the strategy is bounded by tokens at all."""
    name = settings.strategy
    early_end = EARLY_END if settings.early_end_tokens is None else settings.early_end_tokens
    if ":" in name:
        return GuardedStrategy(_stranger("strategy", name, token_budget), Chunked(token_budget, early_end), _tell)
    _one_of("strategy", name, _STRATEGIES, more="package.module:Class")
    batch_size = settings.batch_size or max_rows
    if batch_size > max_rows:
        raise SettingsError(
            f"--batch-size is {batch_size}, but {max_rows} sequences may run at once; raise --max-num-seqs to match."
        )
    if name == "static":
        return Static(batch_size, 0.05 if settings.max_wait is None else settings.max_wait)
    if name == "dynamic":
        return Dynamic(batch_size, 0.05 if settings.window is None else settings.window, _buckets(settings.buckets))
    if name == "continuous":
        # As systems without chunked prefill must: the budget has room for any prompt.
        return Continuous(max(token_budget, max_model_len))
    if name == "adaptive":
        target = 0.2 if settings.itl_target is None else settings.itl_target
        return Adaptive(token_budget, target, latency, early_end)
    return Chunked(token_budget, early_end)


def make_lanes(settings: SchedulingSettings, latency: LatencyModel) -> tuple[LaneSettings, ...]:
    """`interactive` and `batch`, and those that the settings name. A lane without a policy of its own has the engine's
    (the batch lane: fcfs)."""
    lanes = {
        "interactive": LaneSettings(name="interactive", policy=make_policy(settings.policy, settings, latency)),
        "batch": LaneSettings(name="batch", policy=Fcfs(), background=True),
    }
    for name, given in settings.lanes.items():
        _check_lane(name, given, settings.strategy)
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


def _check_lane(name: str, given: Mapping[str, Any], strategy: str) -> None:
    vain, why = _VAIN_IN_LANES.get(strategy, ((), ""))
    for key in given:
        if key != "policy" and key not in _LANE_FIELDS:
            raise SettingsError(f"Lane {name!r} has the setting {key!r}; known are policy, {', '.join(_LANE_FIELDS)}.")
        if key in vain:
            raise SettingsError(
                f"Lane {name!r} has {key}, which has no effect with --strategy {strategy}: {why}; leave it out."
            )


def make_policy(name: str, settings: SchedulingSettings, latency: LatencyModel) -> Policy:
    if ":" in name:
        return GuardedPolicy(_stranger("policy", name), _tell)
    _one_of("policy", name, _POLICIES, more="package.module:Class")
    if name == "fair":
        return Fair(settings.tenant_weights)
    if name == "deadline":
        return Deadline(latency)
    simple: dict[str, Callable[[], Policy]] = {"fcfs": Fcfs, "sjf": Sjf, "priority": Priority, "prefix": Prefix}
    return simple[name]()


def make_predictor(settings: SchedulingSettings) -> Predictor:
    name = settings.predictor or "quantiles"
    if ":" in name:
        return GuardedPredictor(_stranger("predictor", name), _tell)
    _one_of("predictor", name, ("quantiles", "oracle"), more="package.module:Class")
    return Oracle() if name == "oracle" else Quantiles()


def most_queued(settings: SchedulingSettings) -> int | None:
    """Sequences that may wait at once, by the bound in force; None: admission does not bound their number."""
    if settings.admission == "auto" and settings.max_queued_requests is None and settings.max_queued_tokens is None:
        return MAX_QUEUED
    return settings.max_queued_requests


def make_admission(settings: SchedulingSettings, latency: LatencyModel) -> Admission:
    return Admission(
        settings.admission,  # type: ignore[arg-type]  # checked when the settings were made
        latency,
        most_queued(settings),
        settings.max_queued_tokens,
        settings.ttft_target,
        Shares(settings.tenant_weights) if "fair" in settings.policies else None,
    )


def _why(is_default: bool) -> str:
    return "the default" if is_default else "as set"


def _tell(sentence: str) -> None:
    print(f"inflight: {sentence}", file=sys.stderr)


def _buckets(given: str | None) -> int | tuple[int, ...]:
    """ "4" keeps four buckets about equally full; "64,256" are borders in prompt tokens."""
    if given is None:
        return 4
    try:
        numbers = tuple(int(part) for part in given.split(","))
    except ValueError:
        numbers = ()
    if not numbers or list(numbers) != sorted(set(numbers)) or numbers[0] < 1:
        raise SettingsError(
            f"--buckets is {given!r}; give how many, such as 4, or rising borders, such as 64,256,1024."
        )
    count = numbers[0] if len(numbers) == 1 else len(numbers) + 1
    if count > SEEN:
        raise SettingsError(
            f"--buckets asks for {count} buckets, but their borders follow the last {SEEN} prompts; give fewer."
        )
    return numbers[0] if len(numbers) == 1 else numbers


def _stranger(kind: str, place: str, *arguments: Any) -> Any:
    """One of the class at `package.module:Class`."""
    module_name, _, class_name = place.partition(":")
    try:
        return getattr(importlib.import_module(module_name), class_name)(*arguments)
    except Exception as error:  # whatever a stranger's code raises
        raise SettingsError(
            f"--{kind} {place} cannot be loaded ({type(error).__name__}: {error}); write "
            "package.module:Class, with the package on PYTHONPATH."
        ) from None


def _check_kind(what: str, value: object, kind: str) -> None:
    types, words = _KINDS[kind]
    if not isinstance(value, types) or isinstance(value, bool):
        raise SettingsError(f"{what} is {value!r}; give {words}.")


def _one_of(name: str, value: str, known: tuple[str, ...], more: str = "") -> None:
    if value in known:
        return
    near = difflib.get_close_matches(value, known, 1)
    hint = f" Did you mean {near[0]}?" if near else ""
    also = f", and {more}" if more else ""
    raise SettingsError(f"{option(name)} is {value!r}; known are {', '.join(known)}{also}.{hint}")
