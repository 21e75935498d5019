"""What every setting has: a name on the command line, a value in force with its reason, a sentence when it is wrong."""

from __future__ import annotations

from dataclasses import dataclass

from inflight.core.options import COUNT

MOST = COUNT


class SettingsError(ValueError):
    """A setting is outside its limits, or two of them do not go together."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """A value in force, and the sentence that says why."""

    value: int | float | str | bool
    reason: str


def option(name: str) -> str:
    return "--" + name.replace("_", "-")
