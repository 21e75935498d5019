"""A plugin: somebody else's strategy, policy or predictor, asked until it fails; then one of ours answers for it.

Knows that whatever it raises must not stop the engine, and that one sentence says so; not what its answers mean. These
are checked where they are asked for, inside of the question, so that nonsense counts as failure.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TypeVar

T = TypeVar("T")
LONGEST = 300  # characters of its own words in the sentence


class Plugin:
    def __init__(self, kind: str, plugin: object, successor: str, report: Callable[[str], None]):
        """kind: "strategy" and so on. successor: who answers afterwards. report: is given the sentence, once."""
        self.failed = False
        self.name = _words(lambda: getattr(plugin, "name", type(plugin).__name__))
        self._kind = kind
        self._successor = successor
        self._report = report

    def ask(self, what: str, question: Callable[[], T]) -> T | None:
        """None: it has failed, now or before."""
        if self.failed:
            return None
        try:
            return question()
        except KeyboardInterrupt:
            raise  # it is not the plugin's
        except BaseException as fault:  # `sys.exit` in a plugin, or a panic of its native code, must not end the engine
            self.fail(f"failed in {what} ({type(fault).__name__}: {_words(partial(str, fault))})")
            return None

    def fail(self, how: str) -> None:
        self.failed = True
        self._report(f"The {self._kind} {self.name!r} {how}; {self._successor} has taken over.")


def check_whole_number(value: object, least: int, most: int, what: str) -> None:
    """Raises TypeError or ValueError."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{what} must be a whole number, not {value!r}")
    if not least <= value <= most:
        raise ValueError(f"{what} is {value}; it must be from {least} to {most}")


def check_finite_number(value: object, what: str) -> None:
    """Raises TypeError or ValueError."""
    if not isinstance(value, int | float):
        raise TypeError(f"{what} must be a number, not {value!r}")
    if not math.isfinite(value):
        raise ValueError(f"{what} is {value}; it must be a finite number")


def _words(said: Callable[[], object]) -> str:
    """Somebody else's name or error as text, which may fail as well."""
    try:
        return " ".join(str(said()).split())[:LONGEST]
    except Exception:
        return "it cannot say what"
