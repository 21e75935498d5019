"""The gate that requests with a grammar come through: what cannot be compiled is refused, the rest is ready.

Knows what the loop and the bridge ask of it; what compiles, and where, execution knows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from inflight.core.types.grammar import Grammar
from inflight.core.types.grammar_stats import GrammarStats


class Preparation(Protocol):
    def cancel(self) -> None:
        """Stop compiling what no other request waits for; harmless afterwards."""


class GrammarGate(Protocol):
    def warm_up(self) -> None:
        """Begin with what every grammar needs, before the first has come."""

    def prepare(self, grammars: Sequence[Grammar], then: Callable[[], None], tenant: str = "") -> Preparation | None:
        """Compile them beside the engine, and call `then`, in any thread, when that is done, whatever came of it.

        Returns None where it was done before, and `then` is not called. tenant: with whom these take turns. Raises
        RequestRefused where too many wait.
        """

    def check(self, grammar: Grammar) -> None:
        """Raises RequestRefused. Waits for what was not prepared."""

    def stats(self) -> GrammarStats: ...
