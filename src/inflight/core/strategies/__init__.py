"""Strategies: who may join the batch, when, and how many tokens of each are computed in a step.

A strategy proposes the shape of the next step from a read-only view; the plan builder fills it. It cannot take a row, a
block or a token by itself, and so cannot break an invariant. One file each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol

from msgspec import Struct

from inflight.core.estimation.latency import LatencyModel
from inflight.core.options import Option, OptionValues
from inflight.core.sequence import SequenceView
from inflight.core.types.features import Features
from inflight.core.types.plan import WaitUntil


class Queue(Protocol):
    """The waiting, read-only."""

    def __len__(self) -> int: ...

    def views(self) -> Iterable[SequenceView]:
        """All of them, in the order of their policy; sorts, so ask only when a decision needs it."""


class Foreground(Protocol):
    """Work of foreground lanes, read-only."""

    def begin(self) -> float:
        """Return when the step can begin: now, or when the steps in flight are expected to end. Seconds."""

    def running(self) -> list[SequenceView]:
        """Return the running sequences that may have tokens in the step, by rank."""

    def waiting(self, most: int) -> list[SequenceView]:
        """Return at most so many waiting sequences that may be served next, but for late ones."""

    def late(self) -> SequenceView | None:
        """Return the first of the waiting sequences that a shape has named as late."""


@dataclass(eq=False)
class StepView:
    """The engine as a strategy sees it before each step; read-only.

    Attributes:
        now: Seconds on the engine's clock.
        waiting: All waiting sequences.
        running: Number of sequences with a row.
        decodes: Counts `decoding` and `decode_context` when a strategy asks.
        max_rows: Sequences that can run at once.
        foreground: Sequences with their deadlines; None where a test has none.
    """

    now: float
    waiting: Queue
    running: int
    decodes: Callable[[], tuple[int, int]]
    max_rows: int
    foreground: Foreground | None = None

    @property
    def decoding(self) -> int:
        """Running sequences that need one token each."""
        return self._counted[0]

    @property
    def decode_context(self) -> int:
        """Tokens that these look back over, together."""
        return self._counted[1]

    @cached_property
    def _counted(self) -> tuple[int, int]:
        return self.decodes()


class StepShape(Struct, frozen=True):
    """The step that a strategy proposes.

    Attributes:
        token_budget: Most tokens computed by the step.
        row_limit: Most sequences running at once.
        whole_prompts: A prompt is computed in one step or not at all; one that is longer than the budget is the only
            prompt of its step (the decodes beside it still run).
        admit: Numbers of the waiting sequences that may join now, in order, each with the other samples of its request;
            None: any may. Set together with run_to_completion.
        run_to_completion: Request-level batching. The sequences that join now stay to the last: prompts are padded to
            the longest, ended rows are computed as padding, memory is reserved for the longest possible output, and
            outputs are delivered at the end.
        early_end: Once a foreground prompt is complete, other prompts fill the step only up to so many tokens, because
            its first token waits for the step's end; 0: up to the budget.
        yields: Numbers of decodes that are ahead of their deadlines, the nearest deadline first: they have what
            prompts leave of the budget.
        behind: Numbers of decodes that are too late for their deadlines: they alone have drafts, where there are any.
        late: Numbers of sequences without a first token, running or waiting, that come after all others; a waiting one
            stays there.
        on_time: Numbers of waiting sequences that are late no more.
    """

    token_budget: int
    row_limit: int
    whole_prompts: bool = False
    admit: tuple[int, ...] | None = None
    run_to_completion: bool = False
    early_end: int = 0
    yields: tuple[int, ...] = ()
    behind: frozenset[int] = frozenset()
    late: frozenset[int] = frozenset()
    on_time: frozenset[int] = frozenset()


class Strategy(Protocol):
    name: str

    def shape(self, view: StepView) -> StepShape | WaitUntil: ...

    def observe(self, features: Features, seconds: float) -> None:
        """Learn from a step: its features, and how long it took."""


class Fixed:
    """A strategy that learns nothing from the steps it shaped."""

    def observe(self, features: Features, seconds: float) -> None:
        """Do nothing."""


class StrategyContext(Struct, frozen=True):
    """Settings of an engine that a strategy is made for.

    Attributes:
        token_budget: Of a step, where it is bounded by tokens at all.
        max_model_len: Tokens of a sequence.
        max_rows: Sequences that run at once.
        latency: The scheduler's model of step time.
    """

    token_budget: int
    max_model_len: int
    max_rows: int
    latency: LatencyModel


class StrategyEntry(Struct, frozen=True, kw_only=True):
    """A strategy by its name (`registry`). reason: what it does, shown where it is chosen. make: raises BadOption.

    bounded_by: what a step of it is bounded by. "sequences": batches run to completion, and their memory is reserved.
    unused_lane_settings: those that it has no use for; unused_because: why.
    """

    name: str
    reason: str
    make: Callable[[StrategyContext, OptionValues], Strategy]
    options: tuple[Option[Any], ...] = ()
    bounded_by: Literal["tokens", "prompts", "sequences"] = "tokens"
    unused_lane_settings: tuple[str, ...] = ()
    unused_because: str = ""
