"""What each step computed and took: one column per quantity, an entry per step."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

from inflight.report.steps.step_function import StepFunction


def _floats() -> array[float]:
    return array("d")


def _counts() -> array[int]:
    return array("q")


@dataclass(slots=True)
class StepSeries:
    """began: when the step could begin: its plan, or the end of the step before it where that was later (depth 2).
    ended: its commit. Both in seconds on the engine's clock. seconds: as the executor measured it.

    Token slots: prompt (first computed), recomputed (computed before a preemption), decode, padding.
    rows: sequences with a row; served: of these, with a chunk. allocated, used: KV token slots, shared ones once.
    """

    began: array[float] = field(default_factory=_floats)
    ended: array[float] = field(default_factory=_floats)
    seconds: array[float] = field(default_factory=_floats)
    prompt: array[int] = field(default_factory=_counts)
    recomputed: array[int] = field(default_factory=_counts)
    decode: array[int] = field(default_factory=_counts)
    padding: array[int] = field(default_factory=_counts)
    rows: array[int] = field(default_factory=_counts)
    served: array[int] = field(default_factory=_counts)
    allocated: array[int] = field(default_factory=_counts)
    used: array[int] = field(default_factory=_counts)
    held_blocks: array[int] = field(default_factory=_counts)
    moved_out: int = 0  # blocks copied to the host
    moved_back: int = 0
    failed: int = 0  # steps that broke

    def __len__(self) -> int:
        return len(self.ended)

    @property
    def start(self) -> float:
        return self.began[0]

    @property
    def end(self) -> float:
        return self.ended[-1]

    @property
    def busy(self) -> float:
        """Seconds in which a step was under way."""
        return sum(end - start for start, end in zip(self.began, self.ended, strict=True))

    def tokens(self, index: int) -> int:
        """Token slots of a step, padding included."""
        return self.prompt[index] + self.recomputed[index] + self.decode[index] + self.padding[index]

    def over_time(self, value: Callable[[int], float]) -> StepFunction:
        """value(index of a step), as long as the step lasts; zero while none runs."""
        function = StepFunction()
        for index in range(len(self)):
            function.set(self.began[index], value(index))
            if index + 1 == len(self) or self.began[index + 1] > self.ended[index]:
                function.set(self.ended[index], 0.0)
        return function
