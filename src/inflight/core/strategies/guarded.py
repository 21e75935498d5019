"""A guard around a strategy that is not ours: what it answers is a shape that can be filled, or another takes over.

Knows what a shape may hold; a strategy that puts work off for ever counts as failed.
"""

from __future__ import annotations

from collections.abc import Callable

from inflight.core.plugin import Plugin, check_finite_number, check_whole_number
from inflight.core.strategies import UNLIMITED, StepShape, StepView, Strategy
from inflight.core.types.features import Features
from inflight.core.types.plan import WaitUntil

LONGEST_WAIT = 86_400.0  # seconds
MOST_WAITS = 100  # one after the other, each to the end that it named, before something is served


class Guarded:
    def __init__(self, strategy: Strategy, fallback: Strategy, report: Callable[[str], None]):
        """report: told once, in a sentence, when the strategy failed. fallback: decides from then on."""
        self._plugin = Plugin("strategy", strategy, fallback.name, report)
        self.name = self._plugin.name
        self._strategy = strategy
        self._fallback = fallback
        self._wait: WaitUntil | None = None  # its last answer, if it was that
        self._waits = 0

    def shape(self, view: StepView) -> StepShape | WaitUntil:
        shape = self._plugin.ask("shape", lambda: self._checked(self._strategy.shape(view), view))
        return self._fallback.shape(view) if shape is None else shape

    def observe(self, features: Features, seconds: float) -> None:
        self._wait, self._waits = None, 0
        self._plugin.ask("observe", lambda: self._strategy.observe(features, seconds))

    def _checked(self, shape: StepShape | WaitUntil, view: StepView) -> StepShape | WaitUntil:
        if isinstance(shape, WaitUntil):
            return self._checked_wait(shape, view.now)
        if not isinstance(shape, StepShape):
            raise TypeError(f"a shape must be a StepShape or WaitUntil, not {shape!r}")
        check_whole_number(shape.token_budget, 1, UNLIMITED, "token_budget")
        check_whole_number(shape.row_limit, 1, UNLIMITED, "row_limit")
        check_whole_number(shape.early_end, 0, UNLIMITED, "early_end")
        if not isinstance(shape.whole_prompts, bool) or not isinstance(shape.run_to_completion, bool):
            raise TypeError(f"whole_prompts and run_to_completion must be True or False, and the shape is {shape!r}")
        if shape.run_to_completion != (shape.admit is not None) or shape.run_to_completion > shape.whole_prompts:
            raise ValueError("run_to_completion goes with admit and whole_prompts, and admit with run_to_completion")
        if shape.admit is not None:
            _check_admitted(shape.admit, view)
        return shape

    def _checked_wait(self, wait: WaitUntil, now: float) -> WaitUntil:
        check_finite_number(wait.time, "the time of WaitUntil")
        if not now < wait.time <= now + LONGEST_WAIT:
            raise ValueError(
                f"it waits until {wait.time} s, and it is {now} s; it may wait for at most {LONGEST_WAIT:.0f} s"
            )
        if self._wait is not None and now >= self._wait.time:
            self._waits += 1
            if self._waits >= MOST_WAITS:
                raise ValueError(f"it has put the work off {self._waits} times, and nothing was served meanwhile")
        self._wait = wait
        return wait


def _check_admitted(admit: tuple[int, ...], view: StepView) -> None:
    """Numbers of sequences that wait, each once; some, where a batch is to begin."""
    if not isinstance(admit, tuple):
        raise TypeError(f"admit must be a tuple of numbers or None, not {admit!r}")
    for number in admit:
        check_whole_number(number, 0, UNLIMITED, "a number in admit")
    waiting = {one.number for one in view.waiting.views()}
    if len(set(admit)) < len(admit):
        raise ValueError(f"admit names a sequence twice: {list(admit[:20])}")
    if unknown := [number for number in admit if number not in waiting]:
        raise ValueError(f"admit names {unknown[0]}, which does not wait")
    if waiting and not admit and not view.running:
        raise ValueError(f"admit names nobody, though nothing runs and {len(waiting)} wait")
