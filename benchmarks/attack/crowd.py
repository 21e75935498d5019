"""Thousands of connections that are idle, and hundreds that are slow: do honest clients feel them?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.attack.field import Field
from benchmarks.attack.honest import Plan
from benchmarks.attack.waits import waits
from benchmarks.comparison import log_line
from benchmarks.results import table
from inflight.metrics.confidence import paired_ratio

IDLE, SLOW = 2000, 200
RATE = 20.0  # honest streams a second
TOKENS = 8  # of each
COMING = 4.0  # seconds for which the connections come, which count for nothing, as does their leaving all at once
ASKED = 1.2  # p99 of TTFT beside that of quiet times
CROWD = ["crowd: idle", "crowd: slow bodies", "crowd: slow readers"]


@dataclass(frozen=True, slots=True)
class Round:
    quiet: list[float]  # seconds to the first token
    attacked: list[float]
    wrong: int


def crowd(folder: Path, rounds: int, seconds: float) -> str:
    """rounds: of quiet and crowd in turn, each for so many seconds."""
    found: list[Round] = []
    with Field(folder, with_keys=True, plan=Plan(rate=RATE, tokens=TOKENS)) as field:
        for number in range(rounds):
            quiet = field.quiet(seconds)
            raid = field.raid(CROWD, seconds + COMING, number, at_once=len(CROWD), turn=seconds + COMING)
            stands = raid.window[0] + COMING
            seen = field.sightings.within((stands, min(stands + seconds, raid.ended)))
            before = field.sightings.within(quiet)
            wrong = before.wrong + seen.wrong
            found.append(Round(before.ttfts, seen.ttfts, wrong.total()))
            log_line(_line(number + 1, found[-1]))
        died = field.died
    return report(found, seconds, died)


def report(rounds: Sequence[Round], seconds: float, died: str) -> str:
    pairs = [(waits(one.quiet), waits(one.attacked)) for one in rounds]
    both = [one.p99 for _, one in pairs], [one.p99 for one, _ in pairs]
    ratio = paired_ratio(*both)
    interval = "" if ratio is None or ratio.low is None else f" (95 %: {ratio.low:.2f} to {ratio.high:.2f})"
    wrong = sum(one.wrong for one in rounds)
    rows: list[list[object]] = [
        [
            "p99 of TTFT with the crowd over that without",
            f"{ratio.mean:.2f}{interval}" if ratio else "-",
            f"≤ {ASKED:g}",
        ],
        ["honest streams that broke off or differ", wrong, 0],
        ["the server", died or "lived", "lives"],
    ]
    each = [
        [number, *(text for one in pair for text in (f"{one.count:,}", f"{one.p50 * 1e3:.1f}", f"{one.p99 * 1e3:.1f}"))]
        for number, pair in enumerate(pairs, 1)
    ]
    head = ["round", "streams quiet", "p50, ms", "p99, ms", "streams with the crowd", "p50, ms", "p99, ms"]
    intro = (
        f"{IDLE:,} idle connections and {SLOW} slow ones (half of them send a body at two bytes a second, half read a "
        f"stream at 64 bytes in half a second), against none, in turn for {seconds:g} s each; honest streams of "
        f"{TOKENS} tokens come at random, {RATE:g} a second. The times in which all connections come or leave at once "
        "are left out. The ratio is the geometric mean over rounds."
    )
    return "\n\n".join([intro, table(["", "measured", "asked"], rows), table(head, each)])


def _line(number: int, one: Round) -> str:
    quiet, attacked = waits(one.quiet), waits(one.attacked)
    return f"Round {number}: TTFT p99 {quiet.p99 * 1e3:.1f} ms quiet, {attacked.p99 * 1e3:.1f} ms with the crowd"
