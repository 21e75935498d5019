"""Dashboard and rules name what the server really shows; the container and the unit name files that are there."""

from __future__ import annotations

import configparser
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from inflight.core.policies.fcfs import Fcfs
from inflight.core.queueing.lanes import LaneSettings
from inflight.core.scheduling.config import SchedulerConfig
from inflight.core.scheduling.scheduler import Scheduler
from inflight.core.strategies.chunked import Chunked
from inflight.core.types.events import FinishedEvent
from inflight.core.types.plan import Capacity
from inflight.core.types.request import Request
from inflight.server.metrics.page import Metrics

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
ADDED_BY_PROMETHEUS = {"job", "instance", "le"}
RULES = yaml.safe_load((DEPLOY / "prometheus/alerts.yml").read_text())["groups"]
DASHBOARD = json.loads((DEPLOY / "grafana/inflight.json").read_text())
SERIES = re.compile(r"\b((?:inflight|process|vllm|up)[a-zA-Z0-9_:]*)(\{[^}]*\})?")


def rules() -> Iterator[dict[str, Any]]:
    return (rule for group in RULES for rule in group["rules"])


def panels() -> Iterator[dict[str, Any]]:
    return (panel for panel in DASHBOARD["panels"] if panel["type"] != "row")


def variables() -> Iterator[dict[str, Any]]:
    return iter(DASHBOARD["templating"]["list"])


def expressions() -> list[str]:
    queries = [one["query"]["query"] for one in variables() if one["type"] == "query"]
    return [
        *(rule["expr"] for rule in rules()),
        *(target["expr"] for panel in panels() for target in panel["targets"]),
        *(re.sub(r"label_values\((.*), \w+\)", r"\1", query) for query in queries),
    ]


def shown() -> dict[str, list[dict[str, str]]]:
    """Every series of a server that has seen a little of everything: name → label sets."""
    capacity = Capacity(8, 4, 2, 32, 8)
    lanes = [
        LaneSettings(name="interactive", policy=Fcfs()),
        LaneSettings(name="batch", policy=Fcfs(), background=True),
    ]
    scheduler = Scheduler(SchedulerConfig(capacity, Chunked(8), lanes))
    metrics = Metrics("tiny", capacity, version="1.2.3")
    one = Request(request_id="a", prompt_token_ids=(1, 2))
    scheduler.add(one, 0.0)
    metrics.observer.added(one, 0.0)
    (end,) = scheduler.abort("a", 1.0)
    assert isinstance(end, FinishedEvent)
    metrics.observer.events([end], 1.0)
    metrics.observe_http("/health", 200, 0.01)
    found: dict[str, list[dict[str, str]]] = {}
    page, _ = metrics.render(scheduler.stats())
    for family in text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample.labels)
    return found


SHOWN = shown()
RECORDED = {rule["record"] for rule in rules() if "record" in rule}


@pytest.mark.parametrize("expression", expressions())
def test_names_and_labels_that_are_asked_for_are_there(expression: str) -> None:
    names = [(name, matchers) for name, matchers in SERIES.findall(expression) if name != "up"]
    assert names or "up{" in expression or expression.startswith("vector(")
    for name, matchers in names:
        if name in RECORDED:
            continue
        assert name in SHOWN, f"no series {name}"
        asked = re.findall(r'(\w+)(=~|=)"([^"]*)"', matchers)
        labels = {label for label, _, _ in asked} - ADDED_BY_PROMETHEUS
        assert labels <= set(SHOWN[name][0]), f"{name} has no label {labels - set(SHOWN[name][0])}"
        wanted = {label: value for label, sign, value in asked if sign == "=" and label not in ADDED_BY_PROMETHEUS}
        assert any(wanted.items() <= series.items() for series in SHOWN[name]), f"{name} never has {wanted}"


@pytest.mark.parametrize("expression", expressions())
def test_what_is_grouped_by_are_labels(expression: str) -> None:
    known = {label for series in SHOWN.values() for label in series[0]} | ADDED_BY_PROMETHEUS
    for group in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression):
        assert {label.strip() for label in group.split(",") if label.strip()} <= known


@pytest.mark.parametrize("expression", expressions())
def test_brackets_are_closed_and_counters_are_read_as_rates(expression: str) -> None:
    open_brackets: list[str] = []
    for sign in re.sub(r'"[^"]*"', "", expression):
        if sign in "([{":
            open_brackets.append(sign)
        elif sign in ")]}":
            assert open_brackets and open_brackets.pop() + sign in ("()", "[]", "{}")
    assert not open_brackets
    for counter in re.finditer(r"\w+_(?:total|bucket|sum|count)\{[^}]*\}", expression):
        assert re.search(r"(?:rate|increase)\($", expression[: counter.start()])
        assert expression[counter.end() :].startswith("[")


def test_alerts_say_how_bad_it_is_and_what_to_do() -> None:
    alerts = [rule for rule in rules() if "alert" in rule]
    assert len({rule["alert"] for rule in alerts}) == len(alerts) >= 8
    for rule in alerts:
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"] and rule["annotations"]["description"]
        assert rule["alert"] in (DEPLOY / "README.md").read_text()


def test_the_scrape_example_reads_the_rules_and_has_the_job_they_ask_for() -> None:
    example = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())
    assert example["rule_files"] == ["alerts.yml"]
    jobs = {job["job_name"] for job in example["scrape_configs"]}
    asked = {job for rule in rules() for job in re.findall(r'job="([^"]*)"', rule["expr"])}
    assert jobs == asked == {"inflight"}


def test_the_dashboard_can_be_imported_with_any_data_source() -> None:
    kinds = {one["name"]: one["type"] for one in variables()}
    assert kinds["datasource"] == "datasource"
    asked = [panel["datasource"] for panel in panels()] + [
        one["datasource"] for one in variables() if "datasource" in one
    ]
    asked += [target["datasource"] for panel in panels() for target in panel["targets"]]
    assert all(one == {"type": "prometheus", "uid": "${datasource}"} for one in asked)
    numbers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(numbers)) == len(numbers)
    assert "__inputs" not in DASHBOARD


def test_panels_lie_side_by_side() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert place["x"] + place["w"] <= 24 and not cells & taken, panel["title"]
        taken |= cells


def test_the_container_copies_what_is_there_and_is_not_root() -> None:
    lines = (DEPLOY / "Containerfile").read_text().splitlines()
    copied = [
        word for line in lines if line.startswith("COPY ") and "--from" not in line for word in line.split()[1:-1]
    ]
    assert copied and all((ROOT / name).exists() for name in copied)
    final = lines[max(number for number, line in enumerate(lines) if line.startswith("FROM ")) :]
    assert "USER 10001:10001" in final, "by number, so that a cluster sees that it is not root"
    assert {line.split()[0] for line in final} >= {"HEALTHCHECK", "VOLUME", "EXPOSE", "ENTRYPOINT"}


def test_the_unit_waits_longer_than_the_server_drains() -> None:
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(DEPLOY / "systemd/inflight.service")
    service = unit["Service"]
    drain = re.search(r"--drain-timeout (\d+)", service["ExecStart"])
    assert drain and int(service["TimeoutStopSec"]) > int(drain[1])
    assert service["DynamicUser"] == service["NoNewPrivileges"] == "yes"
    assert service["ExecReload"].endswith("-HUP $MAINPID")


def test_the_unit_shows_a_gpu() -> None:
    lines = (DEPLOY / "systemd/inflight.service").read_text(encoding="utf-8").splitlines()
    assert "DeviceAllow=char-nvidia* rw" in lines and "PrivateDevices=yes" not in lines
