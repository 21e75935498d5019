"""A load that swings between 1 and 64 rows: whether speculation follows it, window by window.

Two engines, with speculation and without, run the same schedule, each on seconds of its own: these go while it runs,
and they run in turns, half a second each, so that a machine whose speed drifts slows both. What the one has done in
each window of five seconds is compared with what the other has. Requests that are too many when the
load falls are aborted.
"""

from __future__ import annotations

import statistics

from benchmarks.engines import Model
from benchmarks.results import table
from benchmarks.speculation.contest import OFF, ON
from benchmarks.speculation.corpus import Kind, Part, read
from benchmarks.speculation.engine import MODEL_LEN, ScriptedEngine, blocks, engine
from inflight.engine.clock import Clock
from inflight.execution.backends.protocol import Quantization
from inflight.execution.drafters.suffix import SuffixDrafter

FEW, MANY = 1, 64
SWING, SLICE, WINDOW = 3.0, 0.5, 5.0  # seconds: from few to many or back; of a turn; of a window
WORST, MEDIAN = 0.95, 0.99
CASES: tuple[tuple[Kind, bool], ...] = (("repeating", True), ("different", True), ("different", False))


def rows_at(seconds: float) -> int:
    return MANY if int(seconds / SWING) % 2 else FEW


def windows(with_drafts: ScriptedEngine, without: ScriptedEngine, number: int) -> list[float]:
    """Tokens of the one over those of the other, of each window."""
    found = []
    for window in range(number):
        before = with_drafts.tokens, without.tokens
        for part in range(1, round(WINDOW / SLICE) + 1):
            turn = (with_drafts, without)[:: -1 if part % 2 else 1]
            for one in turn:
                one.run_seconds(rows_at, window * WINDOW + part * SLICE)
        found.append((with_drafts.tokens - before[0]) / (without.tokens - before[1]))
    return found


def report(model: str, quantization: Quantization, number: int, part: Part, threads: int | None, clock: Clock) -> str:
    weights = Model(model, blocks(MANY), MODEL_LEN, quantization, threads)
    rows = []
    for kind, drafts in CASES:
        ratios = _of(weights, kind, drafts, number, part, clock)
        below = sum(ratio < WORST for ratio in ratios)
        name = kind if drafts else f"{kind}, off over off"
        rows.append([name, f"{min(ratios):.3f}", f"{statistics.median(ratios):.3f}", f"{max(ratios):.3f}", below])
    said = (
        f"{weights.name}. The load is {FEW} and {MANY} rows, {SWING:g} s each, in {number} windows of {WINDOW:g} "
        f"s; tokens with `--speculation auto` over those with `off`, window by window. Asked: none below {WORST}, and "
        f"a median of {MEDIAN} at least. In the last line neither has drafts: so far two alike engines differ on this "
        f"machine. Texts: the {part} half of the corpus."
    )
    return f"{said}\n\n{table(['work', 'worst window', 'median', 'best', f'below {WORST}'], rows)}"


def _of(model: Model, kind: Kind, drafts: bool, number: int, part: Part, clock: Clock) -> list[float]:
    """drafts: whether the first of the two has any."""
    pairs = read(kind, part)
    with_drafts = engine(model.beside(), MANY, pairs, ON if drafts else OFF, SuffixDrafter() if drafts else None, clock)
    without = engine(model.beside(), MANY, pairs, OFF, None, clock)
    for one in (with_drafts, without):
        one.fill(FEW)
    return windows(with_drafts, without, number)
