"""The settings of one engine that planning chooses, with the reason of each; and the configuration file that holds them
by their long option names, as `inflight serve --config FILE.toml` reads it, the reasons as comments beside them.

Knows the engine's and the scheduler's settings by their names, and TOML's strings; not how good settings are.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.config.setting import Resolved
from inflight.core.strategies.chunked import EARLY_END_TOKENS
from inflight.core.strategies.registry import STRATEGIES

# Strategies that are bounded by count, and have no token budget.
TOGETHER = tuple(name for name, entry in STRATEGIES.items() if entry.bounded_by == "sequences")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """max_num_batched_tokens None: the strategy has no use for one. reasons: by option name, in words."""

    max_num_seqs: int
    max_num_batched_tokens: int | None
    scheduling: SchedulingSettings = field(default_factory=SchedulingSettings)
    enable_prefix_caching: bool = True
    reasons: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        budget = "" if self.max_num_batched_tokens is None else f", {self.max_num_batched_tokens:,} tokens a step"
        policy = "" if self.scheduling.policy == "fcfs" else f", {self.scheduling.policy}"
        end = f", ends from {tokens:,}" if (tokens := self.early_end_tokens) else ""
        return f"{self.scheduling.strategy}{policy}, {self.max_num_seqs:,} sequences{budget}{end}"

    @property
    def strategy(self) -> str:
        return self.scheduling.strategy

    @property
    def early_end_tokens(self) -> int | None:
        """As set; None: not set, or of no use to the strategy."""
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
        return replace(self, reasons={**self.reasons, option: reason})

    def options(self) -> dict[str, Resolved]:
        """By long option name: what a configuration file would hold. What has no say is left out."""
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
    """about: sentences for the top of the file."""
    parts = [_comment(sentence) for sentence in about]
    parts += [["", *_comment(one.reason), f"{name} = {_value(one.value)}"] for name, one in options.items()]
    return "\n".join(itertools.chain(*parts)).strip("\n") + "\n"


def _value(value: str | int | float | bool) -> str:
    return json.dumps(value) if isinstance(value, str | bool) else repr(value)


def _comment(sentence: str) -> list[str]:
    lines, line = [], "#"
    for word in sentence.split():
        if len(line) + 1 + len(word) > WIDTH and line != "#":
            lines.append(line)
            line = "#"
        line += " " + word
    return [*lines, line]
