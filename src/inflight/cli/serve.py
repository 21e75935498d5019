"""`inflight serve`: the OpenAI-compatible server."""

from __future__ import annotations

import time
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import click

from inflight.cli.declared import settings_options
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
from inflight.cli.translated_options import EngineVerb
from inflight.cli.verb import stacked
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.config.setting import setting
from inflight.ray.replica_setup import Replicas
from inflight.server.settings import ServerSettings

_IN_TABLE = "set it in the model's table"
_NOT_OF_MODELS = {
    "name": ("MODEL", _IN_TABLE),
    "model": ("--model", _IN_TABLE),
    "served_model_name": ("--served-model-name", "tables have names; write aliases = [...] there"),
    "lora": ("--lora", _IN_TABLE),
    "lora_dir": (
        "--lora-dir",
        "with several models, adapters are named at the start; write lora = [...] into the model's table",
    ),
    "kv_events_config": ("--kv-events-config", "its addresses are one engine's; serve that model by itself"),
    "role": ("--role", "peers exchange blocks with one engine; serve that model by itself"),
    "record": ("--record", _IN_TABLE),
    "replicas": ("--replicas", "replicas are of one model; serve it by itself"),
}
DEFAULTS = {"admission": "auto"}  # clients send as they like, so the queue must be bounded


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelsOption:
    """Several models."""

    models: Path | None = setting(
        None,
        "TOML file of several models behind this address, loaded when they are called; local: all that are in the "
        "caches of `inflight pull` and of the hub. Instead of MODEL.",
        "Server",
        metavar="FILE",
        path="file",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyOptions:
    """Keys of clients."""

    api_key: tuple[str, ...] = setting(
        (), "Key that clients must send; several times.", "Keys and tenants", is_secret=True
    )
    api_keys_file: Path | None = setting(
        None, "TOML file of tenants, each with a key, a weight and limits.", path="file"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """The log."""

    log_format: Literal["auto", "text", "json"] = setting(
        "auto", "text, json (a line each), or auto: colours on a terminal.", "Log and traces", is_choice=True
    )
    log_level: Literal["debug", "info", "warning", "error"] = setting(
        "info", "info has a line for every request.", is_choice=True
    )
    verbose: bool = setting(False, "Show every setting in force, with its reason.")
    print_config: bool = setting(False, "Print these options as a file for --config, with where each comes from.")


server_options = stacked(
    settings_options(ModelsOption),
    settings_options(ServerSettings),
    settings_options(KeyOptions),
    settings_options(LogOptions),
)


@click.command("serve", cls=EngineVerb, context_settings={"default_map": DEFAULTS})
@click.argument("name", metavar="[MODEL]", required=False, shell_complete=complete_model)
@engine_options
@scheduling_options
@server_options
@replica_options
@record_option
def command(name: str | None, **values: Any) -> int:
    """Serve MODEL on 127.0.0.1:8000, with APIs for clients of OpenAI, Anthropic and others. MODEL is a folder, a .gguf
    file, a hub id, or a name such as smollm2; without it the built-in model."""
    started = time.monotonic()
    if values.pop("print_config"):
        from inflight.cli.printed_config import printed_config

        if values["models"] is None:
            settings_of(name, dict(values))  # reports mistakes
        click.echo(printed_config(click.get_current_context()), nl=False)
        return 0
    if (models := values.pop("models")) is not None:
        return _serve_models(models, name, values, started)
    asked = settings_of(name, values)
    from inflight.server.tenants import load_tenants  # after the settings, so that their errors are reported at once

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
    """The settings of a server of one model."""

    server: ServerSettings
    engine: EngineSettings
    scheduling: SchedulingSettings
    replicas: Replicas | None
    record: Path | None
    verbose: bool
    api_keys: tuple[str, ...]
    keys_file: Path | None


def settings_of(name: str | None, values: dict[str, Any]) -> Asked:
    """Take the settings out of the verb's arguments; the log's are left. Raises click.UsageError, SettingsError."""
    name_model(name, values)
    values.pop("models", None)
    values.pop("print_config", None)
    replicas = replicas_of(values)
    record, verbose = values.pop("record"), values.pop("verbose")
    api_keys, keys_file = values.pop("api_key"), values.pop("api_keys_file")
    server = _server_settings(values)
    engine, scheduling = engine_settings(values), scheduling_settings(values)
    return Asked(server, engine, scheduling, replicas, record, verbose, api_keys, keys_file)


def _server_settings(values: dict[str, Any]) -> ServerSettings:
    """Take the server's options out of the verb's arguments."""
    given = {item.name: values.pop(item.name) for item in fields(ServerSettings)}
    given["api_processes"] = given["api_processes"] or 1  # 0 once meant the engine's process, which serves no HTTP
    return ServerSettings(**given)


def _serve_models(file: Path, name: str | None, values: dict[str, Any], started: float) -> int:
    """Serve several models, each in a process of its own."""
    for option, (shown, instead) in _NOT_OF_MODELS.items():
        if name is not None if option == "name" else values[option] not in (None, ()):
            raise click.UsageError(f"{shown} does not go with --models: {instead}.")
    from inflight.cli.models_file import models_found, read_models

    verb = click.get_current_context()
    models = models_found(verb) if str(file) == "local" else read_models(file, verb)
    api_keys, keys_file = values["api_key"], values["api_keys_file"]
    settings = _server_settings(values)
    from inflight.launch.several_models import serve_models
    from inflight.server.tenants import load_tenants

    tenants = load_tenants(api_keys, keys_file)
    settings = settings.for_tenants(len(tenants.names))
    of_logs = {option: values[option] for option in ("verbose", "log_format", "log_level")}
    return serve_models(settings, models, tenants, started=started, **of_logs)
