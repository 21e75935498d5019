"""The tables of a run: all engines and precisions in one, and for each precision the medians of each engine and the
ratio of inflight to the best peer.

A ratio is taken within a round, then the median of the rounds.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from benchmarks.comparison import spread
from benchmarks.peers.ceilings import Ceilings
from benchmarks.peers.contest import Contest, Figure
from benchmarks.peers.trials import KL, TOP_1, Measure, measures
from benchmarks.results import table

OURS = "inflight"
WORSE = 1.2  # times inflight's KL, up to which a peer's speed is compared with inflight's
SAME_KL = 0.002  # nats, below which no reader sees a difference: bf16 of three engines has 0.0002 to 0.0017


def report(contests: Sequence[Contest], ceilings: Mapping[str, Ceilings | None] | None = None) -> str:
    """ceilings: of each precision."""
    parts = [_overview(contests)] if len(contests) > 1 else []
    parts += [_section(contest, (ceilings or {}).get(contest.precision)) for contest in contests]
    return "\n\n".join(parts)


def ratio(measure: Measure, values: Mapping[str, float]) -> float | None:
    """Return the ratio of inflight to the best peer in one round's figures; None where either is missing."""
    peers = [value for engine, value in values.items() if engine != OURS]
    if OURS not in values or not peers:
        return None
    return values[OURS] / (max(peers) if measure.better == "higher" else min(peers))


def ratios(measure: Measure, figures: Sequence[Figure]) -> list[float]:
    """One per round that has it, of figures that count."""
    rounds: dict[int, dict[str, float]] = {}
    for figure in figures:
        if figure.measure == measure.title and figure.counts:
            rounds.setdefault(figure.round, {})[figure.engine] = figure.value
    found = (ratio(measure, values) for values in rounds.values())
    return [one for one in found if one is not None]


def highest(measure: Measure, figures: Sequence[Figure], ceilings: Ceilings | None) -> list[float]:
    """The ratios that an engine would have which does what the machine allows, at the bandwidth around our runs."""
    most = measure.most
    if most is None or ceilings is None:
        return []
    allowed = [
        replace(one, value=most(ceilings, one.bandwidth)) if one.engine == OURS and one.bandwidth else one
        for one in figures
    ]
    return ratios(measure, allowed)


def _overview(contests: Sequence[Contest]) -> str:
    """A line for each engine at each precision, so that what differs in the output projection is not set side by side
    unseen."""
    rows = list(_measures(contests[0]))
    head = ["compared at", "engine", "layers", "output projection", *(measure.short for measure in rows)]
    lines = [
        [contest.precision, name, contest.copies[name].weights, contest.copies[name].output]
        + [_median(measure, contest, name) for measure in rows]
        for contest in contests
        for name in _took_part(contest)
    ]
    return table(head, lines)


def _measures(contest: Contest) -> Iterator[Measure]:
    return measures(contest.sizes, contest.judge is not None)


def _answers_worse(contest: Contest) -> list[str]:
    """Return the peers whose answers are further from float32 than a comparison of speed allows."""
    kl = {one.engine: one.value for one in contest.figures if one.measure == KL.title}
    if OURS not in kl:
        return []
    return [name for name, value in kl.items() if not value <= max(SAME_KL, WORSE * kl[OURS])]  # NaN is worse


def _left_out(contest: Contest) -> list[str]:
    """Return the peers that ratios leave out: those whose answers are worse, unless that is all of them."""
    worse = _answers_worse(contest)
    others = [name for name in _took_part(contest) if name not in (OURS, *worse)]
    return worse if others else []


def _took_part(contest: Contest) -> list[str]:
    return [engine.name for engine in contest.engines if engine.name in contest.versions]


def _section(contest: Contest, ceilings: Ceilings | None) -> str:
    engines = _took_part(contest)
    if not engines:
        return " ".join(contest.absent.values())
    head = [contest.precision, *engines, "ratio to the best peer", "asked", "the ceiling's", "GB/s"]
    rows = [
        ["layers", *(contest.copies[name].weights for name in engines), "", "", "", ""],
        ["output projection", *(contest.copies[name].output for name in engines), "", "", "", ""],
    ]
    rows += [_row(measure, contest, engines, ceilings) for measure in _measures(contest)]
    return "\n\n".join([table(head, rows), " ".join(_sentences(contest, engines))])


def _median(measure: Measure, contest: Contest, engine: str) -> str:
    """Return the median of an engine's figures that count, or a dash."""
    found = [one for one in contest.figures if one.measure == measure.title and one.engine == engine and one.counts]
    return f"{statistics.median(one.value for one in found):,.{measure.digits}f}" if found else "-"


def _row(measure: Measure, contest: Contest, engines: Sequence[str], ceilings: Ceilings | None) -> list[str]:
    figures = [one for one in contest.figures if one.measure == measure.title and one.counts]
    row = [measure.title, *(_median(measure, contest, engine) for engine in engines)]
    if measure not in (KL, TOP_1):
        left_out = _left_out(contest)
        figures = [one for one in figures if one.engine not in left_out]
    found = ratios(measure, figures)
    row.append(spread(found, 2, "×") if found else "-")
    asked = measure.asked.get(contest.precision)
    row.append("reported" if asked is None else f"{'≥' if measure.better == 'higher' else '≤'} {asked:g}×")
    most = highest(measure, figures, ceilings)
    row.append(f"{statistics.median(most):.2f}×" if most else "")
    bandwidths = [one.bandwidth / 1e9 for one in figures if one.bandwidth]
    return [*row, spread(bandwidths, 0) if bandwidths else "-"]


def _sentences(contest: Contest, engines: Sequence[str]) -> Iterator[str]:
    for engine in engines:
        yield f"{engine} {contest.versions[engine]}."
    yield from contest.absent.values()
    yield from contest.unjudged.values()
    if left_out := _left_out(contest):
        yield (
            f"Ratios are to peers whose KL is {WORSE:g} times inflight's or less, below {SAME_KL:g} nats or not known; "
            f"{', '.join(left_out)} {'are' if len(left_out) > 1 else 'is'} left out."
        )
    elif _answers_worse(contest):
        yield (
            f"No peer's KL is {WORSE:g} times inflight's or less: ratios are to all of them, though their answers are "
            "further from float32."
        )
    missed = sorted({(one.measure, one.round) for one in contest.figures if not one.counts})
    if missed:
        names = ", ".join(f"{measure} in round {number + 1}" for measure, number in missed)
        yield f"Not counted, because the bandwidth was not alike for all engines: {names}."
