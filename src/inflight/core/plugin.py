"""One guard for all plugins: strategies, policies, predictors and drafters that are not ours.

A plugin must never end the engine: its methods are called until one raises or answers nonsense. Then one sentence is
reported, and a fallback answers instead. `plugin_checks` has what each kind of plugin may answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")
Report = Callable[[str], None]
Checks = Mapping[str, Callable[..., Any]]
NO_CHECKS: Checks = {}
MAX_TEXT = 300  # characters of a plugin's name or error in the sentence


class NoProgress(Exception):
    """Valid answers by which no work gets done. The text continues "The policy 'x' …"."""


class Plugin:
    """Call a plugin's methods until one fails, and those of its fallback from then on.

    `name` is the plugin's; other public attributes, unless they are in `checks`, are the fallback's.
    """

    def __init__(
        self, kind: str, plugin: Any, successor: str, report: Report, fallback: Any = None, checks: Checks = NO_CHECKS
    ):
        """Guard a plugin.

        Args:
            kind: "strategy", "policy", "predictor" or "drafter".
            plugin: The object whose methods may do anything.
            successor: The fallback's name in the sentence.
            report: Receives the sentence, once.
            fallback: Has all methods in `checks`.
            checks: For each method a function of the plugin and the method's arguments. It calls the method and returns
                the answer to use, or raises.
        """
        self.failed = False
        self.name = _text(lambda: getattr(plugin, "name", type(plugin).__name__))
        self._kind, self._plugin, self._successor, self._report = kind, plugin, successor, report
        self._fallback = fallback
        for method, check in checks.items():
            setattr(self, method, partial(self._call, method, check))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._fallback, name)

    def ask(self, what: str, question: Callable[[], T]) -> T | None:
        """Return the answer to a question to the plugin; None where that has failed, now or before."""
        if self.failed:
            return None
        try:
            return question()
        except BaseException as error:
            self._fail(what, error)
            return None

    def _call(self, method: str, check: Callable[..., Any], *arguments: Any) -> Any:
        if not self.failed:
            try:
                return check(self._plugin, *arguments)
            except BaseException as error:
                self._fail(method, error)
        return getattr(self._fallback, method)(*arguments)

    def _fail(self, what: str, error: BaseException) -> None:
        """Hand over to the fallback; `sys.exit` in a plugin, or a panic of its native code, must not end the engine."""
        if isinstance(error, KeyboardInterrupt):
            raise error  # the user's, not the plugin's
        how = _text(partial(str, error))
        if not isinstance(error, NoProgress):
            how = f"failed in {what} ({type(error).__name__}: {how})"
        self.failed = True
        self._report(f"The {self._kind} {self.name!r} {how}; {self._successor} has taken over.")


def check_whole_number(value: object, minimum: int, maximum: int, what: str) -> None:
    """Raise TypeError or ValueError unless a value is an integer within bounds; `what` names it."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{what} must be a whole number, not {value!r}")
    if not minimum <= value <= maximum:
        raise ValueError(f"{what} is {value}; it must be from {minimum} to {maximum}")


def check_finite_number(value: object, what: str) -> None:
    """Raise TypeError or ValueError unless a value is a finite number; `what` names it."""
    if not isinstance(value, int | float):
        raise TypeError(f"{what} must be a number, not {value!r}")
    if not math.isfinite(value):
        raise ValueError(f"{what} is {value}; it must be a finite number")


def _text(make: Callable[[], object]) -> str:
    """Return a plugin's name or error as one line; making it may fail, too."""
    try:
        return " ".join(str(make()).split())[:MAX_TEXT]
    except Exception:
        return "it cannot say what"
