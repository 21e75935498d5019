"""Errors of predictions against published figures, by half and by figure, and the table of all runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.published.measurements import FIGURES, Figures, Measurement
from benchmarks.published.prediction import Prediction
from benchmarks.published.rival import Rival
from benchmarks.results import table

TITLES = {"output_tokens_per_s": "output tokens/s", "ttft_ms": "TTFT", "tpot_ms": "TPOT"}
P90 = 0.9
MISFIT = Figures()  # of a run that is predicted not to fit


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors of one figure over several runs. median, p90: of |predicted / published - 1|, 1 of a run that is predicted
    not to fit. within: share of runs whose figure lies in the predicted interval."""

    runs: int
    median: float
    p90: float
    within: float = math.nan


def error(predicted: float | None, published: float | None) -> float | None:
    """Return predicted / published - 1; None where one of them is missing."""
    return None if predicted is None or published is None else predicted / published - 1


def errors_of(
    measurements: Iterable[Measurement],
    predicted: Mapping[str, Figures],
    figure: str,
    intervals: Mapping[str, Prediction] | None = None,
) -> Errors:
    """Return the errors of a figure over the runs that have it, published and predicted."""
    found, inside = [], []
    for one in measurements:
        published, figures = getattr(one.figures, figure), predicted.get(one.name)
        if published is None or figures is None:
            continue
        wrong = 1.0 if figures == MISFIT else error(getattr(figures, figure), published)
        if wrong is None:
            continue
        found.append(abs(wrong))
        if intervals is not None:
            ends = [getattr(end, figure) for end in (intervals[one.name].low, intervals[one.name].high)]
            inside.append(figures != MISFIT and min(ends) <= published <= max(ends))
    if not found:
        return Errors(0, math.nan, math.nan)
    within = statistics.fmean(inside) if inside else math.nan
    return Errors(len(found), statistics.median(found), _quantile(sorted(found), P90), within)


def misfits(measurements: Iterable[Measurement], predicted: Mapping[str, Prediction]) -> list[str]:
    """Return the names of runs that are predicted not to fit."""
    return [one.name for one in measurements if one.name in predicted and predicted[one.name].figures == MISFIT]


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]


def summary(measurements: Sequence[Measurement], ours: Mapping[str, Prediction], rival: Mapping[str, Figures]) -> str:
    """Return the table of errors: of each half alone, of what is not believed, and of the runs that both can
    predict."""
    typical = {name: one.figures for name, one in ours.items()}
    rows: list[list[object]] = []
    for half in ("fitted", "held out", "not believed"):
        chosen = [one for one in measurements if _half(one) == half]
        for figure in FIGURES if chosen else ():
            own = errors_of(chosen, typical, figure, ours)
            rows.append([half, TITLES[figure], own.runs, _share(own.median), _share(own.p90), _share(own.within)])
            shared = [one for one in chosen if one.name in rival]
            if (beside := errors_of(shared, typical, figure)).runs:
                theirs = errors_of(shared, rival, figure)
                rows[-1] += [beside.runs, _share(beside.median), _share(theirs.median)]
                rows[-1] += [_share(beside.p90), _share(theirs.p90)]
    head = ["half", "figure", "runs", "median error", "p90", "in the interval", "shared runs"]
    head += ["median there", "AISimulate's", "p90 there", "AISimulate's"]
    return table(head, [row + [""] * (len(head) - len(row)) for row in rows])


def _half(one: Measurement) -> str:
    return "not believed" if one.doubt else "held out" if one.held_out else "fitted"


def groups_of(measurements: Sequence[Measurement]) -> list[tuple[str, list[Measurement]]]:
    """Return the runs of each engine, GPU and kind of model, with a name."""
    found = []
    for title, of in _KINDS:
        for name in sorted({of(one) for one in measurements}):
            found.append((f"{title} {name}", [one for one in measurements if of(one) == name]))
    return found


def groups(measurements: Sequence[Measurement], ours: Mapping[str, Prediction]) -> str:
    """Return the table of our errors by engine, GPU and kind of model, of each half."""
    typical = {name: one.figures for name, one in ours.items()}
    rows: list[list[object]] = []
    fitted = {_setting(one) for one in measurements if _half(one) == "fitted"}

    def fitted_setting(one: Measurement) -> str:
        return "fitted, too" if _setting(one) in fitted else "not fitted"

    by_setting = [
        (f"model, GPU and engine {name}", [one for one in measurements if fitted_setting(one) == name and one.held_out])
        for name in ("fitted, too", "not fitted")
    ]
    for title, some in [*groups_of(measurements), *by_setting]:
        for half in ("fitted", "held out"):
            found = [
                errors_of([one for one in some if _half(one) == half], typical, figure, ours) for figure in FIGURES
            ]
            if found[0].runs or found[-1].runs:
                rows.append([title, half, found[0].runs, _share(found[0].p90)])
                rows[-1] += [_share(one.median) for one in found] + [_share(found[0].within)]
    head = ["group", "half", "runs", "p90 of tokens/s"]
    head += [*(f"median {TITLES[one]}" for one in FIGURES), "in the interval"]
    return table(head, rows)


def _setting(one: Measurement) -> tuple[str, str, str]:
    return one.model, one.gpu_name, one.engine.name


def _engine(one: Measurement) -> str:
    return f"{one.engine.name} async" if one.engine.asynchronous else one.engine.name


def _gpu(one: Measurement) -> str:
    return one.gpu_name


def _kind(one: Measurement) -> str:
    recurrent = any(layer.mixer.recurrent_state(one.spec.hidden_size) for layer in one.spec.layers)
    return f"{'experts' if one.spec.has_experts else 'dense'}{', recurrent' if recurrent else ''}, {one.weights}"


_KINDS = (("engine", _engine), ("GPU", _gpu), ("model", _kind))


def details(measurements: Sequence[Measurement], ours: Mapping[str, Prediction], rival: Rival) -> str:
    """Return a table for each source, held out ones last, with every run: published, predicted by us and by the
    rival."""
    parts = []
    for source in sorted({one.source for one in measurements}, key=lambda name: _order(measurements, name)):
        runs = [one for one in measurements if one.source == source]
        first = runs[0]
        half = "not believed: " + first.doubt if first.doubt else _half(first)
        rows = [[*_cells(one, ours, rival)] for one in runs]
        head = [
            "run",
            "tokens/s",
            "ours",
            "AISimulate",
            "TTFT, ms",
            "ours",
            "AISimulate",
            "TPOT, ms",
            "ours",
            "AISimulate",
        ]
        parts.append(f"**{source}** ({half}; {first.date}, {first.url})\n\n{table(head, rows)}")
    return "\n\n".join(parts)


def _order(measurements: Sequence[Measurement], source: str) -> tuple[bool, bool, str]:
    first = next(one for one in measurements if one.source == source)
    return bool(first.doubt), first.held_out, source


def _cells(one: Measurement, ours: Mapping[str, Prediction], rival: Rival) -> list[str]:
    cells = [one.name]
    misfit, refused = bool(misfits([one], ours)), one.name in rival.refused
    for figure in FIGURES:
        published = getattr(one.figures, figure)
        cells.append("" if published is None else f"{published:,.4g}" if published < 1e3 else f"{published:,.0f}")
        for predicted, instead in (
            (ours[one.name].figures if one.name in ours else Figures(), "does not fit" if misfit else ""),
            (rival.figures.get(one.name, Figures()), "refused" if refused else ""),
        ):
            wrong = error(getattr(predicted, figure), published)
            cells.append(f"{wrong:+.0%}" if wrong is not None else "" if published is None else instead)
    return cells


def _share(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.0%}"
