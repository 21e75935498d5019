"""The input of a report: settings and their runs, from a record file, a load client, a comparison or a simulation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from inflight.metrics.observation import Observation
from inflight.metrics.summary import Series, Summary, Window, summarize, whole
from inflight.report.steps.engine_run import EngineRun

MAX_GROUPS = 12  # of a kind, by their requests


@dataclass(frozen=True, slots=True)
class Option:
    """A setting in force, and why it has this value."""

    value: Any
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Run:
    """One run. Times of observations and of the engine are seconds on one clock.

    window: the measured part; None: all of it. load: its name, such as "4 requests/s"; runs of one setting with equal
    loads are repeats of each other, and runs of two settings are paired repeat by repeat. engine: its steps, where
    known. notes: shown before the figures (cut off, client too slow, trace thinned); valid: whether the figures are to
    be believed at all. series: over time, where a load client counted it. groups: summaries of lanes, tenants and
    classes of traffic by name, where measured.
    """

    observations: Sequence[Observation]
    summary: Summary
    window: Window | None = None
    load: str = ""
    engine: EngineRun | None = None
    notes: tuple[str, ...] = ()
    valid: bool = True
    series: Series | None = None
    groups: Mapping[str, Summary] = field(default_factory=dict)

    @property
    def span(self) -> Window:
        """Return the time from the first event to the last, measured or not."""
        seen = whole(self.observations)
        if self.engine is None or not self.engine.steps:
            return seen
        first, last = self.engine.steps.start, self.engine.steps.end
        return Window(min(seen.start, first), max(seen.end, last)) if self.observations else Window(first, last)


@dataclass(frozen=True, slots=True)
class Setting:
    """One way to run the engine (or one server), and its runs: repeats, and different loads in rising order. created:
    ISO 8601. about: a load client's description of the workload and the server."""

    name: str
    runs: Sequence[Run]
    options: Mapping[str, Option] = field(default_factory=dict)
    created: str = ""
    about: str = ""

    @property
    def loads(self) -> list[str]:
        """Return the loads in the order of the runs, each once."""
        return list(dict.fromkeys(run.load for run in self.runs))

    def repeats(self, load: str) -> list[Run]:
        return [run for run in self.runs if run.load == load]


@dataclass(frozen=True, slots=True)
class Report:
    """about: sentences on all settings: workload, model, machine, command."""

    title: str
    settings: Sequence[Setting]
    about: tuple[str, ...] = ()


def groups_of(run: Run) -> Mapping[str, Summary]:
    """Return the summaries of lanes, tenants and classes where there are several; as measured, or from the requests."""
    if run.groups or not run.observations:
        return run.groups
    window = run.window or whole(run.observations)
    found = {}
    for kind, attribute in (("class", "traffic"), ("lane", "lane"), ("tenant", "tenant")):
        by_name: dict[str, list[Observation]] = defaultdict(list)
        for one in run.observations:
            by_name[getattr(one, attribute)].append(one)
        if len(by_name) > 1:
            for name in sorted(by_name, key=lambda one: -len(by_name[one]))[:MAX_GROUPS]:
                found[f"{kind} {name or '(no name)'}"] = summarize(by_name[name], window)
    return found
