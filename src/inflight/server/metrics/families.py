"""Families of samples as prometheus_client has them, with their labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

K = TypeVar("K", bound=tuple[str, ...])
F = TypeVar("F", CounterMetricFamily, GaugeMetricFamily)


def labelled(kind: type[F], name: str, about: str, labels: Sequence[str], values: Mapping[K, float]) -> F:
    """values: by what stands for the labels, in their order."""
    family = kind(name, about, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family
