"""Lanes, tenants and classes of traffic apart: a summary of each, over the run's measured window."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from inflight.metrics.observation import Observation
from inflight.metrics.summary import Summary, summarize, whole
from inflight.report.run import Run

MOST = 12  # of a kind; those with most requests


def groups_of(run: Run) -> Mapping[str, Summary]:
    """Of those kinds of which there are several; as measured, or from the requests."""
    if run.groups or not run.observations:
        return run.groups
    window = run.window or whole(run.observations)
    found = {}
    for kind, attribute in (("class", "traffic"), ("lane", "lane"), ("tenant", "tenant")):
        by_name: dict[str, list[Observation]] = defaultdict(list)
        for one in run.observations:
            by_name[getattr(one, attribute)].append(one)
        if len(by_name) > 1:
            for name in sorted(by_name, key=lambda one: -len(by_name[one]))[:MOST]:
                found[f"{kind} {name or '(no name)'}"] = summarize(by_name[name], window)
    return found
