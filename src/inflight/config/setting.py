"""Parts of every setting: its name on the command line, its resolved value with a reason, errors."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from inflight.core.options import BadOption, Option, OptionValues
from inflight.counted import did_you_mean

Declared = Mapping[str, tuple[Option[Any], ...]]  # options of each entry of a registry, by its name


class SettingsError(ValueError):
    """A setting is outside its limits, or two settings do not go together."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """A value in force, and the sentence that says why."""

    value: int | float | str | bool
    reason: str


def option(name: str) -> str:
    return "--" + name.replace("_", "-")


def one_of(name: str, value: str, known: Iterable[str], more: str = "") -> None:
    """Check that a value is known. more: other known forms. Raises SettingsError."""
    if value in (names := list(known)):
        return
    hint = did_you_mean(str(value), names)
    also = f", and {more}" if more else ""
    raise SettingsError(f"{option(name)} is {value!r}; known are {', '.join(names)}{also}.{hint}")


def without_effect(name: str, other: str, chosen: str, takers: Collection[str]) -> SettingsError:
    return SettingsError(
        f"{option(name)} has no effect with {option(other)} {chosen}; it goes with {' or '.join(takers)}."
    )


def check_options(what: str, chosen: str, values: OptionValues, declared: Declared) -> None:
    """Check options against those that the chosen entry declares. Raises SettingsError."""
    known = {one.name: one for options in declared.values() for one in options}
    for name, value in values.given.items():
        if known[name] not in declared.get(chosen, ()) and value:  # 0 is their default effect
            raise without_effect(name, what, chosen, [entry for entry in declared if known[name] in declared[entry]])
        try:
            values[known[name]]
        except BadOption as error:
            raise SettingsError(f"{option(error.name)} {error.why}") from None
