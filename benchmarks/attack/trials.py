"""Each attack by itself, between quiet times: a row for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.attack.field import Field, Raid
from benchmarks.attack.kind import Attack
from benchmarks.attack.sightings import Window
from benchmarks.attack.waits import Outcome, Waits
from benchmarks.comparison import log_line
from benchmarks.results import table

QUIET = 1.5  # seconds before each attack, and after the last
_NEAR = 3  # quiet times before an attack that it is compared with, beside the one after it
HEAD = [
    *("attack", "what it does", "at once", "answers (visits)", "MB sent"),
    *("/health quiet: p50, p99, max ms", "attacked, beyond quiet", "gaps quiet: p50, p99, max ms"),
    *("attacked, beyond quiet", "texts the same", "memory above rest, MB", "back after s"),
    *("beyond quiet of the server's own doing: /health, gaps", "held"),
]


@dataclass(frozen=True, slots=True)
class Trial:
    attack: Attack
    outcome: Outcome

    @property
    def row(self) -> list[object]:
        outcome, attack = self.outcome, self.attack
        health, gaps = outcome.health, outcome.gaps
        return [
            attack.name,
            attack.what,
            attack.connections,
            answers_of(outcome),
            f"{outcome.sent_mb:,.0f}",
            ms(health[0]),
            ms(health[1] - health[0]),
            ms(gaps[0]),
            ms(gaps[1] - gaps[0]),
            f"{outcome.attacked.same:,}",
            f"{outcome.peak_mb:+.0f}",
            "not" if outcome.back is None else f"{outcome.back:.1f}",
            "; ".join(ms(after - before) for before, after in outcome.own.values()),
            held(outcome),
        ]


def held(outcome: Outcome) -> str:
    if outcome.broken:
        return "; ".join(outcome.broken)
    return (
        f"yes, but for want of a core: {', '.join(outcome.for_want_of_cores)}" if outcome.for_want_of_cores else "yes"
    )


def answers_of(outcome: Outcome, most: int = 4) -> str:
    parts = [f"{count:,} × {what}" for what, count in outcome.answers.most_common(most)]
    return f"{', '.join(parts) or 'nothing'} ({outcome.visits:,})"


def ms(waits: Waits) -> str:
    return ", ".join(f"{value * 1e3:,.0f}" for value in (waits.p50, waits.p99, waits.worst))


def trials(folder: Path, attacks: Sequence[Attack], seconds: float, seed: int) -> tuple[list[Trial], str]:
    """And a sentence on memory at rest, before the first and after the last."""
    found: list[Trial] = []
    words: list[str] = []
    for needs_key in (True, False):
        asked = [attack for attack in attacks if attack.needs_key is needs_key]
        while asked:
            more, rest = _on_one_server(folder, asked, needs_key, seconds, seed)
            found += more
            words.append(rest)
            asked = asked[len(more) :]
    return found, "At rest: " + "; ".join(words) + "."


def _on_one_server(
    folder: Path, attacks: Sequence[Attack], with_keys: bool, seconds: float, seed: int
) -> tuple[list[Trial], str]:
    """Until the server dies, if it does: the next ones get another."""
    found: list[Trial] = []
    with Field(folder, with_keys) as field:
        first = field.rest_mb
        quiet = [field.quiet(QUIET)]
        for number, attack in enumerate(attacks):
            raid = field.raid([attack.name], seconds, seed + number)
            if not field.died:
                quiet.append(field.quiet(QUIET))
            found.append(_trial(field, attack, raid, quiet[-_NEAR - 1 :]))
            if field.died:
                break
        last = field.rest_mb
    keys = "with keys" if with_keys else "without keys"
    return found, f"{first:.0f} MB at first, {last:.0f} MB after {len(found)} attacks on a server {keys}"


def _trial(field: Field, attack: Attack, raid: Raid, quiet: Sequence[Window]) -> Trial:
    trial = Trial(attack, field.outcome([raid], quiet))
    log_line(" | ".join(str(cell) for cell in trial.row))
    if trial.outcome.died:
        log_line(field.server.lines()[-2000:])
    return trial


def report(found: Sequence[Trial], rest: str, seconds: float) -> str:
    passed = sum(not trial.outcome.broken for trial in found)
    intro = (
        f"{len(found)} attacks by themselves, {seconds:g} s each, with {QUIET:g} s of quiet between; {passed} of them "
        f"within all limits. {rest} What is beyond quiet is the difference to the {_NEAR} quiet times before and the "
        "one after, percentile by percentile, never below 0."
    )
    return intro + "\n\n" + table(HEAD, [trial.row for trial in found])
