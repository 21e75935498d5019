"""What a rule says, and what it looks at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from inflight.metrics.summary import Summary, Trend
from inflight.report.engine_figures import EngineFigures


@dataclass(frozen=True, slots=True)
class Finding:
    """figures: what was seen, in words with numbers. cause: what that usually means. change: the setting to change and
    which way, with options by their long names; "" where nothing needs to change. weight: 3 first, 1 last."""

    title: str
    figures: str
    cause: str
    change: str
    weight: int = 2


@dataclass(frozen=True, slots=True)
class Evidence:
    """What rules look at: figures of one run, or means of several repeats.

    settings: values in force, by name as in the record ("strategy", "max_num_seqs", …).
    repeated_prompts: share of prompt tokens that an unbounded prefix cache would have found; None: not known.
    arrivals: whether TTFT grew from the first arrival to the last; the summary's own window may end long after that.
    tenant_ttft: mean seconds of each tenant that has enough requests."""

    summary: Summary
    engine: EngineFigures | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    longest_prompt: int = 0
    repeated_prompts: float | None = None
    tenant_ttft: Mapping[str, float] = field(default_factory=dict)
    arrivals: Trend | None = None

    @property
    def strategy(self) -> str:
        return str(self.settings.get("strategy", ""))

    @property
    def policy(self) -> str:
        return str(self.settings.get("policy", ""))
