"""The page that Prometheus reads of a server with several engines: its own counts, and the engines' pages.

Each engine counts in its own process; here every sample of its page gets the name of its model, or of its replica, and
families of the same name become one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Protocol

from prometheus_client import generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families

from inflight.server.metrics import CONTENT_TYPE
from inflight.server.metrics.families import Tally, labelled
from inflight.server.metrics.server_counts import Families, ServerCounts

# Counted here; what engines count under these names is left out.
_OF_SERVER = ("inflight_http", "inflight_batch", "inflight_build_info")


class EngineMetrics(Protocol):
    """Reads metrics and states of several engines."""

    async def metrics(self) -> Mapping[str, bytes]:
        """Return the pages of the engines that work, by name."""

    def collect(self) -> Iterable[Metric]:
        """Return its own counts."""


class PoolMetrics(ServerCounts):
    """pool: None until there is one."""

    def __init__(self, *, version: str, label: str = "model_name"):
        """label: that the names of engines get."""
        about = "Calls refused before they reached an engine, by code."
        super().__init__(Tally("inflight_calls_refused", about, ("code",)))
        self.label = label
        self.pool: EngineMetrics | None = None
        self._version = version

    async def page(self) -> tuple[bytes, str]:
        """Return the text and its content type."""
        assert self.pool is not None, "asked when there is one"
        pages = await self.pool.metrics()
        return await asyncio.to_thread(partial(self._render, pages)), CONTENT_TYPE

    def _render(self, pages: Mapping[str, bytes]) -> bytes:
        return generate_latest(Families([*self._own(), *merged(pages, self.label)]))

    def _own(self) -> Iterator[Metric]:
        assert self.pool is not None
        yield labelled(GaugeMetricFamily, "inflight_build_info", "What serves.", ["version"], {(self._version,): 1})
        yield from self.pool.collect()
        yield from self._collect_server()
        yield from self._collect_process()


def merged(pages: Mapping[str, bytes], label: str) -> list[Metric]:
    """Return the families of all pages, each sample with the name of its engine."""
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
