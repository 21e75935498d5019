"""Options that say how often drafts are right where nothing is computed: of `simulate` and `plan`.

Knows which of them go together; what they rest on, `simulate.drafting` knows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import click

from inflight.cli.traffic import FILE
from inflight.cli.verb import grouped
from inflight.config.setting import SettingsError, option
from inflight.config.speculation import DraftKind
from inflight.records.schema import of_kind, read_records
from inflight.simulate.drafting import Acceptance, SimulatedDrafts, acceptance_of, parse_acceptance, pass_seconds_of

_NAMES = ("speculation_acceptance", "speculation_record", "speculation_draft_ms")

draft_options = grouped(
    "Simulated drafts",
    click.option(
        "--speculation-acceptance",
        metavar="P",
        help="Chance that a draft is right if those before it are; or one for each place, with commas.",
    ),
    click.option("--speculation-record", type=FILE, help="The same, as in the record of a run with speculation."),
    click.option(
        "--speculation-draft-ms", type=float, help="That a drafting model takes for one more draft of every row."
    ),
)


def drafts_of(values: dict[str, Any], kind: DraftKind, seed: int) -> SimulatedDrafts | None:
    """None: nothing was said of drafts. kind: as --speculation has it. Raises SettingsError, RecordError."""
    given = _given(values)
    if kind == "off" and given:
        raise SettingsError(
            f"{option(given[0])} has no effect with --speculation off; leave it out, or give --speculation suffix."
        )
    if not given and kind in ("off", "auto"):
        return None
    said = _Said.of(values)
    if kind in ("suffix", "auto") and said.pass_seconds:
        raise SettingsError(
            f"--speculation {kind} looks drafts up, but --speculation-draft-ms, or the record, is of drafts that a "
            "model makes; leave it out, or give --speculation draft:MODEL."
        )
    if kind in ("draft", "heads") and not said.pass_seconds:
        raise SettingsError(
            f"--speculation {kind} drafts with a model, and nothing says what that takes; give --speculation-draft-ms."
        )
    return SimulatedDrafts(said.acceptance, seed, said.pass_seconds)


def drafts_asked_about(values: dict[str, Any], seed: int) -> SimulatedDrafts | None:
    """The same where no engine has settings yet: made by a model if that takes any time. None: nothing was asked."""
    if not _given(values):
        return None
    said = _Said.of(values)
    return SimulatedDrafts(said.acceptance, seed, said.pass_seconds)


def _given(values: dict[str, Any]) -> list[str]:
    return [name for name in _NAMES if values[name] is not None]


@dataclass(frozen=True, slots=True)
class _Said:
    """pass_seconds: that a model takes for one more draft of every row; 0: drafts are looked up."""

    acceptance: Acceptance
    pass_seconds: float

    @classmethod
    def of(cls, values: dict[str, Any]) -> _Said:
        text, path, pass_ms = (values[name] for name in _NAMES)
        if text is not None and path is not None:
            raise SettingsError(
                "--speculation-acceptance and --speculation-record both say how often drafts are right; give one of "
                "them."
            )
        if text is None and path is None:
            raise SettingsError(
                "How often drafts are right, no simulation can know; give --speculation-acceptance, such as 0.7, or "
                "--speculation-record."
            )
        if pass_ms is not None and not 0 < pass_ms < 1e6:
            raise SettingsError(f"--speculation-draft-ms is {pass_ms:g}; give milliseconds, above 0.")
        steps = [] if path is None else of_kind(list(read_records(path)), "step")
        acceptance = parse_acceptance(text) if path is None else acceptance_of(steps, f"the record {path.name}")
        return cls(acceptance, pass_seconds_of(steps) if pass_ms is None else pass_ms / 1e3)
