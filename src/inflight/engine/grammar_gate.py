"""The gate that requests with a grammar come through: what cannot be compiled is refused, the rest is ready.

Knows what the loop and the bridge ask of it; what compiles, and where, execution knows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from inflight.core.types.sampling import Grammar, GrammarStats


class Preparation(Protocol):
    @property
    def is_ready(self) -> bool:
        """Whether all is done, whatever came of it."""

    def cancel(self) -> None:
        """Stop compiling what no other request waits for, and keep nothing for these; harmless afterwards."""


class GrammarGate(Protocol):
    def warm_up(self) -> None:
        """Begin with what every grammar needs, before the first has come."""

    def prepare(self, grammars: Sequence[Grammar], then: Callable[[], None], tenant: str = "") -> Preparation:
        """Compile them beside the engine, and call `then`, in any thread, when that is done, whatever came of it.

        Where it was done before, the preparation is ready, and `then` is not called. What came of it is kept until the
        preparation is cancelled, so that `check` need not wait. tenant: with whom these take turns. Raises
        RequestRefused where too many wait.
        """

    def check(self, grammar: Grammar) -> None:
        """Raises RequestRefused. Waits for what was not prepared."""

    def stats(self) -> GrammarStats: ...
