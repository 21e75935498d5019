"""Charts of drafts: how far they were right, by their place in a step, and over time.

Knows an engine's run and charts; who made the drafts is a setting.
"""

from __future__ import annotations

from inflight.metrics.summary import Window
from inflight.report.charts.chart import Chart, Key
from inflight.report.charts.histogram import Column, histogram
from inflight.report.charts.over_time import stack
from inflight.report.steps.engine_run import EngineRun


def draft_pictures(engine: EngineRun) -> list[Chart]:
    """Of a run with speculation: how far drafts were right, by their place, and over time."""
    return [one for one in (_by_place(engine), _accepted_lengths(engine), _over_time(engine)) if one is not None]


def _by_place(engine: EngineRun) -> Chart | None:
    columns = []
    for place, (drafted, reached, accepted) in enumerate(engine.drafts.counts.positions(), 1):
        share = _percent(accepted / reached) if reached else ""
        columns.append(Column(str(place), (accepted, reached - accepted, drafted - reached), share))
    keys = [Key("right", "decode", "area"), Key("wrong", "padding", "area"), Key("behind a wrong one", "idle", "area")]
    about = (
        "The first draft of a sequence in a step, the second, …; above: how many were right of those with all before "
        "them right."
    )
    return histogram("Drafts by place", about, columns, keys, "place among a step's drafts", ("drafts", "drafts"))


def _accepted_lengths(engine: EngineRun) -> Chart | None:
    counts = engine.drafts.counts
    lengths, whole = counts.accepted_lengths(), counts.chunks
    columns = [
        Column(str(right), (share,), _percent(share))
        for right in range(max(lengths, default=-1) + 1)
        for share in (lengths.get(right, 0) / whole,)
    ]
    mean = counts.accepted_tokens / whole if whole else 0.0
    about = (
        f"Of the {whole:,} times that a sequence had drafts in a step, how many of them were right; {mean:.2f} on "
        "average, and one token more came with them."
    )
    one = [Key("chunks with drafts", "decode", "area")]
    return histogram("Accepted drafts of a step", about, columns, one, "drafts that were right", ("share", "share"))


def _over_time(engine: EngineRun) -> Chart | None:
    steps, of = engine.steps, engine.drafts
    if not of.counts.chunks:
        return None
    bands = [
        ("right", steps.over_time(lambda index: of.accepted[index]), "decode"),
        (
            "wrong, or behind a wrong one",
            steps.over_time(lambda index: of.drafted[index] - of.accepted[index]),
            "padding",
        ),
    ]
    about = "Drafts that a step computed, of all sequences together; none where drafting would not have paid."
    return stack("Drafts over time", about, bands, Window(steps.start, steps.end), ("drafts", "drafts per step"))


def _percent(share: float) -> str:
    """Short, for the little room above a column."""
    return f"{100 * share:.0f} %"
