"""`inflight serve`: the OpenAI-compatible server."""

from __future__ import annotations

import time
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import click

from inflight.cli.options import (
    complete_model,
    engine_options,
    engine_settings,
    name_model,
    record_option,
    scheduling_options,
    scheduling_settings,
)
from inflight.cli.replica_options import replica_options, replicas_of
from inflight.cli.server_options import server_options
from inflight.cli.verb import Verb
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.ray.replica_setup import Replicas
from inflight.server.settings import ServerSettings

_IN_TABLE = "{given} is said of each model with --models; write it into the model's table."
_NOT_OF_MODELS = {
    **dict.fromkeys(("MODEL", "--model", "--lora", "--record"), _IN_TABLE),
    "--served-model-name": "{given} has no place with --models: tables have names; write aliases = [...] there.",
    "--lora-dir": "{given} has no place with --models, where adapters are named at the start; write lora = [...] into "
    "the model's table.",
    "--kv-events-config": "{given} has no place with --models: its addresses are one engine's, and each model has one "
    "of its own; serve the model that routers are to hear of by itself.",
    "--role": "{given} has no place with --models: peers exchange blocks with one engine; serve the model by itself.",
    "--replicas": "{given} has no place with --models: replicas are of one model; serve it by itself.",
}
DEFAULTS = {"admission": "auto"}  # where clients come as they like, what waits must be bounded


@click.command("serve", cls=Verb, context_settings={"default_map": DEFAULTS})
@click.argument("name", metavar="[MODEL]", required=False, shell_complete=complete_model)
@engine_options
@scheduling_options
@server_options
@replica_options
@record_option
@click.option("--verbose", is_flag=True, help="Show every setting in force, with its reason.")
def command(name: str | None, **values: Any) -> int:
    """Serve MODEL (a folder, a .gguf file, a hub id, or a name such as smollm2; without it the built-in model) to
    OpenAI's clients, on 127.0.0.1:8000."""
    started = time.monotonic()
    models = values.pop("models")
    if models is not None:
        return _serve_models(models, name, values, started)
    asked = settings_of(name, values)
    from inflight.server.tenants import load_tenants  # now, so that a mistake above is told at once

    tenants = load_tenants(asked.api_keys, asked.keys_file)
    server = asked.server.for_tenants(len(tenants.names))
    from inflight.launch.one_model import LOCAL_ENGINE, serve

    program = LOCAL_ENGINE
    if asked.replicas is not None:
        from inflight.ray.engine_process import replicas_program

        program = replicas_program(asked.replicas)
    return serve(
        server,
        asked.engine,
        asked.scheduling,
        tenants,
        record=asked.record,
        verbose=asked.verbose,
        started=started,
        program=program,
        **values,
    )


@dataclass(frozen=True, slots=True)
class Asked:
    """What one model is served with."""

    server: ServerSettings
    engine: EngineSettings
    scheduling: SchedulingSettings
    replicas: Replicas | None
    record: Path | None
    verbose: bool
    api_keys: tuple[str, ...]
    keys_file: Path | None


def settings_of(name: str | None, values: dict[str, Any]) -> Asked:
    """Takes them out of the verb's arguments; what is left is the log's. Raises click.UsageError, SettingsError."""
    name_model(name, values)
    values.pop("models", None)
    replicas = replicas_of(values)
    record, verbose = values.pop("record"), values.pop("verbose")
    api_keys, keys_file = values.pop("api_key"), values.pop("api_keys_file")
    server = _server_settings(values)
    engine, scheduling = engine_settings(values), scheduling_settings(values)
    return Asked(server, engine, scheduling, replicas, record, verbose, api_keys, keys_file)


def _server_settings(values: dict[str, Any]) -> ServerSettings:
    """Takes the server's options out of the verb's arguments."""
    given = {item.name: values.pop(item.name) for item in fields(ServerSettings)}
    given["api_processes"] = given["api_processes"] or 1  # 0 meant the engine's process, which has no HTTP any more
    return ServerSettings(**given)


def _serve_models(file: Path, name: str | None, values: dict[str, Any], started: float) -> int:
    """Several models, each in a process of its own."""
    for given, is_given in (
        ("MODEL", name is not None),
        ("--model", values["model"] is not None),
        ("--served-model-name", bool(values["served_model_name"])),
        ("--lora", bool(values["lora"])),
        ("--lora-dir", values["lora_dir"] is not None),
        ("--kv-events-config", values["kv_events_config"] is not None),
        ("--role", values["role"] is not None),
        ("--record", values["record"] is not None),
        ("--replicas", values["replicas"] is not None),
    ):
        if is_given:
            raise click.UsageError(_NOT_OF_MODELS[given].format(given=given))
    from inflight.cli.models_file import read_models

    models = read_models(file, click.get_current_context())
    api_keys, keys_file = values["api_key"], values["api_keys_file"]
    settings = _server_settings(values)
    from inflight.launch.several_models import WorkerLogs, serve_models
    from inflight.server.tenants import load_tenants

    worker_logs = WorkerLogs(values["verbose"], values["log_format"], values["log_level"])
    tenants = load_tenants(api_keys, keys_file)
    settings = settings.for_tenants(len(tenants.names))
    return serve_models(settings, models, tenants, worker_logs, started=started)
