"""Declare settings: help, bounds and how users write them stand on the field; all checks have one form of sentence."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from numbers import Integral, Real
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from inflight.core.options import BadOption, Option, OptionValues
from inflight.counted import did_you_mean

T = TypeVar("T")
PathKind = Literal["any", "file", "folder", "present", "present file", "present folder"]
_KEY = "setting"  # in a field's metadata

Declared = Mapping[str, tuple[Option[Any], ...]]  # options of each entry of a registry, by its name


class SettingsError(ValueError):
    """A setting is outside its limits, or two settings do not go together."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Bounds of a number.

    Attributes:
        give: continues the sentence "--name is 0; give ".
        above, below: whether the lower, the upper bound is excluded.
        unit: shown behind a wrong value.
    """

    low: float
    high: float
    give: str
    above: bool = False
    below: bool = False
    whole: bool = False
    unit: str = ""

    def check(self, name: str, value: object) -> None:
        """Check a value. Raises SettingsError."""
        if not isinstance(value, Integral if self.whole else Real):
            give = f"a number of {self.unit}" if self.unit else self.give
            raise SettingsError(f"{option(name)} is {value!r}; give {give}.")
        number: Any = value
        is_within = (self.low < number if self.above else self.low <= number) and (
            number < self.high if self.below else number <= self.high
        )
        if not is_within:
            is_whole = isinstance(number, float) and number.is_integer()
            shown = f"{number:g} {self.unit}" if self.unit else f"{int(number) if is_whole else number}"
            raise SettingsError(f"{option(name)} is {shown}; give {self.give}.")


def whole_number(low: int, high: int) -> Bound:
    return Bound(low, high, f"a whole number from {low:,} to {high:,}", whole=True)


def above_zero(what: str = "", unit: str = "") -> Bound:
    """Return the bound of a finite number above 0. what: names it in errors. unit: shown behind a wrong value."""
    return Bound(0, math.inf, f"{what}, above 0" if what else "a number above 0", above=True, below=True, unit=unit)


def at_least(low: int, what: str = "") -> Bound:
    """Return the bound of a finite number from `low` up. what: names it in errors."""
    return Bound(low, math.inf, f"{what}, from {low}" if what else f"a number from {low}", below=True)


@dataclass(frozen=True, slots=True)
class Setting:
    """How users give a setting; its name, type, choices and default are the field's.

    Attributes:
        group: title in --help of this setting and of those after it, to the next that has one.
        flags: names on the command line, where they are not --the-field's.
        text: reads one word of the command line.
        variable: an environment variable beside INFLIGHT_<LONG_NAME>, which it precedes.
        is_choice: the command line refuses other words than the annotation's; else the settings do.
        is_early: read before other options, which depend on it.
        is_secret: left out of the dataclass's repr and of printed settings.
    """

    help: str
    group: str = ""
    bound: Bound | None = None
    flags: tuple[str, ...] = ()
    metavar: str | None = None
    path: PathKind = "any"
    text: Callable[[str], Any] | None = None
    variable: str | None = None
    is_choice: bool = False
    is_early: bool = False
    is_secret: bool = False


def setting(
    default: T,
    help: str,
    group: str = "",
    *,
    bound: Bound | None = None,
    flags: tuple[str, ...] = (),
    metavar: str | None = None,
    path: PathKind = "any",
    text: Callable[[str], Any] | None = None,
    variable: str | None = None,
    is_choice: bool = False,
    is_early: bool = False,
    is_secret: bool = False,
) -> T:
    """Declare a setting as a field of a dataclass. default: the field's. Others: as of `Setting`."""
    one = Setting(help, group, bound, flags, metavar, path, text, variable, is_choice, is_early, is_secret)
    given: Any = {"default_factory": default.copy} if isinstance(default, dict) else {"default": default}
    declared: T = field(**given, metadata={_KEY: one}, repr=not is_secret)
    return declared


@dataclass(frozen=True, slots=True)
class DeclaredSetting:
    """A declared field.

    Attributes:
        kind: its type without None and without the types of parts; of a Literal str.
        parts: types of a tuple's parts.
        choices: words that it may be; empty where any.
    """

    name: str
    setting: Setting
    kind: Any
    parts: tuple[Any, ...]
    choices: tuple[str, ...]
    default: Any


def declared_settings(kind: Any) -> tuple[DeclaredSetting, ...]:
    """Return the declared fields of a dataclass, in their order."""
    return _declared(kind)


@cache
def _declared(kind: Any) -> tuple[DeclaredSetting, ...]:
    types = get_type_hints(kind)
    found = []
    for item in fields(kind):
        if (one := item.metadata.get(_KEY)) is not None:
            default = item.default if item.default_factory is MISSING else item.default_factory()
            found.append(DeclaredSetting(item.name, one, *_parsed(types[item.name]), default))
    return tuple(found)


def _parsed(annotation: Any) -> tuple[Any, tuple[Any, ...], tuple[str, ...]]:
    """Return kind, parts and choices."""
    parts = get_args(annotation)
    if NoneType in parts:
        return _parsed(next(part for part in parts if part is not NoneType))
    kind = get_origin(annotation) or annotation
    return (str, (), parts) if kind is Literal else (kind, parts, ())


def check_settings(settings: object) -> None:
    """Check choices, then bounds, of settings that have a value. Raises SettingsError."""
    declared = declared_settings(type(settings))
    for one in declared:
        value = getattr(settings, one.name)
        if one.choices and not (value is None and one.default is None):
            one_of(one.name, value, one.choices)
    for one in declared:
        value = getattr(settings, one.name)
        if one.setting.bound is not None and value is not None:
            one.setting.bound.check(one.name, value)


@dataclass(frozen=True, slots=True)
class Resolved:
    """A value in force, and the sentence that says why."""

    value: int | float | str | bool
    reason: str


def read_json_object(name: str, text: str) -> dict[str, Any]:
    """Return the JSON object of an option's value. Raises SettingsError."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SettingsError(f'{name} is not JSON ({error}); give an object, such as {{"name": 1}}.') from None
    if not isinstance(found, dict):
        raise SettingsError(f'{name} is a JSON {type(found).__name__}; give an object, such as {{"name": 1}}.')
    return found


def read_template(name: str, given: str) -> str:
    """Return the source of an option's Jinja template: the file's, or what is given where this is a template itself.
    Raises SettingsError."""
    if "{" in given or "\n" in given:
        return given
    try:
        source = Path(given).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        cause = error.strerror if isinstance(error, OSError) else error
        raise SettingsError(
            f"{name} {given} cannot be read ({cause}); give a Jinja file, or the template itself. Templates have no "
            "names here; without the option the model's own is used."
        ) from None
    if "{" not in source:
        raise SettingsError(f"{name} {given} holds no Jinja template: neither {{{{ nor {{% is in it; give one.")
    return source


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
