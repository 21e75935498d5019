"""The page that Prometheus reads of a server with several engines: what it counts itself, and the engines' own pages.

Each engine counts in its own process; here every sample of its page gets the name of its model, or of its replica, and
families of the same name become one. Knows families; not what is counted in them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Protocol

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families

from inflight.server.metrics import CONTENT_TYPE
from inflight.server.metrics.batch import BatchCounts
from inflight.server.metrics.families import labelled
from inflight.server.metrics.http import HttpCounts
from inflight.server.metrics.tally import Tally

# Counted here, and by engines in vain.
_OF_SERVER = ("inflight_http", "inflight_batch", "inflight_build_info")


class EngineMetrics(Protocol):
    """Whoever has the engines."""

    async def metrics(self) -> Mapping[str, bytes]:
        """Pages of the engines that work, by name."""

    async def shown(self, asked: bytes) -> Mapping[str, bytes]:
        """What the engines that answer do, by name, as `live.distant` writes it."""

    def collect(self) -> Iterable[Metric]:
        """What it counts itself."""


class PoolMetrics:
    """batch: to be told of batch jobs. pool: None until there is one."""

    def __init__(self, *, version: str, label: str = "model_name"):
        """label: of what engines' names are."""
        self.label = label
        self.batch = BatchCounts()
        self.pool: EngineMetrics | None = None
        self._version = version
        self._http = HttpCounts()
        self._refusals = Tally(
            "inflight_calls_refused", "Calls refused before they reached an engine, by code.", ("code",)
        )
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)

    def observe_http(self, endpoint: str, status: int, seconds: float) -> None:
        self._http.observe(endpoint, status, seconds)

    def refused(self, code: str) -> None:
        self._refusals.add(code)

    async def page(self) -> tuple[bytes, str]:
        """Text and content type."""
        assert self.pool is not None, "asked when there is one"
        pages = await self.pool.metrics()
        return await asyncio.to_thread(partial(self._render, pages)), CONTENT_TYPE

    def _render(self, pages: Mapping[str, bytes]) -> bytes:
        return generate_latest(_Families([*self._own(), *merged(pages, self.label)]))

    def _own(self) -> Iterator[Metric]:
        assert self.pool is not None
        yield labelled(GaugeMetricFamily, "inflight_build_info", "What serves.", ["version"], {(self._version,): 1})
        yield from self.pool.collect()
        yield self._refusals.family()
        yield from self._http.collect()
        yield from self.batch.collect()
        yield from self._registry.collect()


def merged(pages: Mapping[str, bytes], label: str) -> list[Metric]:
    """Families of all pages, each sample with the name of its engine."""
    families: dict[str, Metric] = {}
    process = f"inflight_{label.removesuffix('_name')}_"
    for engine, page in pages.items():
        for family in text_string_to_metric_families(page.decode()):
            if family.name.startswith(_OF_SERVER):
                continue
            name = f"{process}{family.name}" if family.name.startswith("process_") else family.name
            into = families.setdefault(name, Metric(name, family.documentation, family.type))
            for sample in family.samples:
                renamed = sample.name.replace(family.name, name, 1)
                into.add_sample(renamed, {**sample.labels, label: engine}, sample.value)
    return list(families.values())


class _Families:
    """The shape in which prometheus_client wants it."""

    def __init__(self, families: list[Metric]):
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families
