"""Settings side by side: a column for every setting and load, with means over repeats and ratios to the first
setting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from inflight.metrics.confidence import Estimate, estimate, paired_ratio
from inflight.report.diagnosis import Diagnosis, diagnose
from inflight.report.figures import Figure, Figures, figures_of
from inflight.report.run import Report, Run, Setting


@dataclass(frozen=True)
class Column:
    """One setting at one load. baseline: the first setting's column at this load, for ratios."""

    name: str
    setting: Setting
    load: str
    runs: Sequence[Run]
    baseline: Column | None = None

    @cached_property
    def figures(self) -> list[Figures]:
        """Return the figures of each repeat."""
        return [figures_of(run) for run in self.runs]

    @cached_property
    def _by_key(self) -> dict[str, list[Figure]]:
        found: dict[str, list[Figure]] = {}
        for figures in self.figures:
            for one in figures.listed:
                if one.value is not None:
                    found.setdefault(one.key, []).append(one)
        return found

    def figure(self, key: str) -> Figure | None:
        """Return the figure of the first repeat that has it: name, unit and samples."""
        return self._by_key.get(key, [None])[0]

    def mean(self, key: str) -> Estimate | None:
        """Return the mean over the repeats."""
        values = self._values(key)
        return estimate(values) if values else None

    def ratio(self, key: str) -> Estimate | None:
        """Return the ratio to the baseline, paired by repeat; None where repeats cannot be paired, or a value is not
        above zero."""
        if self.baseline is None:
            return None
        mine, theirs = self._values(key), self.baseline._values(key)
        return paired_ratio(mine, theirs) if len(mine) == len(theirs) else None

    @cached_property
    def diagnosis(self) -> Diagnosis:
        return diagnose(self.runs, [figures.engine for figures in self.figures], self.setting.options)

    @property
    def valid(self) -> bool:
        return all(run.valid for run in self.runs)

    @property
    def saturated(self) -> bool:
        return any(run.summary.saturated for run in self.runs)

    @property
    def notes(self) -> list[str]:
        return list(dict.fromkeys(note for run in self.runs for note in run.notes))

    def _values(self, key: str) -> list[float]:
        return [one.value for one in self._by_key.get(key, ()) if one.value is not None]


def columns_of(report: Report) -> list[Column]:
    """Return the columns, loads outside and settings inside, so that compared ones are neighbours."""
    loads = list(dict.fromkeys(load for setting in report.settings for load in setting.loads))
    found = []
    for load in loads:
        baseline: Column | None = None
        for setting in report.settings:
            runs = setting.repeats(load)
            if not runs:
                continue
            name = ", ".join(filter(None, (setting.name if len(report.settings) > 1 else "", load)))
            column = Column(setting.name if len(loads) == 1 else name, setting, load, runs, baseline)
            baseline = baseline or column
            found.append(column)
    return found


def by_load(columns: Sequence[Column]) -> dict[str, list[Column]]:
    found: dict[str, list[Column]] = {}
    for column in columns:
        found.setdefault(column.load, []).append(column)
    return found


def catalogue(columns: Sequence[Column]) -> dict[str, list[Figure]]:
    """Return the figures of each group, each once, in their order."""
    order: dict[str, Figure] = {}
    for column in columns:
        for figures in column.figures:
            for one in figures.listed:
                order.setdefault(one.key, one)
    groups: dict[str, list[Figure]] = {}
    for one in order.values():
        groups.setdefault(one.group, []).append(one)
    return groups
