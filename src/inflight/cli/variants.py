"""Engine settings side by side: `--setting 'NAME=OPTIONS'`, each what the verb's own options say, but for these.

Knows how options are written; what they mean, `EngineSettings` and `SchedulingSettings` know.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click
from click.core import ParameterSource

from inflight.cli.options import engine_options, engine_settings, scheduling_options, scheduling_settings
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.config.setting import SettingsError

# The strategies of the field, as servers have them or had them.
FIELD = (
    "static, 4 rows=--strategy static --batch-size 4 --max-num-seqs 4",
    "static, 32 rows=--strategy static --batch-size 32",
    "dynamic=--strategy dynamic --batch-size 32",
    "continuous=--strategy continuous",
    "chunked=--strategy chunked",
    "adaptive=--strategy adaptive --itl-target 0.1",
)


@dataclass(frozen=True, slots=True)
class Variant:
    """One setting to compare. options: as they were written."""

    name: str
    options: str
    engine: EngineSettings
    scheduling: SchedulingSettings


@click.command("setting", add_help_option=False)
@engine_options
@scheduling_options
def _setting(**values: Any) -> tuple[EngineSettings, SchedulingSettings]:
    return engine_settings(values), scheduling_settings(values)


def read_variants(texts: Sequence[str]) -> list[Variant]:
    """Within a verb that has the engine's and the scheduling options too, what was given there holds for all."""
    variants = [_read_one(text) for text in texts]
    names = [one.name for one in variants]
    for name in names:
        if names.count(name) > 1:
            raise click.UsageError(f"--setting has the name {name!r} {names.count(name)} times; give each its own.")
    return variants


def _read_one(text: str) -> Variant:
    name, separator, options = text.partition("=")
    name = name.strip()
    if not separator or not name:
        raise click.UsageError(f"--setting is {text!r}; write NAME=OPTIONS, such as 'small steps=--max-num-seqs 8'.")
    try:
        words = shlex.split(options)
    except ValueError as error:
        raise click.UsageError(f"--setting {name!r} cannot be read: {error}; look for a quote that is open.") from None
    verb = click.get_current_context(silent=True)
    try:
        context = _setting.make_context(name, words, parent=verb, default_map=_given(verb) if verb else {})
        with context:
            engine, scheduling = _setting.invoke(context)
    except (click.UsageError, SettingsError) as error:
        told = error.format_message() if isinstance(error, click.UsageError) else str(error)
        raise click.UsageError(f"--setting {name!r}: {told}") from None
    return Variant(name, options.strip(), engine, scheduling)


def _given(verb: click.Context) -> dict[str, Any]:
    """What was said for all: in a configuration file, in a preset, on the command line."""
    names = {parameter.name for parameter in _setting.params}
    given = {name: value for name, value in (verb.default_map or {}).items() if name in names}
    typed = [name for name in names if verb.get_parameter_source(str(name)) is ParameterSource.COMMANDLINE]
    return given | {name: verb.params[name] for name in typed if name in verb.params}
