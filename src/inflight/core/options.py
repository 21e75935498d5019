"""Options of strategies and routers, declared where these are defined.

The command line, configuration files, `LLM(...)` and records read these declarations, so that a new strategy with
options is its file and a line in the registry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Generic, TypeVar

from inflight.counted import UNBOUNDED

Value = int | float | str
T = TypeVar("T")

DAY = 86_400.0  # seconds


class BadOption(ValueError):
    """An option's value is wrong. name: the option's. why: a sentence that continues after its name."""

    def __init__(self, name: str, why: str):
        super().__init__(f"{name} {why}")
        self.name, self.why = name, why


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Option(Generic[T]):
    """Declaration of an option."""

    name: str  # as in Python; `--its-name` on the command line
    kind: type[int] | type[float] | type[str]  # of the values that users write
    help: str
    default: T  # None if it follows from something else, which the help says
    read: Callable[[Value], T]  # raises ValueError with a sentence that continues after the option's name
    unset: tuple[Value, str] | None = None  # value and reason that are reported if it is not set


@dataclass(frozen=True, slots=True)
class OptionValues:
    """Options that were set, by name; a value is looked up by its option."""

    given: Mapping[str, Value] = field(default_factory=dict)

    def __getitem__(self, option: Option[T]) -> T:
        """Return the value of an option, or its default.

        Raises:
            BadOption: The value is wrong.
        """
        value = self.given.get(option.name)
        if value is None:
            return option.default
        try:
            check_kind(value, option.kind)
            return option.read(value)
        except ValueError as error:
            raise BadOption(option.name, str(error)) from None


def above_zero(value: Value, maximum: float) -> Value:
    """Return the value; raise ValueError unless it is above 0 and within the maximum."""
    if not 0 < value <= maximum:  # type: ignore[operator]  # of its kind, and so a number
        raise ValueError(f"is {value}; give a number above 0, at most {maximum:,.0f}.")
    return value


def count(name: str, help: str) -> Option[int | None]:
    """Declare an option that is a whole number above 0."""
    return Option(name=name, kind=int, help=help, default=None, read=lambda value: int(above_zero(value, UNBOUNDED)))


def seconds(name: str, help: str, default: float) -> Option[float]:
    """Declare an option that is a time above 0, at most a day."""
    return Option(name=name, kind=float, help=help, default=default, read=lambda value: float(above_zero(value, DAY)))


def check_kind(value: object, kind: type) -> None:
    """Raise ValueError, whose text continues after a name, unless a value is an int, float, str or Mapping."""
    types, words = _KINDS[kind]
    if not isinstance(value, types) or isinstance(value, bool):
        raise ValueError(f"is {value!r}; give {words}.")


_KINDS: dict[type, tuple[type, str]] = {
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    str: (str, "a word"),
    Mapping: (Mapping, "a table of names and values"),
}
