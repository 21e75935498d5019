"""A tally: how often something happened, by labels. For what happens a few times per request, in any thread."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily

from inflight.server.metrics.families import labelled


class Tally:
    def __init__(self, name: str, about: str, labels: tuple[str, ...], known: Iterable[tuple[str, ...]] = ()):
        """known: label values shown as 0 before anything happens, so that the first time is an increase."""
        self._name, self._about, self._labels = name, about, labels
        self._counts = Counter(dict.fromkeys(known, 0))
        self._lock = threading.Lock()

    def add(self, *labels: str, by: int = 1) -> None:
        with self._lock:
            self._counts[labels] += by

    def family(self) -> CounterMetricFamily:
        with self._lock:
            counts = dict(sorted(self._counts.items()))
        return labelled(CounterMetricFamily, self._name, self._about, self._labels, counts)
