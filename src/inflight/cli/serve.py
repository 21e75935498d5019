"""`inflight serve`: the OpenAI-compatible server."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import click
from click.core import ParameterSource

from inflight.cli.declared import settings_options
from inflight.cli.options import (
    GIVEN,
    LANES,
    complete_model,
    engine_options,
    engine_settings,
    name_model,
    record_option,
    scheduling_options,
    scheduling_settings,
)
from inflight.cli.translated_options import EngineVerb
from inflight.cli.verb import WORDS, groups_of, stacked
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.config.setting import SettingsError, declared_settings, setting
from inflight.extras import pip_install
from inflight.ray.head import check_address
from inflight.ray.replica_setup import Replicas, Scale
from inflight.routing.registry import ROUTERS
from inflight.server.settings import ServerSettings

DEFAULT_ROUTER = "prefix-aware"
MAX_REPLICAS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaOptions:
    """Replicas, and the router before them."""

    replicas: int | None = setting(None, "Engines behind this address, each in a replica of Ray Serve.", "Replicas")
    max_replicas: int | None = setting(None, "Maximum replicas when scaling with queue length; --replicas unless set.")
    prefill_replicas: int | None = setting(None, "Engines that compute prompts for them, and send keys and values.")
    max_prefill_replicas: int | None = setting(None, "Maximum prefill replicas; --prefill-replicas unless set.")
    ray_address: str | None = setting(
        None, "Head of a Ray cluster to run them on; else Ray is started on this machine."
    )
    router: str | None = setting(None, f"Router of requests: {', '.join(ROUTERS)}; {DEFAULT_ROUTER} unless set.")


replica_options = settings_options(ReplicaOptions)


def replicas_of(values: dict[str, Any]) -> Replicas | None:
    """Take the options out of the verb's arguments. Raises click.UsageError, SettingsError."""
    given = {one.name: values.pop(one.name) for one in declared_settings(ReplicaOptions)}
    if given["replicas"] is None:
        for name, value in given.items():
            if value is not None:
                raise click.UsageError(f"--{name.replace('_', '-')} has no effect without --replicas; leave it out.")
        return None
    _check(given, values)
    router, prefill = given["router"] or DEFAULT_ROUTER, None
    if given["prefill_replicas"] is not None:
        prefill = Scale(given["prefill_replicas"], given["max_prefill_replicas"])
        values["role"] = "both"  # of the pools together: options of transfers have an effect
    return Replicas(Scale(given["replicas"], given["max_replicas"]), given["ray_address"], router, prefill)


def _check(given: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    router = given["router"]
    _check_scale("replicas", given["replicas"], given["max_replicas"])
    _check_prefill(given, values)
    if router is not None and router not in ROUTERS:
        raise SettingsError(f"--router is {router!r}; known are {', '.join(ROUTERS)}.")
    for name in ("record", "lora_dir", "kv_events_config", "role"):
        if values[name] is not None:
            raise click.UsageError(
                f"--{name.replace('_', '-')} is for one engine, and with --replicas there are several; leave it out."
            )
    if find_spec("ray") is None:  # not imported: that takes a second, before other errors
        raise SettingsError(
            f"--replicas needs Ray Serve, which is not installed; {pip_install('ray')}, or serve one engine."
        )
    if given["ray_address"] is not None:
        check_address(given["ray_address"])


def _check_scale(name: str, replicas: int, maximum: int | None) -> None:
    if not 1 <= replicas <= MAX_REPLICAS:
        raise SettingsError(f"--{name} is {replicas}; give a number from 1 to {MAX_REPLICAS:,}.")
    if maximum is not None and not replicas <= maximum <= MAX_REPLICAS:
        raise SettingsError(
            f"--max-{name} is {maximum}; give a number from --{name}, which is {replicas}, to {MAX_REPLICAS:,}."
        )


def _check_prefill(given: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    if given["prefill_replicas"] is None:
        if given["max_prefill_replicas"] is not None:
            raise click.UsageError("--max-prefill-replicas has no effect without --prefill-replicas; leave it out.")
        return
    _check_scale("prefill-replicas", given["prefill_replicas"], given["max_prefill_replicas"])
    for name in ("kv_transfer_host", "kv_transfer_port"):
        if values[name] is not None:
            raise click.UsageError(
                f"--{name.replace('_', '-')} is for one engine, and each of --prefill-replicas has its own; leave it "
                "out."
            )


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
        if values["models"] is None:
            settings_of(name, dict(values))  # reports mistakes
        else:
            _check_goes_with_models(name, values)
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


def _check_goes_with_models(name: str | None, values: dict[str, Any]) -> None:
    """Refuse options of one model alone. Raises click.UsageError."""
    for option, (shown, instead) in _NOT_OF_MODELS.items():
        if name is not None if option == "name" else values[option] not in (None, ()):
            raise click.UsageError(f"{shown} does not go with --models: {instead}.")


def _serve_models(file: Path, name: str | None, values: dict[str, Any], started: float) -> int:
    """Serve several models, each in a process of its own."""
    _check_goes_with_models(name, values)
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


_NOT_IN_FILES = ("config", "preset", "help", "print_config")  # the values of a preset are printed
_REST = "Others"


def printed_config(context: click.Context) -> str:
    """Return the text of the file. Secrets are left out; options that are not given are comments."""
    command = context.command
    typed, _, _ = command.make_parser(context).parse_args([*context.meta[WORDS]])
    groups: dict[str, list[str]] = {}
    for one in command.params:
        if isinstance(one, click.Option) and one.name not in _NOT_IN_FILES and not one.hidden:
            title = groups_of(command).get(str(one.name), _REST)
            if line := _line(context, one, typed):
                groups.setdefault(title, []).append(line)
    texts = ["\n".join((f"# {title}", *lines)) for title, lines in groups.items()]
    for name, lane in context.meta.get(LANES, {}).items():
        lines = [f"{key.replace('_', '-')} = {_value(value)}" for key, value in lane.items()]
        texts.append("\n".join((f"[lanes.{json.dumps(name)}]", *lines)))
    return "\n\n".join(texts) + "\n"


def _line(context: click.Context, option: click.Option, typed: dict[str, Any]) -> str | None:
    """Return an option's line; None: it is not given and has no default."""
    name = str(option.name)
    given, source = option.consume_value(context, typed)
    if name == "model" and source is not ParameterSource.COMMANDLINE and context.params.get("name") is not None:
        return f"model = {_value(context.params['name'])}  # the argument MODEL"
    is_default = source is ParameterSource.DEFAULT  # whose value may be click's mark of none
    value = context.params.get(name) if is_default else option.type_cast_value(context, given)
    key = option.opts[0].lstrip("-")
    if option.is_flag and option.flag_value is False:
        value = not value
    where = _origin(context, option, source)
    if option.hide_input and value:
        variable = key.upper().replace("-", "_")
        return f"# {key} is secret; give it by INFLIGHT_{variable}  # {where}"
    if where is not None:
        return f"{key} = {_value(value)}  # {where}"
    return None if value in (None, (), "") else f"# {key} = {_value(value)}"


def _origin(context: click.Context, option: click.Option, source: ParameterSource) -> str | None:
    """Return where a value comes from; None: it is the option's default."""
    if source is ParameterSource.COMMANDLINE:
        return "the command line"
    if source is ParameterSource.ENVIRONMENT:
        return next(one for one in option.envvar or () if os.environ.get(one))
    if source is ParameterSource.DEFAULT_MAP:
        return str(context.meta.get(GIVEN, {}).get(option.name, f"default of {context.info_name}"))
    return None


def _value(value: Any) -> str:
    """Return a value in TOML, whose texts are those of JSON."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    return json.dumps(str(value) if isinstance(value, Path) else value, ensure_ascii=False)
