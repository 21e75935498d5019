"""The gate that requests with a grammar come through: what cannot be compiled is refused, the rest is ready.

Knows what the loop and the bridge ask of it; what compiles, and where, execution knows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from inflight.core.types.grammar import Grammar
from inflight.core.types.grammar_stats import GrammarStats


class GrammarGate(Protocol):
    def warm_up(self) -> None:
        """Begins with what every grammar needs, before the first has come."""

    def prepare(self, grammars: Sequence[Grammar], then: Callable[[], None]) -> bool:
        """Compiles them beside the engine, and calls `then`, in any thread, when that is done, whatever came of it.
        False: it was done before, and nobody is called."""

    def check(self, grammar: Grammar) -> None:
        """Raises RequestRefused. Waits for what was not prepared."""

    def stats(self) -> GrammarStats: ...
