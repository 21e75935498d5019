"""The settings of one engine that planning chooses, with reasons, and the file for `inflight serve --config` of
them."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.config.setting import Resolved
from inflight.core.strategies.chunked import EARLY_END_TOKENS
from inflight.core.strategies.registry import STRATEGIES
from inflight.counted import counted

# Strategies that are bounded by count, and have no token budget.
TOGETHER = tuple(name for name, entry in STRATEGIES.items() if entry.bounded_by == "sequences")
# Strategies whose steps take prompts whole, however many tokens a forward pass has.
WHOLE_PROMPTS = tuple(name for name, entry in STRATEGIES.items() if entry.bounded_by == "prompts")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Settings of one engine. max_num_batched_tokens None: the strategy has no token budget. reasons: by option
    name."""

    max_num_seqs: int
    max_num_batched_tokens: int | None
    scheduling: SchedulingSettings = field(default_factory=SchedulingSettings)
    enable_prefix_caching: bool = True
    reasons: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        part = "pass" if self.strategy in WHOLE_PROMPTS else "step"
        budget = "" if self.max_num_batched_tokens is None else f", {self.max_num_batched_tokens:,} tokens a {part}"
        policy = "" if self.scheduling.policy == "fcfs" else f", {self.scheduling.policy}"
        end = f", ends from {tokens:,}" if (tokens := self.early_end_tokens) else ""
        return f"{self.scheduling.strategy}{policy}, {counted(self.max_num_seqs, 'sequence')}{budget}{end}"

    @property
    def strategy(self) -> str:
        return self.scheduling.strategy

    def step_tokens(self, max_model_len: int) -> int | None:
        """Return the tokens of a step at most: of whole prompts as many as the model takes; None: any number."""
        budget = self.max_num_batched_tokens
        return budget if budget is None or self.strategy not in WHOLE_PROMPTS else max(budget, max_model_len)

    @property
    def has_plugins(self) -> bool:
        """Return whether a policy, strategy or predictor is a class of another package."""
        named = self.scheduling
        return any(":" in one for one in (named.policy, named.strategy, named.predictor or ""))

    @property
    def early_end_tokens(self) -> int | None:
        """Return the setting; None where it is not set or the strategy does not use it."""
        value = self.scheduling.options.given.get(EARLY_END_TOKENS.name)
        return None if value is None else self.scheduling.options[EARLY_END_TOKENS]

    def engine_settings(self, max_model_len: int | None = None, device: str = "auto") -> EngineSettings:
        return EngineSettings(
            device=device,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_model_len=max_model_len,
            enable_prefix_caching=self.enable_prefix_caching,
        )

    def because(self, option: str, reason: str) -> EngineConfig:
        """Return the settings with this reason for an option."""
        return replace(self, reasons={**self.reasons, option: reason})

    def without_reasons(self) -> EngineConfig:
        return replace(self, reasons={})

    def options(self) -> dict[str, Resolved]:
        """Return the settings with their reasons by long option name, without those that have no effect."""
        values: dict[str, str | int | float | None] = {
            "strategy": self.strategy,
            "policy": self.scheduling.policy,
            "max-num-seqs": self.max_num_seqs,
            "max-num-batched-tokens": self.max_num_batched_tokens,
            "itl-target": self.scheduling.options.given.get("itl_target"),
            "early-end-tokens": self.early_end_tokens,
            "preemption": self.scheduling.preemption,
            "swap-space": self.scheduling.swap_space,
        }
        return {
            name: Resolved(value, self.reasons.get(name, "the default"))
            for name, value in values.items()
            if value is not None
        }


WIDTH = 118


def configuration(options: Mapping[str, Resolved], about: Iterable[str] = ()) -> str:
    """Return a TOML file of options by long name, with each reason as a comment. about: sentences for its top."""
    parts = [*map(_comment, about)]
    parts += [f"\n{_comment(one.reason)}\n{name} = {_value(one.value)}" for name, one in options.items()]
    return "\n".join(parts).strip("\n") + "\n"


def _value(value: str | int | float | bool) -> str:
    return json.dumps(value) if isinstance(value, str | bool) else repr(value)


def _comment(sentence: str) -> str:
    return textwrap.fill(
        sentence, WIDTH, initial_indent="# ", subsequent_indent="# ", break_long_words=False, break_on_hyphens=False
    )
