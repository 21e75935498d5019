"""The files for llm-d and for compose: inflight understands their options, and what they name fits together.

Their form is held to the fields that are used of each kind, as the published definitions have them. A cluster is not
here to try them on; the compose file's commands are run where vllm-router is tested.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from inflight.cli.serve import command
from inflight.server.metrics import vllm as vllm_metrics

ROOT = Path(__file__).parents[2]
LLM_D, COMPOSE = ROOT / "deploy/llm-d", ROOT / "deploy/compose"


def documents(path: Path) -> dict[str, dict[str, Any]]:
    """By kind."""
    return {one["kind"]: one for one in yaml.safe_load_all(path.read_text(encoding="utf-8"))}


SERVERS, ROUTE, POOL = (documents(LLM_D / f"{name}.yaml") for name in ("servers", "route", "pool"))
VALUES = yaml.safe_load((LLM_D / "values.yaml").read_text(encoding="utf-8"))
PICKER = yaml.safe_load(VALUES["router"]["epp"]["pluginsCustomConfig"][VALUES["router"]["epp"]["pluginsConfigFile"]])
POD = SERVERS["Deployment"]["spec"]["template"]
CONTAINER = POD["spec"]["containers"][0]
TOGETHER = yaml.safe_load((COMPOSE / "compose.yaml").read_text(encoding="utf-8"))
ROUTER = TOGETHER["services"]["router"]
REPLICAS = {name: one for name, one in TOGETHER["services"].items() if name != "router"}

# kind → the fields that are used, by their paths; each stands in the definition that the kind's project publishes.
FIELDS = {
    "InferencePool": {
        *("spec.selector.matchLabels", "spec.targetPorts.number", "spec.appProtocol"),
        *("spec.endpointPickerRef.name", "spec.endpointPickerRef.port.number", "spec.endpointPickerRef.failureMode"),
    },
    "Gateway": {"spec.gatewayClassName", *(f"spec.listeners.{name}" for name in ("name", "port", "protocol"))},
    "HTTPRoute": {
        *(f"spec.parentRefs.{name}" for name in ("group", "kind", "name")),
        *(f"spec.rules.backendRefs.{name}" for name in ("group", "kind", "name")),
        *("spec.rules.matches.path.type", "spec.rules.matches.path.value", "spec.rules.timeouts.request"),
    },
}


def settings(arguments: list[str]) -> dict[str, Any]:
    """As `inflight serve` reads them. Raises click.UsageError for what it does not know."""
    return dict(command.make_context("serve", [str(one) for one in arguments]).params)


def paths(value: Any, path: str = "spec") -> set[str]:
    if isinstance(value, dict) and not path.endswith(".matchLabels"):
        return {found for key, inner in value.items() for found in paths(inner, f"{path}.{key}")}
    if isinstance(value, list):
        return {found for inner in value for found in paths(inner, path)}
    return {path}


def seconds(text: str) -> float:
    return float(text.removesuffix("s"))


def plugin(kind: str) -> dict[str, Any]:
    (found,) = (one for one in PICKER["plugins"] if one["type"] == kind)
    parameters: dict[str, Any] = found.get("parameters", {})
    return parameters


@pytest.mark.parametrize("document", [*POOL.values(), *ROUTE.values()], ids=lambda one: one["kind"])
def test_the_kinds_have_fields_that_there_are(document: dict[str, Any]) -> None:
    versions = {"InferencePool": "inference.networking.k8s.io/v1"}
    assert document["apiVersion"] == versions.get(document["kind"], "gateway.networking.k8s.io/v1")
    assert document.keys() == {"apiVersion", "kind", "metadata", "spec"}
    assert paths(document["spec"]) == FIELDS[document["kind"]]


@pytest.mark.parametrize("arguments", [CONTAINER["args"], *(one["command"] for one in REPLICAS.values())], ids=len)
def test_the_server_knows_every_option(arguments: list[str]) -> None:
    asked = settings(arguments)
    assert asked["metrics_names"] == "vllm"
    events = asked["kv_events_config"]
    assert events is not None and events.endpoint == "tcp://*:5557"
    with pytest.raises(click.UsageError):
        settings([*arguments, "--unheard"])


def test_routes_pool_and_pods_name_each_other() -> None:
    labels, pool = POD["metadata"]["labels"], POOL["InferencePool"]
    for selector in (
        SERVERS["Deployment"]["spec"]["selector"]["matchLabels"],
        SERVERS["Service"]["spec"]["selector"],
        pool["spec"]["selector"]["matchLabels"],
        VALUES["router"]["modelServers"]["matchLabels"],
    ):
        assert selector.items() <= labels.items()
    (ref,) = ROUTE["HTTPRoute"]["spec"]["rules"][0]["backendRefs"]
    assert (ref["kind"], ref["name"]) == ("InferencePool", pool["metadata"]["name"])
    (parent,) = ROUTE["HTTPRoute"]["spec"]["parentRefs"]
    assert parent["name"] == ROUTE["Gateway"]["metadata"]["name"]
    port = {one["name"]: one["containerPort"] for one in CONTAINER["ports"]}["http"]
    assert pool["spec"]["targetPorts"] == VALUES["router"]["modelServers"]["targetPorts"] == [{"number": port}]
    assert f"--port {port}" in (ROOT / "deploy/Containerfile").read_text().replace('", "', " ")


def test_the_picker_hears_what_the_servers_send() -> None:
    asked = settings(CONTAINER["args"])
    (name,) = asked["served_model_name"]
    events = asked["kv_events_config"]
    assert (
        events is not None
        and events.topic.split("@")[::2] == ["kv", name]
        and plugin("token-producer")["modelName"] == name
    )
    producer = plugin("precise-prefix-cache-producer")
    heard = producer["kvEventsConfig"]["podDiscoveryConfig"]
    assert events.endpoint.endswith(f":{heard['socketPort']}")
    assert events.replay_endpoint and events.replay_endpoint.endswith(f":{heard['replaySocketPort']}")
    assert events.topic.startswith(producer["kvEventsConfig"]["topicFilter"])
    assert producer["tokenProcessorConfig"]["blockSize"] == asked["block_size"] or asked["block_size"] is None
    service = SERVERS["Service"]
    assert plugin("token-producer")["vllm"]["url"] == f"http://{service['metadata']['name']}:8000"


def test_the_picker_names_plugins_that_it_declares_and_metrics_that_are_there() -> None:
    declared = {one["type"] for one in PICKER["plugins"]}
    named = set(re.findall(r"pluginRef: ([\w-]+)", yaml.safe_dump(PICKER)))
    assert named <= declared and declared - named == {"token-producer", "single-profile-handler"}
    source = Path(vllm_metrics.__file__).read_text(encoding="utf-8")
    for metric in re.findall(r"# vllm:(\w+)", (LLM_D / "values.yaml").read_text(encoding="utf-8")):
        assert f'"{metric}"' in source or f'"vllm:{metric}"' in source


def test_plain_kubernetes_probes_paths_that_there_are_and_asks_for_options_that_there_are() -> None:
    files = documents(ROOT / "deploy/kubernetes/server.yaml")
    pod = files["Deployment"]["spec"]["template"]
    [container] = pod["spec"]["containers"]
    asked = settings(container["args"])
    mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    assert str(asked["api_keys_file"]).startswith(mounts["keys"] + "/")
    assert mounts.keys() == {one["name"] for one in pod["spec"]["volumes"]}
    probes = {name: container[name]["httpGet"] for name in ("startupProbe", "readinessProbe", "livenessProbe")}
    assert {one["path"] for one in probes.values()} == {"/readyz", "/livez"}
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    assert {one["port"] for one in probes.values()} == {"http"} and ports["http"] == 8000
    assert files["Service"]["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert pod["spec"]["terminationGracePeriodSeconds"] > asked["drain_timeout"] + 5


def test_the_image_for_gpus_is_the_one_for_cpus_with_the_extra() -> None:
    cpu, gpu = ((ROOT / "deploy" / name).read_text() for name in ("Containerfile", "Containerfile.gpu"))
    assert "install '.[gpu]'" in gpu
    for line in cpu.splitlines():
        if line.startswith(("USER", "WORKDIR", "VOLUME", "EXPOSE", "ENTRYPOINT", "COPY")):
            assert line in gpu.splitlines()


def test_nothing_is_killed_while_it_drains() -> None:
    pause = float(CONTAINER["lifecycle"]["preStop"]["exec"]["command"][1])
    drain = settings(CONTAINER["args"])["drain_timeout"]
    assert POD["spec"]["terminationGracePeriodSeconds"] > pause + drain
    for one in REPLICAS.values():
        assert seconds(one["stop_grace_period"]) > settings(one["command"])["drain_timeout"]
    timeout = ROUTE["HTTPRoute"]["spec"]["rules"][0]["timeouts"]["request"]
    assert seconds(timeout) == settings([])["request_timeout"]
    assert "livenessProbe" not in CONTAINER and CONTAINER["readinessProbe"]["httpGet"]["path"] == "/health"


def test_replicas_share_no_data_directory() -> None:
    assert POD["spec"]["volumes"] == [{"name": "data", "emptyDir": {}}]
    mounted = [volume for one in REPLICAS.values() for volume in one["volumes"]]
    assert len(set(mounted)) == len(REPLICAS) == 2
    assert {one.partition(":")[0] for one in mounted} == TOGETHER["volumes"].keys()


def test_the_compose_files_router_stands_before_both_servers() -> None:
    asked = ROUTER["command"]
    urls = {f"http://{name}:8000" for name in REPLICAS}
    assert urls == {one for one in asked if re.fullmatch(r"http://[\w-]+:\d+", one)}
    sources = dict(one.split("=") for one in asked if "=tcp://" in one and one.endswith(":5557"))
    replays = dict(one.split("=") for one in asked if "=tcp://" in one and one.endswith(":5558"))
    assert sources.keys() == replays.keys() == urls
    assert all(address == f"tcp://{url[7:-5]}:5557" for url, address in sources.items())
    assert ROUTER["depends_on"].keys() == REPLICAS.keys()
    pinned = (ROOT / "tests/foreign/vllm_router/requirements.txt").read_text().split()[0]
    assert pinned in (COMPOSE / "Containerfile.router").read_text(), "tested in another version"
    assert ROUTER["ports"] == ["127.0.0.1:8080:8080"]
