"""deploy/compose: its servers and its router are started with the commands that stand there, on this machine.

Only addresses are others: a service's name is a free port here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from server.conftest import Server

from .cases import MODEL, TEXT
from .environments import Environment
from .routed import Router, kv_event_addresses

pytestmark = pytest.mark.foreign
CLIENT = "vllm_router"
FILE = Path(__file__).parents[2] / "deploy/compose/compose.yaml"
SERVICES: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))["services"]
NAMES = ("server-1", "server-2")
PORTS = (":5557", ":5558")


def test_the_commands_of_the_compose_file_serve_what_they_say(
    environment: Environment, start: Callable[..., Server]
) -> None:
    servers = {name: start(*_on_free_ports(SERVICES[name]["command"]), ready=False) for name in NAMES}
    here: dict[str, str] = {}
    for name, server in servers.items():
        here[f"http://{name}:8000"] = server.ready().url
        for port, address in zip(PORTS, kv_event_addresses(server), strict=True):
            here[f"tcp://{name}{port}"] = address
    words: list[str] = SERVICES["router"]["command"]
    for there, address in here.items():
        words = [word.replace(there, address) for word in words]
    policy = words[words.index("--policy") + 1]
    options = words[words.index("--policy") + 2 :]
    assert not any(name in word for name in NAMES for word in words), "a server's address has no place here"
    with Router(environment, [one.url for one in servers.values()], policy, *options) as router:
        body = {"model": MODEL, "prompt": TEXT, "temperature": 0, "max_tokens": 8}
        routed = router.post("/v1/completions", body)
        assert routed.status_code == 200, routed.text
        assert routed.json()["choices"] == servers[NAMES[0]].post("/v1/completions", body).json()["choices"]


def _on_free_ports(command: list[str]) -> list[str]:
    words = [str(word) for word in command]
    for port in PORTS:
        words = [word.replace(f"tcp://*{port}", "tcp://*:*") for word in words]
    return words
