"""Options of simulate and plan for the acceptance of simulated drafts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from inflight.config.setting import SettingsError, above_zero, check_settings, option, setting
from inflight.config.speculation import DraftKind
from inflight.records.schema import of_kind, read_records
from inflight.simulate.drafting import SimulatedDrafts, acceptance_of, parse_acceptance, pass_seconds_of


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftOptions:
    """How often drafts are accepted, and what a drafting model takes."""

    speculation_acceptance: str | None = setting(
        None,
        "Chance that a draft is accepted if those before it are; or one for each position, with commas.",
        "Simulated drafts",
        metavar="P",
    )
    speculation_record: Path | None = setting(
        None, "The same, as in the record of a run with speculation.", path="present file"
    )
    speculation_draft_ms: float | None = setting(
        None,
        "Milliseconds that a drafting model takes for one more draft of every request.",
        bound=above_zero("milliseconds"),
    )

    def __post_init__(self) -> None:
        check_settings(self)

    def drafts_for(self, kind: DraftKind, seed: int) -> SimulatedDrafts | None:
        """Return the drafts of an engine; None: none are asked for. kind: that of --speculation. Raises SettingsError,
        RecordError."""
        given = self._given()
        if kind == "off" and given:
            raise SettingsError(
                f"{option(given[0])} has no effect with --speculation off; leave it out, or give --speculation suffix."
            )
        if not given and kind in ("off", "auto"):
            return None
        drafts = self._drafts(seed)
        if kind in ("suffix", "auto") and drafts.pass_seconds:
            raise SettingsError(
                f"--speculation {kind} looks drafts up, but --speculation-draft-ms, or the record, is of drafts that a "
                "model makes; leave it out, or give --speculation draft:MODEL."
            )
        if kind in ("draft", "heads") and not drafts.pass_seconds:
            raise SettingsError(
                f"--speculation {kind} drafts with a model, whose time is not known; give --speculation-draft-ms."
            )
        return drafts

    def asked_about(self, seed: int) -> SimulatedDrafts | None:
        """Return the drafts where no engine has settings yet: made by a model if that takes any time; None: not asked
        about. Raises SettingsError, RecordError."""
        return self._drafts(seed) if self._given() else None

    def _given(self) -> list[str]:
        return [name for name in self.__slots__ if getattr(self, name) is not None]

    def _drafts(self, seed: int) -> SimulatedDrafts:
        text, path, pass_ms = self.speculation_acceptance, self.speculation_record, self.speculation_draft_ms
        if text is not None and path is not None:
            raise SettingsError(
                "--speculation-acceptance and --speculation-record both say how often drafts are accepted; give one of "
                "them."
            )
        steps = [] if path is None else of_kind(list(read_records(path)), "step")
        if path is not None:
            acceptance = acceptance_of(steps, f"the record {path.name}")
        elif text is not None:
            acceptance = parse_acceptance(text)
        else:
            raise SettingsError(
                "A simulation cannot know how often drafts are accepted; give --speculation-acceptance, such as 0.7, "
                "or --speculation-record."
            )
        return SimulatedDrafts(acceptance, seed, pass_seconds_of(steps) if pass_ms is None else pass_ms / 1e3)
