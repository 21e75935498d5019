"""Options: what a strategy lets its users set, declared where it is defined.

Knows names, kinds, limits and words of help. The command line, configuration files, `LLM(...)` and records know them
from these declarations, so that a new strategy with options is its file and a line in the registry.
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
    """A value that an option cannot have. name: the option's. why: a sentence that goes on behind its name."""

    def __init__(self, name: str, why: str):
        super().__init__(f"{name} {why}")
        self.name, self.why = name, why


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Option(Generic[T]):
    """name: as in Python; `--its-name` on the command line. kind: of the values that users write. default: None where
    it follows from something else, which the help says. read: from what was written to what is meant; raises ValueError
    with a sentence that goes on behind the option's name. unset: what is in force, and why, where nothing is set."""

    name: str
    kind: type[int] | type[float] | type[str]
    help: str
    default: T
    read: Callable[[Value], T]
    unset: tuple[Value, str] | None = None


@dataclass(frozen=True, slots=True)
class OptionValues:
    """What was set, by name; a value is looked up by its option."""

    given: Mapping[str, Value] = field(default_factory=dict)

    def __getitem__(self, option: Option[T]) -> T:
        """Raises BadOption."""
        value = self.given.get(option.name)
        if value is None:
            return option.default
        try:
            check_kind(value, option.kind)
            return option.read(value)
        except ValueError as error:
            raise BadOption(option.name, str(error)) from None


def above_zero(value: Value, most: float) -> Value:
    """Raises ValueError."""
    if not 0 < value <= most:  # type: ignore[operator]  # of its kind, and so a number
        raise ValueError(f"is {value}; give a number above 0, at most {most:,.0f}.")
    return value


def count(name: str, help: str) -> Option[int | None]:
    """A whole number above 0."""
    return Option(name=name, kind=int, help=help, default=None, read=lambda value: int(above_zero(value, UNBOUNDED)))


def seconds(name: str, help: str, default: float) -> Option[float]:
    """Above 0, at most a day."""
    return Option(name=name, kind=float, help=help, default=default, read=lambda value: float(above_zero(value, DAY)))


def check_kind(value: object, kind: type) -> None:
    """kind: int, float, str or Mapping. Raises ValueError with a sentence that goes on behind a name."""
    types, words = _KINDS[kind]
    if not isinstance(value, types) or isinstance(value, bool):
        raise ValueError(f"is {value!r}; give {words}.")


_KINDS: dict[type, tuple[type, str]] = {
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    str: (str, "a word"),
    Mapping: (Mapping, "a table of names and values"),
}
