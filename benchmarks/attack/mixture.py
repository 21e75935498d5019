"""All attacks of servers with keys in a random mixture, minute after minute, with quiet times between."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from benchmarks.attack.attacker import Plan
from benchmarks.attack.field import Field, Raid
from benchmarks.attack.kind import Attack
from benchmarks.attack.sightings import Window
from benchmarks.attack.trials import answers_of, held, ms
from benchmarks.attack.waits import BACK, BUDGET_MB, P99, TREE_MB, WORST, Outcome
from benchmarks.comparison import log_line
from benchmarks.results import table

ROUND = 60.0  # seconds of attacks at a stretch
QUIET = 8.0  # before each, and after the last


def mixture(folder: Path, attacks: Sequence[Attack], seconds: float, seed: int) -> str:
    names = [attack.name for attack in attacks if attack.needs_key]
    raids: list[Raid] = []
    quiet: list[Window] = []
    with Field(folder, with_keys=True) as field:
        left = seconds
        while left > 0 and not field.died:
            quiet.append(field.quiet(QUIET))
            raids.append(field.raid(names, min(ROUND, left), seed + len(raids)))
            left -= ROUND
            outcome = field.outcome(raids[-1:], quiet[-1:])
            log_line(f"{seconds - max(0.0, left):.0f} s: {held(outcome)}; {answers_of(outcome)}")
        if not field.died:
            quiet.append(field.quiet(QUIET))
        outcome = field.outcome(raids, quiet)
        rests = (raids[0].rest_mb, field.rest_mb)
        if field.died:
            log_line(field.server.lines()[-2000:])
    return report(outcome, names, min(seconds, ROUND * len(raids)), seed, rests)


def report(outcome: Outcome, names: Sequence[str], seconds: float, seed: int, rests: tuple[float, float]) -> str:
    health, gaps = outcome.health, outcome.gaps
    more = [after - before for before, after in (health, gaps)]
    back = "not within its time" if outcome.back is None else f"{outcome.back:.1f} s"
    wrong = "; ".join(f"{count} {why}" for why, count in outcome.attacked.wrong.items()) or "none"
    asked = f"p99 ≤ {P99 * 1e3:g}, longest ≤ {WORST * 1e3:g}"
    rows: list[list[object]] = [
        [f"{name}, of the server's own doing, beyond quiet", f"{ms(after - before)} ms", asked]
        for name, (before, after) in outcome.own.items()
    ]
    rows += [
        ["/health, p99 beyond quiet", f"{more[0].p99 * 1e3:.1f} ms", f"≤ {P99 * 1e3:g} ms"],
        ["/health, longest beyond quiet", f"{more[0].worst * 1e3:.0f} ms", f"≤ {WORST * 1e3:g} ms"],
        ["streams' gaps, p99 beyond quiet", f"{more[1].p99 * 1e3:.1f} ms", f"≤ {P99 * 1e3:g} ms"],
        ["streams' gaps, longest beyond quiet", f"{more[1].worst * 1e3:.0f} ms", f"≤ {WORST * 1e3:g} ms"],
        ["honest streams complete with the text of before", f"{outcome.attacked.same:,}", "all"],
        ["others", wrong, "none"],
        ["memory above rest", f"{outcome.peak_mb:.0f} MB", f"≤ {BUDGET_MB:g} MB"],
        ["memory back to within 16 MB of rest after at most", back, f"≤ {BACK:g} s"],
        ["most of all processes together", f"{outcome.tree_mb:.0f} MB", f"< {TREE_MB:g} MB"],
        ["rest before the first and after the last round", f"{rests[0]:.0f}, {rests[1]:.0f} MB", ""],
        ["the server", outcome.died or "lived", "lives"],
    ]
    waits: list[list[object]] = [
        [name, f"{one.count:,}", ms(one)]
        for name, one in (
            ("/health, quiet", health[0]),
            ("/health, attacked", health[1]),
            ("gaps, quiet", gaps[0]),
            ("gaps, attacked", gaps[1]),
        )
    ]
    at_once, turn = Plan.__dataclass_fields__["at_once"].default, Plan.__dataclass_fields__["turn"].default
    intro = (
        f"{len(names)} attacks in random order (seed {seed}), {at_once} at once for {turn:g} s each, {seconds:g} s in "
        f"all, in rounds of {ROUND:g} s with {QUIET:g} s of quiet between, beside 20 honest streams. Attackers made "
        f"{outcome.visits:,} visits, sent {outcome.sent_mb:,.0f} MB and got: {_all_answers(outcome.answers)}."
    )
    head = ["", "waits", "p50, p99, longest, ms"]
    return "\n\n".join([intro, table(["", "measured", "asked"], rows), table(head, waits)])


def _all_answers(answers: Counter[str]) -> str:
    return ", ".join(f"{count:,} × {what}" for what, count in answers.most_common())
