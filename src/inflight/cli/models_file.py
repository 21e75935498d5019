"""`inflight serve --models FILE.toml`: several models behind one address, one table each; --models local: those that
are on this machine.

memory = 12                 # GiB for all of them together; without it 80 % of what is free
    max-wait = 60               # seconds that a call waits for its model to be loaded
default = "chat"            # of bodies that name no model; without it they are refused

[models.chat]               # the name by which requests call it; without a model it is the built-in one
model = "Qwen/Qwen2.5-0.5B-Instruct"
aliases = ["gpt-4o-mini"]
pin = true                  # loaded at the start, and never unloaded
weight = 4                  # share of the cores beside others that compute
kv-memory = 2               # and any other option of the engine, of scheduling or of answers, by its long name
lanes.vip = { weight = 3 }

[models.embed]
model = "BAAI/bge-small-en-v1.5"
idle = 600                  # seconds without a call after which it is unloaded
size = 0.4                  # GiB that it takes, where that is known better than it is estimated
"""

from __future__ import annotations

import difflib
import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from inflight.cli.declared import options_of
from inflight.cli.options import LANES, defaults_of, engine_settings, lanes_of, scheduling_settings
from inflight.cli.verb import Verb, groups_of
from inflight.config.setting import SettingsError
from inflight.core.types.sampling import MAX_NAME_CHARS
from inflight.counted import cause_of
from inflight.launch.several_models import FileModel, ModelsFile
from inflight.server.settings import ServerSettings

MAX_WAIT = 60.0  # seconds
OF_MODELS = (
    *("tool_parser", "reasoning_parser", "parse_control_tokens", "generation_config", "override_generation_config"),
    *("max_n", "max_prompts", "record"),
)
_GROUPS = ("Engine", "Scheduling")
_TOP = ("memory", "max-wait", "default", "models")
_RESIDENCY = ("aliases", "pin", "weight", "idle", "size")


def read_models(path: Path, verb: click.Context) -> ModelsFile:
    """verb: of the command line, whose options hold for every model that does not say otherwise. Raises
    click.UsageError."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise click.UsageError(f"--models {path} cannot be read: {cause_of(error)}.") from None
    where = f"--models {path}"
    _check_keys(where, content, _TOP)
    tables = content.get("models")
    if not isinstance(tables, dict) or not tables or not all(isinstance(one, dict) for one in tables.values()):
        raise click.UsageError(f"{where} names no model; write a table [models.NAME] for each.")
    models = tuple(_model(f"{where}, [models.{name}]", name, dict(table), verb) for name, table in tables.items())
    _check_names(where, models)
    default = content.get("default")
    if default is not None and not any(default in one.names for one in models):
        raise click.UsageError(f"{where}: default is {default!r}, which is not one of its models; name one of them.")
    return ModelsFile(
        path=path,
        memory=_number(where, content, "memory"),
        max_wait=_number(where, content, "max-wait") or MAX_WAIT,
        default=default,
        models=models,
    )


def models_found(verb: click.Context) -> ModelsFile:
    """Return the models in the caches of this machine, which may change while the server runs; without any the built-in
    one. verb: of the command line, whose options hold for all of them."""
    if (folder := verb.params.get("download_dir")) is not None:  # for all processes, also those that pull and delete
        os.environ["HF_HUB_CACHE"] = str(Path(folder).expanduser().absolute())

    def find() -> tuple[FileModel, ...]:
        from inflight.execution.checkpoints.local_models import local_models

        given = {one.name: one.name if one.source == "package" else str(one.path) for one in local_models()}
        tables: dict[str, dict[str, Any]] = {name: {"model": model} for name, model in given.items()}
        tables = tables or {"built-in": {}}
        return tuple(_model(f"--models local, {name}", name, table, verb) for name, table in tables.items())

    return ModelsFile(path=Path("local"), memory=None, max_wait=MAX_WAIT, default=None, models=find(), find=find)


def _model(where: str, name: str, table: dict[str, Any], verb: click.Context) -> FileModel:
    own = {key: table.pop(key) for key in _RESIDENCY if key in table}
    pin, idle, aliases = own.get("pin", False), _number(where, own, "idle"), _aliases(where, own)
    if not isinstance(pin, bool):
        raise click.UsageError(f"{where}: pin is {pin!r}; give true or false.")
    if pin and idle is not None:
        raise click.UsageError(f"{where}: idle has no effect with pin = true, which keeps it loaded; leave one out.")
    lanes = lanes_of(where, table)
    parameters = [one for one in verb.command.params if _is_of_models(verb.command, one)]
    defaults = defaults_of(where, table, parameters)
    try:
        context = _parsed(verb, parameters, defaults)
        context.meta[LANES] = {**verb.meta.get(LANES, {}), **lanes}
        values = dict(context.params)
        with context.scope(cleanup=False):
            engine, scheduling = engine_settings(values), scheduling_settings(values)
        of_answers = {key: values[key] for key in OF_MODELS if key != "record"}
        server = replace(options_of(ServerSettings, verb.params), served_model_name=(name, *aliases), **of_answers)
    except SettingsError as error:
        raise click.UsageError(f"{where}: {error}") from None
    except click.UsageError as error:
        raise click.UsageError(f"{where}: {error.format_message()}") from None
    return FileModel(
        name=name,
        aliases=aliases,
        pin=pin,
        weight=_number(where, own, "weight") or 1.0,
        idle=idle,
        size=_number(where, own, "size"),
        engine=engine,
        scheduling=scheduling,
        server=server,
        record=values["record"],
    )


def _parsed(verb: click.Context, parameters: list[click.Parameter], defaults: Mapping[str, Any]) -> click.Context:
    """Parse the verb's options as the table has them, and else the command line or the environment."""
    given = {
        str(one.name): _as_word(verb.params[str(one.name)])
        for one in parameters
        if one.name in verb.params and one.name != "model" and _was_given(verb, str(one.name))
    }
    command = verb.command.without_environment() if isinstance(verb.command, Verb) else verb.command
    return command.make_context(verb.info_name, [], default_map={**given, **defaults})


def _as_word(value: Any) -> Any:
    """Return a value as it is typed, where that is JSON."""
    return json.dumps(value) if isinstance(value, dict) else value


def _was_given(verb: click.Context, name: str) -> bool:
    source = verb.get_parameter_source(name)
    return source is not None and source is not click.core.ParameterSource.DEFAULT


def _is_of_models(command: click.Command, parameter: click.Parameter) -> bool:
    name = str(parameter.name)
    return name in OF_MODELS or (groups_of(command).get(name) in _GROUPS and name != "config")


def _aliases(where: str, table: Mapping[str, Any]) -> tuple[str, ...]:
    given = table.get("aliases", [])
    if not isinstance(given, list) or not all(isinstance(one, str) for one in given):
        raise click.UsageError(f"{where}: aliases are {given!r}; give a list of names.")
    return tuple(given)


def _number(where: str, table: Mapping[str, Any], key: str) -> float | None:
    value = table.get(key)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9):
        raise click.UsageError(f"{where}: {key} is {value!r}; give a number above 0.")
    return value


def _check_keys(where: str, table: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in table:
        if key not in known:
            near = difflib.get_close_matches(key.replace("_", "-"), known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}; a model's go in its table."
            raise click.UsageError(f"{where} has the key {key!r}, which is unknown; {hint}")


def _check_names(where: str, models: tuple[FileModel, ...]) -> None:
    seen: dict[str, str] = {}
    for one in models:
        for name in (*one.names, *(adapter for adapter, _ in one.engine.named_loras)):
            if not 0 < len(name) <= MAX_NAME_CHARS or not name.isprintable():
                raise click.UsageError(
                    f"{where}: the name {name!r} is not allowed; give 1 to {MAX_NAME_CHARS} printable characters."
                )
            if name in seen:
                raise click.UsageError(
                    f"{where}: {name!r} is a name of {seen[name]!r} and of {one.name!r}; give each model, alias and "
                    "adapter its own name."
                )
            seen[name] = one.name
