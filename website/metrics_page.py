"""The reference of the metrics: every series that a server shows, read off the page that it gives Prometheus.

docs/metrics.md explains what each means for latency and targets; this is the whole list, so that none is missing.
"""

from __future__ import annotations

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from inflight.core.policies.fcfs import Fcfs
from inflight.core.queueing.lanes import LaneSettings
from inflight.core.scheduling.config import SchedulerConfig
from inflight.core.scheduling.scheduler import Scheduler
from inflight.core.strategies.chunked import Chunked
from inflight.core.types.plan import Capacity
from inflight.core.types.request import Request
from inflight.server.metrics.page import Metrics
from website.tables import cell, table

_CAPACITY = Capacity(8, 4, 2, 32, 8)
_LANES = (
    LaneSettings(name="interactive", policy=Fcfs()),
    LaneSettings(name="batch", policy=Fcfs(), background=True),
)


def metrics_page() -> str:
    parts = [
        "# Series",
        "All series of `/metrics`, as a server shows them that has one model and has been asked something. What is "
        "measured how, and which latency targets use it: [metrics](../metrics.md). Dashboards and alerts: "
        "[deployment](../deployment.md#prometheus-and-grafana).",
    ]
    for title, families in _families().items():
        rows = [[f"`{one.name}`", one.type, _labels(one), cell(one.documentation)] for one in families]
        parts += [f"## {title}", table(["series", "type", "labels", "meaning"], rows)]
    return "\n\n".join(parts) + "\n"


def _families() -> dict[str, list[Metric]]:
    ours = list(text_string_to_metric_families(_page(vllm=False)))
    named = {one.name for one in ours}
    more = [one for one in text_string_to_metric_families(_page(vllm=True)) if one.name not in named]
    return {"inflight's": ours, "vLLM's, with `--metrics-names vllm`": more}


def _page(vllm: bool) -> str:
    """Return the metrics of a server that has done a little of everything."""
    scheduler = Scheduler(SchedulerConfig(_CAPACITY, Chunked(8), list(_LANES)))
    metrics = Metrics("MODEL", _CAPACITY, version="", names="vllm" if vllm else "inflight")
    one = Request(request_id="a", prompt_token_ids=(1, 2))
    scheduler.add(one, 0.0)
    metrics.observer.added(one, 0.0)
    metrics.observer.events(scheduler.abort("a", 1.0), 1.0)
    metrics.observe_http("/health", 200, 0.01)
    page, _ = metrics.render(scheduler.stats())
    return page.decode()


def _labels(family: Metric) -> str:
    """Each with the values that it has, where those are few and fixed."""
    found: dict[str, set[str]] = {}
    for sample in family.samples:
        for name, value in sample.labels.items():
            if name not in ("le", "model_name", "version"):
                found.setdefault(name, set()).add(value)
    described = (
        f"`{name}`: {', '.join(sorted(values))}" if 1 < len(values) < 13 else f"`{name}`"
        for name, values in found.items()
    )
    return cell("; ".join(described))
