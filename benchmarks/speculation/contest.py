"""Speculation against none: tokens a second at given numbers of rows, on work that repeats and on work that does not.

Two engines around the same weights answer the same requests in turns (`legs`); that the answers are those of the corpus
is asserted, token by token. Rows are kept running, so that prompts are computed between the decodes, as in a server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.comparison import log_line
from benchmarks.engines import Model
from benchmarks.results import table
from benchmarks.speculation.corpus import Kind, Pair, Part, read
from benchmarks.speculation.engine import MODEL_LEN, ScriptedEngine, blocks, engine
from benchmarks.speculation.legs import Leg, in_turns, speed_up, with_interval
from inflight.config.scheduling import SchedulingSettings
from inflight.counted import counted
from inflight.engine.clock import Clock
from inflight.execution.backends.protocol import Quantization
from inflight.execution.drafters.suffix import SuffixDrafter
from inflight.metrics.confidence import Estimate

ON, OFF = (
    SchedulingSettings(speculation="suffix"),
    SchedulingSettings(speculation="off"),
)  # what auto comes to, and none
ASKED: dict[tuple[Kind, int], float] = {("repeating", 1): 2.0, ("repeating", 4): 1.5}  # × at least
ANYWHERE = 0.99
HEAD = ["work", "rows", "off, tokens/s", "auto over off", "asked", "drafts", "right", "right of a chunk"]


@dataclass(frozen=True, slots=True)
class Contest:
    """One number of rows. accepted: of a chunk with drafts, on average; drafted: their number."""

    rows: int
    kind: Kind
    off_per_s: float
    speed_up: Estimate
    steps_per_token: float
    drafted: int
    accepted: int
    chunks: int


def contest(
    model: Model, rows: int, kind: Kind, pairs: Sequence[Pair], legs: int, tokens: int | None, clock: Clock
) -> Contest:
    """tokens: of a leg at one row; None: as many as an answer has on average. Of twice as many at 16 rows, of four
    times at 64."""
    with_drafts = engine(model.beside(), rows, pairs, ON, SuffixDrafter(), clock)
    without = engine(
        model.beside(), rows, pairs, OFF, None, clock
    )  # alike: the location of memory matters in short steps
    one_row = tokens or sum(len(pair.answer) for pair in pairs) / len(pairs)
    found = between(with_drafts, without, rows, kind, legs, round(one_row * max(1.0, rows**0.5 / 2)))
    log_line(f"{model.name}, {counted(rows, 'row')}, {kind}: {with_interval(found.speed_up)}, {found.drafted:,} drafts")
    return found


def between(
    with_drafts: ScriptedEngine,
    without: ScriptedEngine,
    rows: int,
    kind: Kind,
    legs: int,
    leg: int,
) -> Contest:
    """leg: its tokens."""
    for one in (with_drafts, without):
        one.fill(rows)
    before = with_drafts.stats
    ones, others = in_turns(lambda: _leg(with_drafts, rows, leg), lambda: _leg(without, rows, leg), legs)
    stats = with_drafts.stats
    return Contest(
        rows,
        kind,
        sum(one.tokens for one in others) / sum(one.seconds for one in others),
        speed_up(ones, others),
        with_drafts.steps / with_drafts.tokens,
        sum(stats.drafted) - sum(before.drafted),
        sum(stats.accepted) - sum(before.accepted),
        stats.chunks - before.chunks,
    )


def _leg(engine: ScriptedEngine, rows: int, tokens: int) -> Leg:
    """Up to the next whole number of legs, so that both engines are equally far after each."""
    began, had = engine.seconds, engine.tokens
    engine.run_tokens(rows, (had // tokens + 1) * tokens)
    return Leg(engine.seconds - began, engine.tokens - had)


def report(
    models: Sequence[tuple[str, Quantization]],
    batches: Sequence[int],
    legs: int,
    tokens: int | None,
    part: Part,
    kinds: Sequence[Kind],
    threads: int | None,
    clock: Clock,
) -> str:
    cells: list[list[object]] = []
    for name, quantization in models:
        model = Model(name, blocks(max(batches)), MODEL_LEN, quantization, threads)
        for kind in kinds:
            pairs = read(kind, part)
            for rows in batches:
                cells.append([model.name, *cells_of(contest(model, rows, kind, pairs, legs, tokens, clock))])
    said = (
        f"Tokens a second with `--speculation auto` over those with `off`, prompts included, in {legs} legs each that "
        f"ran in turns; in brackets 95 % intervals. Texts: the {part} half of the corpus. All answers were the same, "
        "token by token."
    )
    return f"{said}\n\n{table(['model', *HEAD], cells)}"


def cells_of(found: Contest) -> list[object]:
    """Under `HEAD`."""
    asked = ASKED.get((found.kind, found.rows), ANYWHERE)
    return [
        found.kind,
        found.rows,
        f"{found.off_per_s:,.0f}",
        with_interval(found.speed_up),
        f"≥ {asked}",
        f"{found.drafted:,}",
        f"{found.accepted / found.drafted:.0%}" if found.drafted else "",
        f"{found.accepted / found.chunks:.1f}" if found.chunks else "",
    ]
