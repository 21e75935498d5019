"""All strategies by name. A new one is a file with its `ENTRY`, and a line here."""

from __future__ import annotations

from typing import Any

from inflight.core.options import Option
from inflight.core.strategies import StrategyEntry, adaptive, chunked, continuous, dynamic, slack, static

STRATEGIES: dict[str, StrategyEntry] = {
    module.ENTRY.name: module.ENTRY for module in (static, dynamic, continuous, chunked, adaptive, slack)
}
# Of all of them, each once: several may share one.
OPTIONS: dict[str, Option[Any]] = {option.name: option for entry in STRATEGIES.values() for option in entry.options}
