"""Families of samples with their labels, as prometheus_client has them, and counters that any thread may increase."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

K = TypeVar("K", bound=tuple[str, ...])
F = TypeVar("F", CounterMetricFamily, GaugeMetricFamily)


def labelled(kind: type[F], name: str, about: str, labels: Sequence[str], values: Mapping[K, float]) -> F:
    """Return the family. values: by the values of the labels, in their order."""
    family = kind(name, about, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family


class Tally:
    """Counts, by labels, what happens a few times a request."""

    def __init__(self, name: str, about: str, labels: tuple[str, ...], known: Iterable[tuple[str, ...]] = ()):
        """known: label values that are 0 from the start, so that the first time is an increase."""
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
