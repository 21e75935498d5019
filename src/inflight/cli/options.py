"""Options that several verbs share, `--config FILE.toml` and `--preset`, and the settings that are made of options."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from functools import cache, wraps
from pathlib import Path
from typing import Any, NamedTuple

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from inflight.cli.declared import registry_options, settings_options
from inflight.cli.summary import show_at_start
from inflight.cli.verb import stacked
from inflight.config.engine import EngineSettings
from inflight.config.presets import preset
from inflight.config.sampling import SamplingSettings
from inflight.config.scheduling import SCHEDULING_NAMES, SchedulingSettings
from inflight.config.setting import SettingsError
from inflight.core.strategies.registry import OPTIONS
from inflight.core.types.sampling import SamplingParams
from inflight.counted import cause_of

# Keys in click's context: tables of lanes; names of options of a file and of a preset, and where they come from.
LANES, GIVEN = "inflight.lanes", "inflight.given"


def _load_config(ctx: click.Context, _: click.Parameter, path: Path | None) -> None:
    if path is None:
        return
    import tomllib  # here, as few starts have such a file

    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        yaml = " Options are written in TOML, not YAML: max-num-seqs = 64." if path.suffix in (".yaml", ".yml") else ""
        raise click.UsageError(f"--config {path} cannot be read: {cause_of(error)}.{yaml}") from None
    where = f"--config {path}"
    ctx.meta[LANES] = lanes_of(where, values)
    defaults = defaults_of(where, values, ctx.command.params)
    ctx.meta[GIVEN] = {**ctx.meta.get(GIVEN, {}), **dict.fromkeys(defaults, where)}
    ctx.default_map = {**(ctx.default_map or {}), **defaults}


def defaults_of(where: str, values: Mapping[str, Any], parameters: Iterable[click.Parameter]) -> dict[str, Any]:
    """Return a file's values of options, by their names in click. where: names the file in errors. Raises
    click.UsageError."""
    names = {name.lstrip("-"): parameter for parameter in parameters for name in parameter.opts}
    defaults = {}
    for key, value in values.items():
        parameter = names.get(key)
        if not isinstance(parameter, click.Option) or parameter.name == "config":
            known = sorted(name for name, one in names.items() if isinstance(one, click.Option) and name != "config")
            import difflib  # here, as it is for mistakes only

            near = difflib.get_close_matches(key.replace("_", "-"), known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are: {', '.join(known)}."
            raise click.UsageError(f"{where} has the key {key!r}, which is no option; {hint}")
        try:
            defaults[str(parameter.name)] = _as_typed(parameter, value)
        except ValueError as error:
            raise click.UsageError(f"{where}: {key} = {json.dumps(value, default=str)}; {error}.") from None
    return defaults


def _take_preset(ctx: click.Context, _: click.Parameter, name: str | None) -> None:
    if name is None:
        return
    chosen = preset(name)
    names = {opt.lstrip("-"): parameter.name for parameter in ctx.command.params for opt in parameter.opts}
    show_choice(f"Preset {name}: {chosen.purpose}.")

    @cache
    def values() -> dict[str, str]:
        """Choose the values once the device is known, in any order of options."""
        found = chosen.on(_on_gpu(ctx))
        for key, (value, why) in found.items():
            show_choice(f"  --{key} {value}: {why}")
        return {key: str(value) for key, (value, _) in found.items()}

    def value_of(key: str) -> Callable[[], str]:
        return lambda: values()[key]

    chosen_names = [str(names[key]) for key in chosen.values]
    ctx.meta[GIVEN] = {**dict.fromkeys(chosen_names, f"--preset {name}"), **ctx.meta.get(GIVEN, {})}
    ctx.default_map = {**{names[key]: value_of(key) for key in chosen.values}, **(ctx.default_map or {})}


def show_choice(line: str) -> None:
    """Say on standard error what an option is read as, in the form of the log where this is JSON."""
    show_at_start(line.strip(), lambda: print(line, file=sys.stderr), logging.INFO)


def _on_gpu(ctx: click.Context) -> bool:
    """Return whether a GPU computes steps, of the engine or of a simulation. An option that is not given has no value
    of its type while others are read."""
    if isinstance(measured := ctx.params.get("step_model"), Path):
        from inflight.simulate.sources import read_step_model

        return read_step_model(measured).device.startswith("cuda")
    if "device" not in ctx.params:
        return isinstance(ctx.params.get("hardware"), str)
    from inflight.build.limits import resolve_device

    asked = EngineSettings(device=ctx.params["device"])
    return resolve_device(asked).value != "cpu"


def lanes_of(where: str, values: dict[str, Any]) -> dict[str, Any]:
    """Take the `[lanes.NAME]` tables out of a file's values. Raises click.UsageError."""
    lanes = values.pop("lanes", {})
    if not isinstance(lanes, dict) or not all(isinstance(lane, dict) for lane in lanes.values()):
        raise click.UsageError(f"{where}: write lanes as tables, [lanes.NAME] each.")
    return {name: {key.replace("-", "_"): value for key, value in lane.items()} for name, lane in lanes.items()}


def _as_typed(parameter: click.Option, value: Any) -> Any:
    """Return a TOML value as on the command line, so that both are checked alike."""
    if parameter.is_flag:
        if not isinstance(value, bool):
            raise ValueError("give true or false")
        return not value if parameter.flag_value is False else value
    if parameter.multiple or (parameter.nargs > 1 and isinstance(value, list)):
        return [_text(one) for one in (value if isinstance(value, list) else [value])]
    return json.dumps(value) if parameter.metavar == "JSON" and isinstance(value, dict) else _text(value)


def _text(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("give one number or text")
    return str(value)


config_option = click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    callback=_load_config,
    is_eager=True,
    expose_value=False,
    help="TOML file that holds any of these options by its long name; the environment and the command line win.",
)


def complete_model(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the catalogue's names that begin so; where there is none, have the shell complete a path."""
    from inflight.execution.checkpoints.packaged.catalogue import CATALOGUE

    found = [
        CompletionItem(name, help=one.description) for name, one in CATALOGUE.items() if name.startswith(incomplete)
    ]
    return found or [CompletionItem(incomplete, type="file")]


def complete_local_model(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the names of models on this machine that begin so; where there is none, have the shell complete a path."""
    from inflight.execution.checkpoints.local_models import local_models

    found = [CompletionItem(one.name) for one in local_models() if one.name.startswith(incomplete)]
    return found or [CompletionItem(incomplete, type="file")]


_TEXT = ("tokenizer", "chat_template", "chat_template_kwargs")


def in_download_dir(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a verb --download-dir, and run it with that folder as the hub's cache. It decorates first."""

    @wraps(function)
    def within(*arguments: Any, download_dir: str | None, **values: Any) -> Any:
        from inflight.execution.checkpoints.hub import hub_cache

        with hub_cache(download_dir):
            return function(*arguments, **values)

    return settings_options(EngineSettings, only=("download_dir",))(within)


engine_options = settings_options(EngineSettings, {"model": (config_option,)}, {"model": complete_model})
measured_engine_options = settings_options(  # for verbs whose requests are token ids
    EngineSettings,
    {"model": (config_option,)},
    {"model": complete_model},
    only=[item.name for item in fields(EngineSettings) if item.name not in _TEXT],
)

_preset = click.option(
    "--preset",
    callback=_take_preset,
    is_eager=True,
    expose_value=False,
    help="latency, throughput, mixed or offline: options that go together; an option that is given besides wins.",
)
scheduling_options = settings_options(SchedulingSettings, {"strategy": (_preset,), "policy": registry_options(OPTIONS)})

record_option = click.option(
    "--record", type=click.Path(dir_okay=False, path_type=Path), help="Write the step record (JSON lines) here."
)

generation_options = stacked(engine_options, scheduling_options, settings_options(SamplingSettings), record_option)


def name_model(name: str | None, values: dict[str, Any]) -> None:
    """Take a verb's argument MODEL for its option --model. Raises click.UsageError where the command line has both."""
    source = click.get_current_context().get_parameter_source("model")
    if name is not None and source is ParameterSource.COMMANDLINE:
        raise click.UsageError(f"MODEL {name!r} and --model {values['model']!r} both name a model; give one.")
    values["model"] = name if name is not None else values["model"]


def engine_settings(values: dict[str, Any]) -> EngineSettings:
    """Take the engine's options out of a verb's arguments."""
    return EngineSettings(
        **{item.name: values.pop(item.name) for item in fields(EngineSettings) if item.name in values}
    )


def scheduling_settings(values: dict[str, Any]) -> SchedulingSettings:
    """Take the scheduling options out of a verb's arguments."""
    given = {name: values.pop(name) for name in SCHEDULING_NAMES if name in values}
    given["tenant_weights"] = dict(_weight(one) for one in given["tenant_weights"])
    lanes = click.get_current_context().meta.get(LANES, {})
    return SchedulingSettings.of(**given, lanes=lanes)


def _weight(text: str) -> tuple[str, float]:
    name, _, number = text.partition("=")
    try:
        weight = float(number)
    except ValueError:
        weight = 0.0
    if not 0 < weight < float("inf"):
        raise SettingsError(f"--tenant-weight is {text!r}; write NAME=W with a number above 0, such as acme=2.")
    return name, weight


class Generation(NamedTuple):
    """An engine's settings, the parameters of requests that name none, and the file of its step record."""

    engine: EngineSettings
    scheduling: SchedulingSettings
    params: SamplingParams
    record: Path | None


def generation_of(name: str | None, values: dict[str, Any]) -> Generation:
    """Take the options of generation out of a verb's arguments. name: its argument MODEL. `--seed` stays the engine's:
    each request draws its own."""
    name_model(name, values)
    params = SamplingSettings(**{item.name: values.pop(item.name) for item in fields(SamplingSettings)}).params()
    return Generation(engine_settings(values), scheduling_settings(values), params, values.pop("record"))
