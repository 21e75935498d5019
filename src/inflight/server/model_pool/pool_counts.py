"""Metrics of several models together: loads and their times, calls that waited, and calls that were refused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric

from inflight.server.metrics.families import Tally, labelled
from inflight.server.metrics.histogram import SECONDS, Histogram
from inflight.server.model_status import ModelStatus

_LABELS = ("model_name",)


def states(models: Iterable[ModelStatus], budget: int) -> Iterator[Metric]:
    """Return metrics of which models are in memory, and of their memory."""
    known = list(models)
    loaded = {(one.name,): float(one.state in ("loaded", "draining")) for one in known}
    yield labelled(GaugeMetricFamily, "inflight_model_loaded", "1 while the model is in memory.", _LABELS, loaded)
    nbytes = {(one.name,): float(one.nbytes) for one in known}
    about = "Memory that the model takes, or would take."
    yield labelled(GaugeMetricFamily, "inflight_model_memory_bytes", about, _LABELS, nbytes)
    waiting = {(one.name,): float(one.waiting) for one in known}
    about = "Calls that wait until the model is loaded."
    yield labelled(GaugeMetricFamily, "inflight_model_waiting_calls", about, _LABELS, waiting)
    yield GaugeMetricFamily("inflight_models_memory_budget_bytes", "For all models together.", budget)


class PoolCounts:
    def __init__(self, names: Iterable[str]):
        known = list(names)
        self._loads = {name: Histogram(SECONDS) for name in known}
        self._counts = {name: Histogram(SECONDS) for name in known}
        self._refused = Tally(
            "inflight_model_waits_refused",
            "Calls that were refused, since their model could not be loaded soon enough.",
            _LABELS,
            [(name,) for name in known],
        )

    def add(self, name: str) -> None:
        """Count a model that has come; what was counted of one of its name stays."""
        for histograms in (self._loads, self._counts):
            histograms.setdefault(name, Histogram(SECONDS))
        self._refused.add(name, by=0)

    def loaded(self, name: str, seconds: float) -> None:
        self._loads[name].observe(seconds)

    def waited(self, name: str, seconds: float) -> None:
        """Count a call that waited, and has its model."""
        self._counts[name].observe(seconds)

    def refused(self, name: str) -> None:
        self._refused.add(name)

    def collect(self) -> Iterator[Metric]:
        yield _family("inflight_model_load_seconds", "What loading a model took.", self._loads)
        yield _family("inflight_model_wait_seconds", "That calls waited for a model to be loaded.", self._counts)
        yield self._refused.family()


def _family(name: str, about: str, histograms: dict[str, Histogram]) -> HistogramMetricFamily:
    family = HistogramMetricFamily(name, about, labels=_LABELS)
    for model, histogram in histograms.items():
        family.add_metric([model], histogram.buckets(SECONDS), histogram.sum())
    return family
