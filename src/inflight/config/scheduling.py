"""Scheduling settings: strategy, policies, lanes, preemption, admission and speculation.

A setting that would have no effect is refused, because ignoring it would look like obeying it. Strategies declare their
own options (`core.strategies.registry`); `assembly` makes a scheduler of the settings.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Self

from inflight.config.setting import (
    Bound,
    Resolved,
    SettingsError,
    check_options,
    check_settings,
    declared_settings,
    option,
    setting,
    without_effect,
)
from inflight.config.speculation import DEFAULT, MAX_DRAFT_TOKENS, DraftSource, parse_speculation
from inflight.core.estimation.registry import PREDICTORS, QUANTILES
from inflight.core.options import DAY, OptionValues, check_kind
from inflight.core.policies.registry import POLICIES
from inflight.core.queueing.lanes import MAX_WEIGHT
from inflight.core.strategies import StrategyEntry
from inflight.core.strategies.registry import OPTIONS, STRATEGIES
from inflight.counted import UNBOUNDED

SUSPENDED = ("chunked", "adaptive", "continuous")  # strategies whose steps may be suspended
MAX_QUEUED = 1024  # requests that may wait under admission auto, when nothing else bounds them


def _up_to(maximum: float) -> Bound:
    return Bound(0, maximum, f"a number above 0, at most {maximum:,}", above=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingSettings:
    """Scheduling settings.

    Attributes:
        options: of the strategy, by their names.
        lanes: name → settings of that lane, as `[lanes.NAME]` in a configuration file.
    """

    strategy: str = setting("chunked", ", ".join(STRATEGIES) + ".", "Scheduling")
    options: OptionValues = field(default_factory=OptionValues)
    policy: str = setting("fcfs", ", ".join(POLICIES) + ".")
    predictor: str | None = setting(
        None, f"Output lengths for sjf and admission: {', '.join(PREDICTORS)} or package.module:Class."
    )
    probe_file: str | None = setting(
        None, "File that --predictor probe begins with, and in which it saves what it has learnt.", metavar="FILE"
    )
    tenant_weights: Mapping[str, float] = setting(
        {},
        "Weight of a tenant with --policy fair or program, where it is not 1; several times.",
        flags=("--tenant-weight",),
        metavar="NAME=W",
    )
    lane_floor: float = setting(
        0.05,
        "Minimum share of tokens the batch lane gets while it has work; 0: none guaranteed.",
        bound=Bound(0, 1, "a share of the steps' tokens from 0 (none) to below 1, such as 0.05", below=True),
    )
    prefill_suspension: float = setting(
        0.0,
        "Share of a step's tokens that short prompts may take within it, between two layers; 0: they wait for its end.",
        bound=Bound(0, 4, "a share of a step's tokens from 0 (no step is suspended) to 4"),
    )
    kv_allocation: Literal["paged", "expected-peak", "reserve-request", "reserve-max"] = setting(
        "paged", "paged, expected-peak, reserve-request, reserve-max."
    )
    preemption: Literal["recompute", "swap", "auto"] = setting("recompute", "recompute, swap or auto.")
    swap_space: float | None = setting(
        None, "GiB of host memory for preempted sequences, with --preemption swap or auto.", bound=_up_to(2**20)
    )
    admission: Literal["off", "queue", "slo", "auto"] = setting("off", "off, queue, slo or auto (both).")
    max_queued_requests: int | None = setting(
        None, "Maximum waiting requests, with --admission queue or auto.", bound=_up_to(UNBOUNDED)
    )
    max_queued_tokens: int | None = setting(
        None, "Maximum waiting tokens, with --admission queue or auto.", bound=_up_to(UNBOUNDED)
    )
    ttft_target: float | None = setting(
        None, "Seconds to the first token, above which --admission slo rejects requests.", bound=_up_to(DAY)
    )
    lanes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    speculation: str = setting(
        DEFAULT,
        "Speculative decoding with suffix, draft:MODEL, heads or heads:FOLDER, used where it is faster; auto; off.",
        metavar="FROM",
    )
    speculation_max_tokens: int | None = setting(
        None, "Maximum draft tokens of a sequence in a step.", bound=_up_to(MAX_DRAFT_TOKENS)
    )

    @classmethod
    def of(cls, **given: Any) -> Self:
        """Make settings and options of the strategy from names, as users write them. Raises SettingsError."""
        return cls(**_sorted(given, {}))

    def but(self, **given: Any) -> Self:
        """Return the settings with other values; None removes an option. Raises SettingsError."""
        return replace(self, **_sorted(given, self.options.given))

    def __post_init__(self) -> None:
        self._check_kinds()
        check_settings(self)
        declared = {name: entry.options for name, entry in STRATEGIES.items()}
        check_options("strategy", self.strategy, self.options, declared)
        for name, (other, values) in _MEANINGFUL_WITH.items():
            if getattr(self, name) and getattr(self, other) not in values:
                raise without_effect(name, other, str(getattr(self, other)), values)
        if self.predictor and not self.asks_predictor:
            raise SettingsError(
                f"--predictor has no effect with --policy {self.policy}, --admission off and --kv-allocation "
                f"{self.kv_allocation}; it goes with sjf, hrrn, admission control or expected-peak."
            )
        if self.probe_file is not None and not self.probes_lengths:
            raise SettingsError("--probe-file has no effect without --predictor probe, whose file it is; leave it out.")
        if self.entry is not None and self.entry.bounded_by == "sequences":
            self._refuse_what_reservation_makes_vain()
        for tenant, weight in self.tenant_weights.items():
            if not 0 < weight <= MAX_WEIGHT:
                raise SettingsError(
                    f"The tenant {tenant!r} has the weight {weight}; give a number above 0, at most {MAX_WEIGHT:,}."
                )
        if self.preemption != "recompute" and self.swap_space is None:
            raise SettingsError(f"--preemption {self.preemption} needs room: give --swap-space in GiB.")
        if self.admission == "queue" and self.max_queued_requests is None and self.max_queued_tokens is None:
            raise SettingsError("--admission queue needs a bound: give --max-queued-requests or --max-queued-tokens.")
        if self.draft_source.kind == "off" and self.speculation_max_tokens is not None:
            raise SettingsError(
                "--speculation-max-tokens has no effect with --speculation off; leave it out, or give --speculation "
                "auto."
            )

    def _check_kinds(self) -> None:
        """Check types, since values from Python or a file may have any. Raises SettingsError."""
        for one in declared_settings(type(self)):
            value = getattr(self, one.name)
            if value is not None or one.default is not None:
                _check_kind(option(one.name), value, one.kind)
        _check_kind("--lanes", self.lanes, Mapping)
        for tenant, weight in self.tenant_weights.items():
            _check_kind(f"The weight of the tenant {tenant!r}", weight, float)
        for name, lane in self.lanes.items():
            _check_kind(f"Lane {name!r}", lane, Mapping)
            if lane.get("policy") is not None:
                _check_kind(f"The policy of lane {name!r}", lane["policy"], str)

    def _refuse_what_reservation_makes_vain(self) -> None:
        if self.preemption != "recompute":
            raise SettingsError(
                f"--preemption {self.preemption} has no effect with --strategy {self.strategy}: a batch has its memory "
                "reserved to its end, so no sequence is preempted; leave it out, or choose --strategy chunked."
            )
        if self.kv_allocation == "reserve-request":
            raise SettingsError(
                f"--kv-allocation reserve-request has no effect with --strategy {self.strategy}, which reserves for "
                "the longest answer of each request anyway; leave it out."
            )

    def resolved(self) -> dict[str, Resolved]:
        """Return the values in force with their reasons, without those that are not set and have no default."""
        policy = POLICIES.get(self.policy)
        shown = {
            "strategy": Resolved(self.strategy, "as set" if self.entry is None else self.entry.reason),
            "policy": Resolved(self.policy, "as set" if policy is None else policy.reason),
        }
        shown |= {name: Resolved(value, "as set") for name, value in self.options.given.items()}
        for one in () if self.entry is None else self.entry.options:
            if one.unset is not None and one.name not in shown:
                shown[one.name] = Resolved(*one.unset)
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name != "options" and item.name not in shown and value not in (None, {}):
                plain = json.dumps(value, default=dict) if isinstance(value, Mapping) else value
                shown[item.name] = Resolved(plain, "the default" if value == item.default else "as set")
        if self.asks_predictor and self.predictor is None:
            shown["predictor"] = Resolved(QUANTILES.name, QUANTILES.reason)
        return shown

    def ending_early(self, tokens: int) -> Self:
        """Return them with so many `early_end_tokens`, where the strategy has a use for them and none are set."""
        known = self.entry is not None and OPTIONS["early_end_tokens"] in self.entry.options
        return self.but(early_end_tokens=tokens) if known and "early_end_tokens" not in self.options.given else self

    @property
    def draft_source(self) -> DraftSource:
        return parse_speculation(self.speculation)

    def drafting_from(self, source: DraftSource) -> Self:
        """Return them with drafts from this source; without drafts, their limit is dropped."""
        limit = None if source.kind == "off" else self.speculation_max_tokens
        return replace(self, speculation=str(source), speculation_max_tokens=limit)

    @property
    def max_drafts(self) -> int:
        """Maximum drafts of a sequence in a step, from the source in force."""
        return self.speculation_max_tokens or self.draft_source.default_tokens

    @property
    def entry(self) -> StrategyEntry | None:
        """The strategy's registry entry; None where it is a plugin, or unknown."""
        return STRATEGIES.get(self.strategy)

    @property
    def divides_prompts(self) -> bool:
        """Whether a step takes a part of a prompt; a plugin is taken to."""
        return self.entry is None or self.entry.bounded_by == "tokens"

    @property
    def asks_predictor(self) -> bool:
        """Whether admission control, memory, a policy or a plugin uses predicted output lengths."""
        return (
            self.admission != "off"
            or self.kv_allocation == "expected-peak"
            or any(":" in name or (name in POLICIES and POLICIES[name].asks_predictor) for name in self.policies)
        )

    @property
    def probes_lengths(self) -> bool:
        """Whether a probe of hidden states predicts output lengths."""
        return self.predictor in PREDICTORS and PREDICTORS[self.predictor].reads_states

    @property
    def policies(self) -> set[str]:
        """Names of the policies of all lanes."""
        return {self.policy, *(lane["policy"] for lane in self.lanes.values() if lane.get("policy"))}

    @property
    def weighs_tenants(self) -> bool:
        """Whether a policy that is in force uses tenants' weights."""
        return any(name in POLICIES and POLICIES[name].weighs_tenants for name in self.policies)

    @property
    def max_queued(self) -> int | None:
        """Maximum waiting sequences; None: admission does not limit their number."""
        if self.admission == "auto" and self.max_queued_requests is None and self.max_queued_tokens is None:
            return MAX_QUEUED
        return self.max_queued_requests


SCHEDULING_NAMES = {item.name for item in fields(SchedulingSettings)} - {"options"} | set(OPTIONS)
_MEANINGFUL_WITH = {
    "tenant_weights": ("policy", tuple(name for name, entry in POLICIES.items() if entry.weighs_tenants)),
    "swap_space": ("preemption", ("swap", "auto")),
    "max_queued_requests": ("admission", ("queue", "auto")),
    "max_queued_tokens": ("admission", ("queue", "auto")),
    "ttft_target": ("admission", ("slo",)),
    "prefill_suspension": ("strategy", SUSPENDED),
}


def _sorted(given: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Sort options into a field of their own, over those that there are."""
    chosen = {**options, **{name: value for name, value in given.items() if name in OPTIONS}}
    values = OptionValues({name: value for name, value in chosen.items() if value is not None})
    return {**{name: value for name, value in given.items() if name not in OPTIONS}, "options": values}


def _check_kind(what: str, value: object, kind: type) -> None:
    try:
        check_kind(value, kind)
    except ValueError as error:
        raise SettingsError(f"{what} {error}") from None
